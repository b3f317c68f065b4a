"""A user's own assignment, in three formats, and what can be wrong with it."""

import json

import numpy as np
import pytest

from potluck.core.errors import PotluckError
from potluck.data import from_file, partition

LABELS = np.zeros(10, int)
WANTED = [[0, 3], [1, 2, 9]]


def rows(path, clients=2):
    return [part.tolist() for part in from_file(str(path)).assign(LABELS, clients)]


def test_json_lists_and_names(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([[3, 0], [9, 1, 2]]))
    (tmp_path / "b.json").write_text(json.dumps({"ward B": [3, 0], "ward A": [9, 1, 2]}))
    assert rows(tmp_path / "a.json") == WANTED
    assert rows(tmp_path / "b.json") == WANTED  # in the file's own order


def test_csv_orders_clients_by_number_or_name(tmp_path):
    (tmp_path / "a.csv").write_text("row,client\n1,10\n2,10\n0,9\n9,10\n3,9\n")
    (tmp_path / "b.csv").write_text("client,row\nb,1\nb,2\na,0\nb,9\na,3\n")
    assert rows(tmp_path / "a.csv") == WANTED
    assert rows(tmp_path / "b.csv") == WANTED


def test_npz_has_an_array_per_client(tmp_path):
    np.savez(tmp_path / "a.npz", *[np.array(part) for part in WANTED])
    assert rows(tmp_path / "a.npz") == WANTED


def test_by_its_short_form(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(WANTED))
    assert len(partition(LABELS, f"file:{tmp_path / 'a.json'}", 2)) == 2


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", "[[0], [1], [2]]", "lists 3 clients but clients is 2; set clients to 3"),
        ("a.json", "[[0], [10]]", "names row 10; the data have rows 0 to 9"),
        ("a.json", "[[0], [-1]]", "names row -1"),
        ("a.json", "[[0, 4], [4]]", "gives row 4 twice"),
        ("a.json", "[[0], []]", "leaves client 1 without rows; give it rows or take it out of the file"),
        ("a.json", "[[0], [1.5]]", "cannot be read .*whole numbers"),
        ("a.json", "[[0], [", "cannot be read"),
        ("a.json", "3", "cannot be read"),
        ("a.csv", "row,who\n1,2\n", "cannot be read"),
        ("a.npz", "no zip", "cannot be read"),
        ("a.txt", "0", r"must end in \.json, \.csv or \.npz"),
    ],
)
def test_files_that_cannot_be_right(tmp_path, name, content, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(PotluckError, match=says):
        rows(tmp_path / name)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(PotluckError, match="does not exist; check the path"):
        rows(tmp_path / "none.json")
