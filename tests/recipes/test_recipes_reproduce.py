"""The commands `potluck recipes` and `potluck reproduce`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from potluck.recipes.recipe import recipe_names

OWN = """
title = "Mine"
paper = "Nobody, 2026."
notes = ["Made up."]

[base]
data = { limit = 200 }
partition = { rule = "iid", clients = 2 }
training = { epochs = 1 }
schedule = { rounds = 2 }
engine = { name = "serial" }

[settings.alike]
models = { names = ["small-mlp"] }

[settings.unlike]
models = { names = ["small-mlp", "fedhe-0"] }

[columns]
alike = { setting = "alike", measure = "best" }
kib = { setting = "alike", measure = "kib-per-client-round" }
rounds = { setting = "alike", measure = "rounds", target = 1.0 }
unlike = { setting = "unlike", measure = "last", title = "two kinds" }

[rows]
Standalone = { method = "standalone", paper = "50.0 0 - 60.0±.5" }
FedGH = { method = "fedgh", paper = "70.0 3.01 2 -" }
"""


@pytest.fixture(autouse=True)
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's data are found by chance."""
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "no-data"))


def cells(folder: Path) -> dict[tuple[str, str], dict[str, str]]:
    with open(folder / "reproduction.csv", encoding="utf-8") as file:
        return {(line["row"], line["column"]): line for line in csv.DictReader(file)}


def test_the_list_and_one_recipe_in_full(potluck):
    code, out, _ = potluck("recipes")
    assert code == 0
    assert len(out.splitlines()) == len(recipe_names())
    assert "fedgh-table3          FedGH, Table 3" in out
    code, out, _ = potluck("recipes", "fedgh-table3")
    assert code == 0
    for piece in (
        "training.epochs = 30",
        "partition.rule = pathological:10",
        "97.60",
        "released script",
        "rounds to 90%",
    ):
        assert piece in out


def test_a_reproduction_from_start_to_table_and_again_with_resume(potluck, tmp_path: Path):
    words = ["reproduce", "fedl2g-table4", "--scale", "smoke", "--columns", "0.01,1", "--out", "r", "-q"]
    code, out, err = potluck(*words)
    assert (code, err) == (0, "")
    assert "41.7 ± .3" in out
    assert "its numbers mean nothing" in " ".join(out.split())
    assert "schedule.rounds 1000 → 2" in " ".join(out.split())
    runs = sorted(
        path.parent.relative_to(tmp_path / "r") for path in (tmp_path / "r").glob("*/*/summary.json")
    )
    assert [str(run) for run in runs] == ["0.01/fedl2g-l-seed0", "1/fedl2g-f-seed0", "1/fedl2g-l-seed0"]
    assert {path.name for path in (tmp_path / "r").iterdir() if path.is_file()} == {
        *("reproduction.md", "reproduction.csv", "reproduction.json", "report.html")
    }
    rounds = (tmp_path / "r/1/fedl2g-f-seed0/rounds.jsonl").read_text().splitlines()
    best = max(json.loads(line)["accuracy_micro"] for line in rounds)
    cell = cells(tmp_path / "r")["FedL2G-f", "1"]
    assert float(cell["here"]) == pytest.approx(100 * best)
    assert (cell["paper"], cell["paper_std"], cell["state"]) == ("41.1", "0.5", "measured")
    assert ("FedL2G-f", "0.01") not in cells(tmp_path / "r")  # the paper has no such cell
    page = (tmp_path / "r/reproduction.md").read_text()
    assert "potluck reproduce fedl2g-table4" in page
    assert "| FedL2G-l | 41.7 ± .3 |" in page

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("*/*/rounds.jsonl")}
    code, _, _ = potluck(*words, "--resume", "--seeds", "0,1")
    assert code == 0
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert len(list((tmp_path / "r").glob("*/*/summary.json"))) == 6
    assert cells(tmp_path / "r")["FedL2G-f", "1"]["runs"] == "2"

    assert "pass --resume to go on" in potluck(*words)[2]
    code, _, err = potluck(*words, "--resume", "--set", "training.lr=0.5")
    assert code == 2
    assert "holds fedl2g-table4 at scale smoke; choose another folder" in err


