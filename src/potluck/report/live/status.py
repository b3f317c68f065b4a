"""Read the state of watched runs from their folders."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from potluck.analysis import formatting
from potluck.core.errors import PotluckError
from potluck.core.files import parse_toml, read_text
from potluck.experiment.differences import result_settings
from potluck.report.data import report_data, to_json
from potluck.report.html import compare_for_page, fill_page, page_parts
from potluck.runs.folder import CLIENTS, EXPERIMENT, ROUNDS, SUMMARY, in_use, read_waiting
from potluck.runs.read import is_run, read_run
from potluck.runs.run import Record, Run, as_number
from potluck.runs.writer import PROGRESS, read_heartbeat

RESULTS = (EXPERIMENT, ROUNDS, CLIENTS, SUMMARY)
_RECENT = 5  # rounds that the remaining time is estimated from
_EVENTS = 6  # of one run
_STATUS_ORDER = {"running": 0, "stopped": 1, "unreadable": 1, "finished": 2, "deleted": 3}
_SHARED = ("data", "partition", "models", "schedule")  # sections that compared runs have in common


class WatchedRun:
    """One run folder, read again only when its files have changed; unreadable files are reported, not raised."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        self.run: Run | None = None
        self.error = ""
        self.signature: tuple[Any, ...] = ()
        self._experiment: dict[str, Any] = {}

    def refresh(self) -> bool:
        """Read what is new; return whether results have changed."""
        if self.deleted:  # the last state stays in the list of runs, not in the charts
            had_results, self.signature = bool(self.signature), ()
            return had_results
        signature = tuple(_stamp(self.path / name) for name in RESULTS)
        if signature == self.signature:
            return False
        self.signature, self.error = signature, ""
        try:
            self._experiment = parse_toml(read_text(self.path / EXPERIMENT)) if signature[0] else {}
            self.run = read_run(self.path) if is_run(self.path) else None
        except (PotluckError, OSError, ValueError) as error:  # half written, half deleted, or not a run
            self.run, self.error = None, str(error)
        return True

    @property
    def deleted(self) -> bool:
        """Return whether the folder no longer exists."""
        return not self.path.is_dir()

    @property
    def status(self) -> str:
        """Return the status as one word."""
        if self.deleted:
            return "deleted"
        if self.error:
            return "unreadable"
        if self.run is not None and self.run.finished:
            return "finished"
        return "running" if in_use(self.path) else "stopped"

    @property
    def experiment_key(self) -> str:
        """Return the settings that runs of one experiment share: data, partition, models and schedule."""
        shared = {name: self._section(name) for name in _SHARED}
        return repr(sorted((name, repr(value)) for name, value in result_settings(shared).items()))

    @property
    def experiment_title(self) -> str:
        """Return data, partition, clients and rounds in a line."""
        data, partition = self._section("data"), self._section("partition")
        clients = _integer(partition.get("clients"))
        parts = [
            str(data.get("name") or (self.run.dataset if self.run else "")),
            str(partition.get("rule") or ""),
        ]
        parts += [
            f"{clients} clients" if clients else "",
            f"{self._rounds()} rounds" if self._rounds() else "",
        ]
        return ", ".join(filter(None, parts)) or "unknown experiment"

    def row(self) -> dict[str, Any]:
        """Return the run's row in the table of runs."""
        beat, status, run = read_heartbeat(self.path), self.status, self.run
        rounds, rounds_done = _integer(beat.get("rounds")) or self._rounds(), run.num_rounds if run else 0
        running = status == "running"
        waiting = read_waiting(self.path) if running else ""
        return {
            "name": self.name,
            "experiment": self.experiment_title,
            "method": run.method if run else str(self._section("method").get("name", "")),
            "seed": self._experiment.get("seed", 0),
            "status": status,
            "round": rounds_done,
            "rounds": rounds,
            "within": self._within(beat, rounds_done) if running else None,
            "left": self._seconds_left(beat, rounds, rounds_done) if running else None,
            "accuracy": _finite(run.final_accuracy) if run else None,
            "failed": len(run.failures) if run else 0,
            "sent": run.total("bytes_up") + run.total("bytes_down") if run else 0,
            "seconds": run.total("seconds") if run else 0,
            "age": None if self.deleted else max(0.0, time.time() - self._last_write()),
            "error": self.error,
            "waiting": waiting,
            "nodes": [
                _node(node, status, waiting) for node in beat.get("nodes") or () if isinstance(node, dict)
            ],
            "events": self._events(),
        }

    def _section(self, name: str) -> dict[str, Any]:
        section = self._experiment.get(name)
        return section if isinstance(section, dict) else {}

    def _rounds(self) -> int:
        return _integer(self._section("schedule").get("rounds"))

    def _within(self, beat: Mapping[str, Any], done: int) -> dict[str, Any] | None:
        """Return the progress within the current round, if the run has reported it."""
        cohort, arrived = _integer(beat.get("cohort")), _integer(beat.get("arrived"))
        if not cohort or _integer(beat.get("round")) < done:
            return None
        return {
            "phase": str(beat.get("phase", "")),
            "arrived": arrived,
            "of": cohort,
            "samples": beat.get("samples"),
        }

    def _seconds_left(self, beat: Mapping[str, Any], rounds: int, done: int) -> float | None:
        """Estimate the remaining seconds from the last rounds; None before the first round has ended."""
        if self.run is None or not done or not rounds:
            return None
        by_round: dict[int, float] = {}
        for record in self.run.rounds:
            number = int(record["round"])
            by_round[number] = by_round.get(number, 0.0) + float(record.get("seconds") or 0)
        mean = float(np.mean(list(by_round.values())[-_RECENT:]))
        within, share = self._within(beat, done), 0.0
        if within and within["phase"] == "training" and _integer(beat.get("round")) > done:
            share = min(1.0, within["arrived"] / within["of"])
        return max(0.0, mean * (rounds - done - share))

    def _last_write(self) -> float:
        stamps = [stamp for stamp in (*self.signature, _stamp(self.path / PROGRESS)) if stamp]
        return max((stamp[0] for stamp in stamps), default=time.time_ns()) / 1e9

    def _events(self) -> list[dict[str, Any]]:
        """Return the last server steps with the times when they ended, the newest first.

        The last step ended when `rounds.jsonl` was written; earlier ones by as many seconds before as later steps took.
        """
        if self.run is None:
            return []
        stamp = self.signature[RESULTS.index(ROUNDS)] if self.signature else None
        moment = stamp[0] / 1e9 if stamp else self._last_write()
        events = []
        for record in self.run.rounds[: -_EVENTS - 1 : -1]:
            events.append({"time": moment, "text": _event_text(record)})
            seconds = as_number(record.get("seconds"))
            moment -= seconds if math.isfinite(seconds) else 0.0
        return events


