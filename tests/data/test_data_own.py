"""A user's own data: image folders, npz, csv, and the Hugging Face library (a stand-in here)."""

import sys
import types

import numpy as np
import pytest
import torch
from PIL import Image

from potluck.core.errors import PotluckError
from potluck.data import as_data, load_data, partition


@pytest.fixture(autouse=True)
def _cache_here(tmp_path, monkeypatch):
    monkeypatch.setenv("POTLUCK_DATA", str(tmp_path / "root"))


def picture(path, value, size=(6, 4), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_class_folders(tmp_path):
    picture(tmp_path / "pets" / "dog" / "b.png", (9, 8, 7))
    picture(tmp_path / "pets" / "dog" / "a.png", (1, 2, 3))
    picture(tmp_path / "pets" / "cat" / "c.png", (5, 5, 5))
    (tmp_path / "pets" / "cat" / "notes.txt").write_text("not a picture")
    data = load_data(f"folder:{tmp_path / 'pets'}")
    assert data.class_names == ("cat", "dog")
    assert data.x.shape == (3, 3, 4, 6)
    assert data.x[:, 0, 0, 0].tolist() == [5, 1, 9]
    assert data.y.tolist() == [0, 1, 1]
    x, _ = data.train.take(slice(0, 1))
    torch.testing.assert_close(x, torch.full((1, 3, 4, 6), 5 / 255))
    picture(tmp_path / "pets" / "dog" / "z.png", (4, 4, 4))
    assert len(load_data(f"folder:{tmp_path / 'pets'}")) == 4  # the cached copy noticed the new file


def test_class_folders_with_a_test_part_and_grey_pictures(tmp_path):
    for part, n in (("train", 2), ("test", 1)):
        for row in range(n):
            picture(tmp_path / "d" / part / "k" / f"{row}.png", 10 + row, (4, 4), "L")
    data = load_data(f"folder:{tmp_path / 'd'}")
    assert data.input_shape == (1, 4, 4)
    assert (len(data), len(data.test_y)) == (2, 1)


def test_pictures_of_two_sizes_need_a_size(tmp_path):
    picture(tmp_path / "d" / "k" / "a.png", (0, 0, 0), (4, 4))
    picture(tmp_path / "d" / "k" / "b.png", (0, 0, 0), (5, 4))
    with pytest.raises(
        PotluckError,
        match=r"b\.png' is 5×4 and 'a.png' is 4×4; .*: set data.image_size=PIXELS \(--image-size PIXELS; in Python image_size=\)",
    ):
        load_data(f"folder:{tmp_path / 'd'}")
    assert load_data(f"folder:{tmp_path / 'd'}", image_size=8).input_shape == (3, 8, 8)


def test_a_damaged_picture_is_named(tmp_path):
    picture(tmp_path / "d" / "k" / "a.png", (0, 0, 0), (40, 40))
    picture(tmp_path / "d" / "k" / "b.png", (0, 0, 0), (40, 40))
    content = (tmp_path / "d" / "k" / "b.png").read_bytes()
    (tmp_path / "d" / "k" / "b.png").write_bytes(content[:60])
    with pytest.raises(PotluckError, match=r"b\.png' is damaged or incomplete"):
        load_data(f"folder:{tmp_path / 'd'}")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder:/nowhere", "need an existing folder of class folders"),
        ("npz:/nowhere.npz", "need an existing .npz file"),
        ("csv:/nowhere.csv", "need an existing file"),
    ],
)
def test_paths_that_do_not_exist(name, says):
    with pytest.raises(PotluckError, match=says):
        load_data(name)


def test_empty_folder_error_names_the_expected_files(tmp_path):
    with pytest.raises(
        PotluckError, match=r"no images \(or .txt files\) in class folders; put them in CLASS/NAME\.png"
    ):
        load_data(f"folder:{tmp_path}")


