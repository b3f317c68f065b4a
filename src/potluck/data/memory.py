"""Data that are already in memory: tensors, arrays, or a torch `Dataset`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from potluck.core.errors import PotluckError
from potluck.core.samples import Samples
from potluck.data.dataset import Cast, Data, Normalise
from potluck.data.raw import image_rows
from potluck.data.targets import check_finite_rows, checked_labels

TensorPair = tuple[Tensor, Tensor]
Rows = TensorPair | Samples | Data
DARK = 64
"""Bytes of which the largest is below this are hardly pictures with values up to 255."""


def as_data(
    source: Any,
    *,
    name: str = "memory",
    test: Any = None,
    groups: Any = None,
    class_names: Sequence[str] = (),
    num_classes: int | None = None,
    vocabulary: int | None = None,
) -> Data:
    """Make `Data` of a pair `(x, y)`, a torch `Dataset`, a Hugging Face table, or `Data` itself.

    uint8 rows are images, scaled to [0, 1] on the fly (`[n, h, w]` and `[n, h, w, 3]` become `[n, c, h, w]`); floats
    are taken as they are. `test` is a test part in the same form; `groups` says who produced each row, for the
    natural partition. Integer rows are word numbers (text) when `vocabulary` is given.
    """
    if isinstance(source, Data):
        return source
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return _table(source, name, test)
    x, y = _pair(source, name)
    test_x, test_y = (None, None) if test is None else _pair(test, f"{name} (test)")
    if test_x is not None and test_x.shape[1:] != x.shape[1:]:
        raise PotluckError(
            f"The test rows of data {name!r} have shape {tuple(test_x.shape[1:])}, the training rows "
            f"{tuple(x.shape[1:])}; give both the same shape."
        )
    group_ids = None if groups is None else _group_ids(groups, len(y), name)
    present = int(max(y.max(), y.max() if test_y is None else test_y.max())) + 1
    classes = num_classes or max(present, len(class_names))
    if present > classes:
        raise PotluckError(
            f"Data {name!r} has label {present - 1} but num_classes is {classes}; raise num_classes."
        )
    return Data(
        name,
        x,
        y,
        classes,
        tuple(x.shape[1:]),
        test_x=test_x,
        test_y=test_y,
        groups=group_ids,
        transform=default_transform(x, vocabulary),
        class_names=tuple(class_names),
        vocabulary=vocabulary,
        raw=image_rows(x.shape[1:], x.dtype),
    )


def _group_ids(groups: Any, rows: int, name: str) -> Tensor:
    """Return the group of each row as whole numbers."""
    ids = _tensor(groups).to(torch.int64)
    if len(ids) != rows:
        raise PotluckError(f"Data {name!r} has {rows} rows but {len(ids)} groups; give one group per row.")
    return ids


def _table(source: Any, name: str, test: Any) -> Data:
    from potluck.data.sources import hf
    from potluck.data.sources.base import LoadRequest

    request = LoadRequest(Path(), name)
    return hf.to_data(hf.convert(request, source, [] if test is None else [test]), name)


def default_transform(x: Tensor, vocabulary: int | None) -> Normalise | Cast | None:
    """Pixels to [0, 1], other numbers to float32, word numbers as they are."""
    if vocabulary is not None:
        return None
    return Normalise() if x.dtype == torch.uint8 else Cast(torch.float32)


def channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """uint8 images as `[n, channels, height, width]`: a grey set gets its channel, `[n, h, w, 3]` is turned."""
    if x.dtype != np.uint8:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return x


def _pair(source: Any, name: str) -> tuple[Tensor, Tensor]:
    if isinstance(source, Dataset):
        x, y = _stack(source, name)
    elif isinstance(source, tuple | list) and len(source) == 2:
        labels = source[1].detach().cpu().numpy() if isinstance(source[1], Tensor) else np.asarray(source[1])
        x, y = _tensor(source[0]), torch.from_numpy(checked_labels(labels, name))
    else:
        raise PotluckError(
            f"Data {name!r} is a {type(source).__name__}; give a pair (x, y) of tensors or arrays, "
            "or a torch Dataset with a length."
        )
    if len(x) != len(y) or len(y) == 0 or x.dim() < 2 or y.dim() != 1:
        raise PotluckError(
            f"Data {name!r} has rows of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}; "
            "give [n, …] rows and n labels."
        )
    check_finite_rows(x, f"data {name!r}")
    if x.dtype == torch.uint8:
        x = torch.from_numpy(channels_first(x.numpy()))
    return x, y


def _tensor(values: Any) -> Tensor:
    if isinstance(values, Tensor):
        return values.detach().cpu().contiguous()
    try:
        array = np.ascontiguousarray(values)
    except ValueError:  # how numpy refuses ragged rows
        array = np.array(None)
    if array.dtype == object:
        raise PotluckError("Rows of different shapes cannot become one tensor; pad or resize them first.")
    if not np.issubdtype(array.dtype, np.number) and array.dtype != np.bool_:
        raise PotluckError(
            f"Rows of {array.dtype.kind!r} values are no numbers; turn them into numbers first, or texts with a "
            "csv: or folder: source."
        )
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _stack(dataset: Dataset[Any], name: str) -> tuple[Tensor, Tensor]:
    """Read a map-style data set once, row by row; its own transform runs then and never again."""
    if not hasattr(dataset, "__len__"):
        raise PotluckError(
            f"Data {name!r} is an iterable Dataset without a length; give a map-style Dataset."
        )
    xs, ys = [], []
    for row in range(len(dataset)):
        x, y = dataset[row][:2]
        xs.append(torch.as_tensor(np.asarray(x)) if not isinstance(x, Tensor) else x)
        ys.append(np.asarray(y))
    if len({tuple(x.shape) for x in xs}) > 1:
        raise PotluckError(
            f"The rows of data {name!r} have different shapes; resize or pad them to one shape."
        )
    if not xs:
        return torch.empty(0, 1), torch.empty(0, dtype=torch.int64)
    if len({y.shape for y in ys}) > 1:
        raise PotluckError(
            f"The rows of data {name!r} have different numbers of labels; give one class per row."
        )
    return torch.stack(xs), torch.from_numpy(checked_labels(np.stack(ys), name))


def as_samples(given: Rows) -> Samples:
    """Return a pair of tensors, or the training rows of a data set, as samples; bytes of a pair are divided by 255."""
    if isinstance(given, Samples):
        return given
    if isinstance(given, Data):
        return given.train
    x, y = given
    kinds = [str(value.dtype) if isinstance(value, Tensor) else type(value).__name__ for value in given]
    if not all(isinstance(value, Tensor) for value in given):
        raise PotluckError(
            f"A client's samples are tensors (x, y) with y of whole numbers from 0, not {' and '.join(kinds)}; "
            "potluck.data.as_data((x, y)).train turns arrays into samples."
        )
    check_finite_rows(x, "a client's samples")
    labels = torch.from_numpy(checked_labels(y.detach().cpu().numpy(), "of a client")).to(y.device)
    return Samples(x, labels, None, default_transform(x, None) if x.dtype == torch.uint8 else None)


def warn_of_small_bytes(rows: Samples) -> None:
    """Warn of bytes that are hardly pictures with values up to 255, by which they are divided."""
    if rows.x.dtype == torch.uint8 and len(rows.x) and int(rows.x.max()) < DARK:
        warnings.warn(
            f"A client's rows are bytes up to {int(rows.x.max())}, and bytes are divided by 255; if their largest "
            "value means full scale, pass the data set (potluck.Member(model, data) or data.subset(rows)), or floats.",
            stacklevel=3,
        )
