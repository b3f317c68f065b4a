"""Results as data: a row per run in a CSV file, curves and clients beside it in JSON. Rows are added as they come."""

from __future__ import annotations

import csv
import io
import json
import platform
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import potluck
from potluck.benchmark.lines import from_line, to_csv
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.runs.folder import write_atomic

LIMIT = 256 << 20
POINTS = 25
"""How many points of a curve are kept."""


@dataclass(frozen=True)
class Row:
    """One run. Accuracies are fractions; `accuracy` is that of the round that was best on validation."""

    task: str
    method: str
    seed: int
    accuracy: float
    final_accuracy: float
    worst_tenth: float
    macro_f1: float | None
    calibration_error: float | None
    newcomers: float | None
    newcomers_alone: float | None
    floats_up: float
    floats_down: float
    samples_per_job: float
    seconds: float
    settings: str
    experiment: str
    code: str
    commit: str
    versions: str
    machine: str
    date: str
    command: str


@dataclass(frozen=True)
class Trial:
    """One run of the tuning, scored on validation alone."""

    task: str
    method: str
    settings: str
    validation: float | None
    seconds: float
    experiment: str
    code: str


@dataclass
class Results:
    """Everything measured of a suite so far."""

    folder: Path
    name: str
    rows: list[Row] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path, name: str) -> Results:
        """What lies in the folder; nothing where nothing was measured."""
        found = cls(folder, name)
        found.rows = [from_line(Row, entry) for entry in _table(found.table)]
        found.trials = [from_line(Trial, entry) for entry in _table(found.trial_table)]
        if found.curves.exists():
            found.details = parse_json(read_text(found.curves, LIMIT))
        return found

    @property
    def table(self) -> Path:
        """The rows."""
        return self.folder / f"{self.name}.csv"

    @property
    def trial_table(self) -> Path:
        """The trials of the tuning."""
        return self.folder / f"{self.name}-trials.csv"

    @property
    def curves(self) -> Path:
        """Curves and clients' accuracies, by the digest of the experiment."""
        return self.folder / f"{self.name}.json"

    def merge(self, other: Results) -> int:
        """Take what another folder has: what is missing here, and what was measured on a later day."""
        before = {one.experiment: one for one in self.rows}
        taken = [
            row
            for row in other.rows
            if row.experiment not in before or row.date > before[row.experiment].date
        ]
        for row in taken:
            self._put(row, other.details.get(row.experiment, {}))
        known = {trial.experiment for trial in self.trials}
        self.trials += [trial for trial in other.trials if trial.experiment not in known]
        self.trials.sort(key=_by_trial)
        self.write()
        return len(taken)

    def add(self, row: Row, details: dict[str, Any]) -> None:
        """Keep a run, in the place of an earlier one of the same experiment, and write everything down."""
        self._put(row, details)
        self.write()

    def _put(self, row: Row, details: dict[str, Any]) -> None:
        self.rows = [one for one in self.rows if one.experiment != row.experiment] + [row]
        self.rows.sort(key=lambda one: (one.task, one.method, one.seed, one.experiment))
        self.details[row.experiment] = details
        kept = {one.experiment for one in self.rows}
        self.details = {digest: self.details[digest] for digest in sorted(kept & self.details.keys())}

    def add_trial(self, trial: Trial) -> None:
        """Keep a trial."""
        self.trials = [one for one in self.trials if one.experiment != trial.experiment] + [trial]
        self.trials.sort(key=_by_trial)
        self.write()

    def write(self) -> None:
        """Everything, each file whole or not at all."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self.table, to_csv(Row, self.rows))
            write_atomic(self.trial_table, to_csv(Trial, self.trials))
            lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.details.items()]
            write_atomic(self.curves, "{\n" + ",\n".join(lines) + "\n}\n")
        except OSError as error:
            raise PotluckError(
                f"Results cannot be written to {str(self.folder)!r} ({error.strerror}); choose another with --results."
            ) from None


def _by_trial(trial: Trial) -> tuple[str, str, str]:
    return trial.task, trial.method, trial.settings


def origin() -> dict[str, str]:
    """Where a result comes from: the state of the code, versions, the machine, the day."""
    return {
        "commit": _commit(),
        "versions": f"potluck {potluck.__version__}, torch {torch.__version__}, python {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread",
        "date": datetime.now(UTC).date().isoformat(),
    }


def _commit() -> str:
    here = Path(potluck.__file__).parent
    done = subprocess.run(
        ["git", "-C", str(here), "rev-parse", "--short=12", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() if done.returncode == 0 else ""


def thinned(values: list[float | None]) -> list[tuple[int, float]]:
    """At most `POINTS` of a curve's points (round, value), the last one always among them."""
    known = [(number, round(value, 5)) for number, value in enumerate(values, 1) if value is not None]
    step = max(1, -(-len(known) // POINTS))
    return known[(len(known) - 1) % step :: step] if known else []


def _table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path, LIMIT)))) if path.exists() else []
