"""Settings that cannot act in the company of the others: refused, so that what is recorded is what ran."""

from __future__ import annotations

from collections.abc import Iterator

from potluck.core.errors import PotluckError
from potluck.experiment.experiment import Experiment


def refuse_inert(experiment: Experiment) -> None:
    """Raise for the first setting that was changed from its default and has nothing to act on."""
    usual = Experiment()
    for name, reason in _inert(experiment):
        section, _, key = name.partition(".")
        value = getattr(getattr(experiment, section), key)
        if value != getattr(getattr(usual, section), key):
            raise PotluckError(f"{name} = {value!r} cannot act: {reason}.")


def _inert(experiment: Experiment) -> Iterator[tuple[str, str]]:
    training, schedule = experiment.training, experiment.schedule
    if training.optimizer == "sgd":
        yield "training.betas", "training.optimizer = 'sgd' has no moments; leave it out"
    else:
        yield (
            "training.momentum",
            f"training.optimizer = {training.optimizer!r} has moments of its own; leave it out",
        )
    if schedule.robust not in ("mean", "norm-clip"):
        yield "schedule.max_share", f"schedule.robust = {schedule.robust!r} goes by no samples; leave it out"
    if schedule.robust not in ("trimmed-mean", "krum"):
        yield "schedule.attackers", f"schedule.robust = {schedule.robust!r} counts on no share; leave it out"
    if schedule.synchronous and schedule.mode != "auto":
        yield "schedule.staleness_power", "in a synchronous schedule no answer is stale; leave it out"
    yield from _harms(experiment)
    if not experiment.evaluate.newcomers:
        yield (
            "evaluate.newcomer_epochs",
            "evaluate.newcomers is 0, so nobody joins; set it, for instance to 0.2",
        )
    if not experiment.faults.slow:
        yield "faults.slow_factor", "faults.slow is 0, so no job is slow; leave it out"
    if not experiment.models.feature_dim:
        yield "models.projection", "models.feature_dim is not set, so nothing is projected; leave it out"
    if experiment.models.precision == "float64":
        yield (
            "training.amp",
            "models.precision = 'float64' asks for more bits, not fewer; leave one of them out",
        )
    if not experiment.devices.fleet:
        yield "devices.assign", "there are no devices; set devices.fleet, such as phones"
    if experiment.engine.name not in ("flower", "auto"):
        for key in ("nodes", "classes", "lost_after", "server", "ca", "simulation"):
            yield f"engine.{key}", f"engine.name is {experiment.engine.name!r}; set it to 'flower'"


def _harms(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """Settings against curious servers, and those of malicious clients."""
    privacy = experiment.privacy
    if not privacy.clip:
        yield "privacy.noise_multiplier", "it is in units of privacy.clip; set that, for instance to 1.0"
        yield "privacy.delta", "privacy.clip is 0, so nothing is accounted for; leave it out"
        yield "privacy.reproducible", "privacy.clip is 0, so there is no noise; leave it out"
        yield "privacy.unit", "privacy.clip is 0, so nothing is protected; set it, for instance to 1.0"
    if not privacy.of_records:
        yield "privacy.vector_clip", "privacy.unit is not 'record'; answers are clipped by privacy.clip"
    else:
        yield (
            "privacy.hide_classes",
            "with privacy.unit = 'record' answers tell only classes of a large noisy count",
        )
        yield "engine.vectorize", "privacy.unit = 'record' trains each client by itself; leave it out"
        yield "training.amp", "privacy.unit = 'record' computes gradients in full precision; leave it out"
    if not privacy.clip or not privacy.noise_multiplier:
        yield (
            "privacy.hide_classes",
            "without noise the rows of absent classes are zeros; set privacy.clip and privacy.noise_multiplier",
        )
    if not privacy.scores:
        yield (
            "evaluate.newcomers",
            "privacy.scores is false, so nobody tells how good a newcomer is; leave it out",
        )
    if not experiment.attack:
        for key in ("share", "strength"):
            yield (
                f"attack.{key}",
                "attack.kind is 'none', so nobody attacks; set it, for instance to sign-flip",
            )
