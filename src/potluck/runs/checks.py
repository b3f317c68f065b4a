"""Checks of a run before anything is written or trained: settings that contradict the method or the population."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from potluck import attacks as attack
from potluck.core import Need
from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.supports import holds, settings_for
from potluck.experiment import Experiment
from potluck.experiment.checks import no_effect
from potluck.federation.federation import Federation
from potluck.methods import METHODS, method_class


def check_schedule(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Check that an asynchronous schedule fits the method and uses no setting of synchronous rounds."""
    schedule = experiment.schedule
    if not holds(method.supports.asynchronous, method):
        settings = settings_for(method.supports.asynchronous)
        raise PotluckError(
            f"schedule.mode = {schedule.mode!r} is not supported: {type(method).__name__} needs synchronous rounds"
            f"{f' unless {settings}' if settings else ''}; set schedule.mode = 'sync', and neither schedule.buffer nor "
            "schedule.concurrency."
        )
    if schedule.deadline or schedule.over_select > 1:
        raise PotluckError(
            "schedule.deadline and schedule.over_select need synchronous rounds: set schedule.mode = 'sync', and "
            "neither schedule.buffer nor schedule.concurrency."
        )


def check_excluded(experiment: Experiment, federation: Federation) -> None:
    """Check that `schedule.exclude` names clients, each once, and leaves one with data."""
    excluded, eligible = experiment.schedule.exclude, federation.task.eligible
    last = len(federation.task.clients) - 1
    for index in excluded:
        if not 0 <= index <= last or excluded.count(index) > 1:
            problem = "twice" if 0 <= index <= last else f"and the clients are 0 to {last}"
            raise PotluckError(
                f"schedule.exclude names client {index} {problem}; list numbers of clients once."
            )
    if not set(eligible) - set(excluded):
        raise PotluckError(
            f"schedule.exclude = {list(excluded)} leaves no client with data; leave one out of the list."
        )


def check_order(experiment: Experiment, federation: Federation) -> None:
    """Check that every entry of `schedule.order` names as many existing clients as a round or step needs."""
    schedule, clients = experiment.schedule, federation.task.clients
    eligible = {info.index for info in clients if info.samples > 0} - set(schedule.exclude)
    count = schedule.jobs_per_round(len(eligible)) if schedule.synchronous else 1
    for entry in schedule.order:
        if unknown := [index for index in entry if index not in eligible]:
            raise PotluckError(
                f"schedule.order names client {unknown[0]}; clients with data are {_range(eligible)}."
            )
        if (
            len(set(entry)) != len(entry)
            or len(entry) < count
            or (schedule.synchronous and len(entry) > count)
        ):
            raise PotluckError(
                f"schedule.order has the entry {list(entry)}; each must name {count} different clients, or change "
                "schedule.participation."
            )
    if schedule.order and not schedule.synchronous and any(len(entry) != 1 for entry in schedule.order):
        raise PotluckError(
            "schedule.order of an asynchronous run names one client per entry, such as [[0], [2], [1]]."
        )


def _range(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    contiguous = ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]} to {ordered[-1]}" if contiguous else ", ".join(map(str, ordered))


def draw_attackers(
    experiment: Experiment, federation: Federation, absent: Collection[int]
) -> attack.Attackers:
    """Draw the malicious clients; check that the attack is possible in this federation."""
    if "nodes" in (experiment.objects or ()):
        raise no_effect(
            "attack.kind",
            experiment.attack.kind,
            "nodes with their own data cannot be made malicious by a server; use partitioned data (engine.nodes = 0)",
        )
    attackers = attack.draw_attackers(experiment.attack, federation.task, absent)
    shape = federation.task.input_shape
    if experiment.attack.kind == "backdoor" and (
        len(shape) != 3 or not federation.example().is_floating_point()
    ):
        raise PotluckError(
            "attack.kind = 'backdoor' puts a trigger on images, and samples have the shape "
            f"{' × '.join(map(str, shape))}; choose another kind, such as label-flip."
        )
    return attackers


