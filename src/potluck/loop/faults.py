"""Simulated faults: clients that drop out, crash, answer late or send invalid values, at random from the seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.settings import Settings, setting
from potluck.core.task import ClientInfo
from potluck.wire.jobs import Answer, Engine, Failure, Job, LinksStates


@dataclass(frozen=True)
class Faults(Settings):
    """Simulated faults, as rates per training job."""

    dropout: float = setting(0.0, "the client does not take part", ge=0, le=1)
    crash: float = setting(0.0, "the client trains, and dies before it answers", ge=0, le=1)
    corrupt: float = setting(0.0, "the answer holds not-a-number", ge=0, le=1)
    slow: float = setting(0.0, "the job takes slow_factor times as long", ge=0, le=1)
    slow_factor: float = setting(10.0, "how much longer a slow job takes", ge=1)

    def __post_init__(self) -> None:
        total = self.dropout + self.crash + self.corrupt  # these exclude each other
        if total > 1 + 1e-9:
            raise ValueError(f"dropout + crash + corrupt is {total:g}; together they may not be more than 1")

    def __bool__(self) -> bool:
        return any((self.dropout, self.crash, self.corrupt, self.slow))

    def draw_fault(self, seed: int, client: int, number: int) -> str | None:
        """Draw the fault of job `number` of a client; the same on every engine."""
        chance = float(torch.rand(1, generator=generator(seed, "fault", client, number)))
        for kind in ("dropout", "crash", "corrupt"):
            rate = float(getattr(self, kind))
            if chance < rate:
                return kind
            chance -= rate
        return None

    def delay(self, seed: int, client: ClientInfo, number: int) -> float:
        """Return the factor on the job's duration."""
        chance = float(torch.rand(1, generator=generator(seed, "slow", client.index, number)))
        return self.slow_factor if chance < self.slow else 1.0


class FaultyEngine:
    """An engine with simulated faults."""

    def __init__(self, engine: Engine, faults: Faults, seed: int) -> None:
        self.engine, self.faults, self.seed = engine, faults, seed
        self.name, self.realtime, self.remote = engine.name, engine.realtime, engine.remote
        self._faults: dict[int, str] = {}
        self._absent: deque[Failure] = deque()

    def submit(self, job: Job) -> None:
        """Pass the job on, unless its client stays away."""
        fault = self.faults.draw_fault(self.seed, job.client, job.number) if job.kind == "train" else None
        if fault == "dropout":
            self._absent.append(Failure(job.id, job.client, "the client did not take part", "dropped"))
            return
        if fault is not None:
            self._faults[job.id] = fault
        self.engine.submit(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Yield results with faults applied."""
        while self._absent:
            yield self._absent.popleft()
        for result in self.engine.results():
            yield self._spoil(result)

    def _spoil(self, result: Answer | Failure) -> Answer | Failure:
        fault = self._faults.pop(result.job, None)
        if fault is None or isinstance(result, Failure):
            return result
        if fault == "crash":
            return Failure(result.job, result.client, "the client died before it answered", "lost")
        return replace(result, payload=None if result.payload is None else with_nan(result.payload))

    def link_state(self, client: int, path: Path) -> bool:
        """As the engine behind does."""
        return isinstance(self.engine, LinksStates) and self.engine.link_state(client, path)

    def close(self) -> None:
        """Close the engine behind."""
        self.engine.close()


def with_nan(payload: Payload) -> Payload:
    """Return the payload with every real number replaced by not-a-number."""

    def spoil(tensor: torch.Tensor) -> torch.Tensor:
        return torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor

    return payload.map(spoil)
