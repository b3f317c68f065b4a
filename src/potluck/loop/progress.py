"""Where a run stands: all that the loop must know to go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from potluck.loop.jobs import Answer, Failure, Job, Test
from potluck.loop.score import Score


@dataclass
class Flight:
    """A training job under way: the step it was sent in, when it ends on the virtual clock, and what came back."""

    job: Job
    step: int
    finish: float
    result: Answer | Failure | None = None


@dataclass
class Progress:
    """The server's state, counters, and the jobs under way.

    `ended` counts training jobs that came to an end, `jobs` all jobs ever numbered, `draws` how often clients were
    drawn, `numbers` the training jobs that each client was sent; `recent` are the flights whose answers the server
    keeps, by client, the oldest first; `answered` is of the present round, and so are `scores` where the schedule is
    synchronous; else they are the latest of every client.
    """

    state: Any
    step: int = 0
    ended: int = 0
    clock: float = 0.0
    jobs: int = 0
    draws: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)
    recent: dict[int, Flight] = field(default_factory=dict)
    answered: int = 0
    scores: dict[int, dict[Test, Score]] = field(default_factory=dict)
