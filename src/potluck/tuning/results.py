"""Write the results of a study: the best experiment, a table of trials, accuracy against each setting."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core.files import csv_cell
from potluck.report.style import log_scale, method_style, new_axes, print_style, save
from potluck.runs.folder import write_atomic
from potluck.tuning.space import Space, with_settings
from potluck.tuning.study import TrialResult

BEST, TABLE, FIGURE = "best.toml", "trials.csv", "sensitivity.svg"


def write_results(
    values: Mapping[str, Any], space: Space, trials: Sequence[TrialResult], folder: Path
) -> Path:
    """Write all three, and return the experiment's file."""
    best = with_settings(values, trials[0].settings)
    head = f"# Best of {len(trials)} trials on validation samples. Run it: potluck run {folder / BEST}\n"
    write_atomic(folder / BEST, head + best.to_toml())
    write_atomic(folder / TABLE, _csv(space, trials))
    _draw(space, trials, folder / FIGURE)
    return folder / BEST


def _csv(space: Space, trials: Sequence[TrialResult]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *space.choices, "validation_accuracy", "rounds", "given_up"])
    for trial in trials:
        row = [trial.number + 1, *(csv_cell(trial.settings[name]) for name in space.choices)]
        writer.writerow([*row, f"{trial.score:.6g}", trial.rounds, "yes" if trial.pruned else "no"])
    return out.getvalue()


def _draw(space: Space, trials: Sequence[TrialResult], path: Path) -> None:
    """Draw one panel per setting; every trial is a point, hollow where it was pruned, the best is a star."""
    with print_style():
        figure, panels = new_axes(len(space.choices), width=0.6 + 2.4 * len(space.choices))
        for axes, (name, choice) in zip(panels, space.choices.items(), strict=True):
            places = {value: place for place, value in enumerate(choice.values)}
            for trial in reversed(trials):
                value = trial.settings[name]
                best = trial is trials[0]
                axes.plot(
                    places[value] if places else value,
                    100 * trial.score,
                    marker="*" if best else "o",
                    markersize=9 if best else 4,
                    color=method_style(1 if best else 0).light,
                    markerfacecolor="none" if trial.pruned else None,
                )
            if places:
                axes.set_xticks(list(places.values()), [str(value) for value in places])
            elif choice.log:
                log_scale(axes)
            axes.set_xlabel(name)
        panels[0].set_ylabel("validation accuracy (%)")
        save(figure, path)
