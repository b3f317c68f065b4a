"""What crosses between the pool's own processes: one safetensors image per message, on a socket pair.

Tensors go from memory to socket and from socket to memory without a copy between, into tensors of their
own, so that a client sees the same memory layout as on the serial engine.
"""

from __future__ import annotations

import socket
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from torch import Tensor

from potluck.codec import as_bytes, parts, read_head
from potluck.core.job import Answer, Failure, Job, Score
from potluck.core.payload import Payload, PayloadError
from potluck.core.tree import Flat

_MESSAGE, _STATE = "m/", "s/"


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
    """Packs and unpacks messages of one method, whose payload types both sides know."""

    down: type[Payload]
    up: type[Payload]

    def send_order(self, to: socket.socket, order: Order) -> None:
        """Send a job."""
        job = order.job
        if job.message is not None and type(job.message) is not self.down:
            raise PayloadError(
                f"broadcast gave a {type(job.message).__name__}; the method declares {self.down.__name__}."
            )
        tensors, content = _take_apart(job.message, job.state)
        content |= {"job": _plain(job), "version": order.version, "forget": order.forget}
        _send(to, tensors, content)

    def receive_order(self, source: socket.socket) -> Order:
        """The next job; `EOFError` when the other side is gone."""
        tensors, content = _receive(source)
        message, state = _put_together(self.down, tensors, content)
        values = content["job"]
        job = Job(**{**values, "tests": tuple(values["tests"])}, message=message, state=state)
        return Order(job, content["version"], content["forget"])

    def send_report(self, to: socket.socket, report: Report) -> None:
        """Send a result; an answer of another type than the method declares is an invalid one."""
        result = report.result
        content: dict[str, Any] = {"version": report.version, "loading": report.loading}
        if isinstance(result, Answer) and result.payload is not None and type(result.payload) is not self.up:
            reason = f"Expected a {self.up.__name__}, got a {type(result.payload).__name__}."
            result = Failure(result.job, result.client, reason, "invalid")
        if isinstance(result, Failure):
            _send(to, {}, {**content, "failure": asdict(result)})
            return
        tensors, more = _take_apart(result.payload, result.state)
        scores = {test: asdict(score) for test, score in result.scores.items()}
        _send(to, tensors, {**content, **more, "answer": _plain(result), "scores": scores})

    def receive_report(self, source: socket.socket) -> Report:
        """The next result; `EOFError` when the worker is gone."""
        tensors, content = _receive(source)
        return Report(self._result(tensors, content), content["version"], content["loading"])

    def _result(self, tensors: dict[str, Tensor], content: dict[str, Any]) -> Answer | Failure:
        if "failure" in content:
            return Failure(**content["failure"])
        answer = Answer(**content["answer"])
        try:
            payload, state = _put_together(self.up, tensors, content)
        except PayloadError as error:
            return Failure(answer.job, answer.client, str(error), "invalid")
        scores = {test: Score(**score) for test, score in content["scores"].items()}
        return replace(answer, payload=payload, state=state, scores=scores)


def _plain(thing: Job | Answer) -> dict[str, Any]:
    """The fields that are neither payload, state nor scores."""
    apart = ("message", "payload", "state", "scores")
    return {entry.name: getattr(thing, entry.name) for entry in fields(thing) if entry.name not in apart}


def _take_apart(message: Payload | None, state: Flat | None) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    content: dict[str, Any] = {"scalars": None, "layout": None}
    if message is not None:
        mine, content["scalars"] = message.flatten()
        tensors |= {_MESSAGE + name: tensor for name, tensor in mine.items()}
    if state is not None:
        content["layout"] = state.layout
        tensors |= {_STATE + name: tensor for name, tensor in state.tensors.items()}
    return tensors, content


def _put_together(
    kind: type[Payload], tensors: dict[str, Tensor], content: dict[str, Any]
) -> tuple[Payload | None, Flat | None]:
    def part(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}

    scalars, layout = content["scalars"], content["layout"]
    message = None if scalars is None else kind.unflatten(part(_MESSAGE), scalars)
    return message, None if layout is None else Flat(part(_STATE), layout)


def _send(to: socket.socket, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
    for buffer in parts(tensors, content):
        to.sendall(buffer)


def _receive(source: socket.socket) -> tuple[dict[str, Tensor], Any]:
    size = bytearray(8)
    _fill(source, memoryview(size))
    head = bytearray(int.from_bytes(size, "little"))
    _fill(source, memoryview(head))
    slots, content = read_head(bytes(head))
    for slot in slots:
        _fill(source, as_bytes(slot.tensor))
    return {slot.name: slot.tensor for slot in slots}, content


def _fill(source: socket.socket, view: memoryview) -> None:
    while view:
        count = source.recv_into(view)
        if not count:
            raise EOFError("the other process is gone")
        view = view[count:]