def _event_text(record: Record) -> str:
    parts = []
    if isinstance(record.get("accuracy"), float | int):
        parts.append(f"accuracy {formatting.percent(record['accuracy'])} %")
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


def _node(node: Mapping[str, Any], status: str, waiting: str) -> dict[str, Any]:
    """Return a remote node's row: whether it is connected, and when it was last heard of."""
    name, trouble, seen = str(node.get("name", "")), str(node.get("trouble") or ""), node.get("seen")
    missing = repr(name) in waiting
    down = status != "running" or trouble in ("lost", "late") or missing
    return {
        "name": name,
        "architecture": str(node.get("architecture", "")),
        "connected": "unknown" if seen is None and not trouble and not missing else "no" if down else "yes",
        "seen": max(0.0, time.time() - seen) if isinstance(seen, float | int) else None,
        "answered": _integer(node.get("answered")),
        "failed": _integer(node.get("failed")),
        "trouble": trouble,
    }


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_MAX_DEPTH = 4  # folders below a watched one that are searched for runs
_NO_DATA: dict[str, Any] = {
    "groups": [],
    "metrics": {},
    "axes": [],
    "partitions": [],
    "rosters": [],
    "target": None,
    "reference": 0,
}
_PARTS = [
    "title",
    "subtitle",
    "findings",
    "cards",
    "table",
    "methods",
    "made",
    "toggles",
    "ledger",
    "settings",
    "commands",
]


