"""One trial in a process of its own: trained, scored on validation samples each round, given up if hopeless."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from potluck.api import execute
from potluck.core.files import parse_json
from potluck.experiment import parse_experiment
from potluck.loop.callbacks import Callback, Step

Floor = Mapping[int, float]
"""For each round, the middle of what earlier trials had reached by then."""


class GivenUp(Exception):
    """The trial is behind the middle of the earlier ones."""


@dataclass(frozen=True)
class Outcome:
    """Accuracy on validation samples, round by round, as far as the trial went. A failure has a sentence."""

    curve: tuple[tuple[int, float], ...] = ()
    given_up: bool = False
    failure: str = ""

    @property
    def score(self) -> float:
        """The best round's accuracy."""
        return max((value for _, value in self.curve), default=0.0)


class Watch(Callback):
    """Keeps the curve, and ends a trial whose best so far is below the floor."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.curve: dict[int, float] = {}

    def on_step(self, step: Step) -> None:
        """After each evaluated round."""
        record = step.record
        if record.accuracy_validation is None:
            return
        self.curve[record.round] = float(record.accuracy_validation)
        if max(self.curve.values()) < self.floor.get(record.round, 0.0):
            raise GivenUp


def run_trial(text: str, folder: str, floor: Floor) -> Outcome:
    """Train an experiment, going on where an interrupted trial stood."""
    from potluck.core.errors import PotluckError
    from potluck.runs.read import read_run

    watch = Watch(floor)
    path = Path(folder)
    try:
        run = execute(parse_experiment(parse_json(text)), out=path, resume=path.exists(), callbacks=[watch])
    except GivenUp:
        run, given_up = read_run(path), True
    except PotluckError as error:
        return Outcome(failure=str(error))
    else:
        given_up = False
    # From the folder, because a trial that was interrupted saw only its last rounds.
    curve = {
        int(row["round"]): float(row["accuracy_validation"])
        for row in run.rounds
        if row.get("accuracy_validation") is not None
    }
    return Outcome(tuple({**curve, **watch.curve}.items()), given_up)
