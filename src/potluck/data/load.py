"""Data by name."""

from __future__ import annotations

from collections.abc import Callable

from potluck.core.errors import unknown
from potluck.data.dataset import Data
from potluck.data.sources import digits

SOURCES: dict[str, Callable[[], Data]] = {"digits": digits.load}


def load_data(name: str) -> Data:
    """The data set called `name`."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]()
