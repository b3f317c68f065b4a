"""What crosses between the pool's own processes: letters, and which version of a client they are about."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck import wire
from potluck.core.payload import Payload, PayloadError
from potluck.engines.vectorized.engine import JobBatch
from potluck.wire.jobs import Answer, Failure


@dataclass(frozen=True)
class BatchOrder:
    """A batch of jobs as the parent sends it: which versions of the clients to work on, and which to drop."""

    batch: JobBatch
    versions: list[int]
    forget: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class JobReport:
    """A result as the worker sends it: the client's stored version, and the seconds it took to bring it here."""

    result: Answer | Failure
    version: int
    loading: float


@dataclass(frozen=True)
class JobChannel:
    """Orders and reports of one method, whose payload types both sides know.

    A batch of clients crosses as one message per job; each says how many follow (`more`).
    """

    down: type[Payload]
    up: type[Payload]

    def send_order(self, to: socket.socket, order: BatchOrder) -> None:
        """Send a batch's jobs."""
        for job in order.batch:
            if job.message is not None and type(job.message) is not self.down:
                raise PayloadError(
                    f"broadcast gave a {type(job.message).__name__}; the method declares {self.down.__name__}."
                )
        for number, (job, version) in enumerate(zip(order.batch, order.versions, strict=True), 1):
            facts = {"version": version, "forget": order.forget, "more": len(order.batch) - number}
            _send(to, wire.pack_job(job), facts)

    def receive_order(self, source: socket.socket) -> BatchOrder:
        """Return the next batch's jobs; `ConnectionError` when the other side is gone."""
        messages = list(_receive(source))
        jobs = [wire.unpack_job(message, self.down) for message in messages]
        return BatchOrder(
            jobs, [message.facts["version"] for message in messages], messages[0].facts["forget"]
        )

    def send_reports(self, to: socket.socket, reports: Sequence[JobReport]) -> None:
        """Send a batch's results; an answer of another type than the method declares is an invalid one."""
        for number, report in enumerate(reports, 1):
            facts = {
                "version": report.version,
                "loading": report.loading,
                "processor": getattr(report.result, "processor_seconds", 0.0),
                "more": len(reports) - number,
            }
            _send(to, wire.pack_result(self._declared(report.result)), facts)

    def receive_reports(self, source: socket.socket) -> list[JobReport]:
        """Return the next batch's results; `ConnectionError` when the worker is gone."""
        return [
            JobReport(
                _with_processor_time(wire.unpack_result(message, self.up), message.facts["processor"]),
                message.facts["version"],
                message.facts["loading"],
            )
            for message in _receive(source)
        ]

    def _declared(self, result: Answer | Failure) -> Answer | Failure:
        if isinstance(result, Failure) or result.payload is None or type(result.payload) is self.up:
            return result
        reason = f"Expected a {self.up.__name__}, got a {type(result.payload).__name__}."
        return Failure(result.job, result.client, reason, "invalid")


def _with_processor_time(result: Answer | Failure, seconds: float) -> Answer | Failure:
    return result if isinstance(result, Failure) else replace(result, processor_seconds=seconds)


def _send(to: socket.socket, message: wire.Message, facts: dict[str, Any]) -> None:
    wire.send(to, replace(message, facts={**message.facts, **facts}))


def _receive(source: socket.socket) -> Iterator[wire.Message]:
    more = True
    while more:
        message = wire.receive(source)
        more = message.facts["more"] > 0
        yield message
