"""Resolve an experiment: from settings and Python objects to the immutable plan of a run, in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.core.mixed_precision import check_mixed_precision
from potluck.core.needs import check_needs
from potluck.core.supports import holds, settings_for
from potluck.core.trained import parse_rules
from potluck.data import Data
from potluck.experiment import Experiment
from potluck.experiment.checks import no_effect
from potluck.experiment.differences import is_default
from potluck.experiment.objects import apply_objects, changed_settings, check_objects
from potluck.experiment.sections import PartitionSettings
from potluck.federation.federation import Federation
from potluck.federation.population import build_federation, default_models, experiment_data
from potluck.loop import newcomers
from potluck.methods.standalone import Standalone
from potluck.models.pretrained import is_pretrained
from potluck.privacy.accounting import check_privacy
from potluck.runs.checks import (
    check_excluded,
    check_order,
    check_records,
    check_schedule,
    check_secure_sums,
    check_sum_sizes,
    draw_attackers,
)
from potluck.runs.engine import choose_engine
from potluck.runs.plan import Parts, RunPlan


def resolve(
    experiment: Experiment,
    parts: Parts = Parts(),
    *,
    asked: Mapping[str, Any] | None = None,
    recorded: Mapping[str, Any] | None = None,
    measure: bool = True,
) -> RunPlan:
    """Decide and check everything about a run; nothing is written or trained, and nothing changes afterwards.

    `asked` are the settings that a user gave together with `parts`, by dotted names: they may not contradict the
    objects, which determine the other settings. Without `asked`, the experiment is taken as recorded. `recorded` is
    the `engine` section of a run that is resumed: what it measured is kept. Without `measure`, settings that need a
    measurement stay `auto`.
    """
    # 1. Python objects determine some settings.
    if asked is not None or parts.nodes is not None:
        asked = changed_settings(experiment) if asked is None else asked
        experiment = apply_objects(experiment, asked, parts.facts())
    elif experiment.objects:
        check_objects(experiment, parts.given())
    # 2. The method, and settings that depend on it.
    method = parts.method or experiment.build_method()
    experiment = choose_settings(experiment, method)
    # 3. The population: data, partition, models.
    federation = parts.federation if parts.federation is not None else parts.nodes
    if federation is None:
        data = parts.data or experiment_data(experiment)
        experiment = choose_models(choose_partition(experiment, data), method, data)
        federation = build_federation(
            experiment, method, data=data, models=parts.models, partition=parts.partition
        )
    check_population(experiment, method, federation)
    # 4. What is drawn once, for the loop, for workers and for the record.
    absent = (
        newcomers.draw_newcomers(experiment.evaluate, federation.task)
        if experiment.evaluate.newcomers
        else {}
    )
    attackers = draw_attackers(experiment, federation, absent) if experiment.uses("attack") else None
    joining = {index: info for index, info in absent.items() if index not in experiment.schedule.exclude}
    # 5. The engine: configured, recorded or measured; and what evaluation selects by.
    plan = RunPlan(experiment, method, federation, joining, attackers, parts)
    engine = choose_engine(plan, recorded or {}, measure=measure)
    decisions = {"evaluate.select": choose_selection(experiment, federation), **engine}
    return replace(
        plan,
        experiment=experiment.with_settings(decisions),
        federation=federation.with_channels_last(engine["engine.channels_last"]),
    )


def choose_settings(experiment: Experiment, method: Method[Any, Any, Any]) -> Experiment:
    """Return the experiment with the settings of its method, its mode and its attack's strength; check them."""
    experiment = experiment.with_method_settings(method, experiment.method.name)
    if experiment.schedule.mode == "auto":
        experiment = experiment.with_settings({"schedule.mode": method.supports.schedule})
    check_effects(experiment, method)
    if not experiment.schedule.synchronous:
        check_schedule(experiment, method)
    method.check_training(experiment.training)
    if experiment.uses("attack") and experiment.attack.strength is None:
        experiment = experiment.with_settings({"attack.strength": experiment.attack.effective_strength})
    if experiment.uses("privacy"):
        check_privacy(experiment.privacy)
        if experiment.privacy.secure_sums:
            check_secure_sums(experiment, method)
    return experiment


