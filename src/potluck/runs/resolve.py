"""First part of a run: everything decided and checked, nothing written, nothing trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, check_needs
from potluck.core.optimizers import check_amp
from potluck.core.task import ClientInfo
from potluck.data import Data, Partition
from potluck.experiment import Experiment
from potluck.experiment.objects import check_present, chosen, fill
from potluck.federation.federation import Federation
from potluck.federation.population import ModelSource, build_federation, experiment_data, suitable_models
from potluck.loop import newcomers
from potluck.loop.attack import Attackers
from potluck.runs.checks import (
    check_attack,
    check_averaging,
    check_order,
    check_records,
    check_schedule,
    drawn_attackers,
    inert_harms,
)
from potluck.runs.privacy_ledger import check_privacy


@dataclass(frozen=True)
class Parts:
    """What a user brings as Python objects; None where the experiment's names say it."""

    method: Method[Any, Any, Any] | None = None
    data: Data | None = None
    partition: Partition | None = None
    models: Sequence[ModelSource] | None = None
    federation: Federation | None = None
    state: Any = None
    """The server's state to begin with, of the form that the method's `init_server` makes."""

    def given(self) -> list[str]:
        """The parts that are objects and that no file can hold; a method has its name there."""
        names = ("data", "partition", "models", "federation", "state")
        return [name for name in names if getattr(self, name) is not None]

    def facts(self) -> dict[str, dict[str, Any]]:
        """What each part that is an object says of the experiment, by dotted names."""
        facts: dict[str, dict[str, Any]] = {}
        if self.data is not None:
            facts["data"] = {"data.name": self.data.name}
        if self.partition is not None:
            facts["partition"] = {"partition.rule": type(self.partition).__name__}
        if self.models is not None:
            facts["models"] = {"models.names": tuple(_label(model) for model in self.models)}
        if self.federation is not None:
            facts["federation"] = population_facts(self.federation)
        if self.state is not None:
            facts["state"] = {}
        if self.method is not None:
            settings: dict[str, Any] = asdict(self.method) if is_dataclass(self.method) else {}
            facts["method"] = {f"method.{name}": value for name, value in settings.items()}
        return facts


def population_facts(federation: Federation) -> dict[str, Any]:
    """What a population that is there already says of the experiment."""
    task = federation.task
    return {
        "seed": task.seed,
        "data.name": federation.label,
        "partition.rule": "own",
        "partition.clients": len(federation.members),
        "models.names": tuple(task.architectures),
        "models.precision": str(task.dtype).removeprefix("torch."),
        "engine.device": str(task.device),
        **({"devices.fleet": "own"} if federation.devices else {}),
        **{f"training.{name}": value for name, value in vars(federation.training).items()},
    }


def _label(model: ModelSource) -> str:
    return model if isinstance(model, str) else str(getattr(model, "__name__", type(model).__name__))


@dataclass(frozen=True)
class Resolved:
    """A question with all its parts: the experiment as it will be recorded, its method and its population."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    absent: Mapping[int, ClientInfo] = field(default_factory=dict)
    """Who is kept out of training, to join when it is over."""
    attackers: Attackers | None = None
    state: Any = None
    parts: Parts = Parts()
    """What was brought as objects, for processes that have to build all of it again."""

    @property
    def label(self) -> str:
        """What the run's folder is called unless told."""
        name = self.experiment.method.name.split(":")[-1].lower()
        return f"{name}-{self.federation.label}-seed{self.experiment.seed}"


def resolve(experiment: Experiment, parts: Parts = Parts()) -> Resolved:
    """Build what the experiment names, around what was brought, and check that it fits together."""
    if experiment.objects:
        check_present(experiment, parts.given())
    method = parts.method or experiment.build_method()
    experiment = decided(experiment, method)
    if parts.federation is not None:
        return replace(with_population(experiment, method, parts.federation), state=parts.state, parts=parts)
    data = parts.data or experiment_data(experiment)
    experiment = decide_models(experiment, method, data)
    federation = build_federation(
        experiment, method, data=data, models=parts.models, partition=parts.partition
    )
    return replace(with_population(experiment, method, federation), state=parts.state, parts=parts)