def test_a_cell_that_fails_is_on_record_and_the_others_go_on(potluck, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(OWN)
    code, out, _ = potluck("reproduce", "mine.toml", "--scale", "paper", "--seeds", "0,1", "--out", "r", "-q")
    assert code == 1
    results = cells(tmp_path / "r")
    states = {key: cell["state"] for key, cell in results.items()}
    assert states.pop(("FedGH", "unlike")) == "failed"
    assert set(states.values()) == {"measured"}
    assert "Failed: FedGH, unlike, seed 1: " in out
    assert "equal feature size" in out
    # 64 features and ten classes: 64·10 numbers of the header, 64·10 + 10 of class means
    assert float(results["FedGH", "kib"]["here"]) == pytest.approx(4 * (640 + 650) / 1024)
    assert results["FedGH", "rounds"]["here"] == ""  # nobody reaches 100 % in two rounds
    assert results["FedGH", "rounds"]["reached"] == "0"
    assert "±" in out
    reasons = json.loads((tmp_path / "r/reproduction.json").read_text())["failures"]
    assert [(reason["row"], reason["seed"]) for reason in reasons] == [("FedGH", 0), ("FedGH", 1)]


def test_an_option_for_one_row_needs_only_that_row_to_have_it(potluck, tmp_path: Path):
    (tmp_path / "mine.toml").write_text(OWN)
    words = ["reproduce", "mine.toml", "--scale", "paper", "--rows", "fedgh", "--columns", "alike"]
    code, out, _ = potluck(*words, "--set", "method.server_lr=0.5", "--out", "r", "-q")
    assert code == 0
    assert "method.server_lr unset → 0.5" in " ".join(out.split())
    assert "server_lr = 0.5" in (tmp_path / "r/alike/fedgh-seed0/experiment.toml").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["recipes", "fedgh-table2"], "Unknown recipe 'fedgh-table2'. Did you mean 'fedgh-table"),
        (["reproduce", "fedhg-table1"], "Did you mean 'fedgh-table1'?"),
        (["reproduce", "nowhere.toml"], "Recipe file 'nowhere.toml' cannot be read"),
        (["reproduce", "fedgh-table3", "--scale", "smal"], "Unknown scale 'smal'. Did you mean 'small'?"),
        (["reproduce", "fedgh-table3", "--rows", "FedHG"], "Unknown row of this recipe 'FedHG'. Did you mean 'FedGH'?"),
        (["reproduce", "fedgh-table3", "--columns", "c11"], "Unknown column of this recipe 'c11'."),
        (["reproduce", "fedgh-table3", "--seeds", "x"], "--seeds 'x' is not a comma list"),
        (["reproduce", "fedgh-table3", "--set", "training.lr=0"], "training.lr = 0"),
        (["reproduce", "fedgh-table3"], "run 'potluck data prepare cifar10'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(potluck, tmp_path: Path, words: list[str], says: str):
    code, _, err = potluck(*words)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())  # nothing is begun


def test_where_a_set_is_missing_the_message_names_the_columns_that_can_be_run(potluck, tmp_path: Path):
    two = OWN.replace('models = { names = ["small-mlp", "fedhe-0"] }', 'data = { name = "mnist" }')
    (tmp_path / "mine.toml").write_text(two)
    code, _, err = potluck("reproduce", "mine.toml", "--scale", "paper", "--out", "r")
    assert code == 2
    assert "potluck data prepare mnist" in err
    assert "enough for --columns alike,kib,rounds." in err
    assert not (tmp_path / "r").exists()
    code, _, _ = potluck(
        *("reproduce", "mine.toml", "--scale", "paper", "--columns", "kib", "--out", "r", "-q")
    )
    assert code == 0


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "Mine"', 'titel = "Mine"', "'titel'. Did you mean 'title'?"),
        ('"50.0 0 - 60.0±.5"', '"50.0 0 -"', "row 'Standalone' has 3 numbers for 4 columns"),
        ('"50.0 0 - 60.0±.5"', '"50.0 0 - sixty"', "'sixty' is none of"),
        ('setting = "unlike"', 'setting = "other"', "column 'unlike' is of the setting 'other'"),
        (", target = 1.0", "", "have a target"),
        ('measure = "last"', 'measure = "lest"', "columns.unlike.measure"),
        ('method = "fedgh"', 'method = "fedhg"', "FedGH on alike: Unknown method 'fedhg'"),
        ("epochs = 1", "epoch = 1", "Standalone on alike: Unknown setting 'training.epoch'"),
        ("[base]", "[base", "is not valid TOML"),
        ("[rows]\nStandalone", "[rows]\nfedgh", "same folder"),
        (
            "[base]",
            "counted = true\n[base]",
            "'alike' of a counted recipe measures none of kib-per-client-round",
        ),
        ('measure = "last"', 'measure = "mflops-per-sample"', "takes counted = true"),
    ],
)
def test_a_mistake_in_an_own_recipe_is_named(potluck, tmp_path: Path, old: str, new: str, says: str):
    (tmp_path / "mine.toml").write_text(OWN.replace(old, new))
    code, _, err = potluck("reproduce", "mine.toml", "--scale", "paper")
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1


def test_the_recipe_in_the_documentation_runs(potluck, tmp_path: Path):
    page = (Path(__file__).parents[2] / "docs/reproduce.md").read_text()
    (tmp_path / "my-table.toml").write_text(page.split("```toml\n")[1].split("```")[0])
    code, out, _ = potluck("reproduce", "my-table.toml", "--scale", "smoke", "--out", "r", "-q")
    assert code == 0
    assert "83.5 ± .2" in out
    assert ("Standalone", "rounds") not in cells(tmp_path / "r")


def test_the_documentation_names_every_recipe_and_measure():
    page = (Path(__file__).parents[2] / "docs/reproduce.md").read_text()
    from typing import get_args

    from potluck.recipes.measures import MeasureName
    from potluck.recipes.recipe import recipe_names

    for name in recipe_names():
        assert f"`{name}`" in page or f"`-{name.partition('-')[2]}`" in page, name
    for name in get_args(MeasureName):
        assert f"`{name}`" in page, name
