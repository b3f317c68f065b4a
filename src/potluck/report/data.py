"""Collect the numbers behind the report's charts as plain JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.clients import architecture_means, calibration, class_labels, confusion_matrix
from potluck.analysis.comparison import Comparison
from potluck.analysis.cost import traffic_row
from potluck.analysis.curves import Band, band, loss_increase_band, note_curves
from potluck.analysis.findings import baseline_row
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError
from potluck.report.style import method_style
from potluck.runs.run import Run, as_number

MAX_CLIENTS = 200  # of the bubble chart, and of a heat map over rounds
MAX_CELLS = 60_000  # of all heat maps over rounds together; more are not visible on a screen
MAX_LINES = 50  # clients whose notes are drawn
MAX_NOTES = 200  # points of such a line
MAX_CONFUSIONS = 20_000  # entries of single clients' confusion matrices, over all methods


class ClientIndex:
    """Number partitions (which client holds which samples) and client lists, and keep each once.

    Methods that are compared mostly have the same clients, so that names are not repeated for every method.
    """

    def __init__(self) -> None:
        self.partitions: list[dict[str, Any]] = []
        self.rosters: list[dict[str, Any]] = []
        self._partition_numbers: dict[tuple[int, bytes | None], int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}

    def clients(self, run: Run) -> dict[str, Any]:
        """Return the number of the run's client list, and each client's final accuracy in its order."""
        results = run.client_results
        entries = tuple((each.index, each.name, each.architecture, each.train_samples) for each in results)
        key = (self._partition(run), entries)
        if key not in self._numbers:
            self._numbers[key] = len(self.rosters)
            names = ("index", "name", "architecture", "train")
            columns = (
                [list(values) for values in zip(*entries, strict=True)] if entries else [[] for _ in names]
            )
            self.rosters.append({"partition": key[0], **dict(zip(names, columns, strict=True))})
        return {
            "roster": self._numbers[key],
            "seed": run.seed,
            "accuracy": [round(each.accuracy, 5) for each in results],
        }

    def _partition(self, run: Run) -> int:
        """Return the number of the run's partition; runs of unrecorded partitions are distinguished by seed only."""
        counts = run.class_counts
        key, unknown = (run.seed, None if counts is None else counts.tobytes()), (run.seed, None)
        if key not in self._partition_numbers:
            of_seed = [number for (seed, _), number in self._partition_numbers.items() if seed == run.seed]
            # An unfinished run records no partition: assume that of another run with its seed, before or after it.
            existing = of_seed[:1] if counts is None or unknown in self._partition_numbers else []
            self._partition_numbers[key] = (
                existing[0] if existing else len(set(self._partition_numbers.values()))
            )
            if counts is not None:
                self.partitions.append(_partition_entry(run, counts))
        return self._partition_numbers[key]


def _partition_entry(run: Run, counts: NDArray[np.int64]) -> dict[str, Any]:
    names = {client.index: client.name for client in run.client_results}
    shown = counts[:MAX_CLIENTS]
    return {
        "label": f"{run.summary.get('partition') or 'partition'}, seed {run.seed}",
        "counts": shown,
        "names": [names.get(index, f"client {index}") for index in range(len(shown))],
        "class_names": class_labels(run, counts.shape[1]),
        "left_out": len(counts) - len(shown),
    }


