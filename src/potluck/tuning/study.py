"""Run a study: trials in small batches, recorded in a journal, each trained in a separate process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from potluck.api import execute
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json
from potluck.core.random import derive_seed
from potluck.experiment import parse_experiment
from potluck.loop.callbacks import Callback, Step
from potluck.runs.process_pool import run_processes
from potluck.tuning.space import Choice, Space, Values, with_settings

if TYPE_CHECKING:
    import optuna


Floor = Mapping[int, float]
"""For each round, the median of the best accuracies of earlier trials."""


class TrialPruned(Exception):
    """The trial is below the median of earlier trials."""


@dataclass(frozen=True)
class TrialOutcome:
    """Validation accuracy by round until the trial ended; `failure` is an error message or empty."""

    curve: tuple[tuple[int, float], ...] = ()
    pruned: bool = False
    failure: str = ""

    @property
    def score(self) -> float:
        """Return the best round's accuracy."""
        return max((value for _, value in self.curve), default=0.0)


class ValidationCurve(Callback):
    """Record the curve, and stop a trial whose best accuracy is below the floor."""

    def __init__(self, floor: Floor) -> None:
        self.floor = floor
        self.curve: dict[int, float] = {}

    def on_step(self, step: Step) -> None:
        """Record an evaluated round, and raise `TrialPruned` below the floor."""
        record = step.record
        if record.accuracy_validation is None:
            return
        self.curve[record.round] = float(record.accuracy_validation)
        if max(self.curve.values()) < self.floor.get(record.round, 0.0):
            raise TrialPruned


def run_trial(text: str, folder: str, floor: Floor) -> TrialOutcome:
    """Train an experiment, or resume an interrupted trial."""
    from potluck.core.errors import PotluckError
    from potluck.runs.read import read_run

    watch = ValidationCurve(floor)
    path = Path(folder)
    try:
        run = execute(parse_experiment(parse_json(text)), out=path, resume=path.exists(), callbacks=[watch])
    except TrialPruned:
        run, pruned = read_run(path), True
    except PotluckError as error:
        return TrialOutcome(failure=str(error))
    else:
        pruned = False
    # From the folder, because a resumed trial observed only its last rounds.
    curve = {
        int(row["round"]): float(row["accuracy_validation"])
        for row in run.rounds
        if row.get("accuracy_validation") is not None
    }
    return TrialOutcome(tuple({**curve, **watch.curve}.items()), pruned)


BATCH = 4
"""Number of trials that are drawn together."""
STARTUP = 4
"""Number of trials before pruning and before the sampler uses earlier results."""
JOURNAL = "study.log"
SPACE = "space"
Reporter = Callable[[str], None]


@dataclass(frozen=True)
class TrialResult:
    """A finished trial: settings, best validation accuracy, rounds, and whether it was pruned."""

    number: int
    settings: Values
    score: float
    rounds: int
    pruned: bool


class Study:
    """Trials of one experiment over a space, in a folder."""

    def __init__(self, values: Mapping[str, Any], space: Space, folder: Path, trials: int) -> None:
        self.values, self.space, self.folder = values, space, folder
        self.trials = len(space.combinations()) if space.is_grid else trials
        self.seed = int(values.get("seed", 0))
        self._study = _open(folder / JOURNAL)
        self._check_same()

    def _check_same(self) -> None:
        """Raise an error unless experiment and space are those of the recorded study."""
        current = {"experiment": _plain(self.values), SPACE: repr(dict(self.space.choices))}
        recorded = self._study.user_attrs
        if not recorded:
            for name, value in current.items():
                self._study.set_user_attr(name, value)
        elif any(recorded.get(name) != value for name, value in current.items()):
            raise PotluckError(
                f"--out {str(self.folder)!r} holds a study of another experiment or another space; "
                "choose another folder."
            )

    def run(self, jobs: int, say: Reporter) -> list[TrialResult]:
        """Run the missing trials, and return all finished trials, the best first."""
        with run_processes(jobs) as pool:
            while batch := self._next_batch():
                floor = self._floor()
                futures = {
                    number: pool.submit(run_trial, self._text(settings), str(self._folder(number)), floor)
                    for number, settings in batch.items()
                }
                self._record(batch, futures, say)
        return self.results()

    def _next_batch(self) -> dict[int, Values]:
        """Return interrupted trials, or new trials up to a batch."""
        from optuna.trial import TrialState

        running = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if running:
            return {trial.number: dict(trial.params) for trial in running}
        created = len(self._study.get_trials(deepcopy=False))
        count = min(BATCH - created % BATCH, self.trials - created)
        if count <= 0:
            return {}
        grid = self.space.combinations() if self.space.is_grid else []
        batch = {}
        for number in range(created, created + count):
            self._study.sampler = _sampler(self.seed, number)
            if grid:
                self._study.enqueue_trial(grid[number])
            trial = self._study.ask(
                {name: _distribution(choice) for name, choice in self.space.choices.items()}
            )
            batch[trial.number] = dict(trial.params)
        return batch

    def _floor(self) -> dict[int, float]:
        """Return the median of finished trials' best accuracy by round; empty for the first trials and grids."""
        from optuna.trial import TrialState

        finished = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(finished) < STARTUP or self.space.is_grid:
            return {}
        best: dict[int, list[float]] = {}
        for trial in finished:
            high = 0.0
            for number, value in sorted(trial.intermediate_values.items()):
                high = max(high, value)
                best.setdefault(number, []).append(high)
        warm = max(best, default=0) // 4
        return {number: median(values) for number, values in best.items() if number > warm}

    def _record(
        self, batch: Mapping[int, Values], futures: Mapping[int, Future[TrialOutcome]], say: Reporter
    ) -> None:
        """Record the outcomes of a batch, in the order of trials."""
        import optuna
        from optuna.trial import TrialState

        for number, future in futures.items():
            outcome = future.result()
            if outcome.failure:
                raise PotluckError(
                    f"Trial {number} ({_settings_text(batch[number])}) failed: {outcome.failure}"
                )
            trial = optuna.Trial(self._study, self._study.trials[number]._trial_id)
            for step, value in outcome.curve:
                trial.report(value, step)
            state = TrialState.PRUNED if outcome.pruned else TrialState.COMPLETE
            self._study.tell(number, None if outcome.pruned else outcome.score, state)
            status = f"pruned after round {len(outcome.curve)}" if outcome.pruned else "done"
            say(
                f"trial {number + 1} of {self.trials}: {_settings_text(batch[number])}: {outcome.score:.1%}, {status}"
            )

    def results(self) -> list[TrialResult]:
        """Return finished trials, the best first, then the earlier; pruned trials come last."""
        from optuna.trial import TrialState

        states = (TrialState.COMPLETE, TrialState.PRUNED)
        results = [
            TrialResult(
                trial.number,
                dict(trial.params),
                max(trial.intermediate_values.values(), default=0.0),
                len(trial.intermediate_values),
                trial.state == TrialState.PRUNED,
            )
            for trial in self._study.get_trials(deepcopy=False, states=states)
        ]
        return sorted(results, key=lambda trial: (trial.pruned, -trial.score, trial.number))

    def _folder(self, number: int) -> Path:
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
    """Make a sampler whose draws depend only on the seed, the trial's number and earlier trials."""
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


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {_short(value)}" for name, value in settings.items())


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _plain(values: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(values, sort_keys=True, default=list))


def describe_best(tried: Sequence[TrialResult]) -> str:
    """Return the settings of the best trial as text."""
    return _settings_text(tried[0].settings)
