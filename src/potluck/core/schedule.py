"""Who works next, and how many answers make a server step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from potluck.core.payload import Payload
from potluck.core.robust import Averaging
from potluck.core.task import ClientInfo

Duration = Callable[[ClientInfo, int, Payload], float]
"""Virtual seconds from sending job `number` of a client, with its message, until the answer is ready."""

Upload = Callable[[ClientInfo, int], float]
"""Virtual seconds that an answer of so many bytes takes on its way."""

Available = Callable[[ClientInfo, int], bool]
"""Whether a client can take a job at the n-th draw."""


def unit_duration(client: ClientInfo, number: int, message: Payload) -> float:
    """Every job takes one virtual second: jobs end in the order in which they were sent."""
    return 1.0


def instant_upload(client: ClientInfo, size: int) -> float:
    """Answers take no time."""
    return 0.0


def always(client: ClientInfo, draw: int) -> bool:
    """Everybody is there all the time."""
    return True


@dataclass(frozen=True)
class Schedule:
    """Synchronous when `buffer` is the whole cohort (0 means that), asynchronous when it is smaller.

    A round is `cohort` ended jobs in either case, so that curves and budgets compare. `concurrency` is how
    many clients are at work at once (0: the cohort). In a synchronous round `over_select` asks more clients than are
    needed, and answers after `deadline` virtual seconds, or after enough others came, are dropped as late. An update
    that is s steps stale weighs (1 + s)^-staleness_power. An answer of more than `max_payload_mb` is refused;
    `averaging` says how the server takes averages.
    """

    rounds: int
    participation: float = 1.0
    buffer: int = 0
    concurrency: int = 0
    min_clients: int = 1
    on_failure: Literal["stop", "continue"] = "stop"
    deadline: float = math.inf
    over_select: float = 1.0
    staleness_power: float = 0.0
    max_payload_mb: float = 1024.0
    averaging: Averaging = Averaging()  # noqa: RUF009 - it is frozen
    duration: Duration = unit_duration
    upload: Upload = instant_upload
    available: Available = always

    def cohort(self, clients: int) -> int:
        """m = max(1, int(C·N)), with a guard against 0.29·100 = 28.99…"""
        return max(1, int(self.participation * clients + 1e-9))

    def asked(self, clients: int) -> int:
        """How many jobs a round has: the cohort, and the spare ones of over-selection."""
        return min(clients, math.ceil(self.cohort(clients) * self.over_select - 1e-9))

    def answers_per_step(self, clients: int) -> int:
        """How many answers the server waits for."""
        return min(self.buffer or self.cohort(clients), self.at_work(clients))

    def at_work(self, clients: int) -> int:
        """How many clients are busy at once."""
        return min(self.concurrency or self.asked(clients), clients)

    @property
    def synchronous(self) -> bool:
        """Whether a server step waits for the whole cohort."""
        return self.buffer == 0 and self.concurrency == 0

    def weight(self, staleness: int) -> float:
        """How much an update of this staleness counts."""
        return float((1 + staleness) ** -self.staleness_power)

    def draw(self, idle: Sequence[int], count: int, rng: torch.Generator) -> list[int]:
        """Choose clients uniformly without replacement, in ascending order."""
        chosen = torch.randperm(len(idle), generator=rng)[:count]
        return sorted(idle[position] for position in chosen.tolist())