def choose_partition(experiment: Experiment, data: Data) -> Experiment:
    """Make each named group of rows (a site, a value of `data.groups`) a client, unless another rule is set."""
    default, rule = PartitionSettings(), experiment.partition.rule
    if data.groups is None or not data.group_names or rule not in (default.rule, "natural"):
        return experiment
    groups, clients = int((torch.bincount(data.groups) > 0).sum()), experiment.partition.clients
    if rule == "natural" and clients != default.clients:
        return experiment
    if clients not in (default.clients, groups):
        raise PotluckError(
            f"partition.clients = {clients}, and data {data.name!r} have {groups} named groups of rows, each of which "
            "is a client; leave it out, or set partition.rule = natural for the first ones."
        )
    return experiment.with_settings({"partition.rule": "natural", "partition.clients": groups})


def choose_models(experiment: Experiment, method: Method[Any, Any, Any], data: Data) -> Experiment:
    """Replace `models.names = auto` by the group of models that suits the method and the data."""
    if experiment.models.names != ("auto",):
        return experiment
    return experiment.with_settings({"models.names": (default_models(method, data),)})


def choose_selection(experiment: Experiment, federation: Federation) -> str:
    """Return what the best round is selected by; `auto`: validation samples if there are any, else test samples."""
    select, available = experiment.evaluate.select, federation.task.has_validation
    if select == "validation" and not available:
        raise PotluckError(
            "evaluate.select = 'validation' needs validation samples, and no client has any; "
            f"{_validation_remedy(experiment)}."
        )
    if select != "auto":
        return select
    return "validation" if available else "test"


def _validation_remedy(experiment: Experiment) -> str:
    remedies = {
        "federation": "give clients some: potluck.Member(..., validation=(x, y))",
        "nodes": "set split = '8:1:1' in the nodes' node.toml",
    }
    remedy = next((remedies[part] for part in experiment.objects or () if part in remedies), None)
    return remedy or "set data.split to three parts, such as 8:1:1"


def check_population(experiment: Experiment, method: Method[Any, Any, Any], federation: Federation) -> None:
    """Check that the population has what the method, the schedule and the evaluation need."""
    check_needs(method, federation.task)
    if experiment.training.amp != "off":
        check_mixed_precision(experiment.training.amp, federation.task.device)
    if experiment.schedule.exclude:
        check_excluded(experiment, federation)
    if experiment.schedule.order:
        check_order(experiment, federation)
    common = {*experiment.evaluate.protocols} & {"shared", "global"}
    if common and federation.shared_test is None:
        raise PotluckError(
            f"evaluate.protocol = {min(common)!r} needs a common test set; give the federation shared_test=(x, y)."
        )
    if experiment.uses("privacy"):
        check_records(experiment, method, federation)
        check_sum_sizes(experiment, method, federation)
    if experiment.uses("safeguard") and not federation.task.has_validation:
        raise PotluckError(
            f"safeguard.mode = {experiment.safeguard.mode!r} needs validation samples, and no client has any; "
            f"{_validation_remedy(experiment)}."
        )


# -- settings without effect: to change one is an error, so that what is recorded is what ran -----------------------

Ineffective = Iterator[tuple[str, str]]
"""Dotted names of settings, each with the reason why it has no effect and a remedy."""


def check_effects(experiment: Experiment, method: Method[Any, Any, Any]) -> None:
    """Raise for the first setting that differs from its default and has no effect."""
    for rules in (_training(experiment), _schedule(experiment, method), _protections(experiment, method),
                  _others(experiment)):  # fmt: skip
        for name, reason in rules:
            value = experiment.value(name)
            if not is_default(name, value):
                raise no_effect(name, value, reason)


