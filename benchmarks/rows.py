"""The benchmark's results: rows of one table, as Markdown and as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import torch

from benchmarks.trials import Spread


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
        part, what, median, spread, goal, mark = self.cells()
        return f"{part}: {what}: {median} ({spread}){f', goal {goal}: {mark}' if goal else ''}"


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
