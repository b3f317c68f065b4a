"""Nodes that cannot be used: wait out an outage, and leave out single nodes whose answers do not come."""

from __future__ import annotations

import datetime
import logging
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from potluck.runs.folder import write_atomic

log = logging.getLogger(__name__)

SOONEST_RESEND = 60.0
"""Seconds without an answer before which no job is sent again, unless `engine.lost_after` is shorter."""
USUAL_FACTOR = 10.0
"""How often a node's longest answer so far must have passed before a job is sent again."""
FIRST_FACTOR = 100.0
"""How often the longest answer of all nodes must have passed before the first job of a node is sent again."""
GRACE = 10.0
"""Seconds that nodes have to come back after the first one did."""


@dataclass
class OutageWait:
    """How long a round waits while fewer than `needed` clients can be reached, and where it says so."""

    patience: float = 0.0
    needed: int = 1
    path: Path | None = None
    _since: float | None = field(default=None, init=False)
    _shown: bool = field(default=False, init=False)
    _back: float | None = field(default=None, init=False)

    @property
    def waiting(self) -> bool:
        """Whether an outage has begun and is not over."""
        return self._since is not None

    def expired(self, now: float) -> bool:
        """Return whether the outage has lasted longer than it is waited for."""
        return self._since is not None and now - self._since >= self.patience

    def goes_on(self, reachable: int, now: float, missing: Collection[str], round_number: int) -> bool:
        """Return whether to wait on, with so many clients reachable at this time (in seconds)."""
        enough = reachable >= self.needed
        if self._since is None:
            if enough or self.patience <= 0:
                return False
            self._since = now
            log.warning("%s", self._sentence(missing, round_number))
        if not self._shown:
            self._show(missing, round_number)
        if enough:
            self._back = now if self._back is None else self._back
            on = bool(missing) and now - self._back < GRACE
        else:
            self._back = None
            on = now - self._since < self.patience
        if not on:
            self.end()
        return on

    def pause(self) -> None:
        """Note that all jobs were sent again: nobody is missing, and the first answer ends the outage."""
        self._back, self._shown = None, False
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def end(self) -> None:
        """End the outage, or the wait for it."""
        self._since = None
        self.pause()

    def _show(self, missing: Collection[str], round_number: int) -> None:
        self._shown = True
        if self.path is not None:
            write_atomic(self.path, self._sentence(missing, round_number))

    def _sentence(self, missing: Collection[str], round_number: int) -> str:
        return f"Round {round_number} waits for {', '.join(map(repr, missing))}, missing since {_time_before(0)}."


@dataclass
class SilentNodes:
    """Names the nodes whose answers are overdue in the file that says for whom the run waits."""

    path: Path | None = None
    _shown: set[str] = field(default_factory=set, init=False)

    def show(self, names: Collection[str], round_number: int, seconds: float) -> None:
        """Say for whom the round waits, the first of them for so many seconds; without names nothing is said."""
        if set(names) == self._shown:
            return
        self._shown = set(names)
        if names:
            named = ", ".join(map(repr, names))
            sentence = (
                f"Round {round_number} waits for {named}, without an answer since {_time_before(seconds)}."
            )
            log.warning("%s", sentence)
            if self.path is not None:
                write_atomic(self.path, sentence)
        elif self.path is not None:
            self.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Leave the file to an outage."""
        self._shown = set()


def _time_before(seconds: float) -> str:
    moment = datetime.datetime.now().astimezone() - datetime.timedelta(seconds=seconds)
    return moment.isoformat(timespec="seconds")


@dataclass
class ResendTimes:
    """After how many seconds a client's job is sent again: `lost_after`, less where answers came quickly."""

    lost_after: float
    _longest: dict[int, float] = field(default_factory=dict, init=False)

    def record(self, client: int, seconds: float) -> None:
        """Note how long an answer took."""
        self._longest[client] = max(seconds, self._longest.get(client, 0.0))

    def seconds(self, client: int) -> float:
        """Return the seconds before the second attempt; each later one has twice as many."""
        if client in self._longest:
            delay = USUAL_FACTOR * self._longest[client]
        else:
            delay = FIRST_FACTOR * max(self._longest.values(), default=math.inf)
        return min(self.lost_after, max(SOONEST_RESEND, delay))


STALLS = 2
"""Answers in succession that did not come, after which a node is left out for a while."""


@dataclass
class Exclusions:
    """Clients whose answers did not come, left out for `cooldown` seconds, each time for twice as long; 0: never."""

    cooldown: float = 0.0
    _stalls: Counter[int] = field(default_factory=Counter)
    _ends: dict[int, float] = field(default_factory=dict)

    def record(self, client: int, now: float) -> bool:
        """Count an answer that did not come; return whether the client is left out from now on."""
        self._stalls[client] += 1
        times = self._stalls[client] - STALLS
        if times < 0 or not self.cooldown:
            return False
        self._ends[client] = now + self.cooldown * 2 ** min(times, 10)
        return True

    def reason(self, client: int, now: float) -> str:
        """Return why a client gets no job now; empty if it may have one."""
        wait = self._ends.get(client, now) - now
        if wait <= 0:
            return ""
        return (
            f"left out for another {wait:.0f} seconds (engine.cooldown), for {self._stalls[client]} of its answers in "
            "succession did not come"
        )

    def clear(self, client: int) -> None:
        """Note that an answer came."""
        self._stalls.pop(client, None)
        self._ends.pop(client, None)
