"""What is refused before anything is written or trained: settings that do not go together, or could not act."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any

from torch import nn

from potluck.core import Need
from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.experiment import Experiment
from potluck.federation.federation import Federation
from potluck.loop import attack
from potluck.loop.attack.answers import fields_of
from potluck.methods import METHODS, method_class


def check_schedule(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Refuse what only whole rounds have in a schedule without them, and methods that need them."""
    schedule = experiment.schedule
    if not schedule.synchronous and (reason := method.whole_rounds()):
        raise PotluckError(
            f"schedule.mode = {schedule.mode!r} makes no sense here: {type(method).__name__} {reason}; "
            "set schedule.mode = 'sync', and neither schedule.buffer nor schedule.concurrency."
        )
    if not schedule.synchronous and (schedule.deadline or schedule.over_select > 1):
        raise PotluckError(
            "schedule.deadline and schedule.over_select need whole rounds: set schedule.mode = 'sync', and neither "
            "schedule.buffer nor schedule.concurrency."
        )


def check_order(experiment: Experiment, federation: Federation) -> None:
    """Refuse a list of whom to ask that names no such client, or does not make whole rounds."""
    schedule, clients = experiment.schedule, federation.task.clients
    able = {info.index for info in clients if info.samples > 0}
    wanted = schedule.asked(len(able)) if schedule.synchronous else 1
    for entry in schedule.order:
        if odd := [index for index in entry if index not in able]:
            raise PotluckError(f"schedule.order names client {odd[0]}; clients with data are {_range(able)}.")
        if (
            len(set(entry)) != len(entry)
            or len(entry) < wanted
            or (schedule.synchronous and len(entry) > wanted)
        ):
            raise PotluckError(
                f"schedule.order has the entry {list(entry)}; each must name {wanted} different clients, or change "
                "schedule.participation."
            )
    if schedule.order and not schedule.synchronous and any(len(entry) != 1 for entry in schedule.order):
        raise PotluckError(
            "schedule.order of an asynchronous run names one client per entry, such as [[0], [2], [1]]."
        )


def _range(numbers: set[int]) -> str:
    ordered = sorted(numbers)
    whole = ordered == list(range(ordered[0], ordered[-1] + 1))
    return f"{ordered[0]} to {ordered[-1]}" if whole else ", ".join(map(str, ordered))


def check_averaging(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Refuse a robust rule where the method takes no average that it could act on."""
    rule = experiment.schedule.robust
    if rule != "mean" and not method.averaged():
        raise PotluckError(
            f"schedule.robust = {rule!r} cannot act: {type(method).__name__} {method.no_average}; "
            "leave it out, or choose a method that averages."
        )
    if experiment.schedule.averaging.weighs and not method.compares:
        raise PotluckError(
            f"schedule.robust = {rule!r} cannot act: answers of {type(method).__name__} differ in form and cannot be "
            "compared as wholes; use median, trimmed-mean or norm-clip."
        )
    share = experiment.schedule.max_share
    if share < 1 and not (method.averaged() and method.weighted()):
        raise PotluckError(
            f"schedule.max_share = {share:g} cannot act: {type(method).__name__} takes no average in which clients "
            "count by their samples; leave it out, or set method.weight = 'samples' where there is such a setting."
        )


_ACTS_ON = {
    "logit-shuffle": "logits (fd, fedhe, fedmd, fedl2g-l)",
    "prototype-swap": "a vector for each class (fedgh, fedproto, fedtgp, fd, fedhe, fedl2g)",
}


def check_attack(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Refuse an attack on what the method's clients do not send."""
    kind = experiment.attack.kind
    if not fields_of(kind, payload_types(method)[1]):
        wanted = _ACTS_ON.get(kind, "real numbers")
        raise PotluckError(
            f"attack.kind = {kind!r} cannot act: clients of {type(method).__name__} do not send {wanted}; choose "
            "another kind or another method."
        )


def drawn_attackers(
    experiment: Experiment, federation: Federation, absent: Collection[int]
) -> attack.Attackers:
    """Who attacks. An attack that nobody can be made to do, or that needs pictures where there are none, is refused."""
    if "nodes" in (experiment.objects or ()):
        raise PotluckError(
            f"attack.kind = {experiment.attack.kind!r} cannot act: a server cannot make nodes with data of their own "
            "malicious; use dealt data (engine.nodes = 0)."
        )
    attackers = attack.draw(experiment.attack, federation.task, absent)
    shape = federation.task.input_shape
    if experiment.attack.kind == "backdoor" and (
        len(shape) != 3 or not federation.example().is_floating_point()
    ):
        raise PotluckError(
            "attack.kind = 'backdoor' puts a trigger on pictures, and samples here have the shape "
            f"{' × '.join(map(str, shape))}; choose another kind, such as label-flip."
        )
    return attackers


def check_records(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> None:
    """Refuse to promise something of single rows where the method or a model looks at them in other ways."""
    if not experiment.privacy.of_records:
        return
    if not method.guarded():
        known = [name for name in METHODS if method_class(name).guards_rows]
        remedy = f"set {method.guarded_with}, or use" if method.guarded_with else "use"
        raise PotluckError(
            f"privacy.unit = 'record' is not there for {type(method).__name__} with these settings: clients look at "
            f"rows outside of plain training and class means; {remedy} one of {', '.join(known)}."
        )
    for name, build in _networks(method, federation):
        if unfit := _unfit_layers(build()):
            raise PotluckError(
                f"privacy.unit = 'record' needs every row's own gradient, which {', '.join(unfit)} of {name!r} cannot "
                "give; choose models without, such as small-mlp, small-cnn and small-wide."
            )


def _networks(
    method: Method[Any, Any, Any], federation: Federation
) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """What clients train: their own networks, and the shared small one where the method has one."""
    for name, architecture in federation.task.architectures.items():
        if architecture.build is not None:
            yield name, architecture.build
    if Need.SHARED_MODEL in method.requires():
        yield "the shared small model", federation.task.shared_model


def _unfit_layers(model: nn.Module) -> list[str]:
    """The layers that Opacus cannot do justice to, by name and kind."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.validators import ModuleValidator

        return [
            f"{name} ({type(layer).__name__})"
            for name, layer in model.named_modules()
            if not list(layer.children()) and ModuleValidator.validate(layer, strict=False)
        ]


def inert_harms(experiment: Experiment) -> Iterator[tuple[str, str]]:
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
    if experiment.attack.kind == "none":
        for key in ("share", "strength"):
            yield (
                f"attack.{key}",
                "attack.kind is 'none', so nobody attacks; set it, for instance to sign-flip",
            )
