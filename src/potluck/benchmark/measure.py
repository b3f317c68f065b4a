"""One run of a suite in a process of its own, from the experiment's text to plain numbers."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from potluck.analysis.fairness import fairness
from potluck.api import execute
from potluck.benchmark.store import thinned
from potluck.core.files import parse_json
from potluck.experiment import Experiment, parse_experiment
from potluck.runs.run import Run

LAST = ("validation", "local", "received", "shared", "global")


def experiment_text(experiment: Experiment) -> str:
    """An experiment as text that another process reads."""
    return json.dumps(experiment.model_dump(mode="json", exclude_none=True))


def measure(text: str) -> dict[str, Any]:
    """Train an experiment in a folder that is forgotten, and give what a result needs of it."""
    experiment = parse_experiment(parse_json(text))
    with tempfile.TemporaryDirectory(prefix="potluck-benchmark-") as folder:
        run = execute(experiment, out=Path(folder) / "run")
        details = {**_details(run), **(_leaks(run) if experiment.engine.keep_answers else {})}
        return {"row": _row(run), "details": details, "validation": _validation(run)}


def _row(run: Run) -> dict[str, Any]:
    summary, newcomers = run.summary, run.summary.get("newcomers") or {}
    jobs = max(1.0, float(run.jobs[-1]) if len(run.jobs) else 0.0)
    return {
        "accuracy": run.best_accuracy,
        "final_accuracy": run.final_accuracy,
        "worst_tenth": fairness(run.client_accuracy.values()).worst,
        "macro_f1": _known(summary.get("final_macro_f1")),
        "calibration_error": _known(summary.get("final_calibration_error")),
        "newcomers": _known(newcomers.get("accuracy")),
        "newcomers_alone": _known(newcomers.get("alone")),
        "floats_up": run.per_client_round("floats_up"),
        "floats_down": run.per_client_round("floats_down"),
        "samples_per_job": run.total("trained_samples") / jobs,
        "seconds": float(summary.get("seconds", math.nan)),
    }


def _details(run: Run) -> dict[str, Any]:
    return {
        "curve": thinned([row.get("accuracy") for row in run.rounds]),
        "clock": _clock(run),
        "clients": [round(value, 5) for _, value in sorted(run.client_accuracy.items())],
        "last": _last(run),
        "notes": {
            name: thinned([row.get("notes", {}).get(name) for row in run.rounds]) for name in _notes(run)
        },
        **{name: run.summary[name] for name in ("attack", "privacy") if name in run.summary},
    }


def _leaks(run: Run) -> dict[str, Any]:
    """What the answers of a run that kept them give away."""
    from potluck.analysis.leak import find_leaks

    found = find_leaks(run.path).stored()
    rounded = [
        {**one, "score": round(one["score"], 5), "chance": round(one["chance"], 5)} for one in found["scores"]
    ]
    return {"leaks": {**found, "scores": rounded}}


def _last(run: Run) -> dict[str, float]:
    """The last accuracy under each protocol that was asked for, and on validation samples."""
    found: dict[str, float] = {}
    for row in run.rounds:
        for name, value in row.items():
            if name.startswith("accuracy_") and name.removeprefix("accuracy_") in LAST and value is not None:
                found[name.removeprefix("accuracy_")] = round(value, 5)
    return found


def _clock(run: Run) -> list[tuple[float, float]]:
    """Simulated seconds and accuracy where it was measured, on devices that have a clock."""
    known = (
        run.curve("accuracy", "virtual_seconds") if run.experiment.get("devices", {}).get("fleet") else None
    )
    if known is None:
        return []
    return [(round(float(x), 3), round(float(y), 5)) for x, y in zip(known.x, known.y, strict=True)]


def _notes(run: Run) -> list[str]:
    return sorted({name for row in run.rounds for name in row.get("notes") or {}})


def _validation(run: Run) -> float | None:
    """The last accuracy on validation samples."""
    values = [
        row.get("accuracy_validation") for row in run.rounds if row.get("accuracy_validation") is not None
    ]
    return values[-1] if values else None


def _known(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
