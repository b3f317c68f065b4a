"""Intervals between two polls: short while an answer is expected soon, longer the longer none came."""

from __future__ import annotations

import time
from collections.abc import Callable

SHARE = 0.05
"""An interval is at least this part of the time waited so far, which bounds the delay by polling."""
REST = 5.0
"""An interval is at least this many times as long as the last poll took: a busy server is asked less often."""


class Polling:
    """Waits between polls, from `shortest` to `longest` seconds; `reset` says that something came."""

    def __init__(
        self,
        shortest: float,
        longest: float,
        *,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shortest, self.longest = shortest, longest
        self._sleep, self._now = sleep, now
        self._since = self._began = now()

    def reset(self) -> None:
        """Begin again with the shortest interval."""
        self._since = self._began = self._now()

    def interval(self) -> float:
        """Return the seconds until the next poll."""
        now = self._now()
        return min(self.longest, max(self.shortest, SHARE * (now - self._since), REST * (now - self._began)))

    def wait(self) -> None:
        """Sleep until the next poll is due; the time since the last wait is what the poll took."""
        self._sleep(self.interval())
        self._began = self._now()
