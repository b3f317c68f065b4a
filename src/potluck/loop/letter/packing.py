"""Jobs, answers and failures as letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_args

from potluck.core.errors import MAX_TRACE
from potluck.core.payload import Payload, PayloadError
from potluck.loop.jobs import Answer, Failure, FailureKind, Job, Kind, Test
from potluck.loop.letter.envelope import mapping, one_of, optional, real, text, truth, whole
from potluck.loop.letter.image import enclosed, encoded_size, opened
from potluck.loop.letter.letter import Letter, section
from potluck.loop.letter.scores import pack_scores, unpack_scores

MAX_NOTES = 32
"""How many numbers of its own a method may record of a job."""
_ENCLOSED = ("message", "payload", "state", "scores")


def pack_job(job: Job) -> Letter:
    """A job on its way to a client."""
    payload = None if job.message is None else enclosed(job.message)
    return Letter({"job": _plain(job)}, payload, job.state)


def unpack_job(letter: Letter, down: type[Payload]) -> Job:
    """The job in a letter; its message must have the type that the method declares."""
    values = section(letter, "job")
    job = Job(
        id=whole(values.get("id"), "id"),
        kind=one_of(values.get("kind"), "kind", get_args(Kind)),
        client=whole(values.get("client"), "client"),
        number=whole(values.get("number"), "number"),
        round=whole(values.get("round"), "round"),
        rounds=whole(values.get("rounds"), "rounds"),
        tests=_tests(values.get("tests")),
        details=truth(values.get("details"), "details"),
        epochs=whole(values.get("epochs"), "epochs"),
        step=whole(values.get("step"), "step"),
    )
    message = None if letter.payload is None else opened(down, letter.payload)
    return replace(job, message=message, state=letter.state)


def pack_result(result: Answer | Failure) -> Letter:
    """An answer or a failure on its way to the loop."""
    if isinstance(result, Failure):
        return Letter({"failure": asdict(result)})
    payload = None if result.payload is None else enclosed(result.payload)
    return Letter({"answer": _plain(result), "scores": pack_scores(result.scores)}, payload, result.state)


def unpack_result(letter: Letter, up: type[Payload], job: Job | None = None) -> Answer | Failure:
    """The result in a letter. Where we know the `job`, what it was, and how large messages were, is ours to say."""
    if "failure" in letter.facts:
        return _failure(section(letter, "failure"), job)
    values = section(letter, "answer")
    number, client = _about(values, job)
    answer = Answer(
        number,
        client,
        scores=unpack_scores(letter.facts.get("scores")),
        train_loss=optional(values.get("train_loss"), "train_loss"),
        trained_samples=whole(values.get("trained_samples"), "trained_samples"),
        seconds=real(values.get("seconds"), "seconds", low=0.0),
        bytes_down=whole(values.get("bytes_down"), "bytes_down"),
        bytes_up=whole(values.get("bytes_up"), "bytes_up"),
        notes=_notes(values.get("notes")),
        state=letter.state if job is None or job.kind == "fetch" else None,
    )
    if letter.payload is None or (job is not None and job.kind != "train"):
        return answer
    try:
        payload = opened(up, letter.payload)
    except PayloadError as error:
        return Failure(number, client, str(error), "invalid")
    if job is None or job.message is None:
        return replace(answer, payload=payload)
    return replace(
        answer, payload=payload, bytes_up=encoded_size(payload), bytes_down=encoded_size(job.message)
    )


def _failure(values: Mapping[str, Any], job: Job | None) -> Failure:
    kind: FailureKind = one_of(values.get("kind"), "kind", get_args(FailureKind))
    reason, trace = text(values.get("reason"), "reason"), text(values.get("trace"), "trace", MAX_TRACE)
    return Failure(*_about(values, job), reason, kind, trace)


def _about(values: Mapping[str, Any], job: Job | None) -> tuple[int, int]:
    if job is not None:
        return job.id, job.client
    return whole(values.get("job"), "job"), whole(values.get("client"), "client")


def _notes(values: Any) -> dict[str, float]:
    notes = mapping(values, "notes")
    if len(notes) > MAX_NOTES:
        raise PayloadError(f"notes has {len(notes)} entries, more than {MAX_NOTES}.")
    return {
        text(name, "the name of a note", 80): real(value, "a note", finite=False)
        for name, value in notes.items()
    }


def _tests(values: Any) -> tuple[Test, ...]:
    if not isinstance(values, list):
        raise PayloadError("tests is no list.")
    return tuple(one_of(value, "a test", get_args(Test)) for value in values)


def _plain(thing: Job | Answer) -> dict[str, Any]:
    """The facts of a job or an answer as JSON would give them back."""
    facts = {entry.name: getattr(thing, entry.name) for entry in fields(thing) if entry.name not in _ENCLOSED}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}
