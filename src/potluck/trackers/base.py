"""What all trackers share: which figures of a step are shown, and how a missing package is explained."""

from __future__ import annotations

import importlib
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from potluck.core.callback import Callback, End, Step
from potluck.core.errors import PotluckError
from potluck.core.evaluation import summarise


def figures(step: Step) -> dict[str, float]:
    """The numbers of a server step by name; what was not measured, or is not finite, is left out."""
    values: dict[str, Any] = asdict(step.record)
    values["failures"] = len(step.failures)
    values["participants"] = len(step.record.participants)
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in ("step", "round") and math.isfinite(value)
    }


class Tracker(Callback):
    """Shows each server step's figures; subclasses say where. `path` is the run's folder."""

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label

    def show(self, values: dict[str, float], step: int) -> None:
        """Show some figures of a server step."""
        raise NotImplementedError

    def close(self) -> None:
        """The run is over."""

    def on_step(self, step: Step) -> None:
        """The figures of this step."""
        self.show(figures(step), step.record.step)
        self._last = step.record.step

    def on_end(self, end: End) -> None:
        """The clients' last accuracy, then good-bye."""
        final = summarise(score.score for score in end.scores).accuracy
        if final is not None:
            self.show({"final_accuracy": final}, self._last)
        self.close()

    _last = 0


def need(package: str, extra: str) -> Any:
    """An optional package, or a sentence on how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PotluckError(
            f"--track {extra} needs a package that is not installed ({error}); run: pip install 'potluck[{extra}]'."
        ) from None
