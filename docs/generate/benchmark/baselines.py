"""The benchmark page's part on baselines: per task and per network, and whether training alone reaches linear models."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from generate.benchmark.formatting import format_difference, wrap_text
from generate.benchmark.tuning import NAMES
from generate.text import table
from potluck.suites.baselines import LINES
from potluck.suites.statistics import (
    FLOOR,
    HEAD,
    MARGIN,
    POOLED,
    PUBLIC,
    REFERENCE,
    SAME,
    MethodSummary,
    failed_floor,
    longest_training,
    rows_by_method,
)
from potluck.suites.store import Results
from potluck.suites.suite import Task

Measured = Sequence[tuple[Task, Sequence[MethodSummary]]]


def baselines(results: Results, measurements: Measured) -> str:
    """Baselines per task, and whether standalone training reaches those that need no network."""
    if not measurements:
        return ""
    measured = {line.method for _, lines in measurements for line in lines}
    names = [name for name in (*LINES, HEAD, SAME, REFERENCE, PUBLIC, POOLED) if name in measured]
    head = ["task", *(NAMES.get(name, name) for name in names)]
    rows, sentences = [], []
    for task, lines in measurements:
        by_method = {line.method: line for line in lines}
        rows.append([task.title, *(_accuracy(by_method.get(name)) for name in names)])
        sentences.append(f"* **{task.title}**: {_floor_sentence(results, task, lines)}")
    descriptions = "; ".join(f"*{name}*: {LINES[name]}" for name in names if name in LINES)
    return (
        f"## Baselines\n\n{wrap_text(f'Accuracy in per cent, mean over seeds. {descriptions}. Penalties are chosen on validation samples.')}"
        f"\n\n{table(head, rows, numbers=range(1, len(head)))}\n\n"
        + "\n".join(sentences)
        + _networks(results, measurements)
    )


def _floor_sentence(results: Results, task: Task, lines: Sequence[MethodSummary]) -> str:
    failed = failed_floor(results, task.name)
    if failed:
        failures = ", ".join(
            f"{name} ({format_difference(differences)} points)" for name, differences in failed.items()
        )
        text = f"standalone training does not reach {failures}, so no verdict is given on this task."
    else:
        text = _networks_sentence(network_lines(results, task.name))
    own, most = longest_training(lines)
    if math.isnan(own) or math.isnan(most):
        return text
    relation = "at least as many as" if own >= most else "FEWER than"
    return (
        f"{text} It trains on {own:,.0f} samples per client, {relation} the costliest method ({most:,.0f})."
    )


def _accuracy(line: MethodSummary | None) -> str:
    return "" if line is None else f"{100 * line.accuracy:.1f}"


@dataclass(frozen=True)
class NetworkLine:
    """The clients of one network on a task, of all seeds: accuracies trained alone and of the baselines without networks."""

    network: str
    clients: int
    alone: float
    lines: dict[str, float]

    @property
    def missed(self) -> dict[str, float]:
        """Baselines that these clients trained alone stay a point or more below, with their accuracies."""
        return {name: value for name, value in self.lines.items() if self.alone <= value - MARGIN}


def network_lines(results: Results, task: str) -> list[NetworkLine]:
    """Return a line per network of clients trained alone, by name, from the seeds that every baseline has too."""
    rows = rows_by_method(results, task)
    names = [name for name in (REFERENCE, *FLOOR) if name in rows]
    by_name = {
        name: {row.seed: results.details.get(row.experiment, {}) for row in rows[name]} for name in names
    }
    gathered: dict[str, dict[str, list[float]]] = {}
    for seed, details in by_name.get(REFERENCE, {}).items():
        models = details.get("client_models", [])
        values = {name: by_name[name].get(seed, {}).get("best_clients", []) for name in names}
        if all(len(accuracies) == len(models) for accuracies in values.values()):
            for place, model in enumerate(models):
                for name in names:
                    gathered.setdefault(model, {}).setdefault(name, []).append(values[name][place])
    return [
        NetworkLine(
            model,
            len(by_model[REFERENCE]),
            float(np.mean(by_model[REFERENCE])),
            {name: float(np.mean(by_model[name])) for name in names if name != REFERENCE},
        )
        for model, by_model in sorted(gathered.items())
    ]


def _networks_sentence(lines: Sequence[NetworkLine]) -> str:
    """Whether training alone reaches the baselines on average, and with every network."""
    text = "standalone training reaches the majority class and linear models on average"
    missed = [line for line in lines if line.missed]
    if not lines:
        return f"{text}."
    if not missed:
        return f"{text}, and within a point with every network."
    sentences = []
    for line in missed:
        name, value = max(line.missed.items(), key=lambda item: item[1])
        sentences.append(f"{line.network} ({100 * line.alone:.1f} against {100 * value:.1f} of {name})")
    return f"{text}, but not with {', '.join(sentences)}, so gains of these clients may be gains over poor training."


def _networks(results: Results, measurements: Measured) -> str:
    """A table of networks by task, or nothing where no row says which network a client has."""
    rows = []
    for task, _ in measurements:
        for line in network_lines(results, task.name):
            cells = [f"{100 * line.lines[name]:.1f}" if name in line.lines else "" for name in FLOOR]
            rows.append([task.title, line.network, line.clients, f"{100 * line.alone:.1f}", *cells])
    if not rows:
        return ""
    text = (
        "The same per network: means over its clients of all seeds, where the baselines without networks have the same "
        "clients, whose own data differ."
    )
    head = ["task", "network", "clients", REFERENCE, *FLOOR]
    return f"\n\n### Standalone and ridge per network\n\n{wrap_text(text)}\n\n{table(head, rows, numbers=range(2, len(head)))}"
