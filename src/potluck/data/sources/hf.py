"""Data sets of the Hugging Face hub: `hf:NAME`, through the optional library `datasets`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, unknown
from potluck.data.cache import Raw
from potluck.data.dataset import Data
from potluck.data.memory import channels_first, default_transform
from potluck.data.sources.base import Request, Source
from potluck.data.sources.table import number
from potluck.data.sources.words import build_vocabulary, encode

WORDS, LENGTH = 10_000, 64


def load(request: Request) -> Data:
    """The `train` split (and `test` or `validation`): a label column and one of images, numbers or text."""
    try:
        import datasets
    except ImportError as problem:
        raise PotluckError(
            "Data 'hf:NAME' need the library 'datasets'; run: pip install potluck[hf]"
        ) from problem
    if not request.rest:
        raise PotluckError("Data 'hf:' need a name; write hf:NAME, such as hf:ylecun/mnist.")
    try:
        found = datasets.load_dataset(request.rest)
    except Exception as problem:  # the hub's library raises a dozen kinds; all mean "not there"
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise PotluckError(
            f"Data 'hf:{request.rest}' cannot be loaded ({reason}); check the name."
        ) from problem
    train = found["train"] if "train" in found else next(iter(found.values()))
    test = next((found[name] for name in ("test", "validation") if name in found), None)
    return convert(request, train, None if test is train else test)


def convert(request: Request, train: Any, test: Any) -> Data:
    """One array of rows and one of labels out of the library's tables."""
    columns = list(train.column_names)
    label = _pick(
        request.label, columns, ("label", "labels", "fine_label", "class", "target"), "label", request
    )
    inputs = [name for name in columns if name not in (label, request.groups)]
    column = _pick(None, inputs, ("image", "img", "text", "sentence", "x", *inputs), "input", request)
    parts = [train] if test is None else [train, test]
    values = [value for part in parts for value in part[column]]
    names, y = _labels(train, parts, label)
    groups = None
    if request.groups is not None:
        _pick(request.groups, columns, (), "groups", request)
        groups = number([str(value) for part in parts for value in part[request.groups]])[1]
    if isinstance(values[0], str):
        vocabulary = build_vocabulary(values[: len(train)], WORDS)
        rows = encode(values, vocabulary, LENGTH)
        raw = Raw(rows, y, len(train), groups, names, len(vocabulary) + 2)
        return raw.data(f"hf:{request.rest}", None)
    x = _array(values, request)
    raw = Raw(x, y, len(train), groups, names)
    return raw.data(f"hf:{request.rest}", default_transform(raw.data("", None).x, None))


def _pick(named: str | None, columns: list[str], usual: tuple[str, ...], what: str, request: Request) -> str:
    if named is not None and named not in columns:
        raise unknown(f"column of hf:{request.rest}", named, columns)
    chosen = named or next((name for name in usual if name in columns), None)
    if chosen is None:
        raise PotluckError(
            f"Data 'hf:{request.rest}' have no {what} column among {', '.join(columns)}; pass {what}=COLUMN."
        )
    return chosen


def _labels(train: Any, parts: list[Any], label: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    values = [value for part in parts for value in part[label]]
    names = getattr(train.features[label], "names", None)
    if names:
        return tuple(names), np.array(values, dtype=np.int64)
    return number([str(value) for value in values])


def _array(values: list[Any], request: Request) -> NDArray[np.generic]:
    size = request.image_size
    if hasattr(values[0], "convert"):  # PIL images
        mode = "L" if values[0].mode in ("1", "L") else "RGB"
        values = [value.convert(mode) for value in values]
        if size is not None:
            values = [value.resize((size, size)) for value in values]
        if len({value.size for value in values}) > 1:
            raise PotluckError(f"The images of 'hf:{request.rest}' differ in size; pass image_size.")
        return channels_first(np.stack([np.asarray(value, dtype=np.uint8) for value in values]))
    try:
        x = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError) as problem:
        raise PotluckError(
            f"The rows of 'hf:{request.rest}' are no images, numbers or texts ({problem})."
        ) from problem
    return x[:, None] if x.ndim == 1 else x


SOURCES = (Source("hf", "hf:NAME — a data set of the Hugging Face hub (pip install potluck[hf])", load),)
