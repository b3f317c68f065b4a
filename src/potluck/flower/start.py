"""Start of a run on Flower: find the nodes, check their registrations, resume with the same ones."""

from __future__ import annotations

import json
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.needs import check_needs
from potluck.core.samples import Samples
from potluck.core.task import Task
from potluck.data.classes import list_names, sort_names
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.flower.grid import RetryingGrid
from potluck.flower.node.federation import (
    agreed_classes,
    public_data,
    server_federation,
    server_task,
    uses_initial_weights,
)
from potluck.flower.node.registration import MEGABYTE, Assignment, Registration
from potluck.flower.registry import ClassNameRegistry, InitialWeights, NodeList, NodeRegistry, natural_key
from potluck.flower.transfers import UploadLimits
from potluck.loop.callbacks import Callback
from potluck.loop.loop import Loop
from potluck.runs.engine import recorded_engine
from potluck.runs.folder import EXPERIMENT
from potluck.runs.plan import Parts, RunPlan
from potluck.runs.resolve import resolve

log = logging.getLogger(__name__)

START_GRACE = 30.0
"""Seconds after the latest node for which a start waits for more of them, when there are `engine.min_nodes`."""

IncompatibleNodes = Callable[[Sequence[Registration]], Mapping[str, str]]
"""Which nodes contradict the others: names, each with its sentence."""


def wait_for_nodes(
    registry: NodeRegistry,
    count: int,
    wait: float,
    *,
    least: int = 0,
    all_must_come: bool = True,
    stop: bool = True,
    find_incompatible: IncompatibleNodes = lambda registrations: {},
) -> None:
    """Wait until `count` nodes have introduced themselves; they become the clients, in the order of names.

    A node that cannot take part is left out. Others may still come in its place; when `wait` is over, the run begins
    without it, if `least` nodes are there. Without `all_must_come` it begins with `least` nodes `START_GRACE` seconds
    after the latest came. Where all are needed, one with a wrong name ends the start, and, there or with `stop`, one
    that does not want to take part.
    """
    ready: dict[str, Registration] = {}
    ends, least = time.monotonic() + wait, least or count
    latest, before = time.monotonic(), 0
    while True:
        registry.admit(ready)
        now = time.monotonic()
        latest, before = (now if len(ready) > before else latest), len(ready)
        over = now > ends
        enough = not all_must_come and len(ready) >= least and now - latest > START_GRACE
        if len(ready) >= count or over or enough:
            for name, reason in find_incompatible(list(ready.values())).items():
                registry.exclude(name, reason)
                del ready[name]
        if len(ready) >= count or (enough and len(ready) >= least):
            break
        _give_up(registry, len(ready), count, all_needed=least >= count, stop=stop)
        if over:
            came = len(ready) + len(registry.rejected) + len(registry.asked)
            if len(ready) >= least and (came >= count or not all_must_come):
                break
            raise PotluckError(_too_few(registry, len(ready), count, wait))
        registry.pause()
    registry.begin([ready[name] for name in sorted(ready, key=natural_key)][:count])


def _give_up(registry: NodeRegistry, ready: int, count: int, *, all_needed: bool, stop: bool) -> None:
    """End the start where just those have spoken that it waits for, and one of them will not do."""
    kinds = {"name", "unwilling"} if all_needed else {"unwilling"} if stop else set()
    spoiled = [rejection.why for rejection in registry.rejected.values() if rejection.kind in kinds]
    if spoiled and ready + len(spoiled) >= count and not registry.asked:
        raise PotluckError(spoiled[0])


def _too_few(registry: NodeRegistry, ready: int, count: int, wait: float) -> str:
    first = next((rejection.why for rejection in registry.rejected.values()), "")
    return (
        f"{ready} of {count} nodes answered within engine.wait = {wait:g} seconds; start the "
        f"others (potluck node start) or raise engine.wait.{' One was left out: ' if first else ''}{first}"
    )


