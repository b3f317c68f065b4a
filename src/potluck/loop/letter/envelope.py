"""What the plain facts of a letter may be: no number, word or text is believed before it is looked at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from potluck.core.errors import MAX_TEXT, plain
from potluck.core.payload import PayloadError

MAX_ROWS = 10**9
"""No member has more rows of data than that."""
MAX_COUNT = 2**53
"""No honest count is larger, and JSON readers agree on whole numbers up to here."""


def mapping(value: Any, name: str) -> dict[str, Any]:
    """A table."""
    if not isinstance(value, dict):
        raise PayloadError(f"The letter has no {name}.")
    return value


def items(value: Any, name: str, high: int, *, low: int = 0) -> list[Any]:
    """A list of a bounded length."""
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise PayloadError(f"{name} is no list of {low} to {high} entries.")
    return value


def whole(value: Any, name: str, high: int = MAX_COUNT, *, low: int = 0) -> int:
    """A whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PayloadError(f"{name} is not a whole number from {low} to {high}.")
    return value


def real(
    value: Any, name: str, *, low: float = -math.inf, high: float = math.inf, finite: bool = True
) -> float:
    """A number; a loss may be one that is not finite, where training diverged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PayloadError(f"{name} is no number.")
    if (isinstance(value, int) and abs(value) > MAX_COUNT) or (finite and not math.isfinite(value)):
        raise PayloadError(f"{name} is not a number of a sensible size.")
    if value < low:
        raise PayloadError(f"{name} is smaller than {low:g}.")
    if value > high:
        raise PayloadError(f"{name} is larger than {high:g}.")
    return float(value)


def truth(value: Any, name: str) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise PayloadError(f"{name} is neither true nor false.")
    return value


def optional(value: Any, name: str) -> float | None:
    """A number that need not be there, nor be finite."""
    return None if value is None else real(value, name, finite=False)


def text(value: Any, name: str, limit: int = MAX_TEXT) -> str:
    """A text that is fit to be shown and kept."""
    if not isinstance(value, str):
        raise PayloadError(f"{name} is no text.")
    return plain(value, limit)


def one_of(value: Any, name: str, known: Sequence[Any]) -> Any:
    """One of a few words."""
    if not isinstance(value, str) or value not in known:
        raise PayloadError(f"{name} is none of {', '.join(map(str, known))}.")
    return value
