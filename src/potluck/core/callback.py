"""Watching a run: every message, every server step, any client's state on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from potluck.core.job import Failure
from potluck.core.method import Update
from potluck.core.payload import Payload
from potluck.core.records import ClientScore, StepRecord
from potluck.core.task import ClientInfo

if TYPE_CHECKING:
    from potluck.core.loop import Loop


@dataclass(frozen=True)
class Step:
    """What a callback sees after a server step. `fetch(i)` brings client i's whole state as plain tensors."""

    record: StepRecord
    state: Any
    updates: Sequence[Update[Any]]
    failures: Sequence[Failure]
    scores: Sequence[ClientScore]
    fetch: Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class End:
    """What a callback sees when the run is over: the last state and every client's final score."""

    state: Any
    scores: Sequence[ClientScore]
    fetch: Callable[[int], dict[str, Any]]


class Callback:
    """Override what you want to see. Payloads are copies: changing them changes nothing."""

    def on_start(self, loop: Loop) -> None:
        """Before the first step (or, resumed, before the next one)."""

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        """A message goes to a client."""

    def on_update(self, update: Update[Any], round_number: int) -> None:
        """A client's answer was accepted."""

    def on_step(self, step: Step) -> None:
        """A server step is done and recorded."""

    def on_end(self, end: End) -> None:
        """All rounds are done and every client was evaluated once more."""
