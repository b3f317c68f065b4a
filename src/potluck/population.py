"""An experiment's population: load the data, deal it out, give every client its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need
from potluck.core.model import ClientModel
from potluck.core.random import derive_seed, seeded
from potluck.core.samples import Samples
from potluck.core.task import CPU
from potluck.core.training import Training
from potluck.data import Data, load_data, match_shares, parse_partition, parse_split, split_client
from potluck.data.augment import augmentation
from potluck.data.public import hold_out, public_samples
from potluck.devices import Device, assign_by_memory, fleet
from potluck.experiment import Experiment
from potluck.federation import Builder, Federation, Participant, assemble
from potluck.models import assign, build_model, count_parameters, resolve_models, smallest

Rows = NDArray[np.int64]
ModelSource = str | nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Dealt:
    """Who holds what: training and test samples per client, and what all may see."""

    train: list[Samples]
    test: list[Samples]
    shared_test: Samples | None
    public: Samples | None


def build_federation(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    *,
    data: Data | None = None,
    models: Sequence[ModelSource] | None = None,
) -> Federation:
    """The federation that an experiment describes; `data` and `models` may be the user's own objects."""
    data = data or experiment_data(experiment)
    settings = experiment.data
    if settings.limit:
        data = data.limit(settings.limit, experiment.seed)
    dtype = getattr(torch, experiment.models.precision)
    device = pick_device(experiment.engine.device)
    data = data.to_dtype(dtype)
    dealt = deal(experiment, method, data, device)
    clients = len(dealt.train)
    devices = fleet(experiment.devices.fleet, clients, experiment.seed) if experiment.devices.fleet else []
    builders, names = _architectures(experiment, data, models, clients, devices)
    training = Training(**experiment.training.model_dump())
    participants = [
        Participant(
            name := f"client-{index}",
            names[index],
            own_start(builders[names[index]], experiment, names[index], name),
            dealt.train[index],
            dealt.test[index],
            devices[index].kind if devices else "default",
        )
        for index in range(clients)
    ]
    return assemble(
        participants,
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        training=training,
        seed=experiment.seed,
        builders=builders,
        shared_builder=_shared_builder(experiment, data, builders),
        shared_test=dealt.shared_test,
        public=dealt.public,
        augment=augmentation(settings.augment) if settings.augment else None,
        dtype=dtype,
        device=device,
        label=data.name,
        devices=devices,
    )


def experiment_data(experiment: Experiment) -> Data:
    """The data set that an experiment names."""
    settings = experiment.data
    data = load_data(
        settings.name,
        settings.root,
        label=settings.label,
        groups=settings.groups,
        image_size=settings.image_size,
    )
    return data if settings.normalise == "own" else data.normalised(settings.normalise)


def suitable_models(method: Method[Any, Any, Any], data: Data) -> str:
    """The group that `auto` stands for: nested where the method needs it, else by the kind of data."""
    needs = method.requires()
    if Need.NESTED_WIDTH in needs:
        return "width5"
    if needs & {Need.NESTED_DEPTH, Need.STAGES}:
        return "nested5"
    if data.vocabulary is not None:
        return "text3"
    return {3: "small5", 2: "har3"}.get(len(data.input_shape), "mlp3")


