"""The floating-point operations of a method's jobs, measured on small ones."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update
from potluck.core.payload import Payload
from potluck.core.random import seeded, without_denormals
from potluck.core.task import ClientInfo, Context
from potluck.federation.federation import Federation
from potluck.models.flops import FlopCounter

_log = logging.getLogger("potluck")

FULL_BATCH = 16
"""Samples of a measured batch where the experiment trains on all samples in one."""


@dataclass(frozen=True)
class JobFlops:
    """Operations of one job: a fixed part, one per sample, and one per sample and epoch."""

    per_job: float
    per_sample: float
    per_sample_epoch: float
    first: JobFlops | None = None
    """The cost of a client's first job, where later ones compute nothing."""

    def total(self, samples: int, epochs: int) -> float:
        """Return the operations of a job on so many training samples."""
        return self.per_job + samples * (self.per_sample + epochs * self.per_sample_epoch)


class MethodFlops:
    """What one job of a method costs on each architecture of a federation, counted when first asked for.

    For each architecture the client with the most samples does small jobs, as of the run's last round and after a first
    server step: every model, class-mean pass, inner step and pass over public data that the job computes is counted,
    and nothing else. Tests, the server's own training and the per-sample gradients of row-level privacy are not.
    """

    def __init__(
        self,
        method: Method[Any, Any, Any],
        federation: Federation,
        rounds: int,
        standalone: MethodFlops | None = None,
    ) -> None:
        self.method, self.federation, self.rounds = method, federation, rounds
        self.standalone = standalone
        """Operations of training the standalone model of a safeguard in the same job."""

    def of(self, client: ClientInfo) -> float:
        """Return the operations of one job of this client."""
        extra = 0.0 if self.standalone is None else self.standalone.of(client)
        return extra + self.by_architecture[client.architecture].total(
            client.samples, self.federation.training.epochs
        )

    def facts(self, absent: Collection[int] = (), jobs: float = 1.0) -> dict[str, float]:
        """Return the mean over clients but absent ones, for a run's summary.

        What a method computes in a client's first job alone is spread over its `jobs` jobs.
        Empty where models stay on machines of their own, or where jobs cannot be counted.
        """
        task = self.federation.task
        if any(architecture.build is None for architecture in task.architectures.values()):
            return {}
        try:
            costs = [
                self.of(info) + self._first(info) / max(1.0, jobs)
                for info in task.clients
                if info.index not in absent
            ]
        except PotluckError as error:
            _log.warning("%s", error)
            return {}
        return {"flops_per_client_round": sum(costs) / len(costs)}

    def _first(self, client: ClientInfo) -> float:
        first = self.by_architecture[client.architecture].first
        return 0.0 if first is None else first.total(client.samples, self.federation.training.epochs)

    @cached_property
    def by_architecture(self) -> dict[str, JobFlops]:
        """The cost for each architecture that a client has."""
        try:
            return {name: probe.measure() for name, probe in self._probes().items()}
        except PotluckError:
            raise
        except Exception as error:
            raise PotluckError(
                f"The operations of a job of {type(self.method).__name__} cannot be counted on a few samples "
                f"({type(error).__name__}: {error}), and devices.fleet needs that count; leave it out."
            ) from error

    def _probes(self) -> dict[str, _Probe]:
        """Return a client of each architecture that did its first job, with the message for its next one."""
        task, method = self.federation.task, self.method
        largest: dict[str, ClientInfo] = {}
        for info in task.clients:
            if info.architecture not in largest or info.samples > largest[info.architecture].samples:
                largest[info.architecture] = info
        first = Context(task, 1, self.rounds, task.seed)
        with seeded(task.seed, "count operations"):
            state = method.init_server(first)
            probes = {
                name: _Probe(method, self.federation.client(info.index), self.rounds)
                for name, info in largest.items()
            }
            updates = []
            for probe in sorted(probes.values(), key=lambda probe: probe.me.info.index):
                probe.message = method.broadcast(state, probe.me.info, first)
                updates.append(Update(probe.me.info, probe.first_job(), sent=probe.message))
            later = replace(first, round=self.rounds, step=1)
            state = method.server(state, updates, later)
            for probe in probes.values():
                probe.message = method.broadcast(state, probe.me.info, later)
        return probes


class _Probe:
    """One client that does small jobs under a counter."""

    message: Payload

    def __init__(self, method: Method[Any, Any, Any], me: Client, rounds: int) -> None:
        self.method, self.me, self.rounds = method, me, rounds
        self.train, self.training = me.train, me.training
        self.batch = max(2, min(me.training.batch_size or FULL_BATCH, len(me.train)))
        self.jobs = 0

    def first_job(self) -> Payload:
        """Return what the client answers to the first message."""
        self.first_message = self.message
        return self._do(self.batch, epochs=1)

    def measure(self) -> JobFlops:
        """Return the cost of a later job; where that is nothing, that of the first one as well."""
        later = self._solve()
        if later.total(1, 1):
            return later
        self.message = self.first_message
        return replace(later, first=self._solve())

    def _solve(self) -> JobFlops:
        """Solve for the parts of the cost from three jobs: one batch, two batches, two batches twice."""
        size = self.batch
        once, twice, two_epochs = self._count(size, 1), self._count(2 * size, 1), self._count(2 * size, 2)
        per_sample_epoch = (two_epochs - twice) / (2 * size)
        per_sample = (twice - once) / size - per_sample_epoch
        return JobFlops(once - size * (per_sample + per_sample_epoch), per_sample, per_sample_epoch)

    def _count(self, samples: int, epochs: int) -> int:
        counter = FlopCounter()
        with counter:
            self._do(samples, epochs)
        return counter.total

    def _do(self, samples: int, epochs: int) -> Payload:
        """Return one job on the client's first samples, which come again where it has fewer."""
        me = self.me
        me.train = self.train.select(torch.arange(samples) % len(self.train))
        me.training = replace(self.training, epochs=epochs)
        me.begin("train", self.jobs, self.rounds if self.jobs else 1, self.rounds)
        self.jobs += 1
        with without_denormals(), seeded(me.task.seed, "count operations", me.info.name, self.jobs):
            payload: Payload = self.method.client(me, self.message.copy().to(me.task.device))
        return payload.copy()
