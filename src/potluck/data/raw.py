"""Raw inputs (images, texts, rows of a table) as plain data: how each becomes the numbers of one row of a data set.

Sources build their rows with these objects, and an exported model keeps them, so that training and prediction read
raw inputs in the same way.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError, plain
from potluck.data.sources.images import list_images, read_image

PADDING, UNKNOWN = 0, 1
WORD_PATTERN = r"[^\W_]+(?:'[^\W_]+)?|[!?$£€%]"
"""Words of lower-case text, and the few marks that carry meaning in headlines and messages."""
_WORD = re.compile(WORD_PATTERN)


@dataclass(frozen=True)
class ImageInput:
    """Images as `[channels, height, width]` of whole numbers from 0 to `maximum`.

    With `resize`, images of other sizes are scaled; without, they are an error.
    """

    grey: bool
    height: int
    width: int
    resize: bool = False
    maximum: int = 255

    def encode(self, images: Sequence[Any]) -> NDArray[np.uint8]:
        """Return `[n, channels, height, width]` for paths, PIL images or arrays `[h, w]` or `[h, w, 3]`."""
        rows = np.empty((len(images), 1 if self.grey else 3, self.height, self.width), np.uint8)
        for row, image in enumerate(images):
            rows[row] = self._row(image)
        return rows

    def _row(self, image: Any) -> NDArray[np.uint8]:
        name = str(image) if isinstance(image, str | Path) else "given"
        if isinstance(image, str | Path) and not Path(image).is_file():
            raise PotluckError(f"Image {plain(name, 200)!r} does not exist; check the path.")
        size = self.height if self.resize else None  # images are scaled to squares
        pixels = read_image(Path(image) if isinstance(image, str) else image, size, self.grey)
        if pixels.shape[1:] != (self.height, self.width):
            raise PotluckError(
                f"Image {plain(name, 200)!r} is {pixels.shape[2]}×{pixels.shape[1]} and the model takes "
                f"{self.width}×{self.height}; resize it first."
            )
        return pixels if self.maximum == 255 else np.rint(pixels * (self.maximum / 255)).astype(np.uint8)

    def files(self, path: Path) -> list[Any]:
        """Return the images that a path on the command line names: a file, or all files of a folder."""
        return list(list_images(path)) if path.is_dir() else [path]


@dataclass(frozen=True)
class TextInput:
    """Texts as the numbers of their first `length` words; `words` have the numbers 2, 3, …"""

    words: tuple[str, ...]
    length: int
    column: str | None = None
    """The column of a table that has the texts."""

    @property
    def vocabulary(self) -> int:
        """How many different numbers there are: the words, padding, and one for all other words."""
        return len(self.words) + 2

    def encode(self, texts: Sequence[str]) -> NDArray[np.int64]:
        """Return `[n, length]`; 1 is any other word, 0 is padding."""
        return encode(texts, {word: number for number, word in enumerate(self.words, start=2)}, self.length)

    def files(self, path: Path) -> list[Any]:
        """Return the texts of a file: the column of a table, or the whole of any other file."""
        from potluck.data.sources.table import read_columns
        from potluck.data.sources.text import decode

        if path.suffix.lower() != ".csv":
            return [decode(path)]
        columns = read_columns(path)
        name = self.column or next(iter(columns))
        if name not in columns:
            raise PotluckError(f"Table {str(path)!r} has no column {name!r}, which holds the texts.")
        return list(columns[name])


MISSING = frozenset({"", "?", "na", "n/a", "#n/a", "nan", "null"})
"""Values of a table, in small letters, that say that there is none."""


def is_missing(value: str) -> bool:
    """Tell whether a value of a table says that there is none."""
    return value.strip().lower() in MISSING


RowName = Callable[[int], str]
"""Names a row, counted from 0, in an error."""


def row_name(row: int) -> str:
    """Name one of several rows that are in no file."""
    return f"row {row + 1}"


def row_of_file(path: Path) -> RowName:
    """Return a function that names the rows of a table with a header."""
    return lambda row: f"row {row + 1} of {str(path)!r} (the header not counted)"


@dataclass(frozen=True)
class Column:
    """One column of a table: a number, or one of `categories`, which become one number each (one-hot).

    `fill` replaces missing values; without it they are an error. `imputed` counts those of the data set.
    """

    name: str
    categories: tuple[str, ...] = ()
    fill: str | None = None
    imputed: int = field(default=0, compare=False)

    def encode(self, values: Sequence[str], where: RowName = row_name) -> NDArray[np.float32]:
        """Return `[n, 1]` numbers, or `[n, categories]`."""
        if self.fill is not None:
            values = [self.fill if is_missing(value) else value for value in values]
        if not self.categories:
            return self._numbers(values, where)
        place = {name: index for index, name in enumerate(self.categories)}
        for row, value in enumerate(values):
            if value not in place:
                names = plain(", ".join(self.categories), 200)
                raise PotluckError(
                    f"Column {self.name!r} has {plain(value, 100)!r} in {where(row)}, which no training row has; "
                    f"use one of: {names}."
                )
        return np.eye(len(self.categories), dtype=np.float32)[[place[value] for value in values]]

    def _numbers(self, values: Sequence[str], where: RowName) -> NDArray[np.float32]:
        try:
            column = np.array(values, dtype=np.float32)[:, None]
        except ValueError:
            column = np.full((len(values), 1), np.nan, np.float32)
            for row, value in enumerate(values):
                with suppress(ValueError):
                    column[row] = float(value)
        for row in np.flatnonzero(~np.isfinite(column[:, 0]))[:1]:
            raise PotluckError(
                f"Column {self.name!r} has {plain(values[row], 100)!r} in {where(int(row))}; give a finite number."
            )
        return column


@dataclass(frozen=True)
class TableInput:
    """Rows of a table as numbers, column by column in the order of training; other columns are ignored."""

    columns: tuple[Column, ...]

    @property
    def imputed(self) -> dict[str, int]:
        """How many values of each column were missing in the data set, and are replaced; only columns with some."""
        return {column.name: column.imputed for column in self.columns if column.imputed}

    def encode(self, rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        """Return `[n, width]` for rows by column name."""
        for number, row in enumerate(rows, start=1):
            if missing := [column.name for column in self.columns if column.name not in row]:
                raise PotluckError(f"Row {number} has no {missing[0]!r}; the model takes {self._names()}.")
        return self.encode_columns(
            {column.name: [str(row[column.name]).strip() for row in rows] for column in self.columns}
        )

    def encode_columns(
        self, columns: Mapping[str, Sequence[str]], where: RowName = row_name
    ) -> NDArray[np.float32]:
        """Return `[n, width]` for whole columns of a table; `where` names rows in errors."""
        return np.concatenate([column.encode(columns[column.name], where) for column in self.columns], axis=1)

    def encode_file(self, path: Path) -> NDArray[np.float32]:
        """Return `[n, width]` for the rows of a CSV file."""
        from potluck.data.sources.table import read_columns

        columns = read_columns(path)
        if missing := [column.name for column in self.columns if column.name not in columns]:
            raise PotluckError(
                f"Table {str(path)!r} has no column {missing[0]!r}; the model takes {self._names()}."
            )
        return self.encode_columns(columns, row_of_file(path))

    def _names(self) -> str:
        return plain(", ".join(column.name for column in self.columns), 300)


RawInput = ImageInput | TextInput | TableInput


def describe_raw(raw: RawInput | None) -> dict[str, Any] | None:
    """Describe a raw input as JSON; None where rows are arrays of numbers."""
    match raw:
        case ImageInput():
            return {"kind": "image", **vars(raw)}
        case TextInput():
            tokenizer = {"lower_case": True, "pattern": WORD_PATTERN, "padding": PADDING, "unknown": UNKNOWN}
            return {"kind": "text", "tokenizer": tokenizer, **vars(raw)}
        case TableInput():
            return {"kind": "table", "columns": [vars(column) for column in raw.columns]}
    return None


def read_raw(facts: Mapping[str, Any] | None) -> RawInput | None:
    """Build the raw input of a description; a `ValueError` or `LookupError` says what is wrong with it."""
    if facts is None:
        return None
    if facts["kind"] == "image":
        sizes = (int(facts["height"]), int(facts["width"]))
        return ImageInput(bool(facts["grey"]), *sizes, bool(facts["resize"]), int(facts["maximum"]))
    if facts["kind"] == "text":
        if facts["tokenizer"]["pattern"] != WORD_PATTERN:
            raise ValueError("its texts are cut into words by another pattern")
        return TextInput(tuple(map(str, facts["words"])), int(facts["length"]), facts["column"])
    if facts["kind"] == "table":
        return TableInput(tuple(_read_column(column) for column in facts["columns"]))
    raise ValueError(f"its raw input is of the unknown kind {facts['kind']!r}")


def _read_column(facts: Mapping[str, Any]) -> Column:
    fill = facts.get("fill")
    return Column(
        str(facts["name"]),
        tuple(map(str, facts["categories"])),
        None if fill is None else str(fill),
        int(facts.get("imputed", 0)),
    )


def image_rows(shape: Sequence[int], dtype: object, *, resize: bool = False) -> ImageInput | None:
    """Return the raw input of rows that are pictures of bytes, `[channels, height, width]`; None for other rows."""
    if "uint8" not in str(dtype) or len(shape) != 3 or shape[0] not in (1, 3):
        return None
    return ImageInput(shape[0] == 1, int(shape[1]), int(shape[2]), resize)


# -- texts -----------------------------------------------------------------------------------------------------


def tokenise(text: str) -> list[str]:
    """Split a text into lower-case words and marks."""
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """Return the `size - 2` most frequent words seen at least twice, numbered from 2; ties go by the alphabet."""
    seen = Counter(word for text in texts for word in tokenise(text))
    ranked = sorted((word for word, times in seen.items() if times > 1), key=lambda word: (-seen[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], start=2)}


def encode(texts: Sequence[str], vocabulary: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """Return the first `length` words of each text as numbers `[n, length]`; 1 is any other word, 0 is padding."""
    rows = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        numbers = [vocabulary.get(word, UNKNOWN) for word in tokenise(text)[:length]]
        rows[row, : len(numbers)] = numbers
    return rows
