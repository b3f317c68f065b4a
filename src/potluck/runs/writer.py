"""Record a run while it trains: results, current progress, and provenance."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from potluck.core.files import parse_json, read_cpuinfo, read_text
from potluck.core.task import Task
from potluck.loop.callbacks import Arrival, Callback, End, Step
from potluck.loop.loop import Loop
from potluck.loop.records import ClientScore, Scores
from potluck.runs import folder
from potluck.runs.digests import run_digests
from potluck.runs.folder import write_atomic
from potluck.runs.summary import Accounting, newcomer_summary, summarise_run
from potluck.wire.score import Comparison, Score


class RunWriter(Callback):
    """Append to `rounds.jsonl` and `clients.jsonl` after every step; write the summary at the end."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, dict(facts)
        self.summary: dict[str, Any] = {}
        self.final_facts: list[Callable[[], dict[str, Any]]] = []
        """Functions that compute further facts of the summary at the end of the run."""
        self._accounting = Accounting()
        self._task: Task | None = None

    def on_start(self, loop: Loop) -> None:
        """Store the task, which has the clients."""
        self._task = loop.task

    def notes(self) -> dict[str, Any]:
        """Return the state beyond the files, for `restore_notes` in another process."""
        return {"accounting": asdict(self._accounting), "command": self.facts.get("command", "")}

    def restore_notes(self, notes: dict[str, Any]) -> None:
        """Restore the state of an earlier process; the recorded command stays the one that started the run."""
        self._accounting = Accounting(**notes["accounting"])
        self.facts["command"] = notes["command"]

    def on_step(self, step: Step) -> None:
        """Append one line per server step, and one per client and evaluation."""
        for exchange in step.paper_accounting:
            self._accounting.add(exchange)
        rows = client_rows(Scores(step.scores, step.validation))
        folder.append_lines(self.path / folder.CLIENTS, rows)
        folder.append_lines(self.path / folder.ROUNDS, [_finite(asdict(step.record))])

    def on_end(self, end: End) -> None:
        """Append every client's final score, and write the summary."""
        scores = Scores(end.scores, end.validation)
        folder.append_lines(self.path / folder.CLIENTS, client_rows(scores))
        rounds = folder.read_lines(self.path / folder.ROUNDS)
        for compute in self.final_facts:
            self.facts |= compute()
        assert self._task is not None
        if end.newcomers:
            self.facts["newcomers"] = newcomer_summary(end.newcomers)
        self.summary = summarise_run(self.facts, rounds, self._task, scores, self._accounting)
        path = self.path / folder.SUMMARY
        with folder.writing(path):
            (self.path / folder.DIGESTS).unlink(missing_ok=True)
            write_atomic(path, json.dumps(self.summary, indent=2) + "\n")
            write_atomic(self.path / folder.DIGESTS, json.dumps(run_digests(self.path), indent=2) + "\n")


def client_rows(scores: Scores) -> list[dict[str, Any]]:
    """Return a row per client and protocol: test scores with validation scores; the server has no row."""
    validation = {_key(score): score.score for score in scores.validation}
    rows = [
        _client_row(score, score.score, validation.pop(_key(score), None))
        for score in scores.test
        if score.client
    ]
    untested = [score for score in scores.validation if _key(score) in validation]  # no test samples
    return rows + [_client_row(score, None, score.score) for score in untested]


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
    if about.federated and about.alone and test:
        row |= _safeguard_columns(test, about.federated, about.alone)
    if validation:
        row |= {
            "validation_samples": validation.samples,
            "accuracy_validation": validation.accuracy,
            "loss_validation": validation.loss,
        }
        if validation.comparison:
            row |= _evidence(validation, validation.comparison)
    return _finite(row)


def _safeguard_columns(used: Score, federated: Score, alone: Score) -> dict[str, Any]:
    """Return both models of a safeguarded client; `gained` and `lost` count samples against the standalone model."""
    columns: dict[str, Any] = {
        "accuracy_federated": federated.accuracy,
        "accuracy_alone": alone.accuracy,
        "loss_federated": federated.loss,
        "loss_alone": alone.loss,
    }
    if used.comparison:
        columns |= {
            "federated_weight": used.comparison.weight,
            "gained": used.comparison.gained,
            "lost": used.comparison.lost,
            "federated_gained": used.comparison.federated_gained,
            "federated_lost": used.comparison.federated_lost,
        }
    return columns


