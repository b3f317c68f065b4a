"""Where one run stands, from its folder alone: going, finished, stopped or deleted, how far, how much longer."""

from __future__ import annotations

import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from potluck.analysis import text
from potluck.core.errors import PotluckError
from potluck.core.files import parse_toml, read_text
from potluck.runs.folder import CLIENTS, EXPERIMENT, ROUNDS, SUMMARY, in_use
from potluck.runs.read import is_run, read_run
from potluck.runs.run import Run
from potluck.runs.writer import PROGRESS, read_heartbeat

RESULTS = (EXPERIMENT, ROUNDS, CLIENTS, SUMMARY)
_RECENT = 5  # rounds that the time left is guessed from
_LINES = 6  # of a run's story


class Standing:
    """One run folder, read again only where its files have changed. Nothing that is found there is fatal."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.run: Run | None = None
        self.trouble = ""
        self.signature: tuple[Any, ...] = ()
        self._experiment: dict[str, Any] = {}

    def look(self) -> bool:
        """Read what is new; says whether results have changed."""
        if self.gone:  # what was last seen of it stays on the list, not in the charts
            known, self.signature = bool(self.signature), ()
            return known
        signature = tuple(_stamp(self.path / name) for name in RESULTS)
        if signature == self.signature:
            return False
        self.signature, self.trouble = signature, ""
        try:
            self._experiment = parse_toml(read_text(self.path / EXPERIMENT)) if signature[0] else {}
            self.run = read_run(self.path) if is_run(self.path) else None
        except (PotluckError, OSError, ValueError) as error:  # half written, half deleted, or not ours
            self.run, self.trouble = None, str(error)
        return True

    @property
    def gone(self) -> bool:
        """Whether the folder was deleted since it was first seen."""
        return not self.path.is_dir()

    @property
    def status(self) -> str:
        """One word."""
        if self.gone:
            return "deleted"
        if self.trouble:
            return "unreadable"
        if self.run is not None and self.run.finished:
            return "finished"
        return "running" if in_use(self.path) else "stopped"

    def row(self) -> dict[str, Any]:
        """What the table of runs shows of it."""
        beat, status = read_heartbeat(self.path), self.status
        rounds = _whole(beat.get("rounds")) or self._planned()
        done = self.run.num_rounds if self.run else 0
        method = self._experiment.get("method")
        return {
            "name": self.name,
            "method": self.run.method
            if self.run
            else method.get("name", "")
            if isinstance(method, dict)
            else "",
            "seed": self._experiment.get("seed", 0),
            "status": status,
            "round": done,
            "rounds": rounds,
            "within": self._within(beat, done) if status == "running" else None,
            "left": self._left(beat, rounds, done) if status == "running" else None,
            "accuracy": _known(self.run.final_accuracy) if self.run else None,
            "failed": len(self.run.failures) if self.run else 0,
            "sent": self.run.total("bytes_up") + self.run.total("bytes_down") if self.run else 0,
            "seconds": self.run.total("seconds") if self.run else 0,
            "age": max(0.0, time.time() - self._touched()) if not self.gone else None,
            "trouble": self.trouble,
            "nodes": [_node(node, status) for node in beat.get("nodes") or () if isinstance(node, dict)],
            "lines": self._lines(),
        }

    def _planned(self) -> int:
        schedule = self._experiment.get("schedule")
        return _whole(schedule.get("rounds")) if isinstance(schedule, dict) else 0

    def _within(self, beat: dict[str, Any], done: int) -> dict[str, Any] | None:
        """How far the present round is, as far as the run has said."""
        cohort, arrived = _whole(beat.get("cohort")), _whole(beat.get("arrived"))
        if not cohort or _whole(beat.get("round")) < done:
            return None
        return {
            "phase": str(beat.get("phase", "")),
            "arrived": arrived,
            "of": cohort,
            "samples": beat.get("samples"),
        }

    def _left(self, beat: dict[str, Any], rounds: int, done: int) -> float | None:
        """Seconds to the end if rounds go on as the last ones did; None before the first has ended."""
        if self.run is None or not done or not rounds:
            return None
        by_round: dict[int, float] = {}
        for record in self.run.rounds:
            by_round[int(record["round"])] = by_round.get(int(record["round"]), 0.0) + float(
                record.get("seconds") or 0
            )
        each = float(np.mean(list(by_round.values())[-_RECENT:]))
        within = self._within(beat, done)
        share = (
            min(1.0, within["arrived"] / within["of"]) if within and within["phase"] == "training" else 0.0
        )
        begun = share if within and _whole(beat.get("round")) > done else 0.0
        return max(0.0, each * (rounds - done - begun))

    def _touched(self) -> float:
        stamps = [stamp for stamp in (*self.signature, _stamp(self.path / PROGRESS)) if stamp]
        return max((stamp[0] for stamp in stamps), default=time.time_ns()) / 1e9

    def _lines(self) -> list[str]:
        """The last things that happened, a line each, the newest first."""
        return [_line(record) for record in self.run.rounds[: -_LINES - 1 : -1]] if self.run else []


def _line(record: Any) -> str:
    parts = []
    if isinstance(record.get("accuracy"), float | int):
        parts.append(f"accuracy {text.percent(record['accuracy'])} %")
    if isinstance(record.get("train_loss"), float | int):
        parts.append(f"training loss {record['train_loss']:.4f}")
    parts.append(f"{len(record.get('participants') or ())} answered")
    kinds = Counter(str(each.get("kind") or each.get("reason")) for each in record.get("failures") or ())
    if kinds:
        parts.append("failed: " + ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    stale = [each for each in record.get("staleness") or () if each]
    if stale:
        parts.append(f"{len(stale)} stale by up to {max(stale)}")
    return f"round {record['round']}: {', '.join(parts)}"


def _node(node: dict[str, Any], status: str) -> dict[str, Any]:
    """A machine far away: whether it can be thought to be there, and when it was last heard of."""
    trouble, seen = str(node.get("trouble") or ""), node.get("seen")
    away = status != "running" or trouble in ("lost", "late")
    return {
        "name": str(node.get("name", "")),
        "architecture": str(node.get("architecture", "")),
        "connected": "unknown" if seen is None and not trouble else "no" if away else "yes",
        "seen": max(0.0, time.time() - seen) if isinstance(seen, float | int) else None,
        "answered": _whole(node.get("answered")),
        "failed": _whole(node.get("failed")),
        "trouble": trouble,
    }


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