def wait_for_returning_nodes(
    registry: NodeRegistry,
    registrations: Sequence[Registration],
    wait: float,
    least: int,
    *,
    enough: int = 0,
) -> None:
    """Wait for the nodes that a run began with. When `wait` is over it goes on without those that are not back.

    With `enough` nodes (0: all) it goes on `START_GRACE` seconds after the latest came. The others stay its clients:
    their jobs are lost, and a node that comes back under its name takes part again.
    """
    registry.begin(registrations, missing=True)
    latest = time.monotonic()
    ends, before = latest + wait, len(registrations)
    while True:
        registry.poll()
        missing, now = registry.missing(), time.monotonic()
        if not missing:
            return
        latest, before = (now if len(missing) < before else latest), len(missing)
        settled = enough and len(registrations) - len(missing) >= enough and now - latest > START_GRACE
        if now > ends or settled:
            break
        registry.pause()
    if len(registrations) - len(missing) < max(1, least):
        first = next((f" {rejection.why}" for rejection in registry.rejected.values()), "")
        back = len(registrations) - len(missing)
        raise PotluckError(
            f"{back} of this run's {len(registrations)} nodes were back within engine.wait = {wait:g} seconds; start "
            f"{', '.join(map(repr, missing[:5]))} (potluck node start) or raise engine.wait.{first}"
        )
    log.warning("The run goes on without %s.", ", ".join(map(repr, missing)))


class PartitionNodes:
    """Nodes with parts of a data set that the experiment names: everything about them is known here."""

    def __init__(self, task: Task) -> None:
        self.registrations = [
            Registration.of(info, task.architectures[info.architecture], task.input_shape)
            for info in task.clients
        ]
        self._by_name = {registration.name: registration for registration in self.registrations}

    def check(self, registration: Registration) -> None:
        """Refuse who is none of the experiment's clients, or is not what that client is."""
        expected = self._by_name.get(registration.name)
        if expected is None:
            raise PotluckError(f"Node {registration.name!r} is none of the experiment's clients.")
        for field in fields(Registration):
            if getattr(registration, field.name) != getattr(expected, field.name):
                raise PotluckError(
                    f"Node {registration.name!r} has another {field.name} than the experiment gives it; install the "
                    "same Potluck and the same data everywhere."
                )


