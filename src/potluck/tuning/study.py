"""A study: trials in small batches, each batch learning from all before it, kept in a file that Optuna's tools read.

What a trial tries depends on the batches before it and never on which process was faster, so a study gives the same
on any number of cores, and after any interruption.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.core.errors import PotluckError
from potluck.core.random import derive_seed
from potluck.runs.several import run_processes
from potluck.tuning.space import Choice, Space, Values, with_settings
from potluck.tuning.trial import Outcome, run_trial

if TYPE_CHECKING:
    import optuna

BATCH = 4
"""Trials that are decided upon together."""
STARTUP = 4
"""Trials that are drawn before any is given up, or learned from."""
JOURNAL = "study.log"
SPACE = "space"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Tried:
    """A finished trial: what it tried, the best validation accuracy, and whether it was given up."""

    number: int
    settings: Values
    score: float
    rounds: int
    given_up: bool


class Study:
    """Trials of one experiment over a space, in a folder."""

    def __init__(self, values: Mapping[str, Any], space: Space, folder: Path, trials: int) -> None:
        self.values, self.space, self.folder = values, space, folder
        self.trials = len(space.combinations()) if space.is_grid else trials
        self.seed = int(values.get("seed", 0))
        self._study = _open(folder / JOURNAL)
        self._check_same()

    def _check_same(self) -> None:
        """The same question and the same space as when the study began."""
        asked = {"experiment": _plain(self.values), SPACE: repr(dict(self.space.choices))}
        known = self._study.user_attrs
        if not known:
            for name, value in asked.items():
                self._study.set_user_attr(name, value)
        elif any(known.get(name) != value for name, value in asked.items()):
            raise PotluckError(
                f"--out {str(self.folder)!r} holds a study of another experiment or another space; "
                "choose another folder."
            )

    def run(self, jobs: int, say: Say) -> list[Tried]:
        """Do the trials that are missing, and give all finished ones, the best first."""
        with run_processes(jobs) as pool:
            while asked := self._next_batch():
                floor = self._floor()
                futures = {
                    number: pool.submit(run_trial, self._text(settings), str(self._place(number)), floor)
                    for number, settings in asked.items()
                }
                self._tell(asked, futures, say)
        return self.tried()

    def _next_batch(self) -> dict[int, Values]:
        """Trials that were interrupted, or else new ones up to a batch."""
        from optuna.trial import TrialState

        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if running:
            return {trial.number: dict(trial.params) for trial in running}
        done = len(self._study.get_trials(deepcopy=False))
        count = min(BATCH - done % BATCH, self.trials - done)
        if count <= 0:
            return {}
        grid = self.space.combinations() if self.space.is_grid else []
        found = {}
        for number in range(done, done + count):
            self._study.sampler = _sampler(self.seed, number)
            if grid:
                self._study.enqueue_trial(grid[number])
            trial = self._study.ask(
                {name: _distribution(choice) for name, choice in self.space.choices.items()}
            )
            found[trial.number] = dict(trial.params)
        return found

    def _floor(self) -> dict[int, float]:
        """For each round the median of the best that finished trials had reached by then; none for the first trials."""
        from optuna.trial import TrialState

        known = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(known) < STARTUP or self.space.is_grid:
            return {}
        best: dict[int, list[float]] = {}
        for trial in known:
            high = 0.0
            for number, value in sorted(trial.intermediate_values.items()):
                high = max(high, value)
                best.setdefault(number, []).append(high)
        warm = max(best, default=0) // 4
        return {number: median(values) for number, values in best.items() if number > warm}

    def _tell(self, asked: Mapping[int, Values], futures: Mapping[int, Future[Outcome]], say: Say) -> None:
        """Keep the outcomes of a batch, in the order of trials."""
        import optuna
        from optuna.trial import TrialState

        for number, future in futures.items():
            outcome = future.result()
            if outcome.failure:
                raise PotluckError(
                    f"Trial {number} ({_words(asked[number])}) cannot be run: {outcome.failure}"
                )
            trial = optuna.Trial(self._study, self._study.trials[number]._trial_id)
            for step, value in outcome.curve:
                trial.report(value, step)
            state = TrialState.PRUNED if outcome.given_up else TrialState.COMPLETE
            self._study.tell(number, None if outcome.given_up else outcome.score, state)
            ended = f"given up after round {len(outcome.curve)}" if outcome.given_up else "done"
            say(f"trial {number + 1} of {self.trials}: {_words(asked[number])}: {outcome.score:.1%}, {ended}")

    def tried(self) -> list[Tried]:
        """Finished trials, the best first; of equals the earlier. Those that were given up come last."""
        from optuna.trial import TrialState

        states = (TrialState.COMPLETE, TrialState.PRUNED)
        found = [
            Tried(
                trial.number,
                dict(trial.params),
                max(trial.intermediate_values.values(), default=0.0),
                len(trial.intermediate_values),
                trial.state == TrialState.PRUNED,
            )
            for trial in self._study.get_trials(deepcopy=False, states=states)
        ]
        return sorted(found, key=lambda one: (one.given_up, -one.score, one.number))

    def _place(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:04d}"

    def _text(self, settings: Values) -> str:
        experiment = with_settings(self.values, settings)
        return json.dumps(experiment.model_dump(mode="json", exclude_none=True))


def _open(journal: Path) -> optuna.Study:
    try:
        import optuna
        from optuna.storages.journal import JournalFileBackend, JournalStorage
    except ImportError:
        raise PotluckError("Tuning needs Optuna; run: pip install 'potluck[tune]'.") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        journal.parent.mkdir(parents=True, exist_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
        return optuna.create_study(
            storage=storage, study_name="potluck", direction="maximize", load_if_exists=True
        )
    except OSError as error:
        raise PotluckError(
            f"--out {str(journal.parent)!r} cannot be written ({error.strerror}); choose another folder."
        ) from None


def _sampler(seed: int, number: int) -> optuna.samplers.BaseSampler:
    """A sampler for one trial: its draws depend on the trials so far alone, not on what this process drew before."""
    import optuna

    return optuna.samplers.TPESampler(
        seed=derive_seed(seed, "tuning", number) % 2**32, n_startup_trials=2 * STARTUP
    )


def _distribution(choice: Choice) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if choice.values:
        return CategoricalDistribution(choice.values)
    if choice.whole:
        return IntDistribution(int(choice.low), int(choice.high), log=choice.log)
    return FloatDistribution(choice.low, choice.high, log=choice.log)


def _words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values, sort_keys=True, default=list))


def words_of(tried: Sequence[Tried]) -> str:
    """The settings of the best trial."""
    return _words(tried[0].settings)
