"""Jobs over a Flower grid: `submit` and `results` are `push_messages` and `pull_messages`."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import Message

from potluck.core.method import Method, payload_types
from potluck.core.payload import PayloadError
from potluck.flower import record
from potluck.flower.roll import Roll
from potluck.loop import letter
from potluck.loop.jobs import Answer, Failure, Job

ASKS = 3
"""How often a job is sent, each time with twice the patience, before it counts as lost."""


@dataclass(frozen=True)
class Sent:
    """A message under way: the job in it, when patience ends, and when it is asked again, having been so often."""

    job: Job
    due: float
    again: float
    asks: int = 1


class FlowerEngine:
    """Carries jobs to nodes. A node that is gone fails its job; one that comes back under its name is found again.

    `realtime` delivers answers in the order of their arrival, for asynchronous schedules. Otherwise the loop
    takes them in the order of its own clock, so that a synchronous run gives the serial engine's very bits.
    """

    name = "flower"
    remote = True

    def __init__(
        self,
        roll: Roll,
        method: Method[Any, Any, Any],
        *,
        realtime: bool = False,
        deadline: float = math.inf,
        lost_after: float = math.inf,
        poll: float = 0.2,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roll, self.realtime, self.deadline, self.lost_after = roll, realtime, deadline, lost_after
        self._grid = roll.grid
        self._up = payload_types(method)[1]
        self._poll, self._sleep, self._now = poll, sleep, now
        self._waiting: deque[Job] = deque()
        self._sent: dict[str, Sent] = {}
        self._arrived: deque[Answer | Failure] = deque()

    def submit(self, job: Job) -> None:
        """Take a job; it is sent with the others of its step, when an answer is first asked for."""
        self._waiting.append(job)

    def results(self) -> Iterator[Answer | Failure]:
        """Answers as they arrive, and a failure for every job that will have none."""
        while self._arrived or self._waiting or self._sent:
            while self._arrived:
                yield self._arrived.popleft()
            self._arrived.extend([*self._send(), *self._receive()])
            if self._sent and not self._arrived:
                self._sleep(self._poll)

    def close(self) -> None:
        """Forget what is outstanding; nodes notice that the run is over by themselves."""
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
        self.roll.call()
        failures = [_kept(job) for job in ready if job.kind in ("fetch", "restore")]
        ready = [job for job in ready if job.kind not in ("fetch", "restore")]
        numbers, now = self._push(ready), self._now()
        for number, job in zip(numbers, ready, strict=True):
            if number:
                self._sent[number] = Sent(job, now + self.deadline, now + self.lost_after)
            else:
                failures.append(self._lost(job, "the node is not connected"))
        return failures

    def _push(self, jobs: Sequence[Job]) -> list[str]:
        """Send jobs; gives the numbers of the messages, empty for a client whose node is not there."""
        nodes = [self.roll.node(job.client) for job in jobs]
        there = [self._message(job, node) for job, node in zip(jobs, nodes, strict=True) if node is not None]
        numbers = iter(self._grid.push_messages(there) if there else ())
        return ["" if node is None else next(numbers) or "" for node in nodes]

    def _message(self, job: Job, node: int) -> Message:
        content = record.to_record(self.roll.assignment.on(letter.pack_job(job)))
        kind = "train" if job.kind == "train" else "evaluate"
        ttl = self.deadline if math.isfinite(self.deadline) else None
        return Message(content, node, kind, ttl=ttl, group_id=str(job.round))

    # -- receiving ------------------------------------------------------------------------------------

    def _receive(self) -> list[Answer | Failure]:
        results: list[Answer | Failure] = []
        for number, reply in record.pulled(self._grid, list(self._sent)):
            sent = self._sent.get(number)
            if sent is not None:  # else it was answered already, having been asked twice
                self._settle(sent.job)
                results.append(self._read(reply, sent))
        for sent in [sent for sent in self._sent.values() if self._now() >= sent.due]:
            if self._settle(sent.job):
                results.append(Failure(sent.job.id, sent.job.client, self._too_late(), "late"))
        return [*results, *self._ask_again()]

    def _settle(self, job: Job) -> bool:
        """Forget every message with a job; says whether there was one."""
        numbers = [number for number, sent in self._sent.items() if sent.job.id == job.id]
        for number in numbers:
            del self._sent[number]
        return bool(numbers)

    def _ask_again(self) -> list[Failure]:
        """Send jobs again whose answers are overdue: a message can count as delivered to a node that died with it.

        A node gives the same answer to the same job, so that it does not matter which of the messages it answers.
        """
        now, failures = self._now(), list[Failure]()
        for number, sent in list(self._sent.items()):
            if now < sent.again or number not in self._sent:
                continue
            if sent.asks == ASKS:
                self._settle(sent.job)
                waited = self.lost_after * (2**ASKS - 1)
                failures.append(self._lost(sent.job, f"asked {ASKS} times, no answer in {waited:g} seconds"))
                continue
            self.roll.call()
            (new,) = self._push([sent.job])
            self._sent[number] = replace(sent, again=math.inf)
            if new:
                again = now + self.lost_after * 2**sent.asks
                self._sent[new] = Sent(sent.job, sent.due, again, sent.asks + 1)
            else:
                self._settle(sent.job)
                failures.append(self._lost(sent.job, "the node is not connected"))
        return failures

    def _read(self, reply: Message | None, sent: Sent) -> Answer | Failure:
        """Errors come from the node's app, or from the link on behalf of a node that is gone."""
        job = sent.job
        if reply is None:
            return Failure(job.id, job.client, "the answer could not be read", "invalid")
        if not reply.has_error():
            try:
                answer = record.read(reply, self.roll.limit)
                if "refusal" in answer.facts:
                    return Failure(job.id, job.client, letter.text(answer.facts["refusal"], "a refusal"))
                return letter.unpack_result(answer, self._up, job)
            except PayloadError as error:
                return Failure(job.id, job.client, str(error), "invalid")
        if self._now() >= sent.due:
            return Failure(job.id, job.client, self._too_late(), "late")
        return self._lost(job, record.reason(reply.error))

    def _lost(self, job: Job, reason: str) -> Failure:
        self.roll.miss(job.client)
        return Failure(job.id, job.client, f"{job.kind} in round {job.round}: {reason}", "lost")

    def _too_late(self) -> str:
        return f"no answer within {self.deadline:g} seconds"


def _kept(job: Job) -> Failure:
    """A private state never travels, whoever asks for it."""
    return Failure(job.id, job.client, "a node keeps its state to itself", "dropped")
