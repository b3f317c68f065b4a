"""A finished run in one object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from potluck.core.evaluation import summarise
from potluck.core.method import PaperAccounting
from potluck.core.records import ClientScore
from potluck.core.task import ClientInfo


@dataclass
class Accounting:
    """Mean numbers per exchange as a paper counts them, where it does so in its own way."""

    up: int = 0
    down: int = 0
    exchanges: int = 0
    note: str = ""

    def add(self, one: PaperAccounting | None) -> None:
        """Take one exchange in."""
        if one is not None:
            self.up, self.down, self.note = self.up + one.up, self.down + one.down, one.note
            self.exchanges += 1

    def result(self) -> dict[str, Any] | None:
        """Means, or nothing where the paper counts as we do."""
        if not self.exchanges:
            return None
        return {"up": self.up / self.exchanges, "down": self.down / self.exchanges, "note": self.note}


def summarise_run(
    facts: dict[str, Any],
    rounds: Sequence[dict[str, Any]],
    clients: Sequence[ClientInfo],
    scores: Sequence[ClientScore],
    accounting: Accounting,
) -> dict[str, Any]:
    """The content of `summary.json`. Accuracies are fractions; traffic is that of answered training jobs."""
    evaluated = [row for row in rounds if row["accuracy"] is not None]
    best = max(evaluated, key=lambda row: row["accuracy"], default=None)
    final = summarise(score.score for score in scores)
    by_client = {score.client.index: score.score.accuracy for score in scores if score.client}
    jobs = sum(len(row["participants"]) for row in rounds)
    seconds = sum(row["seconds"] for row in rounds)
    summary = {
        **facts,
        "best_accuracy": best["accuracy"] if best else None,
        "best_round": best["round"] if best else None,
        "final_accuracy": final.accuracy,
        "final_accuracy_std": final.std,
        "client_accuracy": [by_client.get(client.index) for client in clients],
        "client_names": [client.name for client in clients],
        "client_architectures": [client.architecture for client in clients],
        "floats_up_per_client_round": _per_job(rounds, "floats_up", jobs),
        "floats_down_per_client_round": _per_job(rounds, "floats_down", jobs),
        "bytes_up": sum(row["bytes_up"] for row in rounds),
        "bytes_down": sum(row["bytes_down"] for row in rounds),
        "failures": sum(len(row["failures"]) for row in rounds),
        "seconds": seconds,
        "virtual_seconds": rounds[-1]["virtual_seconds"] if rounds else 0.0,
        "samples_per_second": sum(row["trained_samples"] for row in rounds) / seconds if seconds else 0.0,
    }
    counted = accounting.result()
    return summary if counted is None else {**summary, "paper_accounting": counted}


def _per_job(rounds: Sequence[dict[str, Any]], key: str, jobs: int) -> float:
    return sum(row[key] for row in rounds) / jobs if jobs else 0.0
