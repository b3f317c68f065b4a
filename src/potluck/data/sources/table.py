"""A table with a header line: `csv:PATH`, with the label column named."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, unknown
from potluck.data.cache import RawArrays, read_cached
from potluck.data.classes import sort_names
from potluck.data.dataset import Data, Normalise, statistics
from potluck.data.files import damaged_file
from potluck.data.raw import Column, TableInput, TextInput
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.text import LENGTH, WORDS, encode_texts, every_fifth_row
from potluck.data.targets import check_label_words

MAX_CATEGORIES = 100


def load(request: LoadRequest) -> Data:
    """Numbers are standardised over all rows; words become one column per word; labels may be anything."""
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_file():
        raise PotluckError(f"Data 'csv:{request.argument}' need an existing file; check the path.")
    choices = (request.label, request.groups, request.text)
    # The third choice is new, and copies made before it are as good as ever.
    known = choices if request.text else choices[:2]
    if request.class_names:
        known = (*known, "classes listed")
    declared = bool(request.class_names)
    raw = read_cached(
        request.root, f"csv-{path.stem}", [path], lambda: _read(path, *choices, declared=declared), *known
    )
    data = raw.data(f"csv:{path.stem}", None)
    if raw.vocabulary is not None:
        return data
    mean, std = statistics(data.x)
    return raw.data(f"csv:{path.stem}", Normalise(mean, std, scale=1.0))


def _read(
    path: Path, label: str | None, groups: str | None, text: str | None = None, *, declared: bool = False
) -> RawArrays:
    columns = read_columns(path)
    label = label or ("label" if "label" in columns else None)
    if label is None:
        raise PotluckError(f"Data 'csv:{path.name}' need label=COLUMN; the columns are {', '.join(columns)}.")
    for named in (label, groups, text):
        if named is not None and named not in columns:
            raise unknown(f"column of {path.name}", named, columns)
    if not declared:
        check_label_words(columns[label], f"Label column {label!r} of {str(path)!r}")
    names, y = encode_labels(columns.pop(label))
    who = None if groups is None else encode_labels(columns.pop(groups))[1]
    if text is not None:
        return _texts(text, columns[text], y, who, names)
    if not columns:
        raise PotluckError(
            f"Data 'csv:{path.name}' have no column besides {label!r}; give some to learn from."
        )
    raw = TableInput(tuple(fit_column(path, name, values) for name, values in columns.items()))
    return RawArrays(raw.encode_columns(columns), y, len(y), who, names, raw=raw)


def _texts(
    column: str, texts: list[str], y: NDArray[np.int64], who: NDArray[np.int64] | None, names: tuple[str, ...]
) -> RawArrays:
    """Word numbers of a column of texts, by a vocabulary of four fifths of the rows; every fifth row is a test row."""
    held = every_fifth_row(len(y))
    order = np.concatenate([np.flatnonzero(~held), np.flatnonzero(held)])
    rows = [(int(y[row]), texts[row]) for row in order]
    raw = encode_texts(rows[: int((~held).sum())], rows[int((~held).sum()) :], names, WORDS, LENGTH)
    assert isinstance(raw.raw, TextInput)
    raw = replace(raw, raw=replace(raw.raw, column=column))
    return raw if who is None else replace(raw, groups=who[order])


def read_columns(path: Path) -> dict[str, list[str]]:
    """The columns by name; a line with too few or too many values, or an empty one, is named."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *rows = [[value.strip() for value in row] for row in csv.reader(file) if row] or [[]]
    except (UnicodeDecodeError, csv.Error) as problem:
        raise damaged_file(path, str(problem)) from problem
    if not header or not rows:
        raise PotluckError(
            f"Table {str(path)!r} has {'a header line and no row' if header else 'no line at all'}; give it a header "
            "line and at least one row."
        )
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise damaged_file(path, f"row {line} has {len(row)} values where the header has {len(header)}")
        if "" in row:
            empty = header[row.index("")]
            raise PotluckError(
                f"Column {empty!r} of {str(path)!r} is empty in row {line}; fill it in or drop the row."
            )
    return {name: [row[place] for row in rows] for place, name in enumerate(header)}


def encode_labels(values: list[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """The distinct values in order (by size when all are numbers) and the place of each value among them."""
    names = sort_names(values)
    place = {name: index for index, name in enumerate(names)}
    return names, np.array([place[value] for value in values], dtype=np.int64)


def fit_column(path: Path, name: str, values: list[str]) -> Column:
    """Describe a column: numbers where all values are, else its distinct words."""
    try:
        column = np.array(values, dtype=np.float32)
    except ValueError:
        words, _ = encode_labels(values)
        if len(words) > MAX_CATEGORIES:
            raise PotluckError(
                f"Column {name!r} of {str(path)!r} has {len(words)} different words (more than {MAX_CATEGORIES}); "
                f"drop it, turn it into numbers, or read it as text: data.text={name}."
            ) from None
        return Column(name, words)
    if not np.isfinite(column).all():
        raise PotluckError(
            f"Column {name!r} of {str(path)!r} holds a value that is not finite; correct or drop the row."
        )
    return Column(name)


SOURCES = (
    Source(
        "csv",
        "csv:PATH — your table; label=COLUMN names what to predict, text=COLUMN a column of texts",
        load,
        options=("label", "groups", "text"),
    ),
)
