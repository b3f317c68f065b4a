"""Does a job on a client: the same few lines on every engine."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.evaluation import score_outputs
from potluck.core.job import Answer, Failure, Job, Kind, Score, Test
from potluck.core.method import Method
from potluck.core.norm import norms_at_rest
from potluck.core.payload import Payload
from potluck.core.privacy import Privacy
from potluck.core.random import seeded
from potluck.core.residents import Residents, Saved
from potluck.core.samples import Samples
from potluck.core.task import CPU

Measure = Callable[[Payload], int]

CHANGING: frozenset[Kind] = frozenset({"train", "restore"})
"""The kinds of job after which a client is not what it was."""


class Worker:
    """Holds the clients that live here and runs jobs on them; engines may limit how many are in memory."""

    def __init__(
        self,
        method: Method[Any, Any, Any],
        clients: Callable[[int], Client],
        measure: Measure,
        saved: Saved | None = None,
        privacy: Privacy | None = None,
    ) -> None:
        self.method = method
        self.measure = measure
        self.privacy = privacy
        self.residents = Residents(clients, saved)

    def client(self, index: int) -> Client:
        """The client of this index, made or brought back if it is not in memory."""
        return self.residents[index]

    def run(self, job: Job) -> Answer | Failure:
        """Do the job. A client that raises gives a `Failure` with the phase; the worker lives on."""
        started = time.perf_counter()
        phase = "set-up"
        result: Answer | Failure
        try:
            me = self.client(job.client)
            phase = job.kind
            with seeded(me.task.seed, "torch", me.info.name, job.kind, job.number):
                result = self.do(me, job)
        except Exception as error:
            result = failure_of(job, phase, error)
        try:
            self.settle(job)
        except Exception as error:
            return failure_of(job, "storing the client", error)
        if isinstance(result, Failure):
            return result
        return replace(result, seconds=time.perf_counter() - started)

    def settle(self, *jobs: Job) -> None:
        """Note what jobs, even failed ones, did to their clients, and only then make room for others."""
        for job in jobs:
            if job.client in self.residents and job.kind in CHANGING:
                self.client(job.client).rest()
                self.residents.changed(job.client, job.id)
        self.residents.trim()

    def do(self, me: Client, job: Job) -> Answer:
        """The job itself; whatever the client raises comes through."""
        if job.kind == "fetch":
            return Answer(job.id, job.client, state=me.state())
        if job.kind == "restore":
            assert job.state is not None
            me.restore(job.state)
            return Answer(job.id, job.client)
        message = None if job.message is None else job.message.to(me.task.device)
        me.begin(job.kind, job.number, job.round, job.rounds)
        if job.kind == "evaluate":
            return Answer(job.id, job.client, scores=self._test(me, job, message))
        assert job.message is not None
        payload = self.method.client(me, message).copy()
        if self.privacy is not None:
            payload = self.privacy.conceal(me, job.message, payload)
        loss, samples = me.train_loss, me.trained_samples
        # "local" scores are those of the client as training left it, without a new download.
        me.begin("evaluate", job.number, job.round, job.rounds)
        return Answer(
            job.id,
            job.client,
            payload.to(CPU),
            scores=self._test(me, job, None),
            train_loss=loss,
            trained_samples=samples,
            bytes_down=self.measure(job.message),
            bytes_up=self.measure(payload),
        )

    def _test(self, me: Client, job: Job, message: Payload | None) -> dict[Test, Score]:
        sets: dict[Test, Samples | None] = {"own": me.test, "shared": me.shared_test}
        wanted = {test: samples for test in job.tests if (samples := sets[test]) is not None and len(samples)}
        if not wanted:
            return {}
        me.model.eval()
        predictor = self.method.predict(me, message)
        scores: dict[Test, Score] = {}
        for test, samples in wanted.items():
            with norms_at_rest(*([me.model] if len(samples) == 1 else [])):
                scores[test] = score_outputs(me.outputs(predictor, samples))
        return scores


def failure_of(job: Job, phase: str, error: BaseException) -> Failure:
    """A client's exception as the loop sees it, with the phase and the whole trace; a sentence needs none."""
    if isinstance(error, PotluckError):
        return Failure(job.id, job.client, f"{phase} in round {job.round}: {error}", "error")
    reason = f"{phase} in round {job.round}: {type(error).__name__}: {error}"
    return Failure(job.id, job.client, reason, "error", "".join(traceback.format_exception(error)))
