"""The base of trackers: which metrics of a step are logged, and how failures are handled."""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from potluck.core.errors import PotluckError
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.loop import Loop
from potluck.wire.score import summarise

_log = logging.getLogger("potluck")


def step_metrics(step: Step) -> dict[str, float]:
    """Return the numbers of a server step by name, without missing and non-finite ones."""
    values: dict[str, Any] = asdict(step.record)
    values["failures"] = len(step.failures)
    values["participants"] = len(step.record.participants)
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and name not in ("step", "round") and math.isfinite(value)
    }


def run_facts(loop: Loop) -> dict[str, Any]:
    """Return the parameters that identify a run."""
    return {
        "method": loop.method.name or type(loop.method).__name__,
        "rounds": loop.schedule.rounds,
        "clients": len(loop.task.clients),
        "seed": loop.task.seed,
    }


class Tracker(Callback):
    """Log each server step's metrics to a service; `path` is the run's folder.

    A tracker that cannot start stops the run before training. One that fails later is disabled with a warning,
    since the run folder has all metrics. Use it as a context manager, so that it is always closed.
    """

    name: ClassVar[str]

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label
        self._last = 0
        self._open = False

    @classmethod
    def check(cls) -> None:
        """Raise `PotluckError` if a package is missing."""

    def open(self, loop: Loop) -> None:
        """Open the service; the first `loop.progress.step` server steps of a resumed run were logged already."""

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        """Log metrics of a server step."""
        raise NotImplementedError

    def close(self, *, finished: bool) -> None:
        """Close the service; an unfinished run may be resumed later."""

    def on_start(self, loop: Loop) -> None:
        """Open the service."""
        try:
            self.open(loop)
        except PotluckError:
            raise
        except Exception as error:
            raise PotluckError(
                f"--track {self.name} cannot start: {_first_line(error)}; once that is fixed, "
                f"continue with: potluck resume {self.path} --track {self.name}"
            ) from None
        self._last, self._open = loop.progress.step, True

    def on_step(self, step: Step) -> None:
        """Log the metrics of this step."""
        self._last = step.record.step
        self._attempt(lambda: self.log_metrics(step_metrics(step), step.record.step))

    def on_end(self, end: End) -> None:
        """Log the final accuracy and close."""
        final = summarise(score.score for score in end.scores).accuracy
        if final is not None:
            self._attempt(lambda: self.log_metrics({"final_accuracy": final}, self._last))
        self._close(finished=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(finished=False)

    def _close(self, *, finished: bool) -> None:
        self._attempt(lambda: self.close(finished=finished))
        self._open = False

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run the action; a failure disables the tracker, and training continues."""
        if not self._open:
            return
        try:
            action()
        except Exception as error:
            self._open = False
            _log.warning(
                "--track %s failed and is disabled (%s); the run folder %r has all metrics.",
                self.name,
                _first_line(error),
                str(self.path),
            )


def import_package(package: str, extra: str) -> Any:
    """Import an optional package, or raise an error that says how to install it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PotluckError(
            f"--track {extra} needs a package that is not installed ({error}); run: pip install 'potluck[{extra}]'."
        ) from None


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
