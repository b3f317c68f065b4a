"""A node's client in one run: check a job, do it once, commit the outcome."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from potluck.attacks import Attackers
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.core.payload import PayloadError
from potluck.core.random import one_thread
from potluck.core.schema import check_payload
from potluck.core.tree import Flat
from potluck.federation.federation import Federation
from potluck.flower.node.guard import Guard, limit_samples
from potluck.flower.node.journal import Journal
from potluck.flower.node.registration import Registration
from potluck.privacy.settings import Privacy
from potluck.privacy.sum_stages import StageRequest
from potluck.runs.folder import write_atomic
from potluck.wire import Message, from_bytes, pack_result, to_bytes, unpack_job
from potluck.wire.jobs import Failure, Job
from potluck.wire.score import Comparison
from potluck.worker.safeguard import Safeguard
from potluck.worker.worker import Worker

log = logging.getLogger(__name__)

CHOICE = "safeguard.json"
"""The file with the last choice of a node's safeguard."""
MAX_CLIENTS = 64
"""Clients that a process keeps in memory."""


@dataclass
class ResidentClients:
    """Clients kept in memory between jobs, each in a worker, with the journal's version of its state.

    The least recently used leave. `failed` says that a job failed, after which the process should be replaced.
    """

    failed: bool = False
    _workers: OrderedDict[str, tuple[int, int, Worker]] = field(default_factory=OrderedDict)

    def take(self, key: str, client: int, version: int) -> Worker | None:
        """Remove and return the worker of a client whose state in memory is the journal's present one."""
        entry = self._workers.pop(key, None)
        return entry[2] if entry is not None and entry[:2] == (client, version) else None

    def put(self, key: str, client: int, version: int, worker: Worker) -> None:
        """Keep a worker for the client's next job."""
        self._workers[key] = (client, version, worker)
        if len(self._workers) > MAX_CLIENTS:
            self._workers.popitem(last=False)


@dataclass(frozen=True)
class Node:
    """This machine's client in one run."""

    method: Method[Any, Any, Any]
    federation: Federation
    index: int
    journal: Journal
    residents: ResidentClients
    privacy: Privacy | None = None
    attackers: Attackers | None = None
    safeguard: Safeguard | None = None
    guard: Guard | None = None
    """The node's policy, where the data are its own; which classes they have is then not reported."""

    def register(self) -> Message:
        """Return the registration: all that the server learns before the first job."""
        task = self.federation.task
        info = task.clients[self.index]
        return Registration.of(info, task.architectures[info.architecture], task.input_shape).message()

    def initial_weights(self) -> Message:
        """Return the weights drawn from the run's seed for this kind of model, never trained ones."""
        task = self.federation.task
        architecture = task.architectures[task.clients[self.index].architecture]
        return Message({"first weights": architecture.name}, state=Flat(dict(architecture.initial), None))

    def run_job(self, message: Message) -> Message:
        """Do a job, or return the earlier answer to it; a training job is committed to disk."""
        down, task = payload_types(self.method)[0], self.federation.task
        try:
            job = unpack_job(message, down)
            job = replace(job, details=job.details and self.guard is None)
            if job.message is not None:
                check_payload(job.message, down, task, task.clients[self.index])
        except PayloadError as error:
            return pack_result(Failure(0, 0, str(error), "invalid"))
        with self.journal.locked(), one_thread():
            if job.kind == "train":
                try:
                    earlier = self.journal.answer(job.number)
                except PotluckError as error:
                    return pack_result(Failure(job.id, job.client, str(error), "lost"))
                if earlier is not None:
                    return self._log_answer(job, from_bytes(earlier), repeated=True)
            if job.kind == "sum":
                return self._run_stage(job)
            if self.guard is None:
                return self._run_job(job)
            self.guard.allow(job, len(self.federation.members[self.index].train))
            with self.guard.usage.job():
                return self._run_job(job)

    def _run_job(self, job: Job) -> Message:
        key, version = str(self.journal.folder), self.journal.version()
        worker = self.residents.take(key, job.client, version) or self._new_worker(job)
        result = worker.run(job)
        if isinstance(result, Failure):
            self.residents.failed = True
            return pack_result(self._without_details(result))
        answer = self._log_answer(job, pack_result(result))
        if job.kind == "train":
            self.journal.commit(job.number, to_bytes(answer), worker.client(job.client).state())
            version = job.number + 1
        self.residents.put(key, job.client, version, worker)
        if self.guard is not None and (choice := worker.choices.get(job.client)) is not None:
            self._store_choice(job, choice)
        return answer

    def _run_stage(self, job: Job) -> Message:
        """Answer a stage of a secure sum over the last training job, as before if it was asked before."""
        try:
            stage = StageRequest.read(job.sums).stage
            request = to_bytes(Message({"round": job.round}, sums=job.sums))
            earlier = self.journal.sum_reply(job.number, stage, request)
            if earlier is not None:
                return self._log_answer(job, from_bytes(earlier), repeated=True)
            if job.number != self.journal.version():
                raise PotluckError(f"this node has no answer to job {job.number} for a secure sum")
        except PotluckError as error:
            return pack_result(Failure(job.id, job.client, str(error), "lost"))
        if self.guard is None:
            reply = self._run_job(job)
        else:
            self.guard.allow(job, len(self.federation.members[self.index].train))
            with self.guard.usage.job():
                reply = self._run_job(job)
        if reply.sums is not None:
            self.journal.commit_sum(job.number, stage, request, to_bytes(reply))
        return reply

    def _store_choice(self, job: Job, choice: Comparison) -> None:
        """Write which model a safeguard chose to the run's folder; the server does not learn it."""
        write_atomic(
            self.journal.folder / CHOICE, json.dumps({"round": job.round, **asdict(choice)}, indent=1) + "\n"
        )

    def _new_worker(self, job: Job) -> Worker:
        """Return a worker whose client is as the journal has it."""
        make: Callable[[int], Client] = lambda _: self._client(job)  # noqa: E731
        return Worker(
            self.method,
            make,
            privacy=self.privacy,
            attackers=self.attackers,
            safeguard=self.safeguard,
            send_choices=self.guard is None,
            secret_masks=True,
        )

    def _without_details(self, failure: Failure) -> Failure:
        """Remove the trace and, over own data, the words of an exception: both may quote rows."""
        if not failure.trace:
            return failure
        log.error("%s", failure.trace)
        reason = failure.reason if self.guard is None else ": ".join(failure.reason.split(": ", 2)[:2])
        return replace(failure, trace="", reason=reason)

    def _log_answer(self, job: Job, answer: Message, *, repeated: bool = False) -> Message:
        if self.guard is not None:
            self.guard.log_answer(job.kind, answer, job=job.number, repeated=repeated)
        return answer

    def _client(self, job: Job) -> Client:
        """Return the client as its last job left it, under the number that the server gave it."""
        me, state = self.federation.client(self.index), self.journal.state()
        me.info = replace(me.info, index=job.client)
        if self.safeguard is not None:
            me.standalone = self.federation.client(self.index)
            me.standalone.info = me.info
        if state is not None:
            me.restore(state)
        return me if self.guard is None else limit_samples(me, self.guard.policy.samples)
