"""Who works next, and how many answers make a server step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from potluck.core.task import ClientInfo

Duration = Callable[[ClientInfo, int], float]
"""Virtual seconds that job `number` of a client takes."""


def unit_duration(client: ClientInfo, number: int) -> float:
    """Every job takes one virtual second: jobs end in the order in which they were sent."""
    return 1.0


@dataclass(frozen=True)
class Schedule:
    """Synchronous when `buffer` is the whole cohort (0 means that), asynchronous when it is smaller.

    A round is `cohort` ended jobs in either case, so that curves and budgets compare. `concurrency` is how
    many clients are at work at once (0: the cohort).
    """

    rounds: int
    participation: float = 1.0
    buffer: int = 0
    concurrency: int = 0
    min_clients: int = 1
    on_failure: Literal["stop", "continue"] = "stop"
    duration: Duration = unit_duration

    def cohort(self, clients: int) -> int:
        """m = max(1, int(C·N)), with a guard against 0.29·100 = 28.99…"""
        return max(1, int(self.participation * clients + 1e-9))

    def answers_per_step(self, clients: int) -> int:
        """How many answers the server waits for."""
        return min(self.buffer or self.cohort(clients), self.at_work(clients))

    def at_work(self, clients: int) -> int:
        """How many clients are busy at once."""
        return min(self.concurrency or self.cohort(clients), clients)

    def draw(self, idle: Sequence[int], count: int, rng: torch.Generator) -> list[int]:
        """Choose clients uniformly without replacement, in ascending order."""
        chosen = torch.randperm(len(idle), generator=rng)[:count]
        return sorted(idle[position] for position in chosen.tolist())
