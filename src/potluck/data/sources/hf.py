"""Data sets of the Hugging Face hub: `hf:NAME`, through the optional library `datasets`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, how_to_set, unknown
from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data
from potluck.data.memory import default_transform
from potluck.data.raw import TextInput, build_vocabulary, image_rows
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.images import read_image
from potluck.data.sources.table import encode_labels
from potluck.data.targets import SUPPORTED, check_finite_rows, check_label_words

WORDS, LENGTH = 10_000, 64
LABELS = ("label", "labels", "fine_label", "class", "target")


def load(request: LoadRequest) -> Data:
    """Return the `train` split (and a labelled `test` or `validation`) of `hf:NAME` or `hf:NAME@CONFIGURATION`."""
    try:
        import datasets
    except ImportError as problem:
        raise PotluckError(
            "Data 'hf:NAME' need the library 'datasets'; run: pip install potluck[hf]"
        ) from problem
    name, _, configuration = request.argument.partition("@")
    if not name:
        raise PotluckError("Data 'hf:' need a name; write hf:NAME, such as hf:ylecun/mnist.")
    try:
        dataset = datasets.load_dataset(name, configuration or None)
    except Exception as problem:  # the hub's library raises a dozen kinds; all mean "not there"
        reason = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise PotluckError(
            f"Data 'hf:{request.argument}' cannot be loaded ({reason}); check the name."
        ) from problem
    train = dataset["train"] if "train" in dataset else next(iter(dataset.values()))
    other_parts = [
        dataset[part] for part in ("test", "validation") if part in dataset and dataset[part] is not train
    ]
    stamps = [getattr(table, "_fingerprint", None) for table in (train, *other_parts)]
    if None in stamps:
        return to_data(convert(request, train, other_parts), f"hf:{request.argument}")
    choices = (*stamps, request.label, request.groups, request.image_size)
    slug = f"hf-{request.argument.replace('/', '-')}"
    raw = read_cached(request.root, slug, [], lambda: convert(request, train, other_parts), *choices)
    return to_data(raw, f"hf:{request.argument}")


def to_data(raw: RawArrays, name: str) -> Data:
    """Return tensors over the arrays, with the transform that fits their kind."""
    return raw.data(name, default_transform(raw.data(name, None).x, raw.vocabulary))


def convert(request: LoadRequest, train: Any, others: Sequence[Any] = ()) -> RawArrays:
    """Return one array of rows and one of labels out of the library's tables.

    The first of `others` with labels is the test part; many published test parts have -1 for every label.
    """
    columns = list(train.column_names)
    label = _pick(request.label, columns, LABELS, "label", request)
    inputs = [name for name in columns if name not in (label, request.groups)]
    column = _pick(None, inputs, ("image", "img", "text", "sentence", "x", *inputs), "input", request)
    test = next((table for table in others if _labelled(table[label])), None)
    parts = [train] if test is None else [train, test]
    values = [value for part in parts for value in part[column]]
    names, y = _labels(train, parts, label)
    groups = None
    if request.groups is not None:
        _pick(request.groups, columns, (), "groups", request)
        groups = encode_labels([str(value) for part in parts for value in part[request.groups]])[1]
    if isinstance(values[0], str):
        text = TextInput(tuple(build_vocabulary(values[: len(train)], WORDS)), LENGTH, column)
        return RawArrays(text.encode(values), y, len(train), groups, names, text.vocabulary, text)
    x = _array(values, request)
    raw = image_rows(x.shape[1:], x.dtype, resize=request.image_size is not None)
    return RawArrays(x, y, len(train), groups, names, raw=raw)


def _labelled(values: Any) -> bool:
    return all(isinstance(value, str) or value >= 0 for value in values)


def _pick(
    named: str | None, columns: list[str], defaults: tuple[str, ...], what: str, request: LoadRequest
) -> str:
    if named is not None and named not in columns:
        raise unknown(f"column of hf:{request.argument}", named, columns)
    chosen = named or next((name for name in defaults if name in columns), None)
    if chosen is None:
        remedy = "give some to learn from" if what == "input" else how_to_set(what, "COLUMN")
        raise PotluckError(
            f"Data 'hf:{request.argument}' have no {what} column among {', '.join(columns)}; {remedy}."
        )
    return chosen


def _labels(train: Any, parts: list[Any], label: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    values = [value for part in parts for value in part[label]]
    names = getattr(train.features[label], "names", None)
    if names:
        return tuple(names), np.array(values, dtype=np.int64)
    if isinstance(values[0], list | tuple):
        raise PotluckError(f"Column {label!r} has several labels for each row; {SUPPORTED}.")
    words = [str(value) for value in values]
    check_label_words(words, f"Label column {label!r}")
    return encode_labels(words)


def _array(values: list[Any], request: LoadRequest) -> NDArray[np.generic]:
    size = request.image_size
    if hasattr(values[0], "convert"):  # PIL images
        grey = values[0].mode in ("1", "L")
        if size is None and len({value.size for value in values}) > 1:
            remedy = how_to_set("image_size", "PIXELS")
            raise PotluckError(f"The images of 'hf:{request.argument}' differ in size; {remedy}.")
        return np.stack([read_image(value, size, grey) for value in values])
    try:
        x = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError) as problem:
        raise PotluckError(
            f"The rows of 'hf:{request.argument}' are no images, numbers or texts ({problem})."
        ) from problem
    check_finite_rows(x, f"'hf:{request.argument}'")
    return x[:, None] if x.ndim == 1 else x


SOURCES = (
    Source(
        "hf",
        "hf:NAME — a data set of the Hugging Face hub (pip install potluck[hf])",
        load,
        options=("label", "groups", "image_size"),
    ),
)