@dataclass(frozen=True)
class OwnDataNodes:
    """Nodes with data and models of their own: they must fit the experiment, and each other."""

    experiment: Experiment
    method: Method[Any, Any, Any]

    def check(self, registration: Registration) -> None:
        """Refuse what contradicts the experiment, or itself."""
        for problem in self._problems(registration):
            raise PotluckError(f"Node {registration.name!r} {problem}.")

    def _problems(self, registration: Registration) -> Sequence[str]:
        classes, precision = agreed_classes(self.experiment), self.experiment.models.precision
        kinds = {registration.tensors[name][0] for name in registration.parameters} - {precision}
        problems = []
        if kinds:
            problems.append(f"has parameters of type {min(kinds)}, and models.precision = {precision!r}")
        if set(registration.head) <= {
            "weight",
            "bias",
        }:  # with several last layers it is unknown which gives the scores
            scores = {shape[0] for shape in registration.head.values() if shape}
            if scores - {classes}:
                problems.append(
                    f"has a model for {min(scores - {classes})} classes, and engine.classes = {classes}"
                )
            weight = registration.head.get("weight", [])
            if len(weight) == 2 and weight[1] != registration.feature_dim:
                problems.append(
                    f"has a head for {weight[1]} features, and says that it has {registration.feature_dim}"
                )
        return problems

    def find_incompatible(self, registrations: Sequence[Registration]) -> Mapping[str, str]:
        """Return who keeps the others from starting: more than half of the nodes agree, and this one does not.

        Where no such half is, the sentence of what they disagree about is raised.
        """
        shapes = Counter(tuple(registration.input_shape) for registration in registrations)
        ((most_common, count),) = shapes.most_common(1) or [((), 0)]
        if 2 * count <= len(registrations):
            return {}  # no majority: the sentence comes with the federation
        odd = {
            registration.name: f"Node {registration.name!r} has rows of shape {tuple(registration.input_shape)}, "
            f"the others {most_common}."
            for registration in registrations
            if tuple(registration.input_shape) != most_common
        }
        public = public_data(self.experiment, self.method)
        return odd | self._of_other_kind(
            [registration for registration in registrations if registration.name not in odd], public
        )

    def _of_other_kind(self, registrations: Sequence[Registration], public: Samples | None) -> dict[str, str]:
        """Return those whose models the method cannot bring together with most others'."""
        if self._problem(registrations, public) is None:
            return {}
        kinds: list[Registration] = []
        for registration in registrations:
            if not any(registration.model() == other.model() for other in kinds):
                kinds.append(registration)
        best: list[Registration] = []
        for kind in kinds:
            fit = [other for other in kinds if self._problem([kind, other], public) is None]
            group = [
                registration
                for registration in registrations
                if any(registration.model() == other.model() for other in fit)
            ]
            if len(group) > len(best) and self._problem(group, public) is None:
                best = group
        if 2 * len(best) <= len(registrations):
            return {}
        unfit = [registration for registration in registrations if registration not in best]
        return {registration.name: self._sentence(best[0], registration, public) for registration in unfit}

    def _sentence(self, other: Registration, registration: Registration, public: Samples | None) -> str:
        problem = self._problem([other, registration], public) or "its model does not fit"
        return f"Node {registration.name!r} does not fit the others: {re.sub(r'client [0-9]+ ', 'its model ', problem)}"

    def _problem(self, registrations: Sequence[Registration], public: Samples | None) -> str | None:
        """Why the method cannot begin with these nodes; whatever shapes somebody claims, that is a sentence."""
        try:
            task = server_task(self.experiment, registrations, public)
            check_needs(self.method, task)
            uses_initial_weights(self.method, task, self.experiment.schedule.rounds)
        except PotluckError as error:
            return str(error)
        except Exception as error:  # a method works with claimed shapes before anything was sent
            return f"{type(self.method).__name__} cannot begin with it ({type(error).__name__})."
        return None


