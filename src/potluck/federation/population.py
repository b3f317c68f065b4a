"""An experiment's population: load the data, deal them, give every client its model."""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.model import ClientModel, without_initialization
from potluck.core.needs import Need
from potluck.core.random import seeded
from potluck.core.task import ClientInfo
from potluck.core.trained import TrainRule, architecture_name, model_name, pair_models
from potluck.data import Data, Partition, load_data
from potluck.data.augment import augmentation
from potluck.data.classes import with_class_names
from potluck.data.load import data_root
from potluck.data.raw import TextInput
from potluck.data.targets import check_classes
from potluck.experiment import Experiment
from potluck.federation.allocation import Allocation, allocate
from potluck.federation.devices import COPIES, Device, assign_by_memory, fleet
from potluck.federation.features import FeatureCache, can_be_cached, table_backbone
from potluck.federation.federation import (
    Builder,
    DataFacts,
    Federation,
    LazySequence,
    Member,
    as_client_model,
    assemble,
)
from potluck.models import assign, build_model, count_parameters, network_name, resolve_models, smallest
from potluck.models.inputs import InputFacts
from potluck.models.lora import apply_rule
from potluck.models.pretrained import is_pretrained
from potluck.models.registry import parse_name

_log = logging.getLogger("potluck")

ModelSource = str | nn.Module | Callable[[], nn.Module]


def build_federation(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    *,
    data: Data | None = None,
    models: Sequence[ModelSource] | None = None,
    partition: Partition | None = None,
) -> Federation:
    """Return the federation that an experiment describes; data, models and partition may be the user's own objects."""
    data = _limited(experiment, data or experiment_data(experiment))
    dtype = getattr(torch, experiment.models.precision)
    device = resolve_devices(experiment.engine.device)[0]
    data = data.to_dtype(dtype)
    dealt = allocate(experiment, method, data, device, partition)
    clients = len(dealt.shares)
    devices = fleet(experiment.devices.fleet, clients, experiment.seed) if experiment.devices.fleet else []
    builders, rules, names = _architectures(experiment, data, models, clients, devices)
    if models is None and caches_features(experiment, method, builders, rules):
        dealt, builders = _with_tables(experiment, data, dealt, builders, names, device)
    kinds = [device.kind for device in devices] or ["default"] * clients
    infos = tuple(
        ClientInfo(index, dealt.names[index], samples, names[index], kinds[index], validation)
        for index, (samples, validation) in enumerate(dealt.sizes)
    )
    federation = assemble(
        LazySequence(clients, functools.partial(_member, experiment, dealt, builders, infos)),
        DataFacts.of(data, data.name),
        training=experiment.training,
        seed=experiment.seed,
        builders=builders,
        shared_builder=_shared_builder(experiment, method, data, builders),
        shared_test=dealt.shared_test,
        public=dealt.public,
        augment=augmentation(experiment.data.augment) if experiment.data.augment else None,
        dtype=dtype,
        device=device,
        devices=devices,
        infos=infos,
        train_rules=rules,
    )
    return replace(federation, partition_arrays=dealt.partition_arrays)


def _limited(experiment: Experiment, data: Data) -> Data:
    """Return the rows that the experiment uses, with its names of classes."""
    if experiment.data.class_names:
        data = with_class_names(data, experiment.data.class_names, f"Data {data.name!r}")
    check_classes(data)
    return data.limit(experiment.data.limit, experiment.seed) if experiment.data.limit else data


def _member(
    experiment: Experiment,
    dealt: Allocation,
    builders: Mapping[str, Builder],
    infos: Sequence[ClientInfo],
    index: int,
) -> Member:
    """Return a client, made when it is asked for."""
    info, (train, validation, test) = infos[index], dealt.shares[index]
    return Member(
        initial_model_builder(builders[info.architecture], experiment, info.architecture, info.name),
        train,
        test,
        info.name,
        validation=validation,
        architecture=info.architecture,
        device=info.device,
    )


def experiment_data(experiment: Experiment) -> Data:
    """Return the data set that an experiment names."""
    settings = experiment.data
    data = load_data(
        settings.name,
        settings.root,
        label=settings.label,
        groups=settings.groups,
        image_size=settings.image_size,
        text=settings.text,
        class_names=settings.class_names,
        missing=settings.missing,
    )
    return data if settings.normalise == "own" else data.normalised(settings.normalise)


