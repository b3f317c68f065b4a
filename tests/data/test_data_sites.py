"""`sites:PATH`: every subfolder is a client of its name; so is every value of a table's column of groups."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import potluck as library
from potluck.core.errors import PotluckError
from potluck.data import load_data

SITES = {"north": ["cat", "dog"], "south": ["dog", "owl"], "west": ["cat", "owl"]}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "cache"))


def write_images(count: int = 6) -> None:
    rng = np.random.default_rng(0)
    for site, names in SITES.items():
        for name in names:
            Path("sites", site, name).mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8))
                image.save(f"sites/{site}/{name}/{number}.png")


def test_images_keep_their_site_and_classes_are_united():
    write_images()
    for _ in range(2):  # read, and read again from the copy
        data = load_data("sites:sites")
        assert (data.class_names, data.group_names) == (("cat", "dog", "owl"), ("north", "south", "west"))
        assert data.groups is not None
        assert data.groups.tolist() == [0] * 12 + [1] * 12 + [2] * 12
        assert data.y.tolist() == [0] * 6 + [1] * 6 + [1] * 6 + [2] * 6 + [0] * 6 + [2] * 6


def test_each_site_is_a_client_of_its_name(potluck):
    write_images()
    code, _, _ = potluck(
        "run", "fedgh", "--data", "sites:sites", "--rounds", "1", "--engine", "serial", "--out", "run"
    )
    assert code == 0
    run = library.read_run("run")
    rows = [row for row in run.clients if row["final"]]
    assert [row["name"] for row in rows] == ["north", "south", "west"]
    assert [row["train_samples"] for row in rows] == [9, 9, 9]
    assert run.summary["partition"] == "natural"
    assert run.summary["class_counts"][1][0] == 0  # no cats in the south
    report = Path("run", "report.html").read_text()
    assert all(name in report for name in ("north", "south", "west", "owl"))
    code, _, err = potluck("run", "fedgh", "--data", "sites:sites", "--clients", "5")
    assert code == 2
    assert "partition.clients = 5, and data 'sites:sites' have 3 named groups" in err


def test_another_partition_deals_the_rows_of_all_sites():
    write_images()
    run = library.run(
        "standalone", data="sites:sites", partition="iid", clients=2, rounds=1, engine="serial", out="run"
    )
    assert [row["name"] for row in run.clients if row["final"]] == ["client-0", "client-1"]


def test_tables_of_sites_are_read_together(potluck):
    for site, ward in (("east", "A"), ("north", "B")):
        Path("sites", site).mkdir(parents=True)
        rows = [f"{number},{number % 2},{ward}" for number in range(12)]
        Path("sites", site, "first.csv").write_text("\n".join(["x,label,ward", *rows]))
    Path("sites/north/second.csv").write_text("ward,x,label\nB,99,1\n")
    data = load_data("sites:sites")
    assert data.groups is not None
    assert data.groups.tolist() == [0] * 12 + [1] * 13
    assert data.x[24].tolist() == [99, 0, 1]
    code, out, _ = potluck("data", "show", "sites:sites", "--label", "ward")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[2:4]] == [["east", "12"], ["north", "13"]]
    Path("sites/north/second.csv").write_text("ward,y,label\nB,99,1\n")
    with pytest.raises(
        PotluckError, match=r"Table '.*first.csv' has the column 'x', which '.*second.csv' lacks"
    ):
        load_data("sites:sites")
    Path("sites/north/second.csv").write_text("ward,x,label\nB,NA,1\n")
    with pytest.raises(PotluckError, match=r"Column 'x' of '.*second.csv' is 'NA' in row 2"):
        load_data("sites:sites")
    assert load_data("sites:sites", missing="impute").x[24, 0] == pytest.approx(5.5)


def test_texts_of_sites_share_one_vocabulary():
    for site, word in (("a", "alpha"), ("b", "beta")):
        for label in ("no", "yes"):
            Path("sites", site, label).mkdir(parents=True)
            for number in range(2):
                Path("sites", site, label, f"{number}.txt").write_text(f"{word} {label}")
    data = load_data("sites:sites")
    assert data.vocabulary == 6  # padding, unknown, alpha, beta, no, yes
    assert data.x[:, 0].tolist() == [2] * 4 + [3] * 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        ([], "need an existing folder with a folder for each site"),
        (["sites/a.png"], "has no folders"),
        (["sites/a/cat/1.png", "sites/b/2.csv"], "Site 'a' has images and site 'b' has tables"),
        (["sites/a/train/cat/1.png"], "Site 'a' has a folder 'train'"),
        (["sites/a/notes.md"], "Site 'a' has no images or .txt files"),
    ],
)
def test_folders_that_are_no_sites_are_named(make: list[str], sentence: str):
    for name in make:
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    with pytest.raises(PotluckError, match=sentence):
        load_data("sites:sites")


def test_values_of_a_column_are_clients(potluck):
    rows = [f"{number},{number % 2},{'north' if number < 20 else 'south'}" for number in range(40)]
    Path("t.csv").write_text("\n".join(["x,label,hospital", *rows]))
    flags = ["--set", "data.groups=hospital", "--rounds", "1", "--engine", "serial", "--out", "run"]
    assert potluck("run", "fedgh", "--data", "csv:t.csv", *flags)[0] == 0
    rows = [row for row in library.read_run("run").clients if row["final"]]
    assert [(row["name"], row["train_samples"]) for row in rows] == [("north", 15), ("south", 15)]


def test_bytes_of_load_data_are_scaled_for_members():
    write_images()
    data = load_data("sites:sites")
    member = library.Member(torch.nn.Linear(1, 1), (data.x, data.y))
    x, _ = member.train.take(slice(0, 2))
    assert torch.equal(x, data.transform(data.x[:2]))
    assert x.dtype == torch.float32
