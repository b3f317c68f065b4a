"""A table with a header line: `csv:PATH`, with the label column named."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, how_to_set, plain, unknown
from potluck.data.cache import RawArrays, read_cached
from potluck.data.classes import sort_names
from potluck.data.dataset import Data, Normalise, statistics
from potluck.data.files import read_bytes
from potluck.data.raw import Column, TableInput, TextInput, is_missing
from potluck.data.sources.base import LoadRequest, Source
from potluck.data.sources.text import LENGTH, WORDS, encode_texts, every_fifth_row
from potluck.data.targets import check_label_words

MAX_CATEGORIES = 100


def load(request: LoadRequest) -> Data:
    """Standardise numbers over all rows; words become one column per word; labels may be anything."""
    path = Path(request.argument).expanduser()
    if not request.argument or not path.is_file():
        raise PotluckError(f"Data 'csv:{request.argument}' need an existing file; check the path.")
    raw = read_cached(
        request.root,
        f"csv-{path.stem}",
        [path],
        lambda: read_table(path, read_columns(path), request),
        "columns",
        *table_choices(request),
    )
    data = raw.data(f"csv:{path.stem}", None)
    if raw.vocabulary is not None:
        return data
    mean, std = statistics(data.x)
    return raw.data(f"csv:{path.stem}", Normalise(mean, std, scale=1.0))


def table_choices(request: LoadRequest) -> tuple[object, ...]:
    """Return the options on which the numbers of a table depend."""
    choices: tuple[object, ...] = (request.label, request.groups, request.text)
    # Choices at their defaults are left out, so that a copy stays good when another choice is added.
    used_choices = choices if request.text else choices[:2]
    if request.class_names:
        used_choices = (*used_choices, "classes listed")
    return (*used_choices, "imputed and counted") if request.impute else used_choices


Groups = tuple[NDArray[np.int64], tuple[str, ...]]
"""The group of each row, as a number, and the names of the groups."""


def read_table(
    path: Path, columns: dict[str, list[str]], request: LoadRequest, owners: Groups | None = None
) -> RawArrays:
    """Turn columns of words into numbers, labels and groups, as the request says; `path` is for messages."""
    label, groups, text = request.label, request.groups, request.text
    label = label or ("label" if "label" in columns else None)
    if label is None:
        raise PotluckError(
            f"Data 'csv:{path.name}' need a label column: {how_to_set('label', 'COLUMN')}; the columns are "
            f"{', '.join(columns)}."
        )
    for named in (label, groups, text):
        if named is not None and named not in columns:
            raise unknown(f"column of {path.name}", named, columns)
    for named in (label, groups, text):
        if named is not None and any(map(is_missing, columns[named])):
            raise missing_value(path, named, columns[named], imputable=False)
    if not request.class_names:
        check_label_words(columns[label], f"Label column {label!r} of {str(path)!r}")
    names, y = encode_labels(columns.pop(label))
    if groups is not None:
        whose, numbers = encode_labels(columns.pop(groups))
        owners = (numbers, whose)
    if text is not None:
        return _texts(text, columns[text], y, owners, names)
    if not columns:
        raise PotluckError(
            f"Data 'csv:{path.name}' have no column besides {label!r}; give some to learn from."
        )
    raw = TableInput(
        tuple(fit_column(path, name, values, impute=request.impute) for name, values in columns.items())
    )
    rows = RawArrays(raw.encode_columns(columns), y, len(y), class_names=names, raw=raw)
    return rows if owners is None else replace(rows, groups=owners[0], group_names=owners[1])


def _texts(
    column: str, texts: list[str], y: NDArray[np.int64], owners: Groups | None, names: tuple[str, ...]
) -> RawArrays:
    """Word numbers of a column of texts, by a vocabulary of four fifths of the rows; every fifth row is a test row."""
    is_test = every_fifth_row(len(y))
    order = np.concatenate([np.flatnonzero(~is_test), np.flatnonzero(is_test)])
    rows = [(int(y[row]), texts[row]) for row in order]
    raw = encode_texts(rows[: int((~is_test).sum())], rows[int((~is_test).sum()) :], names, WORDS, LENGTH)
    assert isinstance(raw.raw, TextInput)
    raw = replace(raw, raw=replace(raw.raw, column=column))
    return raw if owners is None else replace(raw, groups=owners[0][order], group_names=owners[1])


def read_columns(path: Path) -> dict[str, list[str]]:
    """Return the columns by name; the separator is that of the header line, missing values are left as they are."""
    text = _decode(path)
    separator = _separator(text)
    try:
        header, *rows = [
            [value.strip() for value in row]
            for row in csv.reader(io.StringIO(text), delimiter=separator)
            if row
        ] or [[]]
    except csv.Error as problem:
        raise PotluckError(f"Table {str(path)!r} cannot be read ({problem}); save it as CSV again.") from None
    if not header or not rows:
        raise PotluckError(
            f"Table {str(path)!r} has {'a header line and no row' if header else 'no line at all'}; give it a header "
            "line and at least one row."
        )
    if len(set(header)) < len(header):
        duplicate = next(name for name in header if header.count(name) > 1)
        raise PotluckError(
            f"Table {str(path)!r} has two columns called {duplicate!r}; give each its own name."
        )
    for line, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise PotluckError(
                f"Table {str(path)!r}: row {line} has {len(row)} values where the header has {len(header)} (separated "
                f"by {SEPARATORS[separator]}); complete the row, or quote values that hold the separator."
            )
    columns = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    return columns if separator == "," else {name: _with_points(values) for name, values in columns.items()}


SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")


def _decode(path: Path) -> str:
    """Return the text of a table: UTF-8, or UTF-16 where it says so."""
    content = read_bytes(path)
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as problem:
        line = content[: problem.start].count(b"\n") + 1
        raise PotluckError(
            f"Table {str(path)!r} is not encoded in UTF-8 (byte 0x{content[problem.start]:02x} in line {line}); save "
            "it as UTF-8, which a spreadsheet calls CSV UTF-8."
        ) from None


def _separator(text: str) -> str:
    """Return the separator by which the header line has most columns; commas where it has one."""
    header = text.partition("\n")[0]
    return max(SEPARATORS, key=lambda separator: len(next(csv.reader([header], delimiter=separator), [])))


def _with_points(values: list[str]) -> list[str]:
    """Return numbers with decimal points: with other separators than commas, 3,5 is a number."""
    if not all(_DECIMAL_COMMA.fullmatch(value) or _is_number(value) or is_missing(value) for value in values):
        return values
    return [value.replace(",", ".") if _DECIMAL_COMMA.fullmatch(value) else value for value in values]


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


def encode_labels(values: list[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Return the distinct values in order (by size when all are numbers) and the place of each value among them."""
    names = sort_names(values)
    place = {name: index for index, name in enumerate(names)}
    return names, np.array([place[value] for value in values], dtype=np.int64)


