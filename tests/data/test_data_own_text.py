"""User texts: table columns, files in class folders, and folders in three parts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import potluck as library
from potluck.core.errors import PotluckError
from potluck.data import load_data


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def reviews(rows: int = 10) -> None:
    kinds = [("good", "fine plot"), ("bad", "dull plot")]
    lines = [f"{kinds[row % 2][1]},{kinds[row % 2][0]},{row % 3}" for row in range(rows)]
    Path("reviews.csv").write_text("\n".join(["said,verdict,who", *lines]))


def test_a_column_of_texts_becomes_word_numbers():
    reviews()
    data = load_data("csv:reviews.csv", text="said", label="verdict", groups="who")
    # Rows 4 and 9 are the test part. Words seen twice, most frequent first, ties by the alphabet: plot, fine, dull
    # in the eight others (fine: rows 0 2 6 8, dull: rows 1 3 5 7), numbered from 2.
    assert data.vocabulary == 5
    assert data.class_names == ("bad", "good")
    assert (len(data), len(data.test_y)) == (8, 2)
    assert data.x[0, :3].tolist() == [4, 2, 0]  # fine plot
    assert data.x[1, :3].tolist() == [3, 2, 0]  # dull plot
    assert data.y.tolist() == [1, 0, 1, 0, 0, 1, 0, 1]
    assert data.groups.tolist() == [0, 1, 2, 0, 2, 0, 1, 2]
    assert data.test_groups.tolist() == [1, 0]


def test_a_run_on_own_texts(potluck):
    reviews(120)
    words = ["--set", "data.text=said", "--set", "data.label=verdict", "--partition", "iid", "--clients", "3"]
    code, _, err = potluck(
        "run", "fedgh", "--data", "csv:reviews.csv", *words, "--rounds", "2", "--engine", "serial"
    )
    assert code == 0, err
    assert "text-bag" in Path("runs/fedgh-csv-reviews-seed0/summary.json").read_text()


def test_a_table_of_many_words_says_how_to_read_them():
    Path("long.csv").write_text("\n".join(["said,label", *(f"word{row},{row % 2}" for row in range(200))]))
    with pytest.raises(PotluckError, match=r"or read it as text: set data.text=said \(--text said"):
        load_data("csv:long.csv")
    with pytest.raises(PotluckError, match="Unknown column of long.csv 'sayd'. Did you mean 'said'"):
        load_data("csv:long.csv", text="sayd")


def test_folders_of_text_files():
    for part, texts in (("train", 3), ("test", 1)):
        for kind in ("ham", "spam"):
            Path(part, kind).mkdir(parents=True)
            for encode_labels in range(texts):
                Path(part, kind, f"{encode_labels}.txt").write_text(f"{kind} {kind} and more")
    data = load_data("folder:.")
    assert data.class_names == ("ham", "spam")
    assert (len(data), len(data.test_y)) == (6, 2)
    assert data.x[0, :5].tolist() == [3, 3, 2, 4, 0]  # all four words six times: numbered by the alphabet
    assert data.vocabulary == 6  # padding, unknown, and, ham, more, spam


@pytest.mark.parametrize(
    ("parts", "train", "test"), [("train valid test", 3, 1), ("train val", 2, 1), ("train test", 2, 1)]
)
def test_a_folder_in_three_parts_uses_all_of_them(parts: str, train: int, test: int):
    for part in parts.split():
        for level, kind in enumerate(("cat", "dog")):
            Path("pets", part, kind).mkdir(parents=True)
            for encode_labels in range(2 if part == "train" else 1):
                Image.fromarray(np.full((8, 8), level * 100 + encode_labels, np.uint8)).save(
                    f"pets/{part}/{kind}/{encode_labels}.png"
                )
    data = load_data("folder:pets")
    assert (len(data), len(data.test_y)) == (2 * train, 2 * test)
    assert data.y.bincount().tolist() == [train, train]


def test_an_exported_model_takes_raw_images_and_names_classes(tmp_path: Path):
    run = library.run("fedgh", clients=3, rounds=1, models="small-mlp", engine="serial", out=tmp_path / "run")
    library.export_client(run, 0, tmp_path / "model")
    digits = library.load_data("digits")
    model = library.load_model(tmp_path / "model")
    scores = model(digits.transform(digits.x[:20]))
    predictions = model.predict(digits.x[:20])
    assert [prediction.class_name for prediction in predictions] == [
        digits.class_names[row] for row in scores.argmax(1)
    ]
    assert list(predictions[3].probabilities.values()) == pytest.approx(
        scores[3].double().softmax(0).tolist()
    )


@pytest.mark.parametrize("how", ["own", "half", "mean-image", "unit", "none"])
def test_every_normalisation_survives_the_export(how: str):
    import json

    from potluck.runs.export_description import describe_input
    from potluck.runs.exported import read_input

    data = library.load_data("digits")
    data = data if how == "own" else data.normalised(how)
    again = read_input(json.loads(json.dumps(describe_input(data.transform))), data.transform.dtype)
    assert (again(data.x[:9]) == data.transform(data.x[:9])).all()


def test_an_export_without_normalisation_says_so(tmp_path: Path):
    run = library.run("fedgh", clients=3, rounds=1, models="small-mlp", engine="serial", out=tmp_path / "run")
    place = library.export_client(run, 0, tmp_path / "model") / "model.json"
    place.write_text(place.read_text().replace('"input":', '"other":'))
    with pytest.raises(PotluckError, match="does not describe the normalisation of raw inputs"):
        library.load_model(tmp_path / "model").predict(library.load_data("digits").x[:2])