def resolve_around(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> Resolved:
    """The same for a population that was gathered: nodes with data of their own."""
    experiment = fill(experiment, chosen(experiment), {"nodes": population_facts(federation)})
    return with_population(decided(experiment, method), method, federation)


def decided(experiment: Experiment, method: Method[Any, Any, Any]) -> Experiment:
    """The experiment with its method's settings spelled out, if its settings go together."""
    experiment = decide_mode(experiment.with_method(method, experiment.method.name), method)
    refuse_inert(experiment)
    schedule = experiment.schedule
    if not schedule.synchronous:
        check_schedule(experiment, method)
    method.check_training(experiment.training)
    if schedule.robust != "mean" or schedule.max_share < 1:
        check_averaging(experiment, method)
    if experiment.uses("attack"):
        check_attack(experiment, method)
        experiment = decide_strength(experiment)
    if experiment.uses("privacy"):
        check_privacy(experiment.privacy, method)
    return experiment


def with_population(
    experiment: Experiment, method: Method[Any, Any, Any], federation: Federation
) -> Resolved:
    """All together, if the population has what the method needs and what the tests need."""
    check_needs(method, federation.task)
    if experiment.training.amp != "off":
        check_amp(experiment.training.amp, federation.task.device)
    if experiment.schedule.order:
        check_order(experiment, federation)
    wanted = {*experiment.evaluate.protocols} & {"shared", "global"}
    if wanted and federation.shared_test is None:
        raise PotluckError(
            f"evaluate.protocol = {min(wanted)!r} needs a common test set; give the federation shared_test=(x, y)."
        )
    # Who is drawn stays drawn: for the loop, for workers, for the record.
    absent = newcomers.draw(experiment.evaluate, federation.task) if experiment.evaluate.newcomers else {}
    attackers = drawn_attackers(experiment, federation, absent) if experiment.uses("attack") else None
    if experiment.uses("privacy"):
        check_records(experiment, method, federation)
    return Resolved(decide_selection(experiment, federation), method, federation, absent, attackers)


# -- decisions: made once, then on record ---------------------------------------------------------------------


def decide_mode(experiment: Experiment, method: Method[Any, Any, Any]) -> Experiment:
    """`auto` is the method's own mode."""
    if experiment.schedule.mode != "auto":
        return experiment
    return experiment.changed({"schedule.mode": "async" if method.asynchronous else "sync"})


def decide_strength(experiment: Experiment) -> Experiment:
    """An attack of no given strength has the usual one of its kind."""
    if experiment.attack.strength is not None:
        return experiment
    return experiment.changed({"attack.strength": experiment.attack.force})


def decide_selection(experiment: Experiment, federation: Federation) -> Experiment:
    """`auto`: on validation samples where there are some. To ask for them where there are none is refused."""
    there = federation.task.validates
    if experiment.evaluate.select == "validation" and not there:
        remedies = {
            "federation": "give clients some: potluck.Member(..., validation=(x, y))",
            "nodes": "have the nodes' node.toml say split = '8:1:1'",
        }
        remedy = next((remedies[part] for part in experiment.objects or () if part in remedies), None)
        raise PotluckError(
            "evaluate.select = 'validation' needs validation samples, and no client has any; "
            f"{remedy or 'set data.split to three parts, such as 8:1:1'}."
        )
    if experiment.evaluate.select != "auto":
        return experiment
    return experiment.changed({"evaluate.select": "validation" if there else "test"})


def decide_models(experiment: Experiment, method: Method[Any, Any, Any], data: Data) -> Experiment:
    """Say which group `auto` means, so that the run's own file can repeat it."""
    if experiment.models.names != ("auto",):
        return experiment
    return experiment.changed({"models.names": (suitable_models(method, data),)})


# -- settings that cannot act in the company of the others: refused, so that what is recorded is what ran -------


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
        yield (
            "schedule.lead",
            "whole rounds ask everybody alike; set schedule.mode = 'async', or leave it out",
        )
    if schedule.order:
        yield "schedule.lead", "schedule.order says who works; leave one of them out"
    if experiment.uses("privacy") or experiment.uses("attack"):
        yield from inert_harms(experiment)
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
    if experiment.engine.name == "flower":
        yield "engine.vectorize", "with engine.name = 'flower' every client trains by itself; leave it out"
    if experiment.engine.name not in ("flower", "auto"):
        for key in ("nodes", "classes", "lost_after", "server", "ca", "simulation"):
            yield f"engine.{key}", f"engine.name is {experiment.engine.name!r}; set it to 'flower'"