def default_models(method: Method[Any, Any, Any], data: Data) -> str:
    """Return the group that `auto` stands for: nested where the method needs it, else by the kind of data."""
    needs = method.requires()
    if Need.NESTED_WIDTH in needs:
        return "width5"
    if needs & {Need.NESTED_DEPTH, Need.STAGES}:
        return "nested5"
    if data.vocabulary is not None:
        return "text3"
    return {3: "small5", 2: "har3"}.get(len(data.input_shape), "mlp3")


def device_names(text: str) -> list[str]:
    """Return the devices that a setting lists: `cuda:0,cuda:1`."""
    return [name.strip() for name in text.split(",")]


def resolve_devices(text: str) -> list[torch.device]:
    """Return the torch devices that a setting lists, all of one kind; the first is the server's too."""
    devices = [resolve_device(name) for name in device_names(text)]
    if len(set(devices)) < len(devices) or len({device.type for device in devices}) > 1:
        raise PotluckError(
            f"engine.device = {text!r} must list different devices of one kind, such as cuda:0,cuda:1."
        )
    if len(devices) > 1 and devices[0].type == "cpu":
        raise PotluckError(f"engine.device = {text!r}: there is one CPU; set engine.workers instead.")
    return devices


def resolve_device(name: str) -> torch.device:
    """Return the torch device of this name, or a sentence that it is not there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise PotluckError(f"engine.device = {name!r} is not available here; use cpu.") from None
    return device


# -- frozen networks --------------------------------------------------------------------------------------


def caches_features(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    architectures: Mapping[str, Builder],
    rules: Mapping[str, TrainRule],
) -> bool:
    """Return whether clients read stored features: nothing below the heads is trained, and nothing else sees inputs."""
    needs = {Need.SHARED_MODEL, Need.SHARED_FEATURES, Need.SMALLER_FEATURES}
    if not experiment.models.cache or experiment.data.augment or needs & method.requires():
        return False
    used = {name: rules[name] for name in architectures}
    return can_be_cached(list(used), used, experiment.models.pretrained)


def _with_tables(
    experiment: Experiment,
    data: Data,
    dealt: Allocation,
    builders: Mapping[str, Builder],
    names: Sequence[str],
    device: torch.device,
) -> tuple[Allocation, dict[str, Builder]]:
    """Return the allocation with numbers for rows, and builders of models that read their features."""
    settings = experiment.models
    plain = experiment.with_settings({"models.feature_dim": None})
    cache = FeatureCache(
        data_root(experiment.data.root),
        settings.pretrained,
        (data.input_shape, input_facts(experiment, data)),
        lambda name: model_builder(name, name, plain, data)(),
        getattr(torch, settings.precision),
        device,
    )
    numbered, tables = cache.number_rows(dealt, names)
    return numbered, {
        name: functools.partial(
            build_model,
            model_name(name),
            data.input_shape,
            data.num_classes,
            settings.feature_dim,
            projection=settings.projection,
            backbone=table_backbone(tables[name], build),
        )
        for name, build in builders.items()
    }


# -- models -----------------------------------------------------------------------------------------------


def _architectures(
    experiment: Experiment,
    data: Data,
    models: Sequence[ModelSource] | None,
    clients: int,
    devices: Sequence[Device],
) -> tuple[dict[str, Builder], dict[str, TrainRule], list[str]]:
    """Return a builder and a rule per architecture; each client's architecture, in turn or by its device's memory."""
    sources: Sequence[ModelSource] = models if models is not None else resolve_models(experiment.models.names)
    labels = _labels(sources)
    pairs = pair_models(labels, experiment.training.train)
    by_label = dict(zip(labels, sources, strict=True))
    named, rules = dict[str, Builder](), dict[str, TrainRule]()
    for label, rule in pairs:
        name = architecture_name(label, rule, pairs)
        named[name], rules[name] = model_builder(by_label[label], label, experiment, data), rule
    used = assign(list(named), clients)
    if experiment.devices.assign == "memory":
        if not devices:
            raise PotluckError("devices.assign = 'memory' needs devices; set devices.fleet, such as phones.")
        with without_initialization():
            sizes = {name: _training_size(build(), rules[name], experiment) for name, build in named.items()}
        used = assign_by_memory(sizes, devices)
        if len(named) > 1 and len(set(used)) == 1:
            _log.warning(
                "devices.assign = 'memory' gives every client %s: %s.",
                used[0],
                _why_same(used[0], sizes, devices),
            )
    return {name: build for name, build in named.items() if name in used}, rules, used


def _why_same(name: str, sizes: Mapping[str, int], devices: Sequence[Device]) -> str:
    needed = {each: size * COPIES * 4 / 1e6 for each, size in sizes.items()}
    listed = ", ".join(f"{each} needs {megabytes:.3g} MB" for each, megabytes in needed.items())
    if max(device.memory for device in devices) < 1e6 * min(needed.values()):
        reason = "no device has memory even for this smallest one"
    elif name == min(sizes, key=lambda each: sizes[each]):
        reason = "no device has memory for another"
    else:
        reason = "every device has memory for the largest"
    return f"{reason} ({listed}); state the memory that training may use in a table of devices"


def _labels(sources: Sequence[ModelSource]) -> list[str]:
    """Name each model: own ones by their class, with a number from the second of a class on, and apart from the zoo."""
    labels: list[str] = []
    for source in sources:
        name = source if isinstance(source, str) else network_name(source)
        if not isinstance(source, str):
            base = f"own-{name}" if _in_zoo(name) else name
            number = 1 + sum(label == base or label.startswith(f"{base}-") for label in labels)
            name = base if number == 1 else f"{base}-{number}"
        labels.append(name)
    return labels


def _training_size(model: ClientModel, rule: TrainRule, experiment: Experiment) -> int:
    """Return how many trained parameters take as much memory as the model, of which some are frozen."""
    apply_rule(model, rule, experiment.training, experiment.seed)
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return trained + (count_parameters(model) - trained) // COPIES


def model_builder(source: ModelSource, name: str, experiment: Experiment, data: Data) -> Builder:
    """Return what makes a model for these data: from a zoo name, copies of a module, or a factory of the user's own."""
    if isinstance(source, str):
        return lambda: build_model(
            source,
            data.input_shape,
            data.num_classes,
            experiment.models.feature_dim,
            projection=experiment.models.projection,
            vocabulary=data.vocabulary,
            inputs=input_facts(experiment, data),
            pretrained=experiment.models.pretrained,
        )
    if isinstance(source, nn.Module):
        return lambda: as_client_model(copy.deepcopy(source), name)
    return lambda: as_client_model(source(), name)


