"""A limit on the time of a reproduction: runs stop at the end of a round, with a checkpoint to continue from."""

from __future__ import annotations

import re
from time import monotonic

from potluck.core.errors import PotluckError
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class BudgetSpentError(Exception):
    """Raised to leave a run whose time is up; its last checkpoint holds every finished round."""


def parse_budget(text: str) -> float:
    """Return the seconds of a duration such as 90m, 6h or 1.5d."""
    found = _TEXT.fullmatch(text.strip())
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise PotluckError(f"--budget {text!r} is not a duration; write for instance 90m, 6h or 1.5d.")
    return seconds


class Budget(Callback):
    """Raises `BudgetSpentError` when the first message of a new round is sent after the time is up."""

    def __init__(self, seconds: float) -> None:
        self._ends = monotonic() + seconds
        self._between_rounds = False
        self._loop: Loop | None = None

    @property
    def spent(self) -> bool:
        """Whether the time is up."""
        return monotonic() >= self._ends

    def on_start(self, loop: Loop) -> None:
        """A run begins or continues: at the end of a round."""
        self._loop, self._between_rounds = loop, False  # it may always do one round

    def on_step(self, step: Step) -> None:
        """Note whether a round is over."""
        assert self._loop is not None
        self._between_rounds = self._loop.progress.ended % self._loop.cohort == 0

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """Leave the run where a checkpoint was just taken."""
        if self._between_rounds and self.spent:
            raise BudgetSpentError
        self._between_rounds = False
