"""All runs that are watched, as the live page asks for them: how each stands, and the report of those chosen."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.report.data import report_data, to_json
from potluck.report.html import compare_for_page, page, parts
from potluck.report.live.standing import RESULTS, Standing
from potluck.runs.run import Run

_DEEP = 4  # folders below a watched one in which runs are looked for
_NOTHING: dict[str, Any] = {
    "groups": [],
    "metrics": {},
    "axes": [],
    "partitions": [],
    "rosters": [],
    "target": None,
    "reference": 0,
}
_PLACES = [
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


class Watched:
    """Looks at folders whenever it is asked, from one thread at a time."""

    def __init__(self, places: Sequence[Path]) -> None:
        self.places = places
        self._standings: dict[Path, Standing] = {}
        self._lock = threading.Lock()
        self._version = 0
        self._made: tuple[Any, dict[str, Any]] | None = None
        self._rest_until = 0.0

    def state(self, since: int = -1, without: frozenset[str] = frozenset()) -> dict[str, Any]:
        """How all runs stand; and the report, unless the page has this very `since` version of it."""
        with self._lock:
            self._look()
            rows = [standing.row() for standing in self._standings.values()]
            order = {"running": 0, "stopped": 1, "unreadable": 1, "finished": 2, "deleted": 3}
            rows.sort(key=lambda row: (order[row["status"]], row["name"]))
            report = self._report(without)
            shown = report if report["version"] != since else {"version": since}
            return {"runs": rows, "report": shown}

    def first_page(self) -> str:
        """The page as it is first sent; it asks for the rest by itself."""
        state = self.state()["report"]
        filled = {**state["parts"], "data": to_json(state["data"])}
        return page(
            filled,
            scripts=["live.js"],
            live_file="live.html",
            brand="Potluck, live",
            connect="connect-src 'self'; ",
            jump='<li><a href="#live">Runs</a></li>\n    ',
            footer="This page only reads; it is served to this machine alone.",
        )

    def _look(self) -> None:
        for place in self.places:
            for path in _run_folders(place, _DEEP):
                if path not in self._standings:
                    self._standings[path] = Standing(path, _name(path, place))
        changed = [standing.look() for standing in self._standings.values()]
        if any(changed):
            self._version += 1

    def _report(self, without: frozenset[str]) -> dict[str, Any]:
        """The report of the runs that are there and were not left out.

        A large one is made again only after a rest as long as it took, so that watching never takes a core for itself.
        """
        key = (self._version, without)
        if self._made is not None and (self._made[0] == key or self._rested(without)):
            return self._made[1]
        began = time.monotonic()
        runs = [
            standing.run
            for standing in self._standings.values()
            if standing.run is not None and not standing.gone and standing.name not in without
        ]
        made = _report_of(runs)
        made["version"] = (self._made[1]["version"] if self._made else 0) + 1
        self._made, self._rest_until = (key, made), 2 * time.monotonic() - began
        return made

    def _rested(self, without: frozenset[str]) -> bool:
        """Whether what was made last must do for now; what a reader chooses is made at once."""
        return self._made is not None and self._made[0][1] == without and time.monotonic() < self._rest_until


def _report_of(runs: Sequence[Run]) -> dict[str, Any]:
    if not runs:
        return _empty("Nothing to show yet: no run has finished a round.")
    try:
        comparison = compare_for_page(runs)
        return {"parts": parts(comparison), "data": report_data(comparison)}
    except (PotluckError, OSError) as error:  # deleted while it was read
        return _empty(str(error))


def _empty(words: str) -> dict[str, Any]:
    said = {"title": "Runs", "findings": f"<p>{escape(words)}</p>"}
    return {"parts": {**dict.fromkeys(_PLACES, ""), **said}, "data": _NOTHING}


def _run_folders(place: Path, deep: int) -> Iterator[Path]:
    """Folders of runs, also of those that have only just begun."""
    try:
        if any((place / name).is_file() for name in RESULTS):
            yield place
        elif deep and place.is_dir():
            for entry in sorted(place.iterdir()):
                if entry.is_dir() and not entry.name.startswith("."):
                    yield from _run_folders(entry, deep - 1)
    except OSError:  # deleted while we looked, or not ours to read
        return


def _name(path: Path, place: Path) -> str:
    return str(path.relative_to(place)) if path != place else path.name
