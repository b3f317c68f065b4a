"""Before the first trial: an experiment with validation samples, and what to vary of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment, dotted, parse_experiment, put
from potluck.runs.resolve import resolve
from potluck.tuning.space import Space, grid_space, read_space, usual_space

SPLIT = "6:2:2"
"""How clients' rows are split where nobody said so: validation samples choose, as many as test samples."""


def prepared(values: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The experiment's values as trials will have them, checked as a whole, and the method's name."""
    flat = dotted(values)
    ours = {"data.split": SPLIT} if "data.split" not in flat else {}
    ours |= {"evaluate.select": "validation", "engine.name": "serial"}
    for name in ("engine.name", "evaluate.select"):
        if flat.get(name) not in (None, ours[name], "auto"):
            raise PotluckError(
                f"{name} = {flat[name]!r} cannot be tuned with; trials run as {ours[name]!r}, several at once."
            )
    result: dict[str, Any] = {}
    for name, value in {**flat, **ours}.items():
        put(result, name.split("."), value)
    experiment: Experiment = resolve(parse_experiment(result)).experiment
    return result, experiment.method.name


def chosen_space(method: str, file: Path | None, grid: Sequence[str]) -> Space:
    """The space of a file, of a grid, or the usual one."""
    if file is not None and grid:
        raise PotluckError("--space and --grid both say what to vary; give one of them.")
    if grid:
        return grid_space(grid)
    return usual_space(method) if file is None else read_space(file)
