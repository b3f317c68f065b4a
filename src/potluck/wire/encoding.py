"""Jobs, answers, failures and scores as messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from typing import Any, get_args

from potluck.core.errors import MAX_TRACE
from potluck.core.payload import Payload, PayloadError
from potluck.core.task import Task
from potluck.wire.header import (
    MAX_ROWS,
    boolean,
    bounded_list,
    choice,
    integer,
    number,
    optional_number,
    string,
    table,
)
from potluck.wire.jobs import Answer, Failure, FailureKind, Job, Kind, Test
from potluck.wire.message import Message, section
from potluck.wire.score import CONFIDENCE_BINS, Comparison, Score, ScoreDetails
from potluck.wire.tensors import encoded_size, encoded_tensors_size, flatten_payload, unflatten_payload

MAX_NOTES = 32
"""The most values that a method may note in one job."""
_SEPARATE = ("message", "payload", "state", "scores", "sums", "processor_seconds")


def pack_job(job: Job) -> Message:
    """Encode a job for a client."""
    payload = None if job.message is None else flatten_payload(job.message)
    return Message({"job": _facts(job)}, payload, job.state, job.sums)


def unpack_job(message: Message, down: type[Payload]) -> Job:
    """Decode a job; its payload must have the type that the method declares."""
    values = section(message, "job")
    job = Job(
        id=integer(values.get("id"), "id"),
        kind=choice(values.get("kind"), "kind", get_args(Kind)),
        client=integer(values.get("client"), "client"),
        number=integer(values.get("number"), "number"),
        round=integer(values.get("round"), "round"),
        rounds=integer(values.get("rounds"), "rounds"),
        tests=_tests(values.get("tests")),
        details=boolean(values.get("details"), "details"),
        epochs=integer(values.get("epochs"), "epochs"),
        step=integer(values.get("step"), "step"),
    )
    payload = None if message.payload is None else unflatten_payload(down, message.payload)
    return replace(job, message=payload, state=message.state, sums=message.sums)


def pack_result(result: Answer | Failure) -> Message:
    """Encode an answer or a failure for the loop."""
    if isinstance(result, Failure):
        return Message({"failure": asdict(result)})
    payload = None if result.payload is None else flatten_payload(result.payload)
    facts = {"answer": _facts(result), "scores": pack_scores(result.scores)}
    return Message(facts, payload, result.state, result.sums)


def unpack_result(message: Message, up: type[Payload], job: Job | None = None) -> Answer | Failure:
    """Decode an answer or a failure.

    Where `job` is known, the ids are taken from it and sizes are counted here, whatever the message states.
    """
    if "failure" in message.facts:
        return _failure(section(message, "failure"), job)
    values = section(message, "answer")
    job_id, client = _job_and_client(values, job)
    answer = Answer(
        job_id,
        client,
        scores=unpack_scores(message.facts.get("scores")),
        train_loss=optional_number(values.get("train_loss"), "train_loss"),
        train_ce=optional_number(values.get("train_ce"), "train_ce"),
        trained_samples=integer(values.get("trained_samples"), "trained_samples"),
        seconds=number(values.get("seconds"), "seconds", low=0.0),
        bytes_down=integer(values.get("bytes_down"), "bytes_down"),
        bytes_up=integer(values.get("bytes_up"), "bytes_up"),
        notes=_notes(values.get("notes")),
        state=message.state if job is None or job.kind == "fetch" else None,
        sums=message.sums if job is None or job.kind in ("train", "sum") else None,
    )
    if job is not None and answer.sums is not None:
        answer = replace(answer, bytes_up=encoded_tensors_size(answer.sums), bytes_down=_size(job))
    if message.payload is None or (job is not None and job.kind != "train"):
        return answer
    try:
        payload = unflatten_payload(up, message.payload)
    except PayloadError as error:
        return Failure(job_id, client, str(error), "invalid")
    if job is None or job.message is None:
        return replace(answer, payload=payload)
    return replace(
        answer, payload=payload, bytes_up=encoded_size(payload), bytes_down=encoded_size(job.message)
    )


def _size(job: Job) -> int:
    """Return the bytes of what a job sends to a client."""
    size = 0 if job.message is None else encoded_size(job.message)
    return size if job.sums is None else size + encoded_tensors_size(job.sums)


def _failure(values: Mapping[str, Any], job: Job | None) -> Failure:
    kind: FailureKind = choice(values.get("kind"), "kind", get_args(FailureKind))
    reason, trace = string(values.get("reason"), "reason"), string(values.get("trace"), "trace", MAX_TRACE)
    return Failure(*_job_and_client(values, job), reason, kind, trace)


def _job_and_client(values: Mapping[str, Any], job: Job | None) -> tuple[int, int]:
    if job is not None:
        return job.id, job.client
    return integer(values.get("job"), "job"), integer(values.get("client"), "client")


def _notes(values: Any) -> dict[str, float]:
    notes = table(values, "notes")
    if len(notes) > MAX_NOTES:
        raise PayloadError(f"notes has {len(notes)} entries, more than {MAX_NOTES}.")
    return {
        string(name, "the name of a note", 80): number(value, "a note", finite=False)
        for name, value in notes.items()
    }


def _tests(values: Any) -> tuple[Test, ...]:
    if not isinstance(values, list):
        raise PayloadError("tests is not a list.")
    return tuple(choice(value, "a test", get_args(Test)) for value in values)


def _facts(value: Job | Answer) -> dict[str, Any]:
    """Return the fields of a job or an answer that go into the header."""
    facts = {entry.name: getattr(value, entry.name) for entry in fields(value) if entry.name not in _SEPARATE}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in facts.items()}


def pack_scores(scores: Mapping[Test, Score]) -> dict[str, Any]:
    """Encode scores; their details only where they were requested."""
    return {
        test: {name: value for name, value in asdict(score).items() if value is not None}
        for test, score in scores.items()
    }


def unpack_scores(values: Any) -> dict[Test, Score]:
    """Decode the scores of a message or a checkpoint."""
    return {
        choice(test, "a test", get_args(Test)): _score(table(entry, "score"))
        for test, entry in table(values, "scores").items()
    }


def check_scores(scores: Mapping[Test, Score], job: Job, task: Task) -> None:
    """Raise for scores that were not requested, or that contradict the task or the client's registration."""
    compared = any(score.comparison is not None for score in scores.values())
    unasked = ("attacked", "alone", "federated") if compared else ("attacked",)  # sent without a request
    requested = ("own", "alone") if job.kind == "join" else (*job.tests, *unasked)
    for test, score in scores.items():
        if test not in requested:
            raise PayloadError(f"The answer has the score of a test {test!r} that was not requested.")
        if test == "validation" and score.samples > task.clients[job.client].validation:
            raise PayloadError("The answer has more validation samples than the client registered.")
        if score.details is None:
            continue
        if not job.details:
            raise PayloadError("The answer has details of a score that were not requested.")
        if any(max(label, predicted) >= task.num_classes for label, predicted, _ in score.details.confusion):
            raise PayloadError(f"Its scores name more classes than the task's {task.num_classes}.")


