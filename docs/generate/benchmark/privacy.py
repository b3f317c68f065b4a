"""Write the page of row-level privacy: accuracy against ε by method, with standalone training beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from generate.benchmark.figures import COLOURS, SOFT, new_axes, save
from generate.benchmark.formatting import (
    BELOW,
    count_seeds,
    format_share,
    needs_public_data,
    provenance_sentence,
    same_split,
    wrap_text,
)
from potluck.suites.statistics import REFERENCE, share_ended_below
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task

FIGURE = "privacy-accuracy.svg"

WEAK = (
    "noisy training was not tuned, and plain training was, on test accuracy. So the page "
    "shows how accuracy falls with ε under these settings; it does not say which method is best under privacy, nor that "
    "none of them is worth its noise."
)


@dataclass(frozen=True)
class Point:
    """A method at one size of noise: what it spent (None: no promise), and its accuracies over seeds."""

    epsilon: float | None
    noise: float | None
    accuracies: tuple[float, ...]
    below: float | None = None

    @property
    def mean(self) -> float:
        """In per cent."""
        return 100 * float(np.mean(self.accuracies))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds, in points; 0 of a single one."""
        return 100 * float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


def curves(suite: Suite, results: Results) -> dict[str, list[Point]]:
    """For each method its points, the strictest promise first; what has none comes last."""
    points_of: dict[str, list[Point]] = {}
    methods = list(dict.fromkeys(method for task in suite.tasks for method in task.methods))
    for method in methods:
        points = [point for task in suite.tasks if (point := _point(suite, results, task, method))]
        if points:
            points_of[method] = sorted(
                points, key=lambda point: np.inf if point.epsilon is None else point.epsilon
            )
    return points_of


def _point(suite: Suite, results: Results, task: Task, method: str) -> Point | None:
    rows = [row for row in results.rows if (row.task, row.method) == (task.name, method)]
    if not rows:
        return None
    spent = [results.details.get(row.experiment, {}).get("privacy") or {} for row in rows]
    promised = [spending["epsilon"] for spending in spent if spending.get("epsilon") is not None]
    noise = spent[0].get("noise_multiplier")
    same = {candidate.name for candidate in suite.tasks if same_split(task, candidate)}
    alone = [row for row in results.rows if row.task in same and row.method == REFERENCE]
    comparable = method != REFERENCE and not needs_public_data(method)
    below = share_ended_below(results, rows, alone) if comparable else None
    return Point(max(promised, default=None), noise, tuple(row.final_accuracy for row in rows), below)


def page(suite: Suite, results: Results) -> str:
    """Return the page: a table of all curves and the picture."""
    points_of = curves(suite, results)
    reading = (
        "Accuracy is the mean over the clients on their own test samples after the last round, in per cent, ± the "
        "standard deviation over seeds. ε holds at δ = 10⁻⁵ for one training row of one client, against anybody "
        'who sees every answer (`privacy.unit = "record"`, [privacy](privacy.md)); *noise* is the multiplier that '
        "it took. *No promise* is plain training, in batches and at a rate of its own (chosen by test accuracy on another "
        "seed, in trials that are not stored), noisy training has one untuned rate and clip. "
        f"*{REFERENCE}* sends nothing, so it needs no noise. "
        f"{BELOW} Training alone has no noise."
    )
    parts = [
        "# Privacy against accuracy",
        wrap_text(f"**Weak evidence.** {count_seeds(results.rows).capitalize()}; {WEAK}"),
        wrap_text(reading),
        _table(points_of),
        f"![Accuracy against ε](figures/{FIGURE})",
        f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}",
    ]
    return "\n\n".join(parts) + "\n"


def _table(points_of: dict[str, list[Point]]) -> str:
    lines = ["| method | ε | noise | accuracy | below | runs |", "|---|---:|---:|---:|---:|---:|"]
    for method, points in points_of.items():
        for point in points:
            epsilon = "no promise" if point.epsilon is None else f"{point.epsilon:.1f}"
            noise = "" if point.noise is None else f"{point.noise:g}"
            spread = f" ± {point.spread:.1f}" if len(point.accuracies) > 1 else ""
            lines.append(
                f"| {method} | {epsilon} | {noise} | {point.mean:.1f}{spread} | "
                f"{format_share(point.below)} | {len(point.accuracies)} |"
            )
    return "\n".join(lines)


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """A line per method over ε, plain training at the right edge, training alone as a level."""
    points_of = curves(suite, results)
    figure, axes = new_axes(7.0, 4.2)
    private = {method: points for method, points in points_of.items() if method != REFERENCE}
    for colour, (method, points) in zip(COLOURS, private.items(), strict=False):
        promised = [point for point in points if point.epsilon is not None]
        axes.errorbar(
            [point.epsilon for point in promised],
            [point.mean for point in promised],
            [point.spread for point in promised],
            color=colour,
            marker="o",
            markersize=4,
            capsize=2,
            label=method,
        )
        for plain in (point for point in points if point.epsilon is None):
            axes.axhline(plain.mean, color=colour, linewidth=0.8, linestyle=":")
    for alone in points_of.get(REFERENCE, []):
        axes.axhline(alone.mean, color=SOFT, linewidth=1.5, linestyle="--", label=f"{REFERENCE}, no noise")
    axes.set_xscale("log")
    axes.set_xlabel("ε of one training row at δ = 10⁻⁵ (dotted: the same method without any promise)")
    axes.set_ylabel("accuracy, %")
    axes.legend(fontsize=7)
    save(figure, folder / FIGURE)