def check_records(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> None:
    """Check that the method and the models support privacy of single rows."""
    if not experiment.privacy.protects_records:
        return
    if not holds(method.supports.row_privacy, method):
        supporting = [name for name in METHODS if method_class(name).supports.row_privacy]
        settings = settings_for(method.supports.row_privacy)
        remedy = f"set {settings}, or use" if settings else "use"
        raise PotluckError(
            f"privacy.unit = 'record' is not supported by {type(method).__name__} with these settings: clients read "
            f"rows outside of training and class means; {remedy} one of {', '.join(supporting)}."
        )
    for name, build in _networks(method, federation):
        if unsupported := _unsupported_layers(build()):
            raise PotluckError(
                f"privacy.unit = 'record' needs the gradient of every row, which {', '.join(unsupported)} of {name!r} "
                "does not give; choose models without such layers, such as small-mlp, small-cnn and small-wide."
            )


def check_secure_sums(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Check that a sum is all that the server needs under the settings of method and schedule."""
    sums, schedule, name = method.supports.sums, experiment.schedule, type(method).__name__
    if sums is None or not holds(sums.when, method):
        settings = settings_for(sums.when) if sums is not None else ""
        own = experiment.method.name
        supporting = [
            other for other in METHODS if other != own and method_class(other).supports.sums is not None
        ]
        reason = method.supports.single_answers or "its server reads the answers one by one"
        remedy = f"set {settings}, or use" if settings else "use"
        raise PotluckError(
            f"privacy.secure_sums = true hides single answers, and {name} needs them with these settings"
            f"{f': {reason}' if not settings else ''}; {remedy} one of {', '.join(supporting)}."
        )
    if not schedule.synchronous:
        raise PotluckError(
            "privacy.secure_sums = true needs whole rounds: an asynchronous server step takes single answers; set "
            "schedule.mode = 'sync', and neither schedule.buffer nor schedule.concurrency."
        )
    if schedule.robust != "mean" or schedule.max_share < 1:
        field = "robust" if schedule.robust != "mean" else "max_share"
        raise PotluckError(
            f"privacy.secure_sums = true and schedule.{field} = {getattr(schedule, field)!r} exclude each other: a "
            "robust rule compares single answers, which the server does not see; leave one of them out."
        )


def check_sum_sizes(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> None:
    """Check that every sum has enough clients."""
    sums, least = method.supports.sums, experiment.privacy.sum_clients
    if sums is None or not experiment.privacy.secure_sums:
        return
    task = federation.task
    cohort = experiment.schedule.jobs_per_round(len(task.eligible))
    if cohort < least:
        raise PotluckError(
            f"privacy.sum_clients = {least} is more than the {cohort} clients of a round; ask more of them "
            "(schedule.participation), or lower it."
        )
    if sums.per != "architecture":
        return
    for architecture, count in task.eligible_per_architecture.items():
        if count < least:
            raise PotluckError(
                f"privacy.secure_sums needs {least} clients of each architecture (privacy.sum_clients), because "
                f"{type(method).__name__} averages inside them, and {architecture!r} has {count}; use fewer "
                "architectures (models.names), more clients, or a method with one average for all, such as pfedafm."
            )


def _networks(
    method: Method[Any, Any, Any], federation: Federation
) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Yield the networks that clients train: their own, and the shared small model if the method has one."""
    for name, architecture in federation.task.architectures.items():
        if architecture.build is not None:
            yield name, architecture.build
    if Need.SHARED_MODEL in method.requires():
        yield "the shared small model", federation.task.shared_model


def _unsupported_layers(model: nn.Module) -> list[str]:
    """Return the layers that Opacus does not support, by name and kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.validators import ModuleValidator

        return [
            f"{name} ({type(layer).__name__})"
            for name, layer in model.named_modules()
            if not list(layer.children()) and ModuleValidator.validate(layer, strict=False)
        ]