def _evidence(used: Score, comparison: Comparison) -> dict[str, Any]:
    """Return what a choice was made by: both models on the validation samples."""
    alone = used.correct - comparison.gained + comparison.lost
    federated = alone + comparison.federated_gained - comparison.federated_lost
    return {
        "accuracy_validation_federated": federated / used.samples,
        "accuracy_validation_alone": alone / used.samples,
        "validation_gained": comparison.federated_gained,
        "validation_lost": comparison.federated_lost,
    }


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Replace numbers that are not finite by None, since JSON has no NaN."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


# -- current progress, for other processes ---------------------------------------------------------------------


PROGRESS = ".progress"
HEARTBEAT_SECONDS = 1.0
"""Minimum time between two heartbeats."""


class Heartbeat(Callback):
    """Write the current round, its progress, and the last contact of every remote node.

    The file is not a result: resuming does not read it, and errors in writing it are ignored.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.file, self._now = path / PROGRESS, now
        self._written = 0.0
        self._status: dict[str, Any] = {}
        self._nodes: dict[int, dict[str, Any]] = {}

    def on_start(self, loop: Loop) -> None:
        """Store the clients, and write the first heartbeat."""
        rounds_done = loop.progress.ended // loop.cohort
        self._status = {"round": rounds_done + 1, "rounds": loop.schedule.rounds, "cohort": loop.cohort}
        self._status |= {"phase": "training", "arrived": 0, "samples": 0, "since": self._now()}
        if loop.dispatcher.engine.remote:
            self._nodes = {
                info.index: {"name": info.name, "architecture": info.architecture, "answered": 0, "failed": 0}
                for info in loop.task.clients
            }
        self._write(at_once=True)

    def on_arrival(self, arrival: Arrival) -> None:
        """Count a finished job."""
        phase = "training" if arrival.kind in ("train", "join") else "testing"
        if (phase, arrival.round) != (self._status["phase"], self._status["round"]):
            self._status |= {"phase": phase, "round": arrival.round, "arrived": 0}
        self._status["arrived"] += 1
        self._status["samples"] += arrival.samples
        if arrival.client in self._nodes:
            self._nodes[arrival.client] |= _node_status(self._nodes[arrival.client], arrival, self._now())
        self._write()

    def on_step(self, step: Step) -> None:
        """Write a heartbeat."""
        self._write()

    def on_end(self, end: End) -> None:
        """Write that the run has ended."""
        self._status["phase"] = "ended"
        self._write(at_once=True)

    def _write(self, *, at_once: bool = False) -> None:
        if not at_once and self._now() - self._written < HEARTBEAT_SECONDS:
            return
        self._written = self._now()
        status = {
            **self._status,
            "time": self._written,
            "process": os.getpid(),
            "nodes": list(self._nodes.values()),
        }
        part = self.file.with_name(f"{PROGRESS}.part")
        with suppress(OSError):
            part.write_text(json.dumps(status), encoding="utf-8")
            part.replace(self.file)


def read_heartbeat(run: Path) -> dict[str, Any]:
    """Read the last heartbeat of a run; empty if there is none."""
    try:
        status = parse_json(read_text(run / PROGRESS))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _node_status(node: dict[str, Any], arrival: Arrival, now: float) -> dict[str, Any]:
    if arrival.failure is None:
        return {"answered": node["answered"] + 1, "seen": now, "trouble": ""}
    contact = {} if arrival.failure.kind in ("lost", "late") else {"seen": now}
    return {"failed": node["failed"] + 1, "trouble": arrival.failure.kind, **contact}


# -- provenance ------------------------------------------------------------------------------------------------


_PACKAGES = ("potluck", "torch", "numpy")


def provenance() -> dict[str, Any]:
    """Date, machine, versions, and the commit of the source where it lies in a repository."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores",
        "processor": processor_name(),
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := _version(name))},
        **({"commit": commit} if (commit := _commit()) else {}),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


@cache
def processor_name() -> str:
    """Return the processor's model as the system names it; its architecture where it does not."""
    for line in read_cpuinfo().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


@cache
def _commit() -> str:
    """Return the commit that this source is of, with a + where it was changed since; empty for an installed package.

    Only files below `src` count: results that are stored in the same repository do not change the code.
    """
    git, root = shutil.which("git"), Path(__file__).parents[3]
    if git is None or not (root / ".git").exists():
        return ""
    try:
        commands = [
            [git, "-C", str(root), *words]
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--", "src"])
        ]
        named, changed = (
            subprocess.run(each, capture_output=True, text=True, timeout=5) for each in commands
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return named.stdout.strip() + ("+" if changed.stdout.strip() else "") if named.returncode == 0 else ""
