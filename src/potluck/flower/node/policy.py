"""`[policy]` of node.toml: what this node does for a server, decided here before anything is computed or sent."""

from __future__ import annotations

from pydantic import Field

from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.flower.node.section import Section
from potluck.loop.jobs import Job
from potluck.methods import METHODS

DONE_HERE = ("train", "evaluate", "join")
"""The kinds of job that a node does; its state is neither handed over nor replaced, whoever asks."""


class Policy(Section):
    """Limits of this node. What goes beyond them is refused with one sentence, here and at the server."""

    methods: tuple[str, ...] = Field(
        (), description="exactly these, module:Class among them; empty: all built-in"
    )
    epochs: int = Field(100, ge=1, description="passes over the rows in one job")
    samples: int = Field(
        10_000_000, ge=1, description="rows that one job may train on, counted as often as it does"
    )
    jobs: int = Field(10_000, ge=1, description="answers for one run, scores included")
    hours: float = Field(168.0, gt=0, description="of computing for one run")
    clip: float = Field(
        0.0, ge=0, description="answers must be clipped to this length or less; 0: need not be"
    )
    noise: float = Field(0.0, ge=0, description="the least privacy.noise_multiplier; 0: none is needed")
    epsilon: float = Field(
        0.0, ge=0, description="privacy that may be spent in all runs together; 0: no limit"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the δ at which ε is counted")
    smallest_class: int = Field(
        2, ge=1, description="classes with fewer training rows are left out of training"
    )
    scores: bool = Field(True, description="whether scores and training losses leave this node")
    kept_jobs: int = Field(64, ge=2, description="the most jobs that a run may have kept for its restarts")

    def check(self, experiment: Experiment) -> None:
        """Refuse an experiment that asks for more than this node gives; nothing of it has been built yet."""
        for problem in self.problems(experiment):
            raise PotluckError(f"This node refuses the run: {problem}.")

    def problems(self, experiment: Experiment) -> list[str]:
        """Everything that this node would refuse, with the remedy on either side."""
        return [*self._of_method(experiment), *self._of_work(experiment), *self._of_privacy(experiment)]

    def _of_method(self, experiment: Experiment) -> list[str]:
        name, allowed = experiment.method.name, self.methods or tuple(METHODS)
        found = []
        if name not in allowed:
            listed = ", ".join(self.methods) if self.methods else "the built-in ones"
            found.append(f"method {name!r} is not among its policy.methods ({listed})")
        public = experiment.data.public
        if isinstance(public, str) and ":" in public:
            found.append(
                f"data.public = {public!r} names a file or an address; it loads public sets by name only"
            )
        if experiment.attack:
            found.append("it has an [attack], and a node with data of its own is not for that")
        return found

    def _of_work(self, experiment: Experiment) -> list[str]:
        found = []
        if experiment.training.epochs > self.epochs:
            found.append(
                f"training.epochs = {experiment.training.epochs} is above its policy.epochs = {self.epochs}"
            )
        if (wanted := jobs_to_keep(experiment)) > self.kept_jobs:
            found.append(
                f"engine.checkpoint_every = {experiment.engine.checkpoint_every} needs {wanted} kept jobs, above its "
                f"policy.kept_jobs = {self.kept_jobs}"
            )
        return found

    def _of_privacy(self, experiment: Experiment) -> list[str]:
        privacy, found = experiment.privacy, []
        if self.clip and not 0 < privacy.clip <= self.clip:
            found.append(
                f"privacy.clip = {privacy.clip:g} must be above 0 and at most its policy.clip = {self.clip:g}"
            )
        if privacy.unit == "record" and (self.clip or self.noise or self.epsilon):
            found.append(
                "privacy.unit = 'record' protects single rows, and its policy.clip, noise and epsilon are about whole "
                "answers"
            )
        least = self.noise or (1e-9 if self.epsilon else 0.0)
        if privacy.noise_multiplier < least:
            given = f"privacy.noise_multiplier = {privacy.noise_multiplier:g}"
            rule = (
                f"policy.noise = {self.noise:g}"
                if self.noise
                else f"policy.epsilon = {self.epsilon:g} needs noise"
            )
            found.append(f"{given} is too little for it ({rule})")
        if least and privacy.reproducible:
            found.append(
                "privacy.reproducible = true gives noise that the server can take away; set it to false"
            )
        return found

    def check_job(self, job: Job, rows: int) -> None:
        """Refuse a job that is not a node's, or that trains for longer than this node does."""
        if job.kind not in DONE_HERE:
            raise PotluckError(
                f"This node refuses the job: it does not {job.kind} its state, which is its own."
            )
        if job.epochs > self.epochs:
            raise PotluckError(
                f"This node refuses the job: {job.epochs} epochs are above its policy.epochs = {self.epochs}."
            )
        if max(job.epochs, 1) * rows > self.samples:
            raise PotluckError(
                f"This node refuses the job: its {rows} rows alone are above its policy.samples = {self.samples}."
            )


def jobs_to_keep(experiment: Experiment) -> int:
    """How many jobs of one client lie between two checkpoints at most, and the two at their ends.

    In an asynchronous schedule a quick node may do all jobs of a round.
    """
    often = 1 if experiment.schedule.synchronous else max(1, experiment.engine.nodes)
    return max(1, experiment.engine.checkpoint_every) * often + 2
