"""Check labels and rows before training: Potluck trains classifiers, with one class per row, on finite numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from potluck.core.errors import PotluckError, how_to_set, plain
from potluck.data.dataset import Data

SUPPORTED = "Potluck trains classifiers, with one class per row"
MIN_ROWS_PER_CLASS = 10
CLASS_NAMES = how_to_set("class_names", option=False)
FEW_CLASSES = 10
"""So many classes are never too many for the rows."""


def checked_labels(y: NDArray[Any], name: str) -> NDArray[np.int64]:
    """Return labels as int64, or raise an error that says what they are instead of whole numbers from 0."""
    flat = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    if flat.ndim > 1:
        raise PotluckError(
            f"The labels of data {name!r} have the shape {tuple(y.shape)}, several for each row; {SUPPORTED}: of "
            "one-hot rows give y.argmax(axis=1), of several labels per row choose one."
        )
    if np.issubdtype(flat.dtype, np.floating) and flat.size:
        raise _float_labels(flat, name)
    if flat.ndim != 1 or not np.issubdtype(flat.dtype, np.integer) or (len(flat) and flat.min() < 0):
        example = repr(flat.reshape(-1)[0].item()) if flat.size else "nothing"
        raise PotluckError(
            f"The labels of data {name!r} must be whole numbers from 0, not such as {example}; map them first: "
            "class_names, y = numpy.unique(y, return_inverse=True)."
        )
    return flat.astype(np.int64)


def _float_labels(y: NDArray[Any], name: str) -> PotluckError:
    bad = np.flatnonzero(~np.isfinite(y))
    if len(bad):
        return PotluckError(
            f"The label of data {name!r} is {y[bad[0]]} in row {bad[0] + 1} ({len(bad)} such rows); drop these rows or "
            "give them a class."
        )
    parts = np.flatnonzero(y != np.rint(y))
    if not len(parts):
        return PotluckError(
            f"The labels of data {name!r} must be whole numbers from 0, and come as {y.dtype}; give y.astype(int)."
        )
    return PotluckError(
        f"The labels of data {name!r} must be whole numbers from 0, and are measurements, such as "
        f"{y[parts[0]].item():g}; {SUPPORTED}, no regression: divide the range into classes first, such as "
        "numpy.digitize(y, bins)."
    )


def check_label_words(values: Sequence[str], where: str) -> None:
    """Refuse a column of labels whose values are measurements or identifiers."""
    distinct = dict.fromkeys(values)
    fractions = [value for value in distinct if _is_fraction(value)]
    if fractions:
        raise PotluckError(
            f"{where} holds measurements, such as {plain(fractions[0], 40)}; {SUPPORTED}, no regression: name another "
            f"label column, replace it by a column of classes, or list the classes: {CLASS_NAMES}."
        )
    if _too_many(len(distinct), len(values)):
        raise PotluckError(
            f"{where} holds {len(distinct):,} different values in {len(values):,} rows; {SUPPORTED}, of which each has "
            f"{MIN_ROWS_PER_CLASS} rows or more: name another label column, or list the classes: {CLASS_NAMES}."
        )


def _is_fraction(value: str) -> bool:
    try:
        return not float(value).is_integer()
    except (ValueError, OverflowError):
        return False


def _too_many(classes: int, rows: int) -> bool:
    return classes > FEW_CLASSES and classes * MIN_ROWS_PER_CLASS > rows


def check_classes(data: Data) -> None:
    """Refuse labels that cannot be the classes of a whole experiment; class names say that they are meant."""
    labels = data.y if data.test_y is None else torch.cat([data.y, data.test_y])
    check_label_numbers(labels, f"data {data.name!r}", named=bool(data.class_names))


def check_label_numbers(labels: Tensor, where: str, *, named: bool, remedy: str = CLASS_NAMES) -> None:
    """Refuse a single class, a first class above 0, gaps between labels, and more classes than a tenth of the rows."""
    counts = torch.bincount(labels.long())
    present = counts.nonzero().flatten().tolist()
    if len(present) == 1:
        raise PotluckError(
            f"All {len(labels):,} rows of {where} have the label {present[0]}; {SUPPORTED}, and needs two classes at "
            "least: check where the labels come from."
        )
    if named or not present:
        return
    first, last = present[0], present[-1]
    measured = ""
    if len(present) > FEW_CLASSES:
        measured = "divide measurements into classes first, such as numpy.digitize(y, bins); of classes, "
    if _too_many(len(present), len(labels)):
        raise PotluckError(
            f"The labels of {where} have {len(present):,} different values in {len(labels):,} rows; {SUPPORTED}, of "
            f"which each has {MIN_ROWS_PER_CLASS} rows or more, no regression: group the values into classes, such as "
            f"numpy.digitize(y, bins), or name all of them: {remedy}."
        )
    if 2 * len(present) <= last - first + 1:
        raise PotluckError(
            f"The labels of {where} are {len(present)} numbers from {first} to {last}, with gaps; {SUPPORTED}, "
            f"numbered 0, 1, 2, …: {measured}renumber them with numpy.unique(y, return_inverse=True), or name all "
            f"{last + 1} classes: {remedy}."
        )
    if first > 0:
        raise PotluckError(
            f"The labels of {where} start at {first}, so that class 0 would be empty; {measured}subtract {first}, or "
            f"name all classes: {remedy}."
        )


def check_finite_rows(x: NDArray[Any] | Tensor, where: str, first: int = 1) -> None:
    """Refuse rows with a value that is not a number or infinite; the row is named, counted from `first`."""
    rows = x if isinstance(x, Tensor) else torch.from_numpy(x) if x.dtype.kind == "f" else None
    if rows is None or not rows.is_floating_point() or not rows.numel():
        return
    # A sum is finite where all numbers are; only if it is not, rows are looked at one by one.
    if bool(torch.isfinite(rows.sum(dtype=torch.float64))):
        return
    bad = (~torch.isfinite(rows.reshape(len(rows), -1))).any(dim=1).nonzero().flatten()
    if len(bad):
        value = rows[bad[0]].reshape(-1)
        worst = value[~torch.isfinite(value)][0].item()
        raise PotluckError(
            f"Row {int(bad[0]) + first} of {where} has the value {worst} ({len(bad)} such "
            f"row{'s' if len(bad) > 1 else ''}); drop these rows, or replace the value, for instance by the column's "
            "mean."
        )
