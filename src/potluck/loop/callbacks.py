"""Callbacks: messages, updates, server steps, and any client's state on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.core.method import PaperAccounting, Update
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.loop.records import ClientScore, StepRecord
from potluck.wire.jobs import Failure, Kind

if TYPE_CHECKING:
    from potluck.loop.loop import Loop
    from potluck.loop.newcomers import Newcomer


@dataclass(frozen=True)
class Step:
    """What a callback sees after a server step. `fetch(i)` brings client i's whole state as plain tensors."""

    record: StepRecord
    state: Any
    failures: Sequence[Failure]
    scores: Sequence[ClientScore]
    fetch: Callable[[int], dict[str, Any]]
    paper_accounting: Sequence[PaperAccounting] = ()
    """What the step's exchanges come to where the method's paper counts in its own way."""
    validation: Sequence[ClientScore] = ()
    """Scores on validation samples, where clients have some; `scores` are those on test samples."""


@dataclass(frozen=True)
class End:
    """What a callback sees when the run is over: the last state and every client's final score."""

    state: Any
    scores: Sequence[ClientScore]
    fetch: Callable[[int], dict[str, Any]]
    validation: Sequence[ClientScore] = ()
    newcomers: Sequence[Newcomer] = ()
    attacked: Sequence[ClientScore] = ()
    """How often test samples are taken as an attacker wants, where it wants something."""


@dataclass(frozen=True)
class Arrival:
    """A job that ended, reported in order of arrival, on which no result depends."""

    kind: Kind
    client: int
    round: int
    samples: int = 0
    """How many samples were trained on."""
    failure: Failure | None = None
    seconds: float = 0.0
    """How long the job took where it was done."""
    processor_seconds: float = 0.0
    """How much processor time it took; 0 where it was done on another machine."""


class Callback:
    """Override what you want to see. Payloads are copies: changing them changes nothing."""

    def on_start(self, loop: Loop) -> None:
        """Before the first step (or, resumed, before the next one)."""

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """Handle a message that goes to a client."""

    def on_arrival(self, arrival: Arrival) -> None:
        """Handle the end of a job, while others of its round may still be under way."""

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """Handle a client's accepted answer."""

    def on_step(self, step: Step) -> None:
        """Handle a server step that is done and recorded."""

    def on_end(self, end: End) -> None:
        """Handle the end: all rounds are done and every client was evaluated once more."""
