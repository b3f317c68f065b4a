"""What all trackers share: which figures of a step are shown, and what happens when showing them fails."""

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
from potluck.loop.score import summarise

_log = logging.getLogger("potluck")


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


def facts(loop: Loop) -> dict[str, Any]:
    """What makes a run this one."""
    return {
        "method": loop.method.name or type(loop.method).__name__,
        "rounds": loop.schedule.rounds,
        "clients": len(loop.task.clients),
        "seed": loop.task.seed,
    }


class Tracker(Callback):
    """Shows each server step's figures; subclasses say where. `path` is the run's folder.

    A tracker that cannot start stops the run before it trains. One that fails later is left out from then on,
    with a warning: the run folder has its figures anyway. Use it as a context, so that it is closed in any case.
    """

    name: ClassVar[str]

    def __init__(self, path: Path, label: str) -> None:
        self.path, self.label = path, label
        self._last = 0
        self._open = False

    @classmethod
    def check(cls) -> None:
        """Raise a sentence if a package is missing."""

    def open(self, loop: Loop) -> None:
        """Get ready; a resumed run has `loop.progress.step` server steps behind it, which were shown already."""

    def show(self, values: dict[str, float], step: int) -> None:
        """Show some figures of a server step."""
        raise NotImplementedError

    def close(self, *, finished: bool) -> None:
        """The run is over; or it was stopped, and may be resumed one day."""

    def on_start(self, loop: Loop) -> None:
        """Begin, or go on where a resumed run stands."""
        try:
            self.open(loop)
        except PotluckError:
            raise
        except Exception as error:
            raise PotluckError(
                f"--track {self.name} cannot start: {_said(error)}; once that is mended, "
                f"go on with: potluck resume {self.path} --track {self.name}"
            ) from None
        self._last, self._open = loop.progress.step, True

    def on_step(self, step: Step) -> None:
        """The figures of this step."""
        self._last = step.record.step
        self._attempt(lambda: self.show(figures(step), step.record.step))

    def on_end(self, end: End) -> None:
        """The clients' last accuracy, then good-bye."""
        final = summarise(score.score for score in end.scores).accuracy
        if final is not None:
            self._attempt(lambda: self.show({"final_accuracy": final}, self._last))
        self._shut(finished=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shut(finished=False)

    def _shut(self, *, finished: bool) -> None:
        self._attempt(lambda: self.close(finished=finished))
        self._open = False

    def _attempt(self, action: Callable[[], None]) -> None:
        """Hours of training are not given up because somebody else's server went away."""
        if not self._open:
            return
        try:
            action()
        except Exception as error:
            self._open = False
            _log.warning(
                "--track %s failed and is left out from here on (%s); the run folder %r has every figure.",
                self.name,
                _said(error),
                str(self.path),
            )


def need(package: str, extra: str) -> Any:
    """An optional package, or a sentence on how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise PotluckError(
            f"--track {extra} needs a package that is not installed ({error}); run: pip install 'potluck[{extra}]'."
        ) from None


def _said(error: Exception) -> str:
    """The first line of what an error says; some say pages."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
