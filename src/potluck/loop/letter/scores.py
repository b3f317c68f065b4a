"""Scores as JSON holds them, and what of them can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, get_args

from potluck.core.payload import PayloadError
from potluck.core.task import Task
from potluck.loop.jobs import Job, Test
from potluck.loop.letter.envelope import MAX_ROWS, items, mapping, one_of, real, whole
from potluck.loop.score import BINS, Details, Score


def pack_scores(scores: Mapping[Test, Score]) -> dict[str, Any]:
    """The outcomes of tests; what a score is made of only where somebody asked for it."""
    return {
        test: {name: value for name, value in asdict(score).items() if value is not None}
        for test, score in scores.items()
    }


def unpack_scores(values: Any) -> dict[Test, Score]:
    """The outcomes of tests in a letter or a checkpoint, if they can be some."""
    return {
        one_of(test, "a test", get_args(Test)): _score(mapping(entry, "score"))
        for test, entry in mapping(values, "scores").items()
    }


def check_scores(scores: Mapping[Test, Score], job: Job, task: Task) -> None:
    """Refuse what nobody asked for, and what the task's classes and the client's registration rule out."""
    asked = ("own", "alone") if job.kind == "join" else (*job.tests, "attacked")  # which comes by itself
    for test, score in scores.items():
        if test not in asked:
            raise PayloadError(f"The answer has the score of a test {test!r} that was not asked for.")
        if test == "validation" and score.samples > task.clients[job.client].validation:
            raise PayloadError("The answer has more validation samples than the client registered.")
        if score.details is None:
            continue
        if not job.details:
            raise PayloadError("The answer has details of a score that were not asked for.")
        if any(max(true, guess) >= task.num_classes for true, guess, _ in score.details.confusion):
            raise PayloadError(f"Its scores name more classes than the task's {task.num_classes}.")


def _score(entry: dict[str, Any]) -> Score:
    samples = whole(entry.get("samples"), "samples", MAX_ROWS, low=1)
    score = Score(
        whole(entry.get("correct"), "correct", samples),
        samples,
        real(entry.get("loss_sum"), "loss_sum", low=0.0, finite=False),
        real(entry.get("macro_f1"), "macro_f1", low=0.0, high=1.0),
        real(entry.get("calibration_error"), "calibration_error", low=0.0, high=1.0),
        _details(mapping(entry["details"], "details"), samples) if "details" in entry else None,
    )
    if score.details is not None:
        _check_sums(score, score.details)
    return score


def _details(entry: dict[str, Any], samples: int) -> Details:
    """Numbers of a fitting size. Which classes there are, only who knows the task can tell."""
    confusion = list[tuple[int, int, int]]()
    for each in items(entry.get("confusion"), "confusion", samples):
        true, guess, count = items(each, "an entry of confusion", 3, low=3)
        pair = whole(true, "a class"), whole(guess, "a class")
        if confusion and pair <= confusion[-1][:2]:
            raise PayloadError("confusion is not in ascending order.")
        confusion.append((*pair, whole(count, "a count of confusion", samples, low=1)))
    bins = list[tuple[int, int, float]]()
    for each in items(entry.get("bins"), "bins", BINS, low=BINS):
        count, hits, sure = items(each, "a bin", 3, low=3)
        count = whole(count, "a bin's count", samples)
        bins.append(
            (count, whole(hits, "a bin's hits", count), real(sure, "confidence", low=0.0, high=count))
        )
    return Details(tuple(confusion), tuple(bins))


def _check_sums(score: Score, details: Details) -> None:
    right = sum(count for true, guess, count in details.confusion if true == guess)
    found = {
        (sum(count for *_, count in details.confusion), right),
        (sum(count for count, *_ in details.bins), sum(hits for _, hits, _ in details.bins)),
    }
    if found != {(score.samples, score.correct)}:
        raise PayloadError("The details of a score do not add up to it.")
