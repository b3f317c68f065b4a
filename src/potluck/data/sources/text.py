"""AG News and SMS Spam: short texts as word ids."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.data.cache import RawArrays, read_cached
from potluck.data.dataset import Data
from potluck.data.fetch import Download
from potluck.data.files import damaged_file, find_file, read_bytes
from potluck.data.raw import TextInput, build_vocabulary
from potluck.data.sources.base import LoadRequest, Source


def every_fifth_row(n: int) -> NDArray[np.bool_]:
    """Return which of `n` rows are held out for testing where the publisher has no test part: 4, 9, 14, …"""
    is_test: NDArray[np.bool_] = np.arange(n) % 5 == 4
    return is_test


TOPICS = ("World", "Sports", "Business", "Sci/Tech")
NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
Rows = list[tuple[int, str]]
WORDS, LENGTH = 10_000, 64
"""For texts of one's own: how many different words are known, and how many of a text are read."""


def decode(path: Path) -> str:
    """Return a text file's content."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as problem:
        raise PotluckError(
            f"Text file {str(path)!r} is not encoded in UTF-8 (byte 0x{problem.object[problem.start]:02x}); save it as "
            "UTF-8."
        ) from None


def read_news(path: Path) -> Rows:
    """Return lines of `"class 1-4","title","text"`."""
    rows = []
    for line, row in enumerate(csv.reader(io.StringIO(decode(path))), start=1):
        if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
            raise damaged_file(path, f"entry {line} is not a class from 1 to 4, a title and a text")
        rows.append((int(row[0]) - 1, f"{row[1]} {row[2]}"))
    return rows


def read_messages(path: Path) -> Rows:
    """Return lines of `ham` or `spam`, a tab, the message."""
    rows = []
    for line, text in enumerate(decode(path).removesuffix("\n").split("\n"), start=1):
        kind, tab, message = text.partition("\t")
        if kind not in ("ham", "spam") or not tab:
            raise damaged_file(path, f"line {line} is not ham or spam, a tab and a message")
        rows.append((int(kind == "spam"), message))
    return rows


def encode_texts(train: Rows, test: Rows, names: Sequence[str], words: int, length: int) -> RawArrays:
    """Number the words by a vocabulary of the training texts alone."""
    raw = TextInput(tuple(build_vocabulary((text for _, text in train), words)), length)
    x = raw.encode([text for _, text in train + test])
    y = np.array([label for label, _ in train + test])
    return RawArrays(x, y, len(train), class_names=tuple(names), vocabulary=raw.vocabulary, raw=raw)


def hold_out(rows: Rows) -> tuple[Rows, Rows]:
    """Return every fifth row as a test part, where the publisher has none."""
    is_test = every_fifth_row(len(rows))
    return [row for row, out in zip(rows, is_test, strict=True) if not out], [
        row for row, out in zip(rows, is_test, strict=True) if out
    ]


def load_news(request: LoadRequest) -> Data:
    """120,000 + 7,600 headlines with their first lines; 64 words each, 10,000 different ones.

    With only `test.csv` at hand, its 7,600 texts are the whole data set and every fifth is the test part.
    """
    folder = request.root / "ag-news"
    test = find_file("ag-news", (folder,), "test.csv")
    complete = any((folder / file).is_file() for file in ("train.csv", "train.csv.gz"))
    paths = [find_file("ag-news", (folder,), "train.csv"), test] if complete else [test]

    def read() -> RawArrays:
        parts = (read_news(paths[0]), read_news(paths[1])) if complete else hold_out(read_news(test))
        return encode_texts(*parts, TOPICS, words=10_000, length=64)

    return read_cached(request.root, "ag-news", paths, read).data("ag-news", None)


def load_messages(request: LoadRequest) -> Data:
    """5,574 text messages, 32 words each; every fifth is the test part, as the publisher has none."""
    folder = request.root / "sms-spam"
    name = "SMSSpamCollection"
    tsv = [folder / f"{name}.tsv", folder / f"{name}.tsv.gz"]
    path = next((file for file in tsv if file.is_file()), None) or find_file("sms-spam", (folder,), name)

    def read() -> RawArrays:
        return encode_texts(*hold_out(read_messages(path)), ("ham", "spam"), words=5_000, length=32)

    return read_cached(request.root, "sms-spam", [path], read).data("sms-spam", None)


def _news_file(file: str, md5: str) -> Download:
    return Download(f"{NEWS}/{file}", f"md5:{md5}", f"ag-news/{file}", f"ag-news/{file}")


SOURCES = (
    Source(
        "ag-news",
        "news headlines in four topics, 120,000 + 7,600 texts of 64 words",
        load_news,
        "ag-news/ with train.csv, test.csv (or .csv.gz)",
        127_600,
        (
            _news_file("train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
            _news_file("test.csv", "d52ea96a97a2d943681189a97654912d"),
        ),
    ),
    Source(
        "sms-spam",
        "wanted and unwanted text messages, 4,460 + 1,114 texts of 32 words",
        load_messages,
        "sms-spam/ with SMSSpamCollection (or SMSSpamCollection.tsv, or .gz of either)",
        5_574,
        (
            Download(
                "https://archive.ics.uci.edu/static/public/228/sms+spam+collection.zip",
                "sha256:1587ea43e58e82b14ff1f5425c88e17f8496bfcdb67a583dbff9eefaf9963ce3",
                "sms-spam",
                "sms-spam/SMSSpamCollection",
                archive=True,
            ),
        ),
    ),
)
