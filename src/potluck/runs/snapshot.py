"""A loop's progress as plain numbers and named tensors, and back; jobs under way come along."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from potluck.core.desk import Flight, Progress
from potluck.core.job import Answer, Failure, Job, Score
from potluck.core.method import Method, payload_types
from potluck.core.payload import Payload, PayloadError, Tensors
from potluck.core.schema import check_payload
from potluck.core.task import Task

_COUNTERS = ("step", "ended", "clock", "jobs", "draws", "answered")
_APART = ("message", "payload", "state", "scores")


def numbers_of(now: Progress, method: Method[Any, Any, Any], task: Task) -> dict[str, Any]:
    """All of the progress that JSON can hold. Every flight must have landed."""
    upload = payload_types(method)[1]
    return {
        **{name: getattr(now, name) for name in _COUNTERS},
        "numbers": [[client, number] for client, number in now.numbers.items()],
        "scores": [[client, asdict(score)] for client, score in now.scores.items()],
        "flights": [_flight(flight, upload, task) for flight in now.flights],
    }


def tensors_of(now: Progress) -> dict[str, Any]:
    """The server's state and the messages under way: what is left for tensors."""
    return {
        "state": now.state,
        "flights": [
            {
                "message": _tensors(flight.job.message),
                "payload": _tensors(flight.result.payload if isinstance(flight.result, Answer) else None),
            }
            for flight in now.flights
        ],
    }


def rebuild(numbers: dict[str, Any], held: dict[str, Any], method: Method[Any, Any, Any]) -> Progress:
    """The progress that `numbers_of` and `tensors_of` took apart."""
    return Progress(
        held["state"],
        **{name: numbers[name] for name in _COUNTERS},
        numbers=dict(numbers["numbers"]),
        scores={client: Score(**score) for client, score in numbers["scores"]},
        flights=[
            _landed(flight, tensors, method)
            for flight, tensors in zip(numbers["flights"], held["flights"], strict=True)
        ],
    )


# -- one flight -------------------------------------------------------------------------------------------


def _flight(flight: Flight, upload: type[Payload], task: Task) -> dict[str, Any]:
    job, result = flight.job, flight.result
    assert result is not None
    plain: dict[str, Any] = {"job": _plain(job), "step": flight.step, "finish": flight.finish}
    plain["message"] = _scalars(job.message)
    if isinstance(result, Answer) and result.payload is not None and type(result.payload) is not upload:
        result = _refused(result, result.payload, upload, task)
    if isinstance(result, Failure):
        return {**plain, "failure": asdict(result)}
    scores = {test: asdict(score) for test, score in result.scores.items()}
    return {**plain, "answer": _plain(result), "payload": _scalars(result.payload), "scores": scores}


def _refused(answer: Answer, payload: Payload, upload: type[Payload], task: Task) -> Answer | Failure:
    """An answer of another type than declared would be refused on arrival: it is saved as that refusal."""
    try:
        check_payload(payload, upload, task, task.clients[answer.client])
    except PayloadError as error:
        return Failure(answer.job, answer.client, str(error), "invalid")
    return answer


def _landed(plain: dict[str, Any], tensors: dict[str, Tensors], method: Method[Any, Any, Any]) -> Flight:
    down, up = payload_types(method)
    message = None if plain["message"] is None else down.unflatten(tensors["message"], plain["message"])
    job = Job(**{**plain["job"], "tests": tuple(plain["job"]["tests"])}, message=message)
    result: Answer | Failure
    if "failure" in plain:
        result = Failure(**plain["failure"])
    else:
        payload = None if plain["payload"] is None else up.unflatten(tensors["payload"], plain["payload"])
        scores = {test: Score(**score) for test, score in plain["scores"].items()}
        result = Answer(**plain["answer"], payload=payload, scores=scores)
    return Flight(job, plain["step"], plain["finish"], result)


def _plain(thing: Job | Answer) -> dict[str, Any]:
    return {entry.name: getattr(thing, entry.name) for entry in fields(thing) if entry.name not in _APART}


def _scalars(payload: Payload | None) -> dict[str, Any] | None:
    return None if payload is None else payload.flatten()[1]


def _tensors(payload: Payload | None) -> Tensors:
    return {} if payload is None else payload.flatten()[0]
