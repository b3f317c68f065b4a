"""Summarise a finished run as one object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from potluck.core.method import PaperAccounting
from potluck.core.random import add_up
from potluck.core.task import Task
from potluck.loop.newcomers import Newcomer, means
from potluck.loop.records import Scores
from potluck.runs.run import best_row
from potluck.wire.score import Summary, summarise


@dataclass
class Accounting:
    """Means of numbers per exchange in a paper's own way of counting, if it has one."""

    up: int = 0
    down: int = 0
    exchanges: int = 0
    note: str = ""

    def add(self, exchange: PaperAccounting) -> None:
        """Add one exchange."""
        self.up, self.down, self.note = self.up + exchange.up, self.down + exchange.down, exchange.note
        self.exchanges += 1

    def result(self) -> dict[str, Any] | None:
        """Return means; None if the paper counts as Potluck does."""
        if not self.exchanges:
            return None
        return {"up": self.up / self.exchanges, "down": self.down / self.exchanges, "note": self.note}


def summarise_run(
    facts: dict[str, Any],
    rounds: Sequence[dict[str, Any]],
    task: Task,
    scores: Scores,
    accounting: Accounting,
) -> dict[str, Any]:
    """Return the content of `summary.json`: accuracies as fractions, traffic of answered training jobs."""
    best = best_row(rounds, facts.get("selected_by", "test"))
    final = summarise(score.score for score in scores.test)
    of_server = facts.get("protocol") == "global"
    if of_server:  # clients were tested, too, but the protocol is about the server's model
        final = _last_global(rounds)
    validation = summarise(score.score for score in scores.validation)
    tested = [] if of_server else scores.test
    by_client = {score.client.index: score.score.accuracy for score in tested if score.client}
    jobs = sum(len(row["participants"]) for row in rounds)
    seconds = sum(row["seconds"] for row in rounds)
    summary = {
        **facts,
        "best_accuracy": best["accuracy"] if best else None,
        "best_round": best["round"] if best else None,
        "best_accuracy_validation": best.get("accuracy_validation") if best else None,
        "final_accuracy": final.accuracy,
        "final_accuracy_std": final.std,
        "final_accuracy_validation": validation.accuracy,
        "final_macro_f1": final.macro_f1,
        "final_calibration_error": final.calibration_error,
        "final_loss": _finite(final.loss),
        "client_accuracy": [by_client.get(client.index) for client in task.clients],
        "client_names": [client.name for client in task.clients],
        "client_architectures": [client.architecture for client in task.clients],
        "floats_up_per_client_round": _per_job(rounds, "floats_up", jobs),
        "floats_down_per_client_round": _per_job(rounds, "floats_down", jobs),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "failures": sum(len(row["failures"]) for row in rounds),
        "seconds": seconds,
        "virtual_seconds": rounds[-1]["virtual_seconds"] if rounds else 0.0,
        "samples_per_second": sum(row["trained_samples"] for row in rounds) / seconds if seconds else 0.0,
        **({} if of_server else _details(scores, task.num_classes)),
    }
    if reasons := _rejections(rounds):
        summary["rejected_answers"], summary["rejected_because"] = (
            reasons.total(),
            reasons.most_common(1)[0][0],
        )
    counted = accounting.result()
    return summary if counted is None else {**summary, "paper_accounting": counted}


def _rejections(rounds: Sequence[dict[str, Any]]) -> Counter[str]:
    """Count the answers that were rejected by their reasons."""
    return Counter(
        str(failure["reason"])
        for row in rounds
        for failure in row["failures"]
        if failure["kind"] == "invalid"
    )


def _last_global(rounds: Sequence[dict[str, Any]]) -> Summary:
    """Return the last scores of the server's model; empty for a method without one."""
    row = next((row for row in reversed(rounds) if row["accuracy_global"] is not None), None)
    if row is None:
        return Summary()
    return Summary(
        row["accuracy"],
        None,
        row["loss"],
        row["accuracy_micro"],
        row["macro_f1"],
        row["calibration_error"],
    )


def newcomer_summary(newcomers: Sequence[Newcomer]) -> dict[str, Any]:
    """Return scores of newcomers: their means, and each one's."""
    clients = [
        {
            "client": newcomer.client.index,
            "name": newcomer.client.name,
            "architecture": newcomer.client.architecture,
            "train_samples": newcomer.client.samples,
            "samples": newcomer.score.samples,
            "accuracy": newcomer.score.accuracy,
            "alone": newcomer.alone.accuracy,
        }
        for newcomer in newcomers
    ]
    return {**means(newcomers), "clients": clients}


def _details(scores: Scores, classes: int) -> dict[str, Any]:
    """Return test samples and correct predictions of each class, and calibration bins, of all clients together."""
    details = [score.score.details for score in scores.test if score.score.details is not None]
    if not details:
        return {}
    samples, right = [0] * classes, [0] * classes
    for true, guess, count in (entry for each in details for entry in each.confusion):
        samples[true] += count
        right[true] += count if guess == true else 0
    by_bin = zip(*(each.bins for each in details), strict=True)
    bins = [[add_up(numbers) for numbers in zip(*same, strict=True)] for same in by_bin]
    return {"class_samples": samples, "class_correct": right, "calibration": bins}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _per_job(rounds: Sequence[dict[str, Any]], key: str, jobs: int) -> float:
    return add_up(row[key] for row in rounds) / jobs if jobs else 0.0
