"""Time two things in turns, and keep the results as rows: in memory, as Markdown, JSON and a CSV table."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast

import torch

from potluck.core.errors import PotluckError
from potluck.core.files import read_text
from potluck.runs.folder import write_atomic

Clock = Callable[[], float]
Action = Callable[[], object]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements and their quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """Quartiles of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)


def time_alternately(
    actions: Mapping[str, Action], trials: int, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of each action in each trial; the order is turned round from trial to trial.

    A first pass warms up and is not counted. `time.process_time` as the clock leaves out the time that other
    programs take from us: right for comparing single processes, useless for several.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    order = list(actions)
    for trial in range(trials + 1):
        for name in order:
            started = clock()
            actions[name]()
            if trial:
                seconds[name].append(clock() - started)
        order.reverse()
    return seconds


def ratio(over: list[float], under: list[float]) -> Spread:
    """Trial by trial, one divided by the other."""
    return Spread.of([numerator / denominator for numerator, denominator in zip(over, under, strict=True)])


@contextmanager
def patched_attribute(
    owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """A block in which a method, or a function of a module, is what `wrap` makes of it."""
    own, original = name in vars(owner), getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


@dataclass(frozen=True)
class Row:
    """One figure with its spread; `goal` is the largest (or smallest, for `at_least`) value wished for."""

    part: str
    what: str
    value: Spread
    unit: Literal["×", "%", "s", "MB"] = "×"
    goal: float | None = None
    at_least: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        return self.value.median >= self.goal if self.at_least else self.value.median <= self.goal

    def cells(self) -> list[str]:
        """Its line of the table."""
        goal = "" if self.goal is None else f"{'≥' if self.at_least else '≤'} {_number(self.goal, self.unit)}"
        spread = f"{_number(self.value.low, self.unit)} … {_number(self.value.high, self.unit)}"
        mark = {None: "", True: "met", False: "missed"}[self.met]
        return [self.part, self.what, _number(self.value.median, self.unit), spread, goal, mark]

    def __str__(self) -> str:
        part, label, median, spread, goal, mark = self.cells()
        return f"{part}: {label}: {median} ({spread}){f', goal {goal}: {mark}' if goal else ''}"


def machine() -> str:
    """What it was measured on."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    software = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{platform.machine()}, {cores} cores, load {load:.1f}, {software}"


def markdown(rows: Sequence[Row]) -> str:
    """A table that reads well as plain text too."""
    lines = ["| part | what | median | quartiles | goal | |", "|---|---|---:|---:|---:|---|"]
    lines += [f"| {' | '.join(row.cells())} |" for row in rows]
    return "\n".join(lines) + "\n"


def _number(value: float, unit: str) -> str:
    if unit == "MB":
        return f"{value:.0f} MB"
    if unit == "%":
        return f"{value:.1f} %"
    return f"{value:.3g} s" if unit == "s" else f"{value:.2f} ×"


def to_json(rows: Sequence[Row]) -> str:
    """The same for programs."""
    content = {"machine": machine(), "rows": [{**asdict(row), "met": row.met} for row in rows]}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


COLUMNS = ("part", "what", "median", "low", "high", "unit", "goal", "at_least", "machine")


def store_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows down; those of the same parts that were there before are replaced, where they stood."""
    old = _lines(path) if path.exists() else []
    new = [_line(row) for row in rows]
    measured = {row.part for row in rows}
    rows_kept: list[dict[str, str]] = []
    for line in old:
        if line["part"] not in measured:
            rows_kept.append(line)
        elif new:
            rows_kept, new = [*rows_kept, *new], []
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([*rows_kept, *new])
    write_atomic(path, out.getvalue())


def stored_rows(path: Path) -> list[Row]:
    """The rows of a table."""
    return [_row(line) for line in _lines(path)]


def _line(row: Row) -> dict[str, str]:
    numbers = {name: f"{getattr(row.value, name):.6g}" for name in ("median", "low", "high")}
    goal = "" if row.goal is None else f"{row.goal:g}"
    return {
        "part": row.part,
        "what": row.what,
        **numbers,
        "unit": row.unit,
        "goal": goal,
        "at_least": "yes" if row.at_least else "",
        "machine": machine(),
    }


def _row(line: dict[str, str]) -> Row:
    spread = Spread(float(line["median"]), float(line["low"]), float(line["high"]))
    goal = float(line["goal"]) if line["goal"] else None
    return Row(line["part"], line["what"], spread, cast(Any, line["unit"]), goal, line["at_least"] == "yes")


def _lines(path: Path) -> list[dict[str, str]]:
    reader = csv.DictReader(read_text(path).splitlines())
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise PotluckError(
            f"{str(path)!r} is no table of the benchmark (its columns are not {', '.join(COLUMNS)}); "
            "name another file with --store."
        )
    return list(reader)
