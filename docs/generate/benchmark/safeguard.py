"""Write what the suite `safeguard` shows, and how well gains can be predicted, into the page on safeguards."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from generate import worth_it
from generate.benchmark.figures import COLOURS, new_figure, save
from generate.benchmark.formatting import provenance_sentence, wrap_text
from generate.text import replace_block, table
from potluck.suites.safeguard import ClientOutcome, stored_outcomes
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task
from potluck.worker.safeguard import Safeguard, mcnemar

DOCS = Path(__file__).parents[2]
LEVEL = 0.05
"""Level of the test whether a client is worse than alone on test samples."""
MODES = ("off", "select", "ensemble")


@dataclass(frozen=True)
class Used:
    """What a client used with one mode, against its standalone model on test samples."""

    method: str
    gained: int
    lost: int
    test: int

    @property
    def gain(self) -> float:
        """The difference of accuracies, in points."""
        return 100 * (self.gained - self.lost) / self.test


def used_counts(mode: str, outcome: ClientOutcome) -> tuple[int, int]:
    """Return samples that only what the client uses gets right, and that only its standalone model does."""
    if mode == "ensemble":
        return outcome.used_gained, outcome.used_lost
    chooses = (
        mode == "off" or mcnemar(outcome.validation_gained, outcome.validation_lost) <= Safeguard().level
    )
    return (outcome.gained, outcome.lost) if chooses else (0, 0)


def outcomes(results: Results, task: str, mode: str) -> Iterator[Used]:
    """Yield every client of a task's runs."""
    for row in results.rows:
        if row.task == task:
            for outcome in stored_outcomes(results.details[row.experiment]):
                yield Used(row.method, *used_counts(mode, outcome), outcome.test)


