"""Jobs, answers and failures, and the engines that execute jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from potluck.core.errors import MAX_TRACE, plain
from potluck.core.payload import Payload
from potluck.core.tree import Flat
from potluck.wire.score import Score

Kind = Literal["train", "evaluate", "join", "fetch", "restore", "sum"]
Test = Literal["own", "shared", "validation", "alone", "attacked", "federated", "gradient"]
"""What a client is tested on: its own samples, the common ones, … ; `attacked`: as an attacker wants them taken.

`alone` and `federated` are own or common samples again, by the standalone and the federated model of a safeguard.
`gradient` has no predictions: its summed loss is n_k · ‖∇CE_k‖² over the client's n_k training samples.
"""
FailureKind = Literal["error", "lost", "late", "invalid", "dropped"]


@dataclass(frozen=True)
class Job:
    """One piece of work for one client. `number` counts the client's own training jobs from 0."""

    id: int
    kind: Kind
    client: int
    number: int
    _: KW_ONLY
    round: int
    rounds: int
    message: Payload | None = None
    tests: tuple[Test, ...] = ()
    state: Flat | None = None
    details: bool = False
    """Whether scores come with what they are made of."""
    epochs: int = 0
    """Training epochs of a newcomer."""
    step: int = 0
    """The server step in which it was sent: training jobs of one step may be done together."""
    sums: Flat | None = None
    """What a stage of a secure sum asks."""


@dataclass(frozen=True)
class Answer:
    """The result of a job. `bytes_*` are counted from the real messages."""

    job: int
    client: int
    payload: Payload | None = None
    scores: dict[Test, Score] = field(default_factory=dict)
    train_loss: float | None = None
    train_ce: float | None = None
    trained_samples: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    notes: dict[str, float] = field(default_factory=dict)
    state: Flat | None = None
    sums: Flat | None = None
    """In place of a payload: the public keys of a client that keeps its answer for a secure sum; or what it answers to
    a stage of that sum."""
    processor_seconds: float = 0.0
    """Processor time of the job in a process of this machine; it is not part of the encoded answer."""


@dataclass(frozen=True)
class Failure:
    """A job without a usable answer: `error` (the client raised), `lost`, `late`, `invalid` or `dropped`."""

    job: int
    client: int
    reason: str
    kind: FailureKind = "error"
    trace: str = ""

    def __post_init__(self) -> None:
        """Make the texts safe to print and to store."""
        object.__setattr__(self, "reason", plain(self.reason))
        object.__setattr__(self, "trace", plain(self.trace, MAX_TRACE))


class Engine(Protocol):
    """Executes jobs on clients and returns results.

    Jobs of one client are done in the order submitted. `realtime` engines deliver in the order in which
    answers really arrive; on others the loop goes by its virtual clock, so results never depend on timing.
    Clients of `remote` engines keep their states to themselves, and answer again what they were asked before.
    """

    name: str
    realtime: bool
    remote: bool

    def submit(self, job: Job) -> None:
        """Take a job; returns without waiting for it."""

    def results(self) -> Iterator[Answer | Failure]:
        """Return answers as they come, until nothing submitted is outstanding. May be left and entered again."""

    def close(self) -> None:
        """Stop all work and free what the engine holds."""


@runtime_checkable
class LinksStates(Protocol):
    """An engine that may already have states of its clients in files."""

    def link_state(self, client: int, path: Path) -> bool:
        """Put a client's state, as it is between jobs, at `path` if that takes no time; says whether it did."""


@runtime_checkable
class RefillsWorkers(Protocol):
    """An engine whose workers get their jobs from the loop's process."""

    def refill(self) -> None:
        """Give idle workers their next jobs, without waiting."""
