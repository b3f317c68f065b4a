"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from potluck.analysis import formatting


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (formatting.percent(0.97604), "97.60"),
        (formatting.percent_spread(0.9, 0.012), "90.00 ± 1.20"),
        (formatting.percent_spread(0.9, math.nan), "90.00"),
        (formatting.count(12345), "12,345"),
        (formatting.count(7.6667), "7.7"),
        (formatting.mebibytes(2**20 * 14.69), "14.7"),
        (formatting.kibibytes(4 * 6002), "23.45"),
        (formatting.bytes_with_unit(1536), "1.50 KiB"),
        (formatting.bytes_with_unit(12), "12 B"),
        (formatting.duration(59.5), "59.5 s"),
        (formatting.duration(125), "2 min 5 s"),
        (formatting.duration(7380), "2 h 3 min"),
        (formatting.probability(0.00001), "<0.0001"),
        (formatting.probability(None), "–"),
        (formatting.factor(2.35), "2.4×"),
        (formatting.percent(math.nan), "–"),
    ],
)
def test_numbers(shown: str, expected: str) -> None:
    assert shown == expected