def input_facts(experiment: Experiment, data: Data) -> InputFacts:
    """What pretrained networks need to know of the rows of a data set."""
    mean, std = data.normalisation or (None, (1.0,))
    words = data.raw.words if isinstance(data.raw, TextInput) else ()
    return InputFacts(mean, std, words, experiment.models.image_size)


def initial_model_builder(build: Builder, experiment: Experiment, architecture: str, client: str) -> Builder:
    """Return a client's model at its start: weights of its own, or its architecture's with `same_init`."""
    stream = "common" if experiment.models.same_init else client

    def start() -> ClientModel:
        with seeded(experiment.seed, "initial weights", model_name(architecture), stream):
            return build()

    return start


def _shared_builder(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, builders: dict[str, Builder]
) -> Builder | None:
    """Return what makes the shared small model, where there is one."""
    choice = shared_model_choice(
        experiment, method, list(builders), data.input_shape, data.num_classes, data.vocabulary
    )
    if choice is None:
        return None
    name, feature_dim = choice
    return model_builder(name, name, experiment.with_settings({"models.feature_dim": feature_dim}), data)


def shared_model_choice(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    architectures: Sequence[str],
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int | None,
) -> tuple[str, int | None] | None:
    """Return the shared small model (named, or the smallest of the clients') and the size of its features.

    A method whose small model lies inside of the large ones gets it with half of the features. None where all networks
    are pretrained or the user's own and none is named.
    """
    settings = experiment.models
    if settings.shared is not None:
        return settings.shared, settings.feature_dim
    zoo = [name for name in map(model_name, architectures) if _in_zoo(name)]
    if not zoo:
        return None
    name = smallest(zoo, input_shape, num_classes, vocabulary=vocabulary)
    if Need.SMALLER_FEATURES not in method.requires():
        return name, settings.feature_dim
    with without_initialization():
        features = build_model(
            name,
            input_shape,
            num_classes,
            settings.feature_dim,
            projection=settings.projection,
            vocabulary=vocabulary,
        ).feature_dim
    return f"{name.partition('+')[0]}+{max(1, features // 2)}", None


def _in_zoo(name: str) -> bool:
    """Return whether a name is one of the zoo; pretrained networks are not, which are no small models to be sent."""
    parsed = parse_name(name)
    return parsed is not None and not is_pretrained(parsed.base)
