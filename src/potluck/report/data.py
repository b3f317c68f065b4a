"""The numbers behind the report's charts, as plain JSON: what the page's script draws from."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.accounting import ledger_row
from potluck.analysis.comparison import Comparison
from potluck.analysis.curves import Band, band, increase_band
from potluck.analysis.difference import architecture_means
from potluck.analysis.findings import base_row
from potluck.analysis.groups import Group
from potluck.report.client_data import MAX_CELLS, MAX_CONFUSIONS, Rosters, classes, noted, story
from potluck.report.palette import look
from potluck.runs.run import Run

METRICS = {
    "accuracy": "accuracy",
    "loss": "test loss",
    "train_loss": "training loss",
    "loss_increase": "loss increase: training loss above its best before",
    "accuracy_micro": "accuracy over all test samples",
    "accuracy_local": "accuracy, local models",
    "accuracy_received": "accuracy with the server's message",
    "accuracy_shared": "accuracy on the shared test set",
    "accuracy_global": "accuracy of the global model",
}
MAX_POINTS = 1000  # of a curve; more cannot be told apart on a screen


def report_data(comparison: Comparison) -> dict[str, Any]:
    """Everything the page draws, group by group."""
    rosters, room = Rosters(), MAX_CONFUSIONS
    groups = []
    for position, group in enumerate(comparison.groups):
        told = _group(position, group, rosters, MAX_CELLS // len(comparison.groups))
        told["classes"], room = classes(group.counted, room)
        groups.append(told)
    known = list(dict.fromkeys(key for group in groups for key in group["curves"]))
    shown = {key: name for key, name in METRICS.items() if key in known}
    shown |= {
        key: f"noted by the method: {key.removeprefix('notes.')}" for key in known if key not in METRICS
    }
    axes = ("rounds", "bytes", "seconds", "virtual_seconds")
    return {
        "groups": groups,
        "metrics": shown,
        "axes": [axis for axis in axes if any(axis in c for g in groups for c in g["curves"].values())],
        "partitions": rosters.partitions,
        "rosters": rosters.found,
        "target": comparison.target,
        "reference": comparison.rows.index(base_row(comparison)),
    }


def to_json(value: object) -> str:
    """JSON that can stand inside a script element: no `<`, and null for numbers that JSON does not know."""
    text = json.dumps(_clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _group(position: int, group: Group, rosters: Rosters, cells: int) -> dict[str, Any]:
    style, runs, row = look(position), group.counted, ledger_row(group)
    return {
        "label": group.label,
        "seeds": group.seeds,
        "light": style.light,
        "dark": style.dark,
        "dash": style.dash,
        "symbol": style.symbol,
        "curves": {key: curve for key in (*METRICS, *_notes(runs)) if (curve := _curve(runs, key))},
        "targets": [_target_curve(run) for run in runs],
        "clients": [rosters.clients(run) for run in runs],
        "story": story(runs[0], cells),
        "noted": noted(runs[0]),
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
    return increase_band(runs, x) if key == "loss_increase" else band(runs, key, x)


def _notes(runs: Sequence[Run]) -> list[str]:
    return [f"notes.{name}" for name in sorted({name for run in runs for name in run.notes})]


def _curve(runs: Sequence[Run], key: str) -> dict[str, Any] | None:
    """The band over seeds, with its place on every axis the runs know."""
    by_round = _band(runs, key)
    if not by_round.runs:
        return None
    keep = _thin(len(by_round.round))
    curve: dict[str, Any] = {
        "rounds": by_round.round[keep],
        "mean": by_round.mean[keep],
        "std": by_round.std[keep] if by_round.runs > 1 else None,
        "seeds": by_round.runs,
    }
    for axis in ("bytes", "seconds", "virtual_seconds"):
        along = _band(runs, key, axis)
        ticking = not np.array_equal(along.x, along.round)  # without a fleet a virtual second is a round
        if ticking and along.runs == by_round.runs and np.array_equal(along.round, by_round.round):
            curve[axis] = along.x[keep]
    return curve


def _target_curve(run: Run) -> dict[str, Any]:
    """One run's accuracies, raw and unthinned, with what had been spent: for costs to a target."""
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


def _thin(count: int) -> NDArray[np.int64]:
    """Positions of at most MAX_POINTS evenly spaced points, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).round().astype(np.int64))


def _clean(value: object) -> object:
    """Plain lists and numbers; six telling digits are more than any screen shows."""
    if isinstance(value, dict):
        return {str(key): _clean(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return [_clean(each) for each in value.tolist()]
    if isinstance(value, list | tuple):
        return [_clean(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
