"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from potluck.analysis import text


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (text.percent(0.97604), "97.60"),
        (text.percent_spread(0.9, 0.012), "90.00 ± 1.20"),
        (text.percent_spread(0.9, math.nan), "90.00"),
        (text.count(12345), "12,345"),
        (text.count(7.6667), "7.7"),
        (text.mebibytes(2**20 * 14.69), "14.7"),
        (text.kibibytes(4 * 6002), "23.45"),
        (text.bytes_with_unit(1536), "1.50 KiB"),
        (text.bytes_with_unit(12), "12 B"),
        (text.duration(59.5), "59.5 s"),
        (text.duration(125), "2 min 5 s"),
        (text.duration(7380), "2 h 3 min"),
        (text.probability(0.00001), "<0.0001"),
        (text.probability(None), "–"),
        (text.factor(2.35), "2.4×"),
        (text.percent(math.nan), "–"),
    ],
)
def test_numbers(shown: str, expected: str) -> None:
    assert shown == expected