def accuracy_history(run: Run, cells: int) -> dict[str, Any] | None:
    """Return accuracies in whole per cent: clients (rows, by number) over evaluated rounds (columns).

    At most `cells` values: rounds are thinned, the first and the last always kept, and further clients left out.
    None before the first evaluation.
    """
    measured = {
        (int(row["client"]), int(row["round"])): value
        for row in run.client_rows()
        if isinstance(row.get("round"), int) and math.isfinite(value := as_number(row.get("accuracy")))
    }
    if not measured:
        return None
    clients, rounds = sorted({client for client, _ in measured}), sorted({number for _, number in measured})
    shown = clients[: min(MAX_CLIENTS, max(10, cells // min(len(rounds), 20)))]
    shown_rounds = [
        rounds[place] for place in _thin(len(rounds), max(2, min(len(rounds), cells // len(shown))))
    ]
    values = [[_percent(measured.get((client, number))) for number in shown_rounds] for client in shown]
    return {"clients": shown, "rounds": shown_rounds, "values": values, "left_out": len(clients) - len(shown)}


def client_note_lines(run: Run) -> dict[str, Any]:
    """Return notes of clients over rounds by the note's name: the first clients, each with its own rounds."""
    notes = {}
    for name in run.client_notes:
        curves = note_curves(run, name)
        lines = []
        for client, curve in list(curves.items())[:MAX_LINES]:
            keep = _thin(len(curve), MAX_NOTES)
            lines.append({"client": client, "rounds": curve.round[keep], "values": curve.y[keep]})
        notes[name] = {"lines": lines, "left_out": len(curves) - len(lines)}
    return notes


def class_results(runs: Sequence[Run], room: int) -> tuple[dict[str, Any] | None, int]:
    """Return confusion and calibration over all runs, and confusion by client of the first run while there is `room`.

    The result is None where no run recorded them; the second value is the room that is left, in matrix entries.
    """
    counts: dict[tuple[int, int], int] = {}
    size, bins = 0, None
    for run in runs:
        try:
            matrix, measured = confusion_matrix(run), calibration(run)
        except PotluckError:  # an unfinished run, or nodes that do not share their results
            continue
        size = max(size, len(matrix))
        for true, predicted in np.argwhere(matrix).tolist():
            counts[true, predicted] = counts.get((true, predicted), 0) + int(matrix[true, predicted])
        sums = np.nan_to_num(measured.confidence) * measured.counts
        run_bins = np.stack([measured.counts, measured.correct, sums], axis=1)
        bins = run_bins if bins is None else bins + run_bins
    if bins is None:
        return None, room
    rows = [row for row in runs[0].clients if row.get("final") and row.get("confusion")]
    entries = sum(len(row["confusion"]) for row in rows)
    by_client = {str(row["client"]): row["confusion"] for row in rows} if entries <= room else {}
    result = {
        "size": size,
        "names": class_labels(runs[0], size),
        "confusion": [[*pair, count] for pair, count in sorted(counts.items())],
        "bins": bins,
        "clients": by_client,
    }
    return result, room - (entries if by_client else 0)


def _percent(value: float | None) -> int | None:
    return None if value is None else round(100 * value)


METRICS = {
    "accuracy": "accuracy",
    "loss": "test loss",
    "train_loss": "training loss",
    "train_ce": "training cross-entropy",
    "gradient_norm": "squared gradient norm on training samples",
    "loss_increase": "loss increase: training cross-entropy above its best before",
    "accuracy_micro": "accuracy over all test samples",
    "accuracy_local": "accuracy, local models",
    "accuracy_received": "accuracy with the server's message",
    "accuracy_shared": "accuracy on the shared test set",
    "accuracy_global": "accuracy of the global model",
}
MAX_POINTS = 1000  # of a curve; more are not visible on a screen


def report_data(comparison: Comparison) -> dict[str, Any]:
    """Return everything the page draws, group by group."""
    index, room = ClientIndex(), MAX_CONFUSIONS
    groups = []
    for group in comparison.groups:
        entry = _group(group, index, MAX_CELLS // len(comparison.groups))
        entry["classes"], room = class_results(group.counted_runs, room)
        groups.append(entry)
    measured = list(dict.fromkeys(key for group in groups for key in group["curves"]))
    metrics = {key: name for key, name in METRICS.items() if key in measured}
    metrics |= {key: f"note: {key.removeprefix('notes.')}" for key in measured if key not in METRICS}
    axes = ("rounds", "bytes", "seconds", "virtual_seconds")
    return {
        "groups": groups,
        "metrics": metrics,
        "axes": [axis for axis in axes if any(axis in c for g in groups for c in g["curves"].values())],
        "partitions": index.partitions,
        "rosters": index.rosters,
        "target": comparison.target,
        "reference": comparison.rows.index(baseline_row(comparison)),
    }


def to_json(value: object) -> str:
    """Encode JSON for a script element: without `<`, and null for numbers that JSON does not have."""
    text = json.dumps(_clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _group(group: Group, index: ClientIndex, cells: int) -> dict[str, Any]:
    style, runs, row = method_style(group.position), group.counted_runs, traffic_row(group)
    return {
        "label": group.label,
        "position": group.position,
        "seeds": group.seeds,
        "light": style.light,
        "dark": style.dark,
        "dash": style.dash,
        "symbol": style.symbol,
        "curves": {key: curve for key in (*METRICS, *_notes(runs)) if (curve := _curve(runs, key))},
        "targets": [_target_curve(run) for run in runs],
        "clients": [index.clients(run) for run in runs],
        "history": accuracy_history(runs[0], cells),
        "notes": client_note_lines(runs[0]),
        "accuracy": float(np.mean([run.final_accuracy for run in runs])),
        "architectures": [
            [each.name, each.mean, each.std, each.clients] for each in architecture_means(runs) if each.name
        ],
        "traffic": {
            "floats": [row.floats_up, row.floats_down],
            "bytes": [row.bytes_up, row.bytes_down],
            "total": [row.total_bytes_up, row.total_bytes_down],
        },
        "failures": _failures(group.runs),
        "staleness": sorted(Counter(int(s) for run in group.runs for s in run.staleness).items()),
    }


def _band(runs: Sequence[Run], key: str, x: str = "rounds") -> Band:
    return loss_increase_band(runs, x) if key == "loss_increase" else band(runs, key, x)


def _notes(runs: Sequence[Run]) -> list[str]:
    return [f"notes.{name}" for name in sorted({name for run in runs for name in run.notes})]


def _curve(runs: Sequence[Run], key: str) -> dict[str, Any] | None:
    """Return the band over seeds, with its place on every axis that the runs recorded."""
    by_round = _band(runs, key)
    if not by_round.runs:
        return None
    keep = _thin(len(by_round.round), MAX_POINTS)
    curve: dict[str, Any] = {
        "rounds": by_round.round[keep],
        "mean": by_round.mean[keep],
        "std": by_round.std[keep] if by_round.runs > 1 else None,
        "seeds": by_round.runs,
    }
    for axis in ("bytes", "seconds", "virtual_seconds"):
        along = _band(runs, key, axis)
        has_clock = not np.array_equal(along.x, along.round)  # without a fleet a virtual second is a round
        if has_clock and along.runs == by_round.runs and np.array_equal(along.round, by_round.round):
            curve[axis] = along.x[keep]
    return curve


def _target_curve(run: Run) -> dict[str, Any]:
    """Return one run's accuracies, raw and unthinned, with cumulative costs: for costs to a target."""
    measured = np.flatnonzero([record.get("accuracy") is not None for record in run.rounds])
    axes = {axis: run.axis(axis)[measured] for axis in ("rounds", "bytes", "seconds", "virtual_seconds")}
    if np.array_equal(axes["virtual_seconds"], axes["rounds"]):
        del axes["virtual_seconds"]
    flops = run.summary.get("flops_per_client_round")
    if flops is not None:
        axes["flops"] = float(flops) * run.jobs[measured]
    return {"accuracy": [run.rounds[position]["accuracy"] for position in measured], **axes}


def _failures(runs: Sequence[Run]) -> dict[str, Any]:
    failed = [failure for run in runs for failure in run.failures]
    return {
        "rounds": sorted(Counter(failure.round for failure in failed).items()),
        "kinds": Counter(failure.kind for failure in failed).most_common(20),
        "jobs": int(sum(run.jobs[-1] for run in runs if len(run.jobs))) + len(failed),
    }


def _thin(count: int, most: int) -> NDArray[np.int64]:
    """Return positions of at most `most` evenly spaced points, including the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _clean(value: object) -> object:
    """Convert to plain lists and numbers of nine significant digits."""
    if isinstance(value, dict):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return [_clean(each) for each in value.tolist()]
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