def _wait_for_own_nodes(
    registry: NodeRegistry,
    experiment: Experiment,
    find_incompatible: IncompatibleNodes = lambda registrations: {},
) -> None:
    """Wait for all nodes; more than half of them are enough where the others came and cannot take part."""
    settings, schedule = experiment.engine, experiment.schedule
    if settings.min_nodes > settings.nodes:
        raise PotluckError(
            f"engine.min_nodes = {settings.min_nodes} is above engine.nodes = {settings.nodes}; lower it."
        )
    wait_for_nodes(
        registry,
        settings.nodes,
        settings.wait,
        least=settings.min_nodes or min(settings.nodes, max(settings.nodes // 2 + 1, schedule.min_clients)),
        all_must_come=not settings.min_nodes,
        stop=schedule.on_failure == "stop",
        find_incompatible=find_incompatible,
    )


@dataclass
class StartedRun(Callback):
    """A run whose clients are found. As a callback it writes down who they are, when the run's folder is there."""

    registry: NodeRegistry
    plan: RunPlan
    out: Path
    weights: InitialWeights | None = None

    def on_start(self, loop: Loop) -> None:
        """Nodes with data of their own are known from here on; those of a dealt data set the experiment knows."""
        if self.weights is not None:
            NodeList(
                self.registry.registrations, [rejection.why for rejection in self.registry.rejected.values()]
            ).write(self.out)
            self.weights.write()


def start(
    grid: Grid | RetryingGrid,
    experiment: Experiment,
    method: Method[Any, Any, Any],
    out: Path,
    *,
    resume: bool,
    **timing: Any,
) -> StartedRun:
    """Find the clients, and bring everything together."""
    limit = int(experiment.schedule.max_payload_mb * MEGABYTE)
    uploads = UploadLimits(experiment.engine.upload_grace, 1000 * experiment.engine.upload_rate)
    if not experiment.engine.nodes:
        registry = NodeRegistry(grid, _assignment(experiment, out), limit, uploads=uploads, **timing)
        return _with_dealt_data(registry, experiment, method, out, resume)
    if not experiment.engine.classes and not experiment.data.class_names:
        names = _recorded_class_names(out) if resume else ()
        if not names:
            class_registry = ClassNameRegistry(
                grid, _assignment(experiment, out), limit, uploads=uploads, **timing
            )
            names = unite_class_names(class_registry, experiment)
        experiment = experiment.with_settings({"data.class_names": names})
    registry = NodeRegistry(grid, _assignment(experiment, out), limit, uploads=uploads, **timing)
    return _with_own_data(registry, experiment, method, out, resume)


def _assignment(experiment: Experiment, out: Path) -> Assignment:
    text = json.dumps(experiment.model_dump(mode="json", exclude_none=True))
    return Assignment(text, "", str(out / "nodes"))


def _recorded_class_names(out: Path) -> tuple[str, ...]:
    """Return the names that a run began with, so that it goes on with the same numbers."""
    if not (out / EXPERIMENT).exists():
        return ()
    return parse_experiment(read_experiment(out / EXPERIMENT)).data.class_names


def unite_class_names(registry: ClassNameRegistry, experiment: Experiment) -> tuple[str, ...]:
    """Ask all nodes for the names of their classes, and return all names in one order."""
    _wait_for_own_nodes(registry, experiment)
    named = [names for names in registry.collected if names.classes]
    unnamed = [names.name for names in registry.collected if names.classes == []]
    if named and unnamed:
        raise PotluckError(
            f"The labels of node {unnamed[0]!r} have no names, those of node {named[0].name!r} have "
            f"({list_names(named[0].classes or [])}); list the names of labels 0, 1, … as data.class_names in the "
            "node.toml of the first."
        )
    if not named:
        reason = "no node has names of classes" if unnamed else "policy.class_names = false on every node"
        raise PotluckError(
            f"engine.classes is not set, and {reason}; say how many classes the nodes' labels have together, or list "
            "their names in data.class_names."
        )
    return sort_names(name for names in named for name in names.classes or ())


def _with_dealt_data(
    registry: NodeRegistry, experiment: Experiment, method: Method[Any, Any, Any], out: Path, resume: bool
) -> StartedRun:
    """Start a run on partitions: all clients must register once; after that it goes on without those that are gone."""
    plan = resolve(experiment, recorded=recorded_engine(out))
    terms, wait = PartitionNodes(plan.federation.task), experiment.engine.wait
    registry.check = terms.check
    if resume:
        wait_for_returning_nodes(registry, terms.registrations, wait, experiment.schedule.min_clients)
    else:
        wait_for_nodes(registry, len(terms.registrations), wait)
    return StartedRun(registry, plan, out)


def _with_own_data(
    registry: NodeRegistry, experiment: Experiment, method: Method[Any, Any, Any], out: Path, resume: bool
) -> StartedRun:
    """More than half of the nodes are enough, where the others came and contradict them."""
    settings, schedule, terms = experiment.engine, experiment.schedule, OwnDataNodes(experiment, method)
    agreed_classes(experiment)
    registry.check = terms.check
    stored = NodeList.read(out, registry.limit) if resume else None
    if stored is not None:
        wait_for_returning_nodes(
            registry, stored.clients, settings.wait, schedule.min_clients, enough=settings.min_nodes
        )
    else:
        _wait_for_own_nodes(registry, experiment, terms.find_incompatible)
    weights = InitialWeights(out, lambda client: registry.initial_weights(client, settings.wait))
    federation = server_federation(experiment, method, registry.registrations, weights)
    plan = resolve(experiment, Parts(nodes=federation), recorded=recorded_engine(out))
    return StartedRun(registry, plan, out, weights)
