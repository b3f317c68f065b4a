"""Writes a run down while it happens: its results, where it stands this very moment, where and when it was made."""

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

from potluck.core.files import parse_json, read_text
from potluck.core.task import Task
from potluck.loop.callbacks import Arrival, Callback, End, Step
from potluck.loop.loop import Loop
from potluck.loop.records import ClientScore, Scores
from potluck.loop.score import Score
from potluck.runs import folder
from potluck.runs.digests import of_run
from potluck.runs.folder import write_atomic
from potluck.runs.summary import Accounting, newcomers_found, summarise_run


class RunWriter(Callback):
    """Appends to `rounds.jsonl` and `clients.jsonl` after every step; the summary comes at the end."""

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, dict(facts)
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


# -- where a run stands this very moment, for those who look at it from outside --------------------------------


PROGRESS = ".progress"
EVERY = 1.0
"""Seconds between two writings, at the least."""


class Heartbeat(Callback):
    """Writes the present round, how far it is, and (of machines far away) when each was last heard of.

    It is no part of the results: nobody reads it to go on with a run, and a full disk does not matter to it.
    """

    def __init__(self, path: Path, now: Callable[[], float] = time.time) -> None:
        self.file, self._now = path / PROGRESS, now
        self._written = 0.0
        self._told: dict[str, Any] = {}
        self._nodes: dict[int, dict[str, Any]] = {}

    def on_start(self, loop: Loop) -> None:
        """Remember who takes part, and say that the run goes on."""
        done = loop.progress.ended // loop.cohort
        self._told = {"round": done + 1, "rounds": loop.schedule.rounds, "cohort": loop.cohort}
        self._told |= {"phase": "training", "arrived": 0, "samples": 0, "since": self._now()}
        if loop.dispatcher.engine.remote:
            self._nodes = {
                info.index: {"name": info.name, "architecture": info.architecture, "answered": 0, "failed": 0}
                for info in loop.task.clients
            }
        self._write(at_once=True)

    def on_arrival(self, arrival: Arrival) -> None:
        """One more client is done."""
        phase = "training" if arrival.kind in ("train", "join") else "testing"
        if (phase, arrival.round) != (self._told["phase"], self._told["round"]):
            self._told |= {"phase": phase, "round": arrival.round, "arrived": 0}
        self._told["arrived"] += 1
        self._told["samples"] += arrival.samples
        if arrival.client in self._nodes:
            self._nodes[arrival.client] |= _seen(self._nodes[arrival.client], arrival, self._now())
        self._write()

    def on_step(self, step: Step) -> None:
        """A round, or a part of one, is over."""
        self._write()

    def on_end(self, end: End) -> None:
        """Nothing goes on any more."""
        self._told["phase"] = "ended"
        self._write(at_once=True)

    def _write(self, *, at_once: bool = False) -> None:
        if not at_once and self._now() - self._written < EVERY:
            return
        self._written = self._now()
        told = {
            **self._told,
            "time": self._written,
            "process": os.getpid(),
            "nodes": list(self._nodes.values()),
        }
        part = self.file.with_name(f"{PROGRESS}.part")
        with suppress(OSError):
            part.write_text(json.dumps(told), encoding="utf-8")
            part.replace(self.file)


def read_heartbeat(run: Path) -> dict[str, Any]:
    """What a run last said of itself; empty where it never did."""
    try:
        told = parse_json(read_text(run / PROGRESS))
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


def _seen(node: dict[str, Any], arrival: Arrival, now: float) -> dict[str, Any]:
    if arrival.failure is None:
        return {"answered": node["answered"] + 1, "seen": now, "trouble": ""}
    gone = {} if arrival.failure.kind in ("lost", "late") else {"seen": now}
    return {"failed": node["failed"] + 1, "trouble": arrival.failure.kind, **gone}


# -- where and when a run was made, for a reader who wonders months later --------------------------------------


_PACKAGES = ("potluck", "torch", "numpy")


def provenance() -> dict[str, Any]:
    """Date, machine, versions, and the commit of the source where it lies in a repository."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count() or 1} cores",
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
def _commit() -> str:
    """The commit that this source is of, with a + where it was changed since; empty for an installed package."""
    git, root = shutil.which("git"), Path(__file__).parents[3]
    if git is None or not (root / ".git").exists():
        return ""
    try:
        asked = [
            [git, "-C", str(root), *words]
            for words in (["rev-parse", "--short=12", "HEAD"], ["diff", "--quiet"])
        ]
        named, changed = (subprocess.run(each, capture_output=True, text=True, timeout=5) for each in asked)
    except (OSError, subprocess.SubprocessError):
        return ""
    return named.stdout.strip() + ("+" if changed.returncode == 1 else "") if named.returncode == 0 else ""
