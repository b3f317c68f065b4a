"""What a study ends with: the best experiment as a file, all trials as a table, accuracy against each setting."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core.files import csv_cell
from potluck.report.palette import look
from potluck.report.style import for_print, new_axes, save
from potluck.runs.folder import write_atomic
from potluck.tuning.space import Space, with_settings
from potluck.tuning.study import Tried

BEST, TABLE, FIGURE = "best.toml", "trials.csv", "sensitivity.svg"


def write_outcome(values: Mapping[str, Any], space: Space, tried: Sequence[Tried], folder: Path) -> Path:
    """Write all three, and give the experiment's file."""
    best = with_settings(values, tried[0].settings)
    head = f"# Best of {len(tried)} trials on validation samples. Run it: potluck run {folder / BEST}\n"
    write_atomic(folder / BEST, head + best.to_toml())
    write_atomic(folder / TABLE, _csv(space, tried))
    _draw(space, tried, folder / FIGURE)
    return folder / BEST


def _csv(space: Space, tried: Sequence[Tried]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["trial", *space.choices, "validation_accuracy", "rounds", "given_up"])
    for one in tried:
        row = [one.number + 1, *(csv_cell(one.settings[name]) for name in space.choices)]
        writer.writerow([*row, f"{one.score:.6g}", one.rounds, "yes" if one.given_up else "no"])
    return out.getvalue()


def _draw(space: Space, tried: Sequence[Tried], path: Path) -> None:
    """One panel per setting; every trial is a point, hollow where it was given up, the best one marked."""
    with for_print():
        figure, panels = new_axes(len(space.choices))
        for axes, (name, choice) in zip(panels, space.choices.items(), strict=True):
            places = {value: place for place, value in enumerate(choice.values)}
            for one in reversed(tried):
                value = one.settings[name]
                best = one is tried[0]
                axes.plot(
                    places[value] if places else value,
                    100 * one.score,
                    marker="*" if best else "o",
                    markersize=9 if best else 4,
                    color=look(1 if best else 0).light,
                    markerfacecolor="none" if one.given_up else None,
                )
            if places:
                axes.set_xticks(list(places.values()), [str(value) for value in places])
            elif choice.log:
                axes.set_xscale("log")
            axes.set_xlabel(name)
        panels[0].set_ylabel("validation accuracy (%)")
        save(figure, path)