def _score(entry: dict[str, Any]) -> Score:
    samples = integer(entry.get("samples"), "samples", MAX_ROWS, low=1)
    score = Score(
        integer(entry.get("correct"), "correct", samples),
        samples,
        number(entry.get("loss_sum"), "loss_sum", low=0.0, finite=False),
        number(entry.get("macro_f1"), "macro_f1", low=0.0, high=1.0),
        number(entry.get("calibration_error"), "calibration_error", low=0.0, high=1.0),
        _details(table(entry["details"], "details"), samples) if "details" in entry else None,
        _comparison(table(entry["comparison"], "comparison"), samples) if "comparison" in entry else None,
    )
    if score.details is not None:
        _check_sums(score, score.details)
    return score


def _details(entry: dict[str, Any], samples: int) -> ScoreDetails:
    """Check the details of a score, except for class ids, which only `check_scores` can check."""
    confusion = list[tuple[int, int, int]]()
    for row in bounded_list(entry.get("confusion"), "confusion", samples):
        label, predicted, count = bounded_list(row, "an entry of confusion", 3, low=3)
        pair = integer(label, "a class"), integer(predicted, "a class")
        if confusion and pair <= confusion[-1][:2]:
            raise PayloadError("confusion is not in ascending order.")
        confusion.append((*pair, integer(count, "a count of confusion", samples, low=1)))
    bins = list[tuple[int, int, float]]()
    for row in bounded_list(entry.get("bins"), "bins", CONFIDENCE_BINS, low=CONFIDENCE_BINS):
        count, hits, confidence = bounded_list(row, "a bin", 3, low=3)
        count = integer(count, "a bin's count", samples)
        bins.append(
            (
                count,
                integer(hits, "a bin's hits", count),
                number(confidence, "confidence", low=0.0, high=count),
            )
        )
    return ScoreDetails(tuple(confusion), tuple(bins))


def _comparison(entry: dict[str, Any], samples: int) -> Comparison:
    weight = number(entry.get("weight"), "weight", low=0.0, high=1.0)
    counts = []
    for prefix in ("", "federated_"):
        gained = integer(entry.get(f"{prefix}gained"), f"{prefix}gained", samples)
        counts += [gained, integer(entry.get(f"{prefix}lost"), f"{prefix}lost", samples - gained)]
    return Comparison(weight, *counts)


def _check_sums(score: Score, details: ScoreDetails) -> None:
    correct = sum(count for label, predicted, count in details.confusion if label == predicted)
    totals = {
        (sum(count for *_, count in details.confusion), correct),
        (sum(count for count, *_ in details.bins), sum(hits for _, hits, _ in details.bins)),
    }
    if totals != {(score.samples, score.correct)}:
        raise PayloadError("The details of a score do not add up to it.")