def _training(experiment: Experiment) -> Ineffective:
    optimizer = experiment.training.optimizer
    if optimizer == "sgd":
        yield "training.betas", "training.optimizer = 'sgd' has no moments; leave it out"
    else:
        yield "training.momentum", f"training.optimizer = {optimizer!r} has moments of its own; leave it out"
    if not any(rule.form == "lora" for rule in parse_rules(experiment.training.train)):
        yield "training.lora_alpha", "training.train has no adapters; set it, for instance to lora:8"
    if experiment.models.precision == "float64":
        yield (
            "training.amp",
            "models.precision = 'float64' contradicts lower precision; leave one of them out",
        )


def _schedule(experiment: Experiment, method: Method[Any, Any, Any]) -> Ineffective:
    schedule, supports, name = experiment.schedule, method.supports, type(method).__name__
    if not supports.robust:
        yield (
            "schedule.robust",
            f"{name} declares nothing that it acts on (supports.robust); leave it out, or choose another method",
        )
    if schedule.averaging.is_distance_based and not supports.comparable:
        yield (
            "schedule.robust",
            f"updates of {name} differ in shape and cannot be compared; use median, trimmed-mean or norm-clip",
        )
    if schedule.robust not in ("mean", "norm-clip"):
        yield (
            "schedule.max_share",
            f"schedule.robust = {schedule.robust!r} does not weight by samples; leave it out",
        )
    if schedule.max_share < 1 and not holds(supports.max_share, method):
        settings = settings_for(supports.max_share)
        yield (
            "schedule.max_share",
            f"{name} takes no average in which clients count by their samples; leave it out"
            f"{f', or set {settings}' if settings else ''}",
        )
    if schedule.robust not in ("trimmed-mean", "krum"):
        yield (
            "schedule.attackers",
            f"schedule.robust = {schedule.robust!r} assumes no share of attackers; leave it out",
        )
    if schedule.synchronous and schedule.mode != "auto":
        yield "schedule.staleness_power", "no update is stale in a synchronous schedule; leave it out"
        yield (
            "schedule.lead",
            "synchronous rounds draw clients uniformly; set schedule.mode = 'async', or leave it out",
        )
    if schedule.order:
        yield "schedule.lead", "schedule.order lists the clients; leave one of them out"


def _protections(experiment: Experiment, method: Method[Any, Any, Any]) -> Ineffective:
    """Yield settings of privacy, attacks and safeguards; nothing is looked at where neither is used."""
    if experiment.uses("privacy"):
        yield from _privacy(experiment, method)
    if experiment.uses("attack"):
        yield from _attack(experiment, method)
    if experiment.uses("safeguard"):
        yield from _safeguard(experiment, method)


def _privacy(experiment: Experiment, method: Method[Any, Any, Any]) -> Ineffective:
    from potluck.privacy.classes import reveals_classes

    privacy = experiment.privacy
    yield (
        "evaluate.gradient_norm",
        "with privacy it is not sent, because it is computed from training samples without noise; leave it out",
    )
    if not privacy.secure_sums:
        for key in ("sum_clients", "sum_threshold", "sum_bytes", "sum_range"):
            yield f"privacy.{key}", "privacy.secure_sums is false, so nothing is masked; set it to true"
    if not privacy.clip:
        yield "privacy.noise_multiplier", "it is in units of privacy.clip; set that, for instance to 1.0"
        yield "privacy.delta", "privacy.clip is 0, so no privacy loss is computed; leave it out"
        yield "privacy.reproducible", "privacy.clip is 0, so there is no noise; leave it out"
        yield "privacy.unit", "privacy.clip is 0, so nothing is protected; set it, for instance to 1.0"
    if not privacy.protects_records:
        yield "privacy.vector_clip", "privacy.unit is not 'record'; answers are clipped by privacy.clip"
    else:
        yield (
            "privacy.hide_classes",
            "with privacy.unit = 'record' answers hold only classes of a large noisy count",
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
            "privacy.scores is false, so scores of newcomers are not sent; leave it out",
        )
    if not reveals_classes(payload_types(method)[1]):
        yield (
            "privacy.hide_classes",
            f"{type(method).__name__} sends neither class ids nor counts; leave it out",
        )