def page(suite: Suite, results: Results) -> str:
    """Return the page with its two generated parts as the stored rows give them."""
    text = (DOCS / "safeguard.md").read_text(encoding="utf-8")
    calibration = worth_it.calibrate()
    return replace_block(
        replace_block(text, "evidence", evidence(suite, results)), "worth-it", worth_it.block(calibration)
    )


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw both pictures, and write the rules that come with Potluck."""
    _draw_gains(suite, results, folder / "safeguard.svg")
    calibration = worth_it.calibrate()
    worth_it.draw(calibration, folder / "worth-it.svg")
    worth_it.SHIPPED.write_text(worth_it.shipped_text(calibration), encoding="utf-8")


def evidence(suite: Suite, results: Results) -> str:
    """Return provenance, the table by task and mode, and sentences on gains kept, compute and attacks."""
    tasks = [task for task in suite.tasks if any(row.task == task.name for row in results.rows)]
    parts = [
        wrap_text(provenance_sentence(suite, results)),
        "![Gains over training alone by task and mode](figures/safeguard.svg)",
        "\n".join(f"* **{task.title}**: {task.why} {_size(results, task)}" for task in tasks),
        _table(results, tasks),
        "\n".join([*_kept(results, tasks), _compute(results), *_attacks(results, tasks)]),
    ]
    return "\n\n".join(parts)


def _size(results: Results, task: Task) -> str:
    rows = [row for row in results.rows if row.task == task.name]
    methods, seeds = {row.method for row in rows}, {row.seed for row in rows}
    return f"{len(methods)} methods, seeds {', '.join(map(str, sorted(seeds)))}."


def _table(results: Results, tasks: Sequence[Task]) -> str:
    head = (
        "task",
        "mode",
        "clients",
        "mean gain, points",
        "below alone",
        "significantly worse",
        "largest loss, points",
    )
    lines = []
    for task in tasks:
        for mode in MODES:
            used = list(outcomes(results, task.name, mode))
            below = sum(outcome.lost > outcome.gained for outcome in used)
            worse = sum(mcnemar(outcome.lost, outcome.gained) <= LEVEL for outcome in used)
            lines.append(
                (
                    task.title if mode == "off" else "",
                    mode,
                    len(used),
                    f"{np.mean([outcome.gain for outcome in used]):+.1f}",
                    f"{below / len(used):.0%}",
                    f"{worse} ({worse / len(used):.1%})",
                    f"{largest_loss(used):.1f}",
                )
            )
    return table(head, lines, range(2, len(head)))


def largest_loss(used: Iterable[Used]) -> float:
    """Return by how many points the worst client is below its standalone model; 0 if none is."""
    return max(0.0, *(-outcome.gain for outcome in used))


def method_gains(results: Results, tasks: Sequence[Task], mode: str) -> Mapping[tuple[str, str], float]:
    """Return the mean gain of each task and method, in points."""
    by_setting: dict[tuple[str, str], list[float]] = {}
    for task in tasks:
        for outcome in outcomes(results, task.name, mode):
            by_setting.setdefault((task.name, outcome.method), []).append(outcome.gain)
    return {key: float(np.mean(gains)) for key, gains in by_setting.items()}


def _kept(results: Results, tasks: Sequence[Task]) -> Iterator[str]:
    """Say which share of the gain is kept where a method gains on average, and what becomes of losses elsewhere."""
    calm = [task for task in tasks if not task.name.startswith("attacked")]
    off = method_gains(results, calm, "off")
    winners = [key for key, gain in off.items() if gain > 0]
    if not winners:
        yield "* No method gains on average, so there is no gain to keep."
        return
    for mode in MODES[1:]:
        gains = method_gains(results, calm, mode)
        gain_kept = sum(gains[key] for key in winners) / sum(off[key] for key in winners)
        losers = [gains[key] for key in off if key not in winners]
        rest = (
            f"; in the other {len(losers)} the mean gain is {np.mean(losers):+.1f} points" if losers else ""
        )
        before = [off[key] for key in off if key not in winners]
        rest += f" (off: {np.mean(before):+.1f})" if losers else ""
        yield (
            f"* `{mode}` keeps {gain_kept:.0%} of the mean gain in the {len(winners)} pairs of task and method that gain on "
            f"average{rest}."
        )


def _compute(results: Results) -> str:
    shares = []
    for row in results.rows:
        total, alone = results.details[row.experiment]["safeguard"]["flops"]
        if total and alone and total > alone:  # a job without gradient steps is counted as nothing
            shares.append(alone / (total - alone))
    return (
        f"* Training the standalone model adds {min(shares):.0%} to {max(shares):.0%} (median {np.median(shares):.0%}) "
        "to the operations of a training job, where a method trains by gradient steps."
    )


def _attacks(results: Results, tasks: Sequence[Task]) -> Iterator[str]:
    for task in tasks:
        if not task.name.startswith("attacked"):
            continue
        worst = {mode: largest_loss(outcomes(results, task.name, mode)) for mode in MODES}
        yield (
            f"* {task.title}: no honest client is more than {worst['select']:.1f} points below alone with `select`, "
            f"{worst['ensemble']:.1f} with `ensemble`, and {worst['off']:.1f} without a safeguard."
        )


def _draw_gains(suite: Suite, results: Results, path: Path) -> None:
    """Draw the gains of all clients of a task by mode: median, quartiles, and the 5th and 95th of a hundred."""
    tasks = [task for task in suite.tasks if any(row.task == task.name for row in results.rows)]
    figure = new_figure(2.6 * len(tasks) + 0.6, 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(tasks), sharey=True))
    for axes, task in zip(panels, tasks, strict=True):
        gains = [[outcome.gain for outcome in outcomes(results, task.name, mode)] for mode in MODES]
        boxes = axes.boxplot(gains, whis=(5, 95), showfliers=False, patch_artist=True, widths=0.6)
        for box, colour in zip(boxes["boxes"], COLOURS, strict=False):
            box.set_facecolor(colour)
            box.set_alpha(0.6)
        for position, values in enumerate(gains, start=1):
            axes.plot([position], [min(values)], "v", color="#333333", markersize=4)
        axes.axhline(0, color="#333333", linewidth=0.8)
        axes.set_xticks(range(1, len(MODES) + 1), MODES, fontsize=8)
        axes.set_title(textwrap.fill(task.title, 30), fontsize=8)
        axes.grid(alpha=0.25, axis="y")
    panels[0].set_ylabel("gain over alone, points")
    save(figure, path)
