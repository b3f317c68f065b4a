"""What programs have started, and what those have started in turn: Flower and Ray leave process groups."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

Kin = tuple[int, int]
"""A process: its number and when it began, for numbers are used again."""


def descendants(roots: Iterable[int]) -> set[Kin]:
    """Children, their children and so on, of these processes; none where there is no /proc."""
    children: dict[int, list[Kin]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (found := _read(int(entry.name))) is not None:
            children.setdefault(found[0], []).append((int(entry.name), found[1]))
    family: set[Kin] = set()
    ahead = list(roots)
    while ahead:
        for one in children.get(ahead.pop(), ()):
            family.add(one)
            ahead.append(one[0])
    return family


def end(family: Iterable[Kin], ends: float) -> None:
    """Wait for processes that were asked to end; at `ends` (monotonic) those that are left are made to."""
    left = alive(family)
    while left and time.monotonic() < ends:
        time.sleep(0.1)
        left = alive(left)
    tell(left, signal.SIGKILL)


def tell(family: Iterable[Kin], number: int) -> None:
    """Send a signal to each."""
    for one in alive(family):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(one[0], number)


def alive(family: Iterable[Kin]) -> set[Kin]:
    """Those that are still there, and are who they were."""
    return {one for one in family if (found := _read(one[0])) is not None and found[1] == one[1]}


def _read(process: int) -> Kin | None:
    """The parent of a process and when the process began; None if it is gone, or only its exit code is left."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else (int(fields[1]), int(fields[19]))
