"""What crosses between the pool's own processes: letters, and which version of a client they are about."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from potluck.core.payload import Payload, PayloadError
from potluck.engines.vectorized.teams import Team
from potluck.loop import letter
from potluck.loop.jobs import Answer, Failure


@dataclass(frozen=True)
class Order:
    """A team of jobs as the parent sends it: which versions of the clients to work on, and whom to forget."""

    team: Team
    versions: list[int]
    forget: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """A result as the worker sends it: the client's stored version, and the seconds it took to bring it here."""

    result: Answer | Failure
    version: int
    loading: float


@dataclass(frozen=True)
class Wire:
    """Orders and reports of one method, whose payload types both sides know.

    A team crosses as one letter per job; each says how many follow (`more`).
    """

    down: type[Payload]
    up: type[Payload]

    def send_order(self, to: socket.socket, order: Order) -> None:
        """Send a team's jobs."""
        for job in order.team:
            if job.message is not None and type(job.message) is not self.down:
                raise PayloadError(
                    f"broadcast gave a {type(job.message).__name__}; the method declares {self.down.__name__}."
                )
        for number, (job, version) in enumerate(zip(order.team, order.versions, strict=True), 1):
            facts = {"version": version, "forget": order.forget, "more": len(order.team) - number}
            _send(to, letter.pack_job(job), facts)

    def receive_order(self, source: socket.socket) -> Order:
        """The next team's jobs; `ConnectionError` when the other side is gone."""
        letters = list(_receive(source))
        jobs = [letter.unpack_job(one, self.down) for one in letters]
        return Order(jobs, [one.facts["version"] for one in letters], letters[0].facts["forget"])

    def send_reports(self, to: socket.socket, reports: Sequence[Report]) -> None:
        """Send a team's results; an answer of another type than the method declares is an invalid one."""
        for number, report in enumerate(reports, 1):
            facts = {"version": report.version, "loading": report.loading, "more": len(reports) - number}
            _send(to, letter.pack_result(self._declared(report.result)), facts)

    def receive_reports(self, source: socket.socket) -> list[Report]:
        """The next team's results; `ConnectionError` when the worker is gone."""
        return [
            Report(letter.unpack_result(one, self.up), one.facts["version"], one.facts["loading"])
            for one in _receive(source)
        ]

    def _declared(self, result: Answer | Failure) -> Answer | Failure:
        if isinstance(result, Failure) or result.payload is None or type(result.payload) is self.up:
            return result
        reason = f"Expected a {self.up.__name__}, got a {type(result.payload).__name__}."
        return Failure(result.job, result.client, reason, "invalid")


def _send(to: socket.socket, one: letter.Letter, facts: dict[str, Any]) -> None:
    letter.send(to, replace(one, facts={**one.facts, **facts}))


def _receive(source: socket.socket) -> Iterator[letter.Letter]:
    more = True
    while more:
        one = letter.receive(source)
        more = one.facts["more"] > 0
        yield one
