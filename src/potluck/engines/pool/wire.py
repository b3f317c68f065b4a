"""What crosses between the pool's own processes: letters, and which version of a client they are about."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field, replace

from potluck.core.payload import Payload, PayloadError
from potluck.loop import letter
from potluck.loop.jobs import Answer, Failure, Job


@dataclass(frozen=True)
class Order:
    """A job as the parent sends it: which version of the client to work on, and whom to forget."""

    job: Job
    version: int
    forget: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """A result as the worker sends it: the client's stored version, and the seconds it took to bring it here."""

    result: Answer | Failure
    version: int
    loading: float


@dataclass(frozen=True)
class Wire:
    """Orders and reports of one method, whose payload types both sides know."""

    down: type[Payload]
    up: type[Payload]

    def send_order(self, to: socket.socket, order: Order) -> None:
        """Send a job."""
        message = order.job.message
        if message is not None and type(message) is not self.down:
            raise PayloadError(
                f"broadcast gave a {type(message).__name__}; the method declares {self.down.__name__}."
            )
        one = letter.pack_job(order.job)
        letter.send(to, replace(one, facts={**one.facts, "version": order.version, "forget": order.forget}))

    def receive_order(self, source: socket.socket) -> Order:
        """The next job; `ConnectionError` when the other side is gone."""
        one = letter.receive(source)
        return Order(letter.unpack_job(one, self.down), one.facts["version"], one.facts["forget"])

    def send_report(self, to: socket.socket, report: Report) -> None:
        """Send a result; an answer of another type than the method declares is an invalid one."""
        result = report.result
        if isinstance(result, Answer) and result.payload is not None and type(result.payload) is not self.up:
            reason = f"Expected a {self.up.__name__}, got a {type(result.payload).__name__}."
            result = Failure(result.job, result.client, reason, "invalid")
        one = letter.pack_result(result)
        facts = {**one.facts, "version": report.version, "loading": report.loading}
        letter.send(to, replace(one, facts=facts))

    def receive_report(self, source: socket.socket) -> Report:
        """The next result; `ConnectionError` when the worker is gone."""
        one = letter.receive(source)
        return Report(letter.unpack_result(one, self.up), one.facts["version"], one.facts["loading"])