def fit_column(path: Path, name: str, values: list[str], *, impute: bool = False) -> Column:
    """Describe a column: numbers where all values are, else its distinct words.

    With `impute`, missing values are replaced by the mean of the numbers, or by the most frequent word.
    """
    present = [value for value in values if not is_missing(value)]
    if not present:
        raise PotluckError(
            f"Column {name!r} of {str(path)!r} has no value in any row; take it out of the table."
        )
    if len(present) < len(values) and not impute:
        raise missing_value(path, name, values)
    numbers = [value for value in present if _is_number(value)]
    if len(numbers) == len(present):
        return _fit_numbers(path, name, values, np.array(present, dtype=np.float64), impute=impute)
    if 2 * len(numbers) > len(present):
        row = next(row for row, value in enumerate(values) if not is_missing(value) and not _is_number(value))
        raise PotluckError(
            f"Column {name!r} of {str(path)!r} has numbers in most rows and {plain(values[row], 60)!r} in row "
            f"{row + 2}; write a number there, or leave it empty for a missing value."
        )
    words, _ = encode_labels(present)
    if len(words) > MAX_CATEGORIES:
        raise PotluckError(
            f"Column {name!r} of {str(path)!r} has {len(words)} different words (more than {MAX_CATEGORIES}); "
            f"drop it, turn it into numbers, or read it as text: {how_to_set('text', name)}."
        )
    times = Counter(present)
    fill = min(words, key=lambda word: -times[word]) if impute else None
    return Column(name, words, fill, imputed=len(values) - len(present))


def _fit_numbers(
    path: Path, name: str, values: list[str], numbers: NDArray[np.float64], *, impute: bool
) -> Column:
    with np.errstate(over="ignore"):
        finite = np.isfinite(numbers.astype(np.float32))
    if not finite.all():
        bad = [value for value in values if not is_missing(value)][int(np.flatnonzero(~finite)[0])]
        raise PotluckError(
            f"Column {name!r} of {str(path)!r} has {plain(bad, 60)!r} in row {values.index(bad) + 2}, which is not "
            "finite; correct the value, or leave it empty for a missing one."
        )
    fill = repr(float(numbers.mean())) if impute else None
    return Column(name, (), fill, imputed=len(values) - len(numbers))


def missing_value(path: Path, name: str, values: list[str], *, imputable: bool = True) -> PotluckError:
    """Return the error for a column with missing values."""
    rows = [row for row, value in enumerate(values) if is_missing(value)]
    state = f"is {values[rows[0]]!r}" if values[rows[0]] else "is empty"
    impute = how_to_set("missing", "impute")
    remedy = f"; fill it in, drop these rows, or {impute}: the mean, or the most frequent word."
    return PotluckError(
        f"Column {name!r} of {str(path)!r} {state} in row {rows[0] + 2}, a missing value ({len(rows)} of {len(values)} "
        f"rows){remedy if imputable else '; fill it in, or drop these rows.'}"
    )


SOURCES = (
    Source(
        "csv",
        "csv:PATH — your table; --label COLUMN names what to predict, --text COLUMN a column of texts",
        load,
        options=("label", "groups", "text", "missing"),
    ),
)
