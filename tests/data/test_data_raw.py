"""Raw inputs become rows in the same way in training and in prediction, and their description is plain data."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from potluck.core.errors import PotluckError
from potluck.data import as_data, load_data
from potluck.data.raw import Column, ImageInput, TableInput, TextInput, describe_raw, read_raw


def again(data):
    """The raw input of a data set after it was written and read."""
    return read_raw(json.loads(json.dumps(describe_raw(data.raw))))


def pictures(tmp_path: Path, shape: tuple[int, ...]) -> list[Path]:
    files = []
    for kind, level in (("cat", 30), ("dog", 200)):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(2):
            rng = np.random.default_rng(level + number)
            files.append(tmp_path / "pets" / kind / f"{number}.png")
            Image.fromarray(rng.integers(0, 255, shape, dtype=np.uint8)).save(files[-1])
    return files


@pytest.mark.parametrize(("shape", "size"), [((12, 10, 3), None), ((12, 10), None), ((12, 10, 3), 8)])
@pytest.mark.parametrize("load", ["first", "cached"])
def test_image_files_encode_to_the_rows_of_the_data_set(tmp_path: Path, shape, size, load):
    files = pictures(tmp_path, shape)
    data = load_data(f"folder:{tmp_path / 'pets'}", tmp_path, image_size=size)
    if load == "cached":
        data = load_data(f"folder:{tmp_path / 'pets'}", tmp_path, image_size=size)
    raw = again(data)
    assert raw == ImageInput(len(shape) == 2, *((size, size) if size else (12, 10)), resize=bool(size))
    for items in (files, [str(file) for file in files], [Image.open(file) for file in files]):
        assert (raw.encode(items) == data.x.numpy()).all()


def test_an_image_of_another_size_is_refused_unless_training_resized(tmp_path: Path):
    Image.fromarray(np.zeros((9, 7), np.uint8)).save(tmp_path / "other.png")
    with pytest.raises(PotluckError, match=r"other.png' is 7×9 and the model takes 8×8; resize it first"):
        ImageInput(True, 8, 8).encode([tmp_path / "other.png"])
    assert ImageInput(True, 8, 8, resize=True).encode([tmp_path / "other.png"]).shape == (1, 1, 8, 8)
    with pytest.raises(PotluckError, match="nowhere.png' does not exist"):
        ImageInput(True, 8, 8).encode([tmp_path / "nowhere.png"])


def test_digits_have_sixteen_levels(tmp_path: Path):
    digits = load_data("digits")
    picture = np.rint(digits.x[3, 0].numpy() * (255 / 16)).astype(np.uint8)
    assert (again(digits).encode([picture])[0] == digits.x[3].numpy()).all()


def test_table_rows_encode_by_column_name(tmp_path: Path):
    (tmp_path / "t.csv").write_text("age,kind,label\n1.5,b,x\n2,a,y\n3,b,x\n")
    data = load_data(f"csv:{tmp_path / 't.csv'}", tmp_path)
    raw = again(load_data(f"csv:{tmp_path / 't.csv'}", tmp_path))
    assert data.raw == raw == TableInput((Column("age"), Column("kind", ("a", "b"))))
    rows = [{"kind": "b", "age": 1.5, "label": "?"}, {"age": "2", "kind": "a"}]
    assert raw.encode(rows).tolist() == [[1.5, 0, 1], [2, 1, 0]]
    assert raw.encode(rows).tolist() == data.x[:2].tolist()
    with pytest.raises(
        PotluckError, match=r"'kind' has 'c' in row 1, which no training row has; use one of: a, b"
    ):
        raw.encode([{"age": 1, "kind": "c"}])
    with pytest.raises(PotluckError, match=r"'age' has 'old' in row 2; give a finite number"):
        raw.encode([{"age": 1, "kind": "a"}, {"age": "old", "kind": "a"}])
    with pytest.raises(PotluckError, match=r"Row 1 has no 'age'; the model takes age, kind"):
        raw.encode([{"kind": "a"}])


def test_texts_encode_with_the_vocabulary_of_training(tmp_path: Path):
    lines = ["said,label", *(f"{'fine' if row % 2 else 'dull'} plot,{row % 2}" for row in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data = load_data(f"csv:{tmp_path / 't.csv'}", tmp_path, text="said")
    raw = again(data)
    assert raw == TextInput(("plot", "dull", "fine"), 64, "said")
    assert raw.vocabulary == data.vocabulary
    assert raw.encode(["Fine PLOT, fine day"])[0, :5].tolist() == [4, 2, 4, 1, 0]
    assert raw.encode(["dull plot"])[0].tolist() == data.x[0].tolist()
    assert raw.files(tmp_path / "t.csv")[:2] == ["dull plot", "fine plot"]


def test_rows_of_numbers_have_no_raw_input():
    assert as_data((np.zeros((3, 4), np.float32), [0, 1, 0])).raw is None
    assert as_data((np.zeros((3, 9, 5, 3), np.uint8), [0, 1, 0])).raw == ImageInput(False, 9, 5)


def test_an_unknown_description_is_an_error():
    with pytest.raises(ValueError, match="unknown kind 'sound'"):
        read_raw({"kind": "sound"})
    facts = describe_raw(TextInput(("a",), 4))
    facts["tokenizer"]["pattern"] = "."
    with pytest.raises(ValueError, match="another pattern"):
        read_raw(facts)