def pick_device(name: str) -> torch.device:
    """The torch device of this name, or a sentence that it is not there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise PotluckError(f"engine.device = {name!r} is not available here; use cpu.") from None
    return device


# -- data -------------------------------------------------------------------------------------------------


def deal(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, device: torch.device = CPU
) -> Dealt:
    """Hold out what is shared or public, then deal the rest to clients and split each client's part.

    With `pool = "train"` the publisher's test part stays apart: it is the shared test set, and each client's
    own test rows are its fair share of it. Otherwise all rows are dealt and each client's part is split.
    Rows are brought to `device` once, for all clients.
    """
    settings, seed = experiment.data, experiment.seed
    wants_shared = bool({"shared", "global"} & {experiment.evaluate.protocol, *experiment.evaluate.also})
    keep_apart = settings.pool == "train" or (settings.pool == "auto" and wants_shared)
    data = (data if keep_apart else data.merged()).on(device)
    shared_test = data.test
    rows: Rows = np.arange(len(data))
    if wants_shared and shared_test is None:
        held, rows = hold_out(len(data), settings.shared_test, derive_seed("shared test", seed))
        shared_test = data.view(held)
    public, rows = _public(experiment, method, data, rows)
    rule = parse_partition(experiment.partition.rule)
    groups = None if data.groups is None else data.groups.numpy()[rows]
    labels = data.y.numpy()[rows]
    parts = rule.assign(labels, experiment.partition.clients, seed, groups)
    if data.test is not None:
        tests = match_shares(parts, labels, data.test.labels.numpy(), seed)
        train = [data.view(rows[part]) for part in parts]
        return Dealt(train, [data.test_view(test) for test in tests], shared_test, public)
    train, own = [], []
    for index, part in enumerate(parts):
        pieces = split_client(rows[part], parse_split(settings.split), seed=seed, client=f"client-{index}")
        train.append(data.view(pieces[0]))
        own.append(data.view(pieces[-1] if len(pieces) > 1 else pieces[0][:0]))
    return Dealt(train, own, shared_test, public)


def _public(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, rows: Rows
) -> tuple[Samples | None, Rows]:
    choice = experiment.data.public
    if choice == "auto":
        choice = 0.1 if Need.PUBLIC_DATA in method.requires() else 0.0
    if not choice:
        return None, rows
    if isinstance(choice, str):
        return public_samples(data, choice, experiment.seed, experiment.data.root)[0], rows
    held, kept = hold_out(len(rows), choice, experiment.seed)
    return data.view(rows[held]), rows[kept]


# -- models -----------------------------------------------------------------------------------------------


def _architectures(
    experiment: Experiment,
    data: Data,
    models: Sequence[ModelSource] | None,
    clients: int,
    devices: Sequence[Device],
) -> tuple[dict[str, Builder], list[str]]:
    """A builder per architecture, and the architecture of each client: in turn, or by its device's memory."""
    sources: Sequence[ModelSource] = models if models is not None else resolve_models(experiment.models.names)
    named = {}
    for number, source in enumerate(sources):
        name = (
            source
            if isinstance(source, str)
            else f"{number}-{getattr(source, '__name__', type(source).__name__)}"
        )
        named[name] = model_builder(source, name, experiment, data)
    used = assign(list(named), clients)
    if experiment.devices.assign == "memory":
        if not devices:
            raise PotluckError("devices.assign = 'memory' needs devices; set devices.fleet, such as phones.")
        with torch.device("meta"):
            sizes = {name: count_parameters(build()) for name, build in named.items()}
        used = assign_by_memory(sizes, devices)
    return {name: build for name, build in named.items() if name in used}, used


def model_builder(source: ModelSource, name: str, experiment: Experiment, data: Data) -> Builder:
    """What makes a model for these data: from a zoo name, copies of a module, or a factory of the user's own."""
    from potluck.members import as_client_model, copier

    if isinstance(source, str):
        return lambda: build_model(
            source,
            data.input_shape,
            data.num_classes,
            experiment.models.feature_dim,
            projection=experiment.models.projection,
            vocabulary=data.vocabulary,
        )
    if isinstance(source, nn.Module):
        return copier(as_client_model(source, name))
    return lambda: as_client_model(source(), name)


def own_start(build: Builder, experiment: Experiment, architecture: str, client: str) -> Builder:
    """A client's model at its start: weights of its own, or its architecture's with `same_init`."""
    who = "common" if experiment.models.same_init else client

    def start() -> ClientModel:
        with seeded(experiment.seed, "initial weights", architecture, who):
            return build()

    return start


def _shared_builder(experiment: Experiment, data: Data, builders: dict[str, Builder]) -> Builder | None:
    """The shared small model: the one named, or the smallest of the clients' architectures."""
    wanted = experiment.models.shared
    if wanted is None and (zoo := [name for name in builders if _in_zoo(name)]):
        wanted = smallest(zoo, data.input_shape, data.num_classes, vocabulary=data.vocabulary)
    return None if wanted is None else model_builder(wanted, wanted, experiment, data)


def _in_zoo(name: str) -> bool:
    try:
        resolve_models(name)
    except PotluckError:
        return False
    return True
