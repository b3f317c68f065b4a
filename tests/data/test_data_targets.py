"""Labels that are no classes and rows that are no finite numbers are one sentence before training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import potluck
from potluck.core.errors import PotluckError
from potluck.data import as_data, load_data
from potluck.data.targets import check_finite_rows, check_label_numbers, check_label_words

X = np.zeros((60, 3), np.float32)
QUICK: dict[str, Any] = {"rounds": 1, "clients": 2, "partition": "iid", "models": "mlp-1", "workers": 1}
TARGETS = [
    (np.linspace(0, 1, 60), r"are measurements, such as 0\.0169492; .* no regression"),
    (np.arange(60) % 3 * 1.0, r"come as float64; give y\.astype\(int\)"),
    (np.where(np.arange(60) == 7, np.nan, 1.0), "label of data .* is nan in row 8"),
    (np.eye(3, dtype=int)[np.arange(60) % 3], r"several for each row; .* give y\.argmax\(axis=1\)"),
]


@pytest.mark.parametrize(("y", "sentence"), TARGETS)
def test_targets_of_wrong_kind_are_named_for_every_input_route(tmp_path: Path, y: Any, sentence: str) -> None:
    np.savez(tmp_path / "rows.npz", x=X, y=y)
    ways = [
        lambda: load_data(f"npz:{tmp_path}/rows.npz", tmp_path),
        lambda: as_data((X, y)),
        lambda: as_data(TensorDataset(torch.from_numpy(X), torch.from_numpy(y))),
        lambda: potluck.Member(torch.nn.Linear(3, 2), (torch.from_numpy(X), torch.from_numpy(y))),
    ]
    for route in ways:
        with pytest.raises(PotluckError, match=sentence):
            route()


LABELS = [
    (np.zeros(60, int), "All 60 rows of data 'memory' have the label 0; .* needs two classes at least"),
    (np.array([0, 1, 900] * 20), "are 3 numbers from 0 to 900, with gaps; .* numpy.unique"),
    (np.arange(60), "have 60 different values in 60 rows; .* 10 rows or more"),
    (np.arange(60) + 242, "have 60 different values in 60 rows; .* no regression: .* numpy.digitize"),
    (np.arange(60) % 3 * 50 + 242, "are 3 numbers from 242 to 342, with gaps; .* numpy.unique"),
    (np.arange(60) % 3 + 1, "start at 1, so that class 0 would be empty; subtract 1"),
]


@pytest.mark.parametrize(("y", "sentence"), LABELS)
def test_numbers_that_are_no_classes_are_named_before_training(y: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(PotluckError, match=sentence):
        potluck.run("standalone", data=(X, y), out=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()
    member = potluck.Member(torch.nn.Linear(3, 2), (torch.from_numpy(X), torch.from_numpy(y)))
    with pytest.raises(PotluckError, match=sentence.replace("data 'memory'", "the members")):
        potluck.federate([member])


def test_many_numbers_from_above_0_may_be_measurements() -> None:
    ages = torch.arange(600) % 40 + 20
    with pytest.raises(
        PotluckError,
        match=r"start at 20, .*; divide measurements .*numpy\.digitize.* of classes, subtract 20",
    ):
        check_label_numbers(ages, "rows", named=False)


def test_classes_that_are_named_may_be_many_and_empty() -> None:
    check_label_numbers(torch.arange(60), "rows", named=True)
    check_label_numbers(torch.tensor([0, 1, 900]), "rows", named=True)
    check_label_numbers(torch.arange(60) % 6, "rows", named=False)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([f"{n / 7:.2f}" for n in range(60)], "holds measurements, such as 0.14; .* no regression"),
        ([f"patient-{n}" for n in range(60)], "holds 60 different values in 60 rows"),
    ],
)
def test_a_label_column_of_measurements_or_names_is_refused(
    tmp_path: Path, values: list[str], sentence: str
) -> None:
    table = tmp_path / "rows.csv"
    table.write_text("age,label\n" + "".join(f"{n},{value}\n" for n, value in enumerate(values)))
    with pytest.raises(PotluckError, match=f"Label column 'label' of '{table}' {sentence}"):
        load_data(f"csv:{table}", tmp_path)
    listed = load_data(f"csv:{table}", tmp_path, class_names=sorted(set(values)))
    assert listed.num_classes == len(set(values))


def test_words_and_whole_numbers_are_labels() -> None:
    check_label_words(["ill", "healthy"] * 3, "Column")
    check_label_words(["1", "2.0"] * 3, "Column")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_no_number_is_named_with_file_and_row(tmp_path: Path, value: float) -> None:
    x, y = X.copy(), np.arange(60) % 3
    x[[11, 30], 1] = value
    np.savez(tmp_path / "rows.npz", x=x, y=y)
    with pytest.raises(
        PotluckError, match=rf"Row 12 of 'x' in '.*rows\.npz' has the value {value} \(2 such rows\)"
    ):
        load_data(f"npz:{tmp_path}/rows.npz", tmp_path)
    with pytest.raises(PotluckError, match=f"Row 12 of data 'memory' has the value {value}"):
        as_data((x, y))
    with pytest.raises(PotluckError, match=f"Row 12 of a client's samples has the value {value}"):
        potluck.Member(torch.nn.Linear(3, 2), (torch.from_numpy(x), torch.from_numpy(y)))


def test_large_finite_numbers_are_not_refused() -> None:
    check_finite_rows(np.full((4, 2), 1e308), "rows")
