"""One piece of a suite's work, as a process gets it: train an experiment, or compute a baseline, and measure it."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from potluck.analysis.clients import fairness
from potluck.api import execute
from potluck.core.files import parse_json
from potluck.experiment import Experiment, parse_experiment
from potluck.runs.plan import Parts
from potluck.runs.resolve import resolve
from potluck.runs.run import Run
from potluck.suites.baselines import LINES, compute_line, with_training_samples
from potluck.suites.provenance import experiment_digest
from potluck.suites.safeguard import safeguard_details
from potluck.suites.store import thin_curve

LAST = ("validation", "local", "received", "shared", "global")


@dataclass(frozen=True)
class Work:
    """An experiment, and the kind of work: `own`, `public` or `pooled` training samples, or a baseline of `LINES`."""

    experiment: Experiment
    kind: str = "own"

    @property
    def digest(self) -> str:
        """The digest of the experiment; other kinds of work have their name behind it."""
        digest = experiment_digest(self.experiment)
        return digest if self.kind == "own" else f"{digest}-{self.kind}"

    @property
    def text(self) -> str:
        """The work as text that another process reads."""
        experiment = self.experiment.model_dump(mode="json", exclude_none=True)
        return json.dumps({"experiment": experiment, "kind": self.kind})


def measure(text: str) -> dict[str, Any]:
    """Do a piece of work in a folder that is forgotten, and return what a result needs of it."""
    request = parse_json(text)
    experiment, kind = parse_experiment(request["experiment"]), request["kind"]
    start = time.process_time()
    if kind in LINES:
        return _measure_line(kind, experiment, start)
    parts, sizes = Parts(), None
    if kind != "own":
        plan = resolve(experiment)
        sizes = {info.index: info.samples for info in plan.federation.task.clients}
        parts = Parts(federation=with_training_samples(plan.federation, kind, plan.newcomers))
    with tempfile.TemporaryDirectory(prefix="potluck-benchmark-") as folder:
        run = execute(experiment, parts, out=Path(folder) / "run")
        spent = {"core_seconds": time.process_time() - start}
        clients = best_clients(run, sizes)
        details = {**_details(run, clients), **(_leaks(run) if experiment.engine.keep_answers else {})}
        return {"row": {**_row(run, clients), **spent}, "details": details, "validation": _validation(run)}


def _measure_line(name: str, experiment: Experiment, start: float) -> dict[str, Any]:
    """Compute a baseline without training. It has no rounds: the last one is the best one."""
    scores = compute_line(name, resolve(experiment))
    row = {
        "accuracy": float(np.mean(scores.clients)),
        "final_accuracy": float(np.mean(scores.clients)),
        "worst_tenth": fairness(scores.clients).worst,
        "newcomers": scores.newcomers,
        "newcomers_alone": scores.newcomers,
        **dict.fromkeys(("floats_up", "floats_down", "samples_per_job"), 0.0),
        **_clients_at_best(scores.clients, scores.samples),
        **dict.fromkeys(("macro_f1", "calibration_error", "gflops", "best_round", "rounds")),
        "seconds": time.process_time() - start,
        "core_seconds": time.process_time() - start,
    }
    clients = [round(value, 5) for value in scores.clients]
    details = {"clients": clients, "best_clients": clients, "client_samples": list(scores.samples)}
    return {"row": row, "details": details, "validation": None}


def _row(run: Run, clients: Sequence[BestClient]) -> dict[str, Any]:
    summary, newcomers = run.summary, run.summary.get("newcomers") or {}
    jobs = max(1.0, float(run.jobs[-1]) if len(run.jobs) else 0.0)
    flops = summary.get("flops_per_client_round")
    return {
        "accuracy": run.best_accuracy,
        "final_accuracy": run.final_accuracy,
        "worst_tenth": fairness(run.client_accuracy.values()).worst,
        **_clients_at_best([client.accuracy for client in clients], [client.samples for client in clients]),
        "best_round": run.best_round,
        "rounds": run.num_rounds,
        "macro_f1": _known(summary.get("final_macro_f1")),
        "calibration_error": _known(summary.get("final_calibration_error")),
        "newcomers": _known(newcomers.get("accuracy")),
        "newcomers_alone": _known(newcomers.get("alone")),
        "floats_up": run.per_client_round("floats_up"),
        "floats_down": run.per_client_round("floats_down"),
        "samples_per_job": run.total("trained_samples") / jobs,
        "gflops": None if flops is None else float(flops) * run.num_rounds / 1e9,
        "seconds": float(summary.get("seconds", math.nan)),
    }


@dataclass(frozen=True)
class BestClient:
    """A client in the round that was best on validation: test accuracy, its own training samples, its network."""

    accuracy: float
    samples: int
    model: str


def best_clients(run: Run, sizes: Mapping[int, int] | None = None) -> list[BestClient]:
    """Return every client's test in the round that was best on validation, in the order of clients.

    `sizes` are the numbers of own training samples where clients trained on others.
    """
    protocol = run.summary.get("protocol")
    rows = {
        row["client"]: row
        for row in run.clients
        if row["round"] == run.best_round and row["protocol"] == protocol and not row["final"]
    }
    return [
        BestClient(row["accuracy"], sizes[index] if sizes else row["train_samples"], row["architecture"])
        for index, row in sorted(rows.items())
        if row["accuracy"] is not None
    ]


def _clients_at_best(accuracies: Sequence[float], samples: Sequence[int]) -> dict[str, float | None]:
    """Return the mean of the tenth with the lowest accuracies, and of the tenth with the fewest training samples."""
    if not accuracies:
        return {"worst_best": None, "smallest_tenth": None}
    return {"worst_best": fairness(accuracies).worst, "smallest_tenth": smallest_tenth(accuracies, samples)}


def smallest_tenth(accuracies: Sequence[float], samples: Sequence[int]) -> float:
    """Return the mean accuracy of the tenth of clients, at least one, with the fewest training samples.

    Clients with as few samples as the last of them count as well, so that no order decides.
    """
    count = math.ceil(round(0.1 * len(samples), 9))
    limit = sorted(samples)[count - 1]
    return float(np.mean([value for value, size in zip(accuracies, samples, strict=True) if size <= limit]))


def _details(run: Run, clients: Sequence[BestClient]) -> dict[str, Any]:
    return {
        "curve": thin_curve([row.get("accuracy") for row in run.rounds]),
        "clock": _clock(run),
        "clients": [round(value, 5) for _, value in sorted(run.client_accuracy.items())],
        "best_clients": [round(client.accuracy, 5) for client in clients],
        "client_samples": [client.samples for client in clients],
        "client_models": [client.model for client in clients],
        "last": _last(run),
        "notes": {
            name: thin_curve([row.get("notes", {}).get(name) for row in run.rounds]) for name in _notes(run)
        },
        **{name: run.summary[name] for name in ("attack", "privacy") if name in run.summary},
        **safeguard_details(run),
    }


def _leaks(run: Run) -> dict[str, Any]:
    """Return what the answers of a run that kept them give away."""
    from potluck.analysis.leak import find_leaks

    leaks = find_leaks(run.path).stored()
    rounded = [
        {**score, "score": round(score["score"], 5), "chance": round(score["chance"], 5)}
        for score in leaks["scores"]
    ]
    return {"leaks": {**leaks, "scores": rounded}}


def _last(run: Run) -> dict[str, float]:
    """Return the last accuracy under each protocol that was asked for, and on validation samples."""
    last: dict[str, float] = {}
    for row in run.rounds:
        for name, value in row.items():
            if name.startswith("accuracy_") and name.removeprefix("accuracy_") in LAST and value is not None:
                last[name.removeprefix("accuracy_")] = round(value, 5)
    return last


def _clock(run: Run) -> list[tuple[float, float]]:
    """Simulated seconds and accuracy where it was measured, on devices that have a clock."""
    curve = (
        run.curve("accuracy", "virtual_seconds") if run.experiment.get("devices", {}).get("fleet") else None
    )
    if curve is None:
        return []
    return [(round(float(x), 3), round(float(y), 5)) for x, y in zip(curve.x, curve.y, strict=True)]


def _notes(run: Run) -> list[str]:
    return sorted({name for row in run.rounds for name in row.get("notes") or {}})


def _validation(run: Run) -> float | None:
    """Return the highest accuracy on validation samples, which is that of the best round."""
    values = [row.get("accuracy_validation") for row in run.rounds]
    return max((value for value in values if value is not None), default=None)


def _known(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
