"""A loop's progress as plain numbers and named tensors, and back; jobs under way are kept as the letters they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from potluck.core.method import Method, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.schema import check_payload
from potluck.core.task import Task
from potluck.loop import letter
from potluck.loop.jobs import Answer, Failure
from potluck.loop.progress import Flight, Progress

_COUNTERS = ("step", "ended", "clock", "jobs", "draws", "answered")


def numbers_of(now: Progress) -> dict[str, Any]:
    """All of the progress that JSON can hold."""
    return {
        **{name: getattr(now, name) for name in _COUNTERS},
        "numbers": [[client, number] for client, number in now.numbers.items()],
        "scores": [[client, letter.pack_scores(scores)] for client, scores in now.scores.items()],
        "flights": [{"step": flight.step, "finish": flight.finish} for flight in now.flights],
        "recent": [{"step": flight.step, "finish": flight.finish} for flight in now.recent.values()],
    }


def tensors_of(now: Progress, method: Method[Any, Any, Any], task: Task) -> dict[str, Any]:
    """The server's state, and the letters under way as bytes. Every flight must have landed."""
    upload = payload_types(method)[1]
    return {
        "state": now.state,
        "flights": [_sealed(flight, upload, task) for flight in now.flights],
        "recent": [_sealed(_nameless(flight), upload, task) for flight in now.recent.values()],
    }


def _nameless(flight: Flight) -> Flight:
    """A flight that is over: its job's id, which depends on how often states were fetched, is of no use any more."""
    assert isinstance(flight.result, Answer)
    return replace(flight, job=replace(flight.job, id=0), result=replace(flight.result, job=0, seconds=0.0))


def rebuild(numbers: dict[str, Any], held: dict[str, Any], method: Method[Any, Any, Any]) -> Progress:
    """The progress that `numbers_of` and `tensors_of` took apart."""
    recent = [_flight(*pair, method) for pair in zip(numbers["recent"], held["recent"], strict=True)]
    return Progress(
        held["state"],
        **{name: numbers[name] for name in _COUNTERS},
        numbers=dict(numbers["numbers"]),
        scores={client: letter.unpack_scores(scores) for client, scores in numbers["scores"]},
        flights=[_flight(*pair, method) for pair in zip(numbers["flights"], held["flights"], strict=True)],
        recent={flight.job.client: flight for flight in recent},
    )


def _sealed(flight: Flight, upload: type[Payload], task: Task) -> dict[str, Tensor]:
    return {"job": _bytes(letter.pack_job(flight.job)), "result": _bytes(_result(flight, upload, task))}


def _flight(numbers: dict[str, Any], sealed: dict[str, Tensor], method: Method[Any, Any, Any]) -> Flight:
    down, up = payload_types(method)
    return Flight(
        letter.unpack_job(_letter(sealed["job"]), down),
        numbers["step"],
        numbers["finish"],
        letter.unpack_result(_letter(sealed["result"]), up),
    )


def _result(flight: Flight, upload: type[Payload], task: Task) -> letter.Letter:
    """The result's letter; an answer of another type than declared is saved as the refusal that it will be."""
    result = flight.result
    assert result is not None
    if isinstance(result, Answer) and result.payload is not None and type(result.payload) is not upload:
        try:
            check_payload(result.payload, upload, task, task.clients[result.client])
        except PayloadError as error:
            result = Failure(result.job, result.client, str(error), "invalid")
    return letter.pack_result(replace(result, state=None) if isinstance(result, Answer) else result)


def _bytes(one: letter.Letter) -> Tensor:
    return torch.frombuffer(bytearray(letter.to_bytes(one)), dtype=torch.uint8)


def _letter(tensor: Tensor) -> letter.Letter:
    return letter.from_bytes(letter.as_bytes(tensor.cpu().contiguous()))
