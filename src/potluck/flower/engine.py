"""Jobs over a Flower grid: `submit` and `results` are `push_messages` and `pull_messages`."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message

from potluck import wire
from potluck.core.method import Method, payload_types
from potluck.core.payload import PayloadError
from potluck.flower import record
from potluck.flower.outage import Exclusions, OutageWait, ResendTimes, SilentNodes
from potluck.flower.polling import Polling
from potluck.flower.registry import NodeRegistry
from potluck.flower.transfers import NoReply
from potluck.wire.jobs import Answer, Failure, Job

log = logging.getLogger(__name__)

SWEEP_SECONDS = 2.0
"""Seconds between two requests for all outstanding answers of a round."""

LONGEST_POLL = 1.0
"""Seconds between two requests for answers that have been waited for long."""

WAITED_FOR = ("train", "sum")
"""The kinds of job that are sent again after an outage."""

MAX_ATTEMPTS = 3
"""How often a job is sent, each time with twice the patience, before it counts as lost.

A client whose last answer did not come gets one attempt.
"""


@dataclass(frozen=True)
class SentJob:
    """A message under way: the job in it, since when, when patience ends, and when it is asked again."""

    job: Job
    began: float
    deadline_at: float
    resend_at: float
    attempts: int = MAX_ATTEMPTS
    attempt: int = 1


class FlowerEngine:
    """Carries jobs to nodes. A node that is gone fails its job; one that comes back under its name is found again.

    `realtime` delivers answers in the order of their arrival, for asynchronous schedules. Otherwise the loop
    takes them in the order of its own clock, so that a synchronous run gives the serial engine's very bits.
    """

    name = "flower"
    remote = True

    def __init__(
        self,
        registry: NodeRegistry,
        method: Method[Any, Any, Any],
        *,
        realtime: bool = False,
        outage: OutageWait | None = None,
        cooldown: float = 0.0,
        deadline: float = math.inf,
        lost_after: float = math.inf,
        poll_interval: float = 0.05,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.registry, self.realtime, self.deadline, self.lost_after = (
            registry,
            realtime,
            deadline,
            lost_after,
        )
        self._grid, self._transfers = registry.grid, registry.transfers
        self._up = payload_types(method)[1]
        self._now = now
        self._polling = Polling(poll_interval, max(LONGEST_POLL, poll_interval), sleep=sleep, now=now)
        self._next_sweep = 0.0
        self._outage = outage or OutageWait()
        self._exclusions = Exclusions(cooldown)
        self._resend = ResendTimes(lost_after)
        self._silent = SilentNodes(self._outage.path)
        self._stalled: set[int] = set()
        """Clients whose nodes are connected, and whose last answer did not come."""
        self._lost_jobs: dict[int, tuple[Job, Failure]] = {}
        self._waiting: deque[Job] = deque()
        self._sent: dict[str, SentJob] = {}
        self._arrived: deque[Answer | Failure] = deque()

    def submit(self, job: Job) -> None:
        """Take a job; it is sent with the others of its step, when an answer is first asked for."""
        self._waiting.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Yield answers as they arrive, and a failure for every job that will have none."""
        while self._arrived or self._waiting or self._sent or self._lost_jobs:
            while self._arrived:
                yield self._arrived.popleft()
            results = [*self._send(), *self._receive()]
            self._show_silent()
            self._arrived.extend(result for result in results if result.job not in self._lost_jobs)
            if self._lost_jobs:
                self._recover(idle=not (self._arrived or self._sent or self._waiting))
            if self._arrived:
                self._polling.reset()
            elif self._sent:
                self._polling.wait()

    def _recover(self, *, idle: bool) -> None:
        """Send lost jobs again in an outage, or let them fail; `idle` says that nothing else is outstanding.

        A node gives the same answer to the same job, so that a round that was waited for has the same bits.
        """
        if not (idle or self.realtime):
            return
        reachable = self.registry.reachable()
        usable = reachable - self._stalled
        if not idle and (self._outage.waiting or len(usable) < self._outage.needed):
            return  # the others' answers decide whether it is an outage
        if self._outage.waiting and not self._outage.expired(self._now()):
            back = [job for job, _ in self._lost_jobs.values() if job.client in reachable]
            for job in back:
                del self._lost_jobs[job.id]
                self._waiting.append(job)
            if back and not self._lost_jobs:
                self._outage.pause()
            if back:
                return
        jobs = [job for job, _ in self._lost_jobs.values()]
        missing = [self.registry.registrations[job.client].name for job in jobs if job.client not in usable]
        if self._outage.goes_on(len(usable), self._now(), missing, jobs[0].round):
            self._polling.wait()
            return
        self._fail_lost_jobs()

    def _fail_lost_jobs(self) -> None:
        """Fail jobs without an answer; a node whose answers repeatedly did not come is left out for a while."""
        for job, failure in self._lost_jobs.values():
            self._note_stall(job.client)
            self._arrived.append(failure)
        self._lost_jobs.clear()

    def _note_stall(self, client: int) -> None:
        if client in self._stalled and self._exclusions.record(client, self._now()):
            name = self.registry.registrations[client].name
            log.warning("Node %r is left out: %s.", name, self._exclusions.reason(client, self._now()))

    def _note_answer(self, sent: SentJob) -> None:
        """Note that a node answered, which ends an outage whose jobs were all sent again."""
        self._resend.record(sent.job.client, self._now() - sent.began)
        self._stalled.discard(sent.job.client)
        self._exclusions.clear(sent.job.client)
        if self._outage.waiting and not self._lost_jobs:
            self._outage.end()

    def close(self) -> None:
        """Forget what is outstanding; nodes notice that the run is over by themselves."""
        self._silent.show([], 0, 0.0)
        self._outage.end()
        self._lost_jobs.clear()
        self._waiting.clear()
        self._sent.clear()

    # -- sending --------------------------------------------------------------------------------------

    def _send(self) -> list[Failure]:
        """Push what can go: a client gets its next job when it has answered the one before."""
        busy = {sent.job.client for sent in self._sent.values()}
        ready: list[Job] = []
        for job in list(self._waiting):
            if job.client not in busy:
                busy.add(job.client)
                ready.append(job)
                self._waiting.remove(job)
        if not ready:
            return []
        self.registry.poll()
        failures = [_kept(job) for job in ready if job.kind in ("fetch", "restore")]
        ready = [job for job in ready if job.kind not in ("fetch", "restore")]
        for job in list(ready):
            if reason := self._exclusions.reason(job.client, self._now()):
                failures.append(Failure(job.id, job.client, f"{_named(job)}: {reason}", "lost"))
                ready.remove(job)
        numbers, now = self._push(ready), self._now()
        for number, job in zip(numbers, ready, strict=True):
            if number:
                resend_at = now + self._resend.seconds(job.client)
                attempts = 1 if job.client in self._stalled else MAX_ATTEMPTS
                self._sent[number] = SentJob(job, now, now + self.deadline, resend_at, attempts)
            else:
                failures.append(self._lost(job, "the node is not connected"))
        return failures

    def _push(self, jobs: Sequence[Job]) -> list[str]:
        """Send jobs; gives the numbers of the messages, empty for a client whose node is not there."""
        nodes = [self.registry.node(job.client) for job in jobs]
        messages = [
            self._message(job, node) for job, node in zip(jobs, nodes, strict=True) if node is not None
        ]
        numbers = iter(self._grid.push_messages(messages) if messages else ())
        return ["" if node is None else next(numbers) or "" for node in nodes]

    def _message(self, job: Job, node: int) -> Message:
        content = record.to_record(self.registry.assignment.attach_to(wire.pack_job(job)))
        kind = "train" if job.kind == "train" else "evaluate"
        ttl = self.deadline if math.isfinite(self.deadline) else None
        return Message(content, node, kind, ttl=ttl, group_id=str(job.round))

    # -- receiving ------------------------------------------------------------------------------------

    def _receive(self) -> list[Answer | Failure]:
        results: list[Answer | Failure] = []
        for number, reply in self._transfers.poll(self._expected()):
            sent = self._sent.get(number)
            if sent is not None:  # else it was answered already, having been asked twice
                self._settle(sent.job)
                results.append(self._read(reply, sent))
        for sent in [sent for sent in self._sent.values() if self._now() >= sent.deadline_at]:
            if self._settle(sent.job):
                results.append(Failure(sent.job.id, sent.job.client, self._too_late(), "late"))
        return [*results, *self._ask_again()]

    def _expected(self) -> list[str]:
        """Return the messages to ask answers for.

        In whole rounds all answers are needed, so that the first one that was not announced is asked for until it is
        there, and the others now and then.
        """
        numbers = list(self._sent)
        if not self.realtime and numbers and self._now() < self._next_sweep:
            uploading = [number for number in numbers if self._transfers.uploading(number)]
            waiting = (number for number in numbers if not self._transfers.uploading(number))
            return [*uploading, *itertools.islice(waiting, 1)]
        self._next_sweep = self._now() + min(SWEEP_SECONDS, self.lost_after / 4)
        return numbers

    def _settle(self, job: Job) -> bool:
        """Forget every message with a job; says whether there was one."""
        numbers = [number for number, sent in self._sent.items() if sent.job.id == job.id]
        for number in numbers:
            del self._sent[number]
        self._transfers.forget(numbers)
        return bool(numbers)

    def _ask_again(self) -> list[Failure]:
        """Send jobs again whose answers are overdue: a message can count as delivered to a node that died with it.

        A node gives the same answer to the same job, so that it does not matter which of the messages it answers.
        """
        now, failures = self._now(), list[Failure]()
        for number, sent in list(self._sent.items()):
            if now < sent.resend_at or number not in self._sent or self._transfers.uploading(number):
                continue
            if sent.attempt == sent.attempts:
                self._settle(sent.job)
                failures.append(self._unanswered(sent))
                continue
            self.registry.poll()
            (new,) = self._push([sent.job])
            self._sent[number] = replace(sent, resend_at=math.inf)
            if new:
                resend_at = now + self._resend.seconds(sent.job.client) * 2**sent.attempt
                self._sent[new] = replace(sent, resend_at=resend_at, attempt=sent.attempt + 1)
            else:
                self._settle(sent.job)
                failures.append(self._lost(sent.job, "the node is not connected"))
        return failures

    def _unanswered(self, sent: SentJob) -> Failure:
        """Give a job up that was sent often enough; a node that is connected nevertheless has stalled."""
        if sent.job.client in self.registry.reachable():
            self._note_no_answer(sent.job)
        times = "once" if sent.attempts == 1 else f"{sent.attempts} times"
        waited = self._now() - sent.began
        return self._lost(sent.job, f"asked {times}, no answer in {waited:.1f} seconds")

    def _show_silent(self) -> None:
        """Say for which nodes the run waits whose jobs were sent again, and say it no more when they answered."""
        if self._outage.waiting and self._lost_jobs:
            self._silent.forget()
            return
        overdue = {sent.job.client: sent for sent in self._sent.values() if sent.attempt > 1}
        names = [self.registry.registrations[client].name for client in sorted(overdue)]
        first = min(overdue.values(), key=lambda sent: sent.began, default=None)
        if first is None:
            self._silent.show([], 0, 0.0)
        else:
            self._silent.show(names, first.job.round, self._now() - first.began)

    def _read(self, reply: Message | NoReply, sent: SentJob) -> Answer | Failure:
        """Errors come from the node's app, or from the link on behalf of a node that is gone."""
        job = sent.job
        if isinstance(reply, NoReply):
            return self._unread(job, reply)
        if not reply.has_error():
            self._note_answer(sent)
            try:
                answer = record.read(reply, self.registry.limit)
                if "refusal" in answer.facts:
                    return Failure(job.id, job.client, wire.string(answer.facts["refusal"], "a refusal"))
                return wire.unpack_result(answer, self._up, job)
            except PayloadError as error:
                return Failure(job.id, job.client, str(error), "invalid")
        if self._now() >= sent.deadline_at:
            return Failure(job.id, job.client, self._too_late(), "late")
        if reply.error.code in record.NODE_GONE_CODES:
            self._stalled.discard(job.client)  # it is not connected, which is no answer withheld
        return self._lost(job, record.error_reason(reply.error))

    def _unread(self, job: Job, reply: NoReply) -> Failure:
        if reply.kind == "invalid":
            return Failure(job.id, job.client, reply.reason, "invalid")
        self._note_no_answer(job)
        return self._lost(job, reply.reason)

    def _note_no_answer(self, job: Job) -> None:
        self._stalled.add(job.client)
        if job.kind not in WAITED_FOR:
            self._note_stall(job.client)

    def _lost(self, job: Job, reason: str) -> Failure:
        self.registry.mark_missing(job.client)
        failure = Failure(job.id, job.client, f"{_named(job)}: {reason}", "lost")
        if job.kind in WAITED_FOR:
            self._lost_jobs[job.id] = (job, failure)
        return failure

    def _too_late(self) -> str:
        return f"no answer within {self.deadline:g} seconds"


def _named(job: Job) -> str:
    return f"{job.kind} in round {job.round}"


def _kept(job: Job) -> Failure:
    """Raise: a private state never leaves its node."""
    return Failure(job.id, job.client, "a node keeps its state to itself", "dropped")
