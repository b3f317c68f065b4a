"""Results of suites as data: a row per run in a CSV file, curves and clients beside it in JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.runs.folder import write_atomic
from potluck.suites.provenance import Confirmation


def format_csv(kind: type[Any], rows: Iterable[Any]) -> str:
    """Return a header of the dataclass's fields, then a line each; what is None is left empty."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [entry.name for entry in fields(kind)], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: stored_text(value) for name, value in asdict(row).items()})
    return out.getvalue()


def stored_text(value: Any) -> str:
    """Return a value as a table holds it: numbers with six digits, empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def parse_row(kind: type[Any], entry: dict[str, str]) -> Any:
    """Return a row as it was before it became text."""
    values: dict[str, Any] = {}
    for column in fields(kind):
        text = entry.get(column.name) or ""
        values[column.name] = _value(str(column.type), text)
    return kind(**values)


def _value(kind: str, text: str) -> Any:
    if "float" in kind:
        return float(text) if text else None
    if kind == "int | None" and not text:
        return None
    return int(text) if kind.startswith("int") else text


LIMIT = 256 << 20
POINTS = 25
"""How many points of a curve are kept."""


@dataclass(frozen=True)
class Row:
    """One run. Accuracies are fractions of clients' test samples right, means over clients.

    At the round that was best on validation samples: `accuracy`, `worst_best` (the tenth of clients with the lowest
    accuracies) and `smallest_tenth` (the tenth with the fewest training samples). After the last round:
    `final_accuracy`, `worst_tenth`, `macro_f1`, `calibration_error` and newcomers. `gflops` are of one client's
    training in all rounds, `core_seconds` processor time of the whole run.
    """

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
    commit: str
    versions: str
    machine: str
    date: str
    command: str
    best_round: int | None = None
    rounds: int | None = None
    worst_best: float | None = None
    smallest_tenth: float | None = None
    gflops: float | None = None
    core_seconds: float | None = None


@dataclass(frozen=True)
class Trial:
    """One run of the tuning, scored on validation samples in its best round."""

    task: str
    method: str
    settings: str
    validation: float | None
    seconds: float
    experiment: str
    seed: int | None = None
    commit: str = ""


@dataclass
class Results:
    """Everything measured of a suite so far."""

    folder: Path
    name: str
    rows: list[Row] = field(default_factory=list)
    trials: list[Trial] = field(default_factory=list)
    details: dict[str, Any] = field(default_factory=dict)
    confirmations: list[Confirmation] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path, name: str) -> Results:
        """Return what lies in the folder; nothing where nothing was measured."""
        results = cls(folder, name)
        results.rows = [parse_row(Row, entry) for entry in _table(results.table)]
        results.trials = [parse_row(Trial, entry) for entry in _table(results.trial_table)]
        results.confirmations = [
            parse_row(Confirmation, entry) for entry in _table(results.confirmation_table)
        ]
        if results.curves.exists():
            results.details = parse_json(read_text(results.curves, LIMIT))
        return results

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

    @property
    def confirmation_table(self) -> Path:
        """Rows that were run again, one line per row and commit."""
        return self.folder / f"{self.name}-confirmed.csv"

    def merge(self, other: Results) -> int:
        """Take what another folder has: what is missing here, and what was measured on a later day."""
        before = {_place(item): item for item in self.rows}
        new_rows = [
            row for row in other.rows if _place(row) not in before or row.date > before[_place(row)].date
        ]
        for row in new_rows:
            self._put(row, other.details.get(row.experiment, {}))
        tried = {trial.experiment for trial in self.trials}
        self.trials += [trial for trial in other.trials if trial.experiment not in tried]
        self.trials.sort(key=_by_trial)
        self.write()
        return len(new_rows)

    def add(self, row: Row, details: dict[str, Any]) -> None:
        """Keep a run, in the place of an earlier one of the same task, method and seed, and write everything down."""
        self._put(row, details)
        self.write()

    def _put(self, row: Row, details: dict[str, Any]) -> None:
        self.rows = [item for item in self.rows if _place(item) != _place(row)] + [row]
        self.rows.sort(key=lambda item: (item.task, item.method, item.seed, item.experiment))
        self.details[row.experiment] = details
        digests = {item.experiment for item in self.rows}
        self.details = {digest: self.details[digest] for digest in sorted(digests & self.details.keys())}

    def add_trial(self, trial: Trial) -> None:
        """Keep a trial."""
        self.trials = [item for item in self.trials if item.experiment != trial.experiment] + [trial]
        self.trials.sort(key=_by_trial)
        self.write()

    def add_confirmation(self, record: Confirmation) -> None:
        """Store that a row was run again; the rows themselves are not written."""
        key = record.experiment, record.made, record.commit
        records = [item for item in self.confirmations if (item.experiment, item.made, item.commit) != key]
        self.confirmations = [*records, record]
        self._write_file(self.confirmation_table, format_csv(Confirmation, self.confirmations))

    def write(self) -> None:
        """Write rows, trials and curves, each file whole or not at all."""
        lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in self.details.items()]
        self._write_file(self.table, format_csv(Row, self.rows))
        self._write_file(self.trial_table, format_csv(Trial, self.trials))
        self._write_file(self.curves, "{\n" + ",\n".join(lines) + "\n}\n")

    def _write_file(self, path: Path, text: str) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, text)
        except OSError as error:
            raise PotluckError(
                f"Results cannot be written to {str(self.folder)!r} ({error.strerror}); choose another with --results."
            ) from None


def _place(row: Row) -> tuple[str, str, int]:
    """Return what a suite has one row of; the settings behind it may change, as tuning goes on."""
    return row.task, row.method, row.seed


def _by_trial(trial: Trial) -> tuple[str, str, str, int]:
    return trial.task, trial.method, trial.settings, trial.seed or 0


def thin_curve(values: list[float | None]) -> list[tuple[int, float]]:
    """At most `POINTS` of a curve's points (round, value), the last one always among them."""
    points = [(number, round(value, 5)) for number, value in enumerate(values, 1) if value is not None]
    step = max(1, -(-len(points) // POINTS))
    return points[(len(points) - 1) % step :: step] if points else []


def _table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path, LIMIT)))) if path.exists() else []