def test_npz_with_groups_and_names(tmp_path):
    x = np.arange(24, dtype=np.float64).reshape(4, 6)
    np.savez(
        tmp_path / "m.npz",
        x=x,
        y=[0, 1, 0, 1],
        groups=["eve", "bob", "eve", "bob"],
        class_names=["no", "yes"],
    )
    data = load_data(f"npz:{tmp_path / 'm.npz'}")
    assert data.groups.tolist() == [1, 0, 1, 0]
    assert data.class_names == ("no", "yes")
    assert data.train.take(slice(None))[0].dtype == torch.float32
    assert [part.tolist() for part in partition(data, "natural", 2).parts] == [[1, 3], [0, 2]]


def test_npz_as_other_libraries_save_images(tmp_path):
    images = np.zeros((3, 5, 7, 3), np.uint8)
    images[0, 1, 2, 0] = 255
    np.savez(tmp_path / "k.npz", x_train=images, y_train=[[0], [1], [1]], x_test=images[:1], y_test=[[2]])
    data = load_data(f"npz:{tmp_path / 'k.npz'}")
    assert data.input_shape == (3, 5, 7)
    assert data.num_classes == 3
    assert data.train.take(slice(0, 1))[0][0, 0, 1, 2] == 1


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"a": [1]}, "has the arrays a; name them x and y"),
        ({"x": np.zeros((2, 3)), "y": [0]}, "2 rows and 1 labels"),
        ({"x": np.zeros((2, 3)), "y": [0.5, 1]}, "must be whole numbers"),
        ({"x": np.zeros((2, 3)), "y": [0, 1], "groups": [0]}, "2 rows and 1 groups"),
        ({"x": np.array([object(), object()]), "y": [0, 1]}, "is no .npz archive"),  # pickled: never read
    ],
)
def test_npz_that_do_not_fit(tmp_path, arrays, says):
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(PotluckError, match=says):
        load_data(f"npz:{tmp_path / 'm.npz'}")


TABLE = "age,job,ward,sick\n20,cook,2,yes\n40,guard,1,no\n60,cook,2,no\n"


def test_a_table(tmp_path):
    (tmp_path / "t.csv").write_text(TABLE)
    data = load_data(f"csv:{tmp_path / 't.csv'}", label="sick", groups="ward")
    assert data.class_names == ("no", "yes")
    assert data.y.tolist() == [1, 0, 0]
    assert data.groups.tolist() == [1, 0, 1]
    assert data.x.tolist() == [[20, 1, 0], [40, 0, 1], [60, 1, 0]]  # age, cook, guard
    x, _ = data.train.take(slice(None))
    torch.testing.assert_close(x.mean(0), torch.zeros(3), atol=1e-6, rtol=0)
    torch.testing.assert_close(x.std(0, correction=0), torch.ones(3))


