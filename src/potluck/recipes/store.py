"""Store measured cells as a CSV file with the origin of each, and read them back."""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.experiment import Experiment, parse_experiment
from potluck.experiment.sections import DataSettings
from potluck.federation.population import experiment_data
from potluck.recipes.budget import read_processor_time
from potluck.recipes.measures import stored_activity
from potluck.recipes.recipe import NO_CELL, Recipe
from potluck.recipes.reproduce import Key, Reproduction, plan
from potluck.recipes.scale import Scale
from potluck.runs.folder import write_atomic
from potluck.runs.run import Run
from potluck.suites.provenance import check_commit, experiment_digest
from potluck.suites.store import format_csv, parse_row


@dataclass(frozen=True)
class StoredCell:
    """What one seed gave for one cell, and where it came from. `here` is empty where a target was not reached."""

    recipe: str
    scale: str
    row: str
    column: str
    seed: int
    paper: str
    here: float | None
    method: str
    experiment: str
    commit: str
    versions: str
    machine: str
    date: str
    command: str
    core_seconds: float | None
    processor: str = ""
    precision: str = ""
    rounds: int | None = None
    paper_rounds: int | None = None
    data: str = ""

    @property
    def place(self) -> tuple[str, str, str, str, int]:
        """Which cell it is; one line is kept of each."""
        return self.recipe, self.scale, self.row, self.column, self.seed


LIMIT = 256 << 20
"""Bytes of a file of curves that are read at most."""

POINTS = 25
"""How many points of a method's own notes are kept."""


def read_cells(file: Path) -> list[StoredCell]:
    """Return what lies in a file; nothing where there is none. Columns that came later may be missing."""
    if not file.exists():
        return []
    lines = csv.DictReader(io.StringIO(read_text(file)))
    names = [column.name for column in fields(StoredCell)]
    first = [column.name for column in fields(StoredCell) if column.default is MISSING]
    columns = list(lines.fieldnames or ())
    if columns[: len(first)] != first or not {*columns} <= {*names}:
        raise PotluckError(
            f"{str(file)!r} does not hold measured cells: its columns are not {', '.join(names)}; choose another file."
        )
    return [parse_row(StoredCell, line) for line in lines]


def curves_file(file: Path) -> Path:
    """Return the file of the curves that belong to a file of cells."""
    return file.with_suffix(".json")


def read_curves(file: Path) -> dict[str, Any]:
    """Return the curves beside a file of cells, by the digest of the experiment; nothing where there are none."""
    curves = curves_file(file)
    return dict(parse_json(read_text(curves, LIMIT))) if curves.exists() else {}


def add_cells(file: Path, cells: list[StoredCell], curves: dict[str, Any] | None = None) -> None:
    """Keep cells and curves, each in the place of an earlier one; a run that was only read again keeps its time."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with _writing_alone(file.parent):
            _add(file, cells, curves or {})
    except OSError as error:
        raise PotluckError(
            f"--store {str(file)!r} cannot be written ({error.strerror}); choose another file."
        ) from None


def _add(file: Path, cells: list[StoredCell], curves: dict[str, Any]) -> None:
    by_place = {stored.place: stored for stored in read_cells(file)}
    for cell in cells:
        before = by_place.get(cell.place)
        if cell.core_seconds is None and before is not None and before.experiment == cell.experiment:
            cell = replace(cell, core_seconds=before.core_seconds)
        by_place[cell.place] = cell
    digests, all_curves = {stored.experiment for stored in by_place.values()}, {**read_curves(file), **curves}
    lines = [
        f" {json.dumps(key)}: {json.dumps(all_curves[key], separators=(',', ':'))}"
        for key in sorted(digests & all_curves.keys())
    ]
    if lines:
        write_atomic(curves_file(file), "{\n" + ",\n".join(lines) + "\n}\n")
    write_atomic(file, format_csv(StoredCell, [by_place[place] for place in sorted(by_place)]))


@contextmanager
def _writing_alone(folder: Path) -> Iterator[None]:
    """Wait until no other process adds cells to a file of this folder, where the system has such locks."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def estimates_file(file: Path) -> Path:
    """The file of the estimates that belong to a file of cells."""
    return file.with_suffix(".estimates.json")