class WatchedRuns:
    """Read the runs of several folders on request, from one thread at a time."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self._runs: dict[Path, WatchedRun] = {}
        self._lock = threading.Lock()
        self._version = 0
        self._made: tuple[Any, dict[str, Any]] | None = None
        self._render_after = 0.0

    def state(self, since: int = -1, without: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Return the rows of all runs, and the report unless the page has version `since` of it."""
        with self._lock:
            self._refresh()
            rows = self._rows()
            report = self._report(without)
            shown = report if report["version"] != since else {"version": since}
            return {"runs": rows, "report": shown}

    def first_page(self) -> str:
        """Return the page as it is first sent; its script asks for updates."""
        state = self.state()["report"]
        filled = {**state["parts"], "data": to_json(state["data"])}
        return fill_page(
            filled,
            scripts=["live.js"],
            live_file="live.html",
            brand="Potluck, live",
            connect="connect-src 'self'; ",
            jump='<li><a href="#live">Runs</a></li>\n    ',
            footer="This page is read-only and served to this machine only.",
        )

    def _rows(self) -> list[dict[str, Any]]:
        """Return a row per run, grouped by experiment: first those with running runs, then by name."""
        groups: dict[str, list[WatchedRun]] = {}
        for watched in self._runs.values():
            groups.setdefault(watched.experiment_key, []).append(watched)
        titles = Counter(members[0].experiment_title for members in groups.values())
        tables = []
        for members in groups.values():
            rows = [watched.row() for watched in members]
            rows.sort(key=lambda row: (_STATUS_ORDER[row["status"]], row["name"]))
            if titles[rows[0]["experiment"]] > 1:  # settings that the title omits differ: name the folder
                title = f"{rows[0]['experiment']} ({members[0].path.parent.name})"
                rows = [{**row, "experiment": title} for row in rows]
            tables.append(rows)
        tables.sort(
            key=lambda rows: (_STATUS_ORDER[rows[0]["status"]], rows[0]["experiment"], rows[0]["name"])
        )
        return [row for rows in tables for row in rows]

    def _refresh(self) -> None:
        for folder in self.folders:
            for path in _run_folders(folder, _MAX_DEPTH):
                if path not in self._runs:
                    self._runs[path] = WatchedRun(path, _name(path, folder))
        changed = [watched.refresh() for watched in self._runs.values()]
        if any(changed):
            self._version += 1

    def _report(self, without: frozenset[str]) -> dict[str, Any]:
        """Return the report of the existing runs without those left out.

        A new report is made only after a pause as long as the last one took, to leave the cores to training.
        """
        key = (self._version, without)
        if self._made is not None and (self._made[0] == key or self._pausing(without)):
            return self._made[1]
        began = time.monotonic()
        runs = [
            watched.run
            for watched in self._runs.values()
            if watched.run is not None and not watched.deleted and watched.name not in without
        ]
        report = _report_of(runs)
        report["version"] = (self._made[1]["version"] if self._made else 0) + 1
        self._made, self._render_after = (key, report), 2 * time.monotonic() - began
        return report

    def _pausing(self, without: frozenset[str]) -> bool:
        """Return whether the last report is sent again; another selection of runs is rendered at once."""
        return (
            self._made is not None and self._made[0][1] == without and time.monotonic() < self._render_after
        )


def _report_of(runs: Sequence[Run]) -> dict[str, Any]:
    if not runs:
        return _empty("Nothing to show yet: no run has finished a round.")
    try:
        comparison = compare_for_page(runs)
        return {"parts": page_parts(comparison), "data": report_data(comparison)}
    except (PotluckError, OSError) as error:  # deleted while it was read
        return _empty(str(error))


def _empty(text: str) -> dict[str, Any]:
    parts = {"title": "Runs", "findings": f"<p>{escape(text)}</p>"}
    return {"parts": {**dict.fromkeys(_PARTS, ""), **parts}, "data": _NO_DATA}


def _run_folders(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the run folders below `folder`, also of runs that have just started."""
    try:
        if any((folder / name).is_file() for name in RESULTS):
            yield folder
        elif depth and folder.is_dir():
            for entry in sorted(folder.iterdir()):
                if entry.is_dir() and not entry.name.startswith("."):
                    yield from _run_folders(entry, depth - 1)
    except OSError:  # deleted in the meantime, or not readable
        return


def _name(path: Path, folder: Path) -> str:
    return str(path.relative_to(folder)) if path != folder else path.name