def test_labels_that_are_numbers_are_ordered_by_size(tmp_path):
    (tmp_path / "t.csv").write_text("a,label\n1,10\n2,9\n3,10\n")
    data = load_data(f"csv:{tmp_path / 't.csv'}")
    assert data.class_names == ("9", "10")
    assert data.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        (
            TABLE,
            {},
            r"need a label column: set data\.label=COLUMN \(--label COLUMN; in Python label=\); the columns are age, job, ward, sick",
        ),
        (TABLE, {"label": "sik"}, r"Unknown column of t\.csv 'sik'\. Did you mean 'sick'"),
        ("a,label\n1,2\n3\n", {}, "row 3 has 1 values where the header has 2"),
        (
            "a,label\n1,2\n,2\n",
            {},
            "Column 'a' of .* is empty in row 3, a missing value .1 of 2 rows.; fill it in",
        ),
        ("a,label\n", {}, "a header line and no row; give it a header line and at least one row"),
        ("label\n1\n", {}, "have no column besides 'label'"),
        ("a,label\ninf,1\n", {}, "has 'inf' in row 2, which is not finite"),
        ("a,label\nnan,1\n2,1\n", {}, "Column 'a' of .* is 'nan' in row 2, a missing value"),
        ("a,a,label\n1,2,3\n", {}, "has two columns called 'a'"),
        ("a,label\n" + "".join(f"w{i},1\n" for i in range(101)), {}, "101 different words"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, options, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(PotluckError, match=says):
        load_data(f"csv:{tmp_path / 't.csv'}", **options)


class Table:
    """As much of a Hugging Face table as is used."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: types.SimpleNamespace() for name in columns}
        if names:
            self.features["label"].names = names

    def __getitem__(self, name):
        return self.columns[name]

    def __len__(self):
        return len(self.columns["label"])


@pytest.fixture
def hub(monkeypatch):
    tables = {}

    def load_dataset(name, configuration):
        name = f"{name}@{configuration}" if configuration else name
        if name not in tables:
            raise FileNotFoundError(f"no such data set {name}")
        return tables[name]

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return tables


def test_hub_images(hub):
    pictures = [Image.new("RGB", (4, 4), (level, 0, 0)) for level in (10, 20, 30)]
    hub["org/pets"] = {
        "train": Table({"image": pictures[:2], "label": [1, 0]}, ["cat", "dog"]),
        "test": Table({"image": pictures[2:], "label": [1]}, ["cat", "dog"]),
    }
    data = load_data("hf:org/pets")
    assert data.input_shape == (3, 4, 4)
    assert data.x[:, 0, 0, 0].tolist() == [10, 20]
    assert data.test_y.tolist() == [1]
    assert data.class_names == ("cat", "dog")
    assert load_data("hf:org/pets", image_size=2).input_shape == (3, 2, 2)


def test_hub_texts_and_numbers(hub):
    hub["t"] = {
        "train": Table({"text": ["a b a b", "c"], "label": ["x", "y"]}),
        "validation": Table({"text": ["a q"], "label": ["x"]}),
    }
    data = load_data("hf:t")
    assert data.vocabulary == 4
    assert data.test_x[0, :3].tolist() == [2, 1, 0]
    hub["n"] = {"train": Table({"v": [[1, 2], [3, 4]], "who": ["u", "w"], "label": [5, 7]})}
    data = load_data("hf:n", groups="who")
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert data.class_names == ("5", "7")
    assert data.groups.tolist() == [0, 1]


def test_hub_configurations_and_unlabelled_test_parts(hub):
    hub["glue@sst2"] = {
        "train": Table({"sentence": ["good", "bad"], "label": [1, 0]}),
        "validation": Table({"sentence": ["good"], "label": [1]}),
        "test": Table({"sentence": ["?", "?", "?"], "label": [-1, -1, -1]}),
    }
    data = load_data("hf:glue@sst2")
    assert data.test_y.tolist() == [1]


def test_hub_tables_are_kept_once_converted(hub, tmp_path):
    table = Table({"v": [[1, 2], [3, 4]], "label": [0, 1]})
    table._fingerprint = "abc"
    hub["f"] = {"train": table}
    load_data("hf:f")
    table.columns = None  # a second conversion would fail
    assert load_data("hf:f").x.tolist() == [[1, 2], [3, 4]]


def test_a_table_in_memory(hub):
    data = as_data(Table({"text": ["a a", "b b"], "label": ["x", "y"]}), name="notes")
    assert data.name == "notes"
    assert data.vocabulary == 4


def test_hub_errors(hub, monkeypatch):
    with pytest.raises(PotluckError, match=r"'hf:nowhere' cannot be loaded \(no such data set nowhere\)"):
        load_data("hf:nowhere")
    hub["u"] = {"train": Table({"v": [1], "label": [0]})}
    with pytest.raises(PotluckError, match="Unknown column of hf:u 'labell'"):
        load_data("hf:u", label="labell")
    with pytest.raises(PotluckError, match="need a name; write hf:NAME"):
        load_data("hf:")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(PotluckError, match=r"need the library 'datasets'; run: pip install potluck\[hf\]"):
        load_data("hf:u")
