"""Names of classes: united in one order, and labels numbered by the agreed list."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.data import as_data, load_data
from potluck.data.classes import list_names, names_are_numbers, sort_names, with_class_names
from potluck.experiment import parse_experiment
from potluck.federation.population import build_federation
from support.images import write_classes


def test_numbers_are_sorted_by_size_and_words_by_the_alphabet() -> None:
    assert sort_names(["10", "9", "10"]) == ("9", "10")
    assert sort_names(["dog", "cat", "dog"]) == ("cat", "dog")


def test_labels_with_names_are_numbered_by_the_list() -> None:
    data = as_data((torch.zeros(3, 2), torch.tensor([0, 1, 0])), class_names=("cat", "dog"), test=(torch.zeros(1, 2),
                   torch.tensor([1])))  # fmt: skip
    agreed = with_class_names(data, ("bird", "dog", "cat"), "Data 'pets'")
    assert agreed.y.tolist() == [2, 1, 2]
    assert agreed.test_y is not None
    assert agreed.test_y.tolist() == [1]
    assert (agreed.num_classes, agreed.class_names) == (3, ("bird", "dog", "cat"))


def test_labels_without_names_are_numbers_of_the_list() -> None:
    data = as_data((torch.zeros(2, 2), torch.tensor([0, 1])))
    agreed = with_class_names(data, ("a", "b", "c"), "Data")
    assert agreed.y.tolist() == [0, 1]
    assert agreed.num_classes == 3
    with pytest.raises(PotluckError, match=r"Data has label 1, and data\.class_names lists 1 names \(a\)"):
        with_class_names(data, ("a",), "Data")


def test_a_class_that_the_list_lacks_is_named_unless_it_is_private() -> None:
    data = as_data((torch.zeros(2, 2), torch.tensor([0, 1])), class_names=("cat", "frog"))
    with pytest.raises(
        PotluckError, match=r"Node 'a' has the class frog, which data\.class_names \(cat, dog\)"
    ):
        with_class_names(data, ("cat", "dog"), "Node 'a'")
    with pytest.raises(PotluckError) as caught:
        with_class_names(data, ("cat", "dog"), "Node 'a'", private=True)
    assert "frog" not in str(caught.value)
    with pytest.raises(PotluckError, match="lists 'cat' twice"):
        with_class_names(data, ("cat", "cat"), "Node 'a'")


def test_names_that_are_their_numbers_need_no_agreement() -> None:
    rows = (torch.zeros(2, 2), torch.tensor([0, 1]))
    assert names_are_numbers(as_data(rows))
    assert names_are_numbers(as_data(rows, class_names=("0", "1")))
    assert not names_are_numbers(as_data(rows, class_names=("1", "2")))


def test_of_many_names_a_sentence_shows_the_first() -> None:
    assert list_names([str(number) for number in range(20)]).endswith("11 and 8 more")


def test_declared_classes_order_a_folder_and_add_classes_without_rows(tmp_path: Path) -> None:
    write_classes(tmp_path, {"cat": 6, "dog": 6})
    plain = load_data(f"folder:{tmp_path}", tmp_path / "cache")
    values = {"data": {"class_names": ["dog", "fox", "cat"]}, "partition": {"rule": "iid", "clients": 2}}
    experiment = parse_experiment(values)
    federation = build_federation(experiment, experiment.build_method(), data=plain, models=["mlp-1"])
    assert federation.class_names == ("dog", "fox", "cat")
    assert federation.task.num_classes == 3
    assert {label for member in federation.members for label in member.train.labels.tolist()} == {0, 2}
