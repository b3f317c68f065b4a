"""Texts to word numbers, with a vocabulary taken from training texts only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

PADDING, UNKNOWN = 0, 1
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[!?$£€%]")


def tokenise(text: str) -> list[str]:
    """Lower-case words and the few marks that carry meaning in headlines and messages."""
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[str], size: int) -> dict[str, int]:
    """The `size - 2` most frequent words seen at least twice, numbered from 2; ties go by the alphabet."""
    seen = Counter(word for text in texts for word in tokenise(text))
    ranked = sorted((word for word, times in seen.items() if times > 1), key=lambda word: (-seen[word], word))
    return {word: number for number, word in enumerate(ranked[: size - 2], start=2)}


def encode(texts: Sequence[str], vocabulary: dict[str, int], length: int) -> NDArray[np.int64]:
    """The first `length` words of each text as numbers `[n, length]`; 1 is any other word, 0 is padding."""
    rows = np.full((len(texts), length), PADDING, dtype=np.int64)
    for row, text in enumerate(texts):
        numbers = [vocabulary.get(word, UNKNOWN) for word in tokenise(text)[:length]]
        rows[row, : len(numbers)] = numbers
    return rows


def every_fifth(n: int) -> NDArray[np.bool_]:
    """Which of `n` rows are held out for testing where the publisher has no test part: 4, 9, 14, …"""
    held: NDArray[np.bool_] = np.arange(n) % 5 == 4
    return held