def _safeguard(experiment: Experiment, method: Method[Any, Any, Any]) -> Ineffective:
    mode = experiment.safeguard.mode
    if mode != "select":
        yield "safeguard.level", f"safeguard.mode is {mode!r}; set it to 'select', or leave it out"
    if mode != "ensemble":
        yield "safeguard.prior", f"safeguard.mode is {mode!r}; set it to 'ensemble', or leave it out"
    if isinstance(method, Standalone):
        yield "safeguard.mode", "clients of Standalone train alone anyway; leave it out"
    if experiment.evaluate.protocol == "global":
        yield (
            "safeguard.mode",
            "evaluate.protocol = 'global' tests the server's model, which no client chooses; use local or received",
        )


_ATTACKED = {
    "logit-shuffle": "logits (fd, fedhe, fedmd, fedl2g-l)",
    "prototype-swap": "a vector for each class (fedgh, fedproto, fedtgp, fd, fedhe, fedl2g)",
}


def _attack(experiment: Experiment, method: Method[Any, Any, Any]) -> Ineffective:
    from potluck.attacks.answers import attacked_fields

    kind = experiment.attack.kind
    if kind == "none":
        for key in ("share", "strength"):
            yield (
                f"attack.{key}",
                "attack.kind is 'none', so there is no attack; set it, for instance to sign-flip",
            )
    elif not attacked_fields(kind, payload_types(method)[1]):
        yield (
            "attack.kind",
            f"clients of {type(method).__name__} do not send {_ATTACKED.get(kind, 'real numbers')}; choose another "
            "kind or another method",
        )


_FLOWER_SETTINGS = (
    *("nodes", "min_nodes", "classes", "wait", "lost_after", "upload_grace", "upload_rate", "cooldown"),
    *("server", "ca", "simulation"),
)


def _others(experiment: Experiment) -> Ineffective:
    if not experiment.evaluate.newcomers:
        yield (
            "evaluate.newcomer_epochs",
            "evaluate.newcomers is 0, so no client joins; set it, for instance to 0.2",
        )
    if not experiment.faults.slow:
        yield "faults.slow_factor", "faults.slow is 0, so no job is slow; leave it out"
    if not experiment.models.feature_dim:
        yield "models.projection", "models.feature_dim is not set, so nothing is projected; leave it out"
    names = experiment.models.names
    used = [name.partition("+")[0] for name in (*names, experiment.models.shared or "")]
    if names != ("auto",) and not any(map(is_pretrained, used)):
        for key in ("pretrained", "image_size"):
            yield f"models.{key}", f"no model of {', '.join(names)} is a pretrained network; leave it out"
    if not experiment.devices.fleet:
        yield "devices.assign", "there are no devices; set devices.fleet, such as phones"
    if experiment.engine.name == "flower" and not experiment.engine.nodes:
        yield (
            "engine.min_nodes",
            "engine.nodes is 0, and data sets are dealt to all clients; set engine.nodes",
        )
    if experiment.engine.name == "flower":
        yield "engine.vectorize", "with engine.name = 'flower' every client trains by itself; leave it out"
    if experiment.engine.name not in ("flower", "auto"):
        for key in _FLOWER_SETTINGS:
            yield f"engine.{key}", f"engine.name is {experiment.engine.name!r}; set it to 'flower'"
        yield (
            "schedule.patience",
            f"engine.name is {experiment.engine.name!r}, which has no nodes; leave it out",
        )
