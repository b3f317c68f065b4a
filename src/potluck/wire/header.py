"""Checks of the plain values in a message header. Each returns the value or raises `PayloadError`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from potluck.core.errors import MAX_TEXT, plain
from potluck.core.payload import PayloadError

MAX_ROWS = 10**9
"""The most rows of data that one client may state."""
MAX_COUNT = 2**53
"""The largest count that a header may state; JSON readers agree on integers up to here."""


def table(value: Any, name: str) -> dict[str, Any]:
    """Check a JSON object."""
    if not isinstance(value, dict):
        raise PayloadError(f"The message has no {name}.")
    return value


def bounded_list(value: Any, name: str, high: int, *, low: int = 0) -> list[Any]:
    """Check a list of `low` to `high` entries."""
    if not isinstance(value, list) or not low <= len(value) <= high:
        raise PayloadError(f"{name} is not a list of {low} to {high} entries.")
    return value


def integer(value: Any, name: str, high: int = MAX_COUNT, *, low: int = 0) -> int:
    """Check an integer from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise PayloadError(f"{name} is not an integer from {low} to {high}.")
    return value


def number(
    value: Any, name: str, *, low: float = -math.inf, high: float = math.inf, finite: bool = True
) -> float:
    """Check a number from `low` to `high`; a loss need not be `finite`, as training may have diverged."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PayloadError(f"{name} is not a number.")
    if (isinstance(value, int) and abs(value) > MAX_COUNT) or (finite and not math.isfinite(value)):
        raise PayloadError(f"{name} is not a finite number below 2^53.")
    if value < low:
        raise PayloadError(f"{name} is smaller than {low:g}.")
    if value > high:
        raise PayloadError(f"{name} is larger than {high:g}.")
    return float(value)


def boolean(value: Any, name: str) -> bool:
    """Check true or false."""
    if not isinstance(value, bool):
        raise PayloadError(f"{name} is neither true nor false.")
    return value


def optional_number(value: Any, name: str) -> float | None:
    """Check a number that may be missing and need not be finite."""
    return None if value is None else number(value, name, finite=False)


def string(value: Any, name: str, limit: int = MAX_TEXT) -> str:
    """Check a text, and make it safe to print and to store."""
    if not isinstance(value, str):
        raise PayloadError(f"{name} is not a text.")
    return plain(value, limit)


def choice(value: Any, name: str, choices: Sequence[Any]) -> Any:
    """Check that a text is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise PayloadError(f"{name} is none of {', '.join(map(str, choices))}.")
    return value