def add_estimate(file: Path, estimate: Mapping[str, Any]) -> None:
    """Keep what a command will cost beside a file of cells, in the place of the command's earlier estimate."""
    estimates = estimates_file(file)
    stored = dict(parse_json(read_text(estimates))) if estimates.exists() else {}
    rounded = {
        name: round(value, 3) if isinstance(value, float) else value for name, value in estimate.items()
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(estimates, json.dumps({**stored, str(estimate["command"]): rounded}, indent=1) + "\n")
    except OSError as error:
        raise PotluckError(
            f"--store {str(file)!r} cannot be written ({error.strerror}); choose another file."
        ) from None


def take_stored_values(table: Reproduction, cells: Sequence[StoredCell]) -> int:
    """Put the values of stored runs into a table, so that they are not done again; returns how many.

    A run is taken where every one of its cells is stored for the very experiment that the table asks for.
    """
    stored = {(*cell.place, cell.experiment): cell for cell in cells}
    recipe, count = table.recipe, 0
    for key, experiment in table.work.items():
        (row, setting, seed), digest = key, experiment_digest(experiment)
        names = [
            name
            for name in table.columns
            if recipe.columns[name].setting == setting and recipe.printed(row, name) != NO_CELL
        ]
        matching = {name: stored.get((recipe.name, table.scale, row, name, seed, digest)) for name in names}
        if all(matching.values()):
            table.values[key] = {name: _value(cell) for name, cell in matching.items() if cell is not None}
            count += 1
    return count


def _value(cell: StoredCell) -> float:
    return math.nan if cell.here is None else cell.here


def stored_table(
    recipe: Recipe, scale: Scale, cells: Sequence[StoredCell], curves: Mapping[str, Any] = {}
) -> Reproduction:
    """Fill a recipe's table with what is stored of it; cells of other settings than the recipe's now are left out.

    Curves of notes say whether the methods' mechanisms acted.
    """
    matching = [cell for cell in cells if (cell.recipe, cell.scale) == (recipe.name, scale)]
    table = plan(recipe, scale, seeds=sorted({cell.seed for cell in matching}) or [0])
    for cell in matching:
        column = recipe.columns.get(cell.column)
        key = (cell.row, column.setting if column else "", cell.seed)
        if key in table.work and _digest(table.work[key], cell) == cell.experiment:
            table.values.setdefault(key, {})[cell.column] = _value(cell)
            acted = stored_activity(cell.method, curves.get(cell.experiment, {}).get("notes", {}))
            if acted is not None:
                table.activity[key] = acted
    settings = {setting for _, setting, _ in table.values}
    columns = tuple(name for name in table.columns if recipe.columns[name].setting in settings)
    return replace(table, columns=columns)


def _digest(experiment: Experiment, cell: StoredCell) -> str:
    """Return the digest of the recipe's experiment; at full scale with the stored run's rounds and precision."""
    if cell.scale == "full" and cell.rounds:
        amp = cell.precision if cell.precision in ("bf16", "fp16") else "off"
        experiment = experiment.with_settings({"schedule.rounds": cell.rounds, "training.amp": amp})
    return experiment_digest(experiment)


def cells_from_run(table: Reproduction, key: Key, run: Run, core_seconds: float | None) -> list[StoredCell]:
    """Return the cells that one finished run fills; what made it is what its folder says."""
    row, setting, seed = key
    experiment, provenance = table.work[key], run.summary.get("made", {})
    commit = ", ".join(read_processor_time(run.path)[1]) or str(provenance.get("commit") or "")
    if table.scale == "full":
        check_full_commit(commit)
    return [
        StoredCell(
            recipe=table.recipe.name,
            scale=table.scale,
            row=row,
            column=name,
            seed=seed,
            paper=table.recipe.printed(row, name),
            here=value if math.isfinite(value) else None,
            method=experiment.method.name,
            experiment=experiment_digest(experiment),
            commit=commit,
            versions=", ".join(
                f"{package} {provenance.get(package, '?')}" for package in ("potluck", "torch", "python")
            ),
            machine=str(provenance.get("machine") or ""),
            date=str(provenance.get("started") or "")[:10],
            command=run.command,
            core_seconds=core_seconds,
            processor=str(provenance.get("processor") or ""),
            precision=precision(experiment),
            rounds=run.num_rounds,
            paper_rounds=_paper_rounds(table.recipe, row, setting),
            data="blank" if table.recipe.counted else data_digest(experiment),
        )
        for name, value in table.values[key].items()
        if table.recipe.columns[name].setting == setting and table.recipe.printed(row, name) != NO_CELL
    ]


def precision(experiment: Experiment) -> str:
    """Return the numbers that losses are computed in."""
    amp = experiment.training.amp
    return experiment.models.precision if amp == "off" else amp


def _paper_rounds(recipe: Recipe, row: str, setting: str) -> int:
    return parse_experiment(recipe.values(row, setting)).schedule.rounds


def curves_from_run(table: Reproduction, key: Key, run: Run) -> dict[str, Any]:
    """Return a run's whole accuracy curve and a thinned one of each note of its method, by the experiment's digest."""
    if table.recipe.counted:
        return {}
    curve = run.curve("accuracy")
    micro = run.curve("accuracy_micro") if run.has("accuracy_micro") else None
    stored: dict[str, Any] = {"curve": _points(curve.round, curve.y)}
    if micro is not None and list(micro.y) != list(curve.y):
        stored["curve_micro"] = _points(micro.round, micro.y)
    for name in run.notes:
        note = run.curve(f"notes.{name}")
        step = max(1, -(-len(note) // POINTS))
        first = (len(note) - 1) % step if len(note) else 0
        stored.setdefault("notes", {})[name] = _points(note.round[first::step], note.y[first::step])
    return {experiment_digest(table.work[key]): stored}


def _points(rounds: Any, values: Any) -> list[list[float]]:
    return [[int(number), round(float(value), 5)] for number, value in zip(rounds, values, strict=True)]


def check_full_commit(commit: str) -> None:
    """Raise unless a result of the full scale comes from a clean commit."""
    check_commit(commit, "--scale full stores which commit made a result", ", or leave --store out")


def data_digest(experiment: Experiment) -> str:
    """Return the name of the data set and a SHA-256 of its rows as they were read, before any normalisation."""
    settings = experiment.data
    same = {
        name: getattr(settings, name) for name in ("name", "root", "label", "groups", "text", "image_size")
    }
    return _hash_rows(DataSettings(**same))


@functools.cache
def _hash_rows(settings: DataSettings) -> str:
    data = experiment_data(Experiment(data=settings))
    digest = hashlib.sha256()
    for part in (data.x, data.y, data.test_x, data.test_y):
        if part is not None and part.numel():
            digest.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            digest.update(_bytes(part))
    return f"{settings.name} sha256:{digest.hexdigest()[:16]}"


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().numpy().data).cast("B")
