"""Writes a run down while it happens."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from potluck.core.files import write_atomic
from potluck.core.task import Task
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.loop import Loop
from potluck.loop.records import ClientScore, Scores
from potluck.loop.score import Score
from potluck.runs import folder
from potluck.runs.digests import of_run
from potluck.runs.summary import Accounting, newcomers_found, summarise_run


class RunWriter(Callback):
    """Appends to `rounds.jsonl` and `clients.jsonl` after every step; the summary comes at the end."""

    def __init__(self, path: Path, facts: dict[str, Any], class_counts: list[list[int]]) -> None:
        self.path = path
        self.facts = {**facts, "class_counts": class_counts}
        self.summary: dict[str, Any] = {}
        self.late_facts: list[Callable[[], dict[str, Any]]] = []
        """What the summary also says, found out when it is written."""
        self._accounting = Accounting()
        self._task: Task | None = None

    def on_start(self, loop: Loop) -> None:
        """Remember who takes part."""
        self._task = loop.task

    def notes(self) -> dict[str, Any]:
        """What this writer knows beyond its files, so that another process can go on with `take_up`."""
        return {"accounting": asdict(self._accounting), "command": self.facts.get("command", "")}

    def take_up(self, notes: dict[str, Any]) -> None:
        """Go on from the notes of an earlier process; the command on record stays the one that began the run."""
        self._accounting = Accounting(**notes["accounting"])
        self.facts["command"] = notes["command"]

    def on_step(self, step: Step) -> None:
        """One line per server step, one per client and evaluation."""
        for one in step.counted:
            self._accounting.add(one)
        rows = client_rows(Scores(step.scores, step.validation))
        folder.append_lines(self.path / folder.CLIENTS, rows)
        folder.append_lines(self.path / folder.ROUNDS, [_finite(asdict(step.record))])

    def on_end(self, end: End) -> None:
        """Every client's last score, and the summary."""
        scores = Scores(end.scores, end.validation)
        folder.append_lines(self.path / folder.CLIENTS, client_rows(scores))
        rounds = folder.read_lines(self.path / folder.ROUNDS)
        for find in self.late_facts:
            self.facts |= find()
        assert self._task is not None
        if end.newcomers:
            self.facts["newcomers"] = newcomers_found(end.newcomers)
        self.summary = summarise_run(self.facts, rounds, self._task, scores, self._accounting)
        path = self.path / folder.SUMMARY
        with folder.writing(path):
            (self.path / folder.DIGESTS).unlink(missing_ok=True)
            write_atomic(path, json.dumps(self.summary, indent=2) + "\n")
            write_atomic(self.path / folder.DIGESTS, json.dumps(of_run(self.path), indent=2) + "\n")


def client_rows(scores: Scores) -> list[dict[str, Any]]:
    """A row per client and protocol, with what its validation samples gave beside the test; the server has none."""
    beside = {_key(score): score.score for score in scores.validation}
    rows = [
        _client_row(score, score.score, beside.pop(_key(score), None))
        for score in scores.test
        if score.client
    ]
    alone = [score for score in scores.validation if _key(score) in beside]  # clients without test samples
    return rows + [_client_row(score, None, score.score) for score in alone]


def _key(score: ClientScore) -> tuple[int, str]:
    return -1 if score.client is None else score.client.index, score.protocol


def _client_row(about: ClientScore, test: Score | None, validation: Score | None) -> dict[str, Any]:
    client = about.client
    assert client is not None
    row = {
        "round": about.round,
        "client": client.index,
        "name": client.name,
        "architecture": client.architecture,
        "protocol": about.protocol,
        "samples": test.samples if test else 0,
        "train_samples": client.samples,
        "accuracy": test.accuracy if test else None,
        "macro_f1": test.macro_f1 if test else None,
        "calibration_error": test.calibration_error if test else None,
        "loss": test.loss if test else None,
        "final": about.final,
    }
    if test and test.details:
        row |= {"confusion": test.details.confusion, "calibration": test.details.bins}
    if validation:
        row |= {
            "validation_samples": validation.samples,
            "accuracy_validation": validation.accuracy,
            "loss_validation": validation.loss,
        }
    return _finite(row)


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN: a diverged loss is recorded as null."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
