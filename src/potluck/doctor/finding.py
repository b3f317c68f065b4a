"""One line of the doctor's table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was looked at, where, what was found, and whether that is as it should be."""

    part: str
    what: str
    found: str
    well: bool = True
