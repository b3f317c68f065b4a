"""An experiment's population: load the data, deal them, give every client its model."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need
from potluck.core.model import ClientModel, only_shapes
from potluck.core.random import derive_seed, seeded
from potluck.core.samples import Samples
from potluck.core.task import CPU, ClientInfo
from potluck.data import Data, Partition, load_data, match_shares, parse_partition, split_in_three
from potluck.data.augment import augmentation
from potluck.data.public import hold_out, public_samples
from potluck.experiment import Experiment
from potluck.federation.devices import Device, assign_by_memory, fleet
from potluck.federation.federation import Builder, Federation, Lazily, Member, as_client_model, assemble
from potluck.models import assign, build_model, count_parameters, resolve_models, smallest

ModelSource = str | nn.Module | Callable[[], nn.Module]


def build_federation(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    *,
    data: Data | None = None,
    models: Sequence[ModelSource] | None = None,
    partition: Partition | None = None,
) -> Federation:
    """The federation that an experiment describes; data, models and partition may be the user's own objects."""
    data = data or experiment_data(experiment)
    _check_first_class(data)
    if experiment.data.limit:
        data = data.limit(experiment.data.limit, experiment.seed)
    dtype = getattr(torch, experiment.models.precision)
    device = pick_devices(experiment.engine.device)[0]
    data = data.to_dtype(dtype)
    dealt = deal(experiment, method, data, device, partition)
    clients = len(dealt.shares)
    devices = fleet(experiment.devices.fleet, clients, experiment.seed) if experiment.devices.fleet else []
    builders, names = _architectures(experiment, data, models, clients, devices)
    kinds = [device.kind for device in devices] or ["default"] * clients
    infos = tuple(
        ClientInfo(index, f"client-{index}", samples, names[index], kinds[index], validation)
        for index, (samples, validation) in enumerate(dealt.sizes)
    )
    federation = assemble(
        Lazily(clients, functools.partial(_member, experiment, dealt, builders, infos)),
        num_classes=data.num_classes,
        input_shape=data.input_shape,
        training=experiment.training,
        seed=experiment.seed,
        builders=builders,
        shared_builder=_shared_builder(experiment, method, data, builders),
        shared_test=dealt.shared_test,
        public=dealt.public,
        augment=augmentation(experiment.data.augment) if experiment.data.augment else None,
        dtype=dtype,
        device=device,
        label=data.name,
        devices=devices,
        vocabulary=data.vocabulary,
        class_names=data.class_names,
        infos=infos,
    )
    return replace(federation, holdings=dealt.holdings)


def _member(
    experiment: Experiment,
    dealt: Dealt,
    builders: Mapping[str, Builder],
    infos: Sequence[ClientInfo],
    index: int,
) -> Member:
    """A client, made when it is asked for."""
    info, (train, validation, test) = infos[index], dealt.shares[index]
    return Member(
        own_start(builders[info.architecture], experiment, info.architecture, info.name),
        train,
        test,
        info.name,
        validation=validation,
        architecture=info.architecture,
        device=info.device,
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
        text=settings.text,
    )
    return data if settings.normalise == "own" else data.normalised(settings.normalise)


def _check_first_class(data: Data) -> None:
    """Labels from 1 would leave an empty class and one score too many; with named classes that is meant."""
    first = int(
        min([data.y.min(), *([] if data.test_y is None or not len(data.test_y) else [data.test_y.min()])])
    )
    if first > 0 and not data.class_names:
        raise PotluckError(
            f"The labels of data {data.name!r} start at {first}, so that class 0 would be empty; subtract {first}, or "
            "name all classes (class_names)."
        )


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


def device_names(text: str) -> list[str]:
    """The devices that a setting lists: `cuda:0,cuda:1`."""
    return [name.strip() for name in text.split(",")]


def pick_devices(text: str) -> list[torch.device]:
    """The torch devices that a setting lists, all of one kind; the first is the server's too."""
    devices = [pick_device(name) for name in device_names(text)]
    if len(set(devices)) < len(devices) or len({device.type for device in devices}) > 1:
        raise PotluckError(
            f"engine.device = {text!r} must list different devices of one kind, such as cuda:0,cuda:1."
        )
    if len(devices) > 1 and devices[0].type == "cpu":
        raise PotluckError(f"engine.device = {text!r}: there is one CPU; set engine.workers instead.")
    return devices


def pick_device(name: str) -> torch.device:
    """The torch device of this name, or a sentence that it is not there."""
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise PotluckError(f"engine.device = {name!r} is not available here; use cpu.") from None
    return device


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
        with only_shapes():
            sizes = {name: count_parameters(build()) for name, build in named.items()}
        used = assign_by_memory(sizes, devices)
    return {name: build for name, build in named.items() if name in used}, used


def model_builder(source: ModelSource, name: str, experiment: Experiment, data: Data) -> Builder:
    """What makes a model for these data: from a zoo name, copies of a module, or a factory of the user's own."""
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
        return lambda: as_client_model(copy.deepcopy(source), name)
    return lambda: as_client_model(source(), name)


def own_start(build: Builder, experiment: Experiment, architecture: str, client: str) -> Builder:
    """A client's model at its start: weights of its own, or its architecture's with `same_init`."""
    who = "common" if experiment.models.same_init else client

    def start() -> ClientModel:
        with seeded(experiment.seed, "initial weights", architecture, who):
            return build()

    return start


def _shared_builder(
    experiment: Experiment, method: Method[Any, Any, Any], data: Data, builders: dict[str, Builder]
) -> Builder | None:
    """What makes the shared small model, where there is one."""
    wanted = shared_choice(
        experiment, method, list(builders), data.input_shape, data.num_classes, data.vocabulary
    )
    if wanted is None:
        return None
    name, feature_dim = wanted
    return model_builder(name, name, experiment.changed({"models.feature_dim": feature_dim}), data)


def shared_choice(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    architectures: Sequence[str],
    input_shape: tuple[int, ...],
    num_classes: int,
    vocabulary: int | None,
) -> tuple[str, int | None] | None:
    """The shared small model and the size its features are brought to: the one named, or the smallest of the clients'.

    A method whose small model lies inside of the large ones gets it with half of the features.
    """
    settings = experiment.models
    if settings.shared is not None:
        return settings.shared, settings.feature_dim
    zoo = [name for name in architectures if _in_zoo(name)]
    if not zoo:
        return None
    name = smallest(zoo, input_shape, num_classes, vocabulary=vocabulary)
    if Need.SMALLER_FEATURES not in method.requires():
        return name, settings.feature_dim
    with only_shapes():
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
    try:
        resolve_models(name)
    except PotluckError:
        return False
    return True


# -- who holds what --------------------------------------------------------------------------------------------


Rows = NDArray[np.int64]
Share = tuple[Samples, Samples, Samples]
"""A client's training, validation and test samples."""


@dataclass(frozen=True)
class Allotment:
    """The rows of every client in one array, client after client, and where those of each end."""

    rows: Rows
    ends: Rows

    @classmethod
    def of(cls, parts: Sequence[Rows]) -> Allotment:
        """The same as a list with an array for each client."""
        return cls(np.concatenate(parts), np.cumsum([len(part) for part in parts], dtype=np.int64))

    def __getitem__(self, client: int) -> Rows:
        return self.rows[self.ends[client - 1] if client else 0 : self.ends[client]]

    def sizes(self) -> list[int]:
        """How many rows each client has."""
        sizes: list[int] = np.diff(self.ends, prepend=0).tolist()
        return sizes


@dataclass(frozen=True)
class Dealt:
    """Training, validation and test samples of each client, and what all may see.

    `sizes` are the numbers of training and validation samples; `holdings` say which rows are whose where shares are cut
    when they are asked for.
    """

    shares: Sequence[Share]
    sizes: Sequence[tuple[int, int]]
    shared_test: Samples | None
    public: Samples | None
    holdings: Sequence[Tensor] = ()


def deal(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    data: Data,
    device: torch.device = CPU,
    partition: Partition | None = None,
) -> Dealt:
    """Hold out what is shared or public, then deal the rest to clients and split each client's part.

    With `pool = "train"` the publisher's test part stays apart: it is the shared test set, each client's own
    test rows are its fair share of it, and of `data.split` only the validation part acts. Otherwise all rows are
    dealt and each client's part is split. Rows are brought to `device` once, for all clients. A client's part is split
    when it is asked for, unless the rule has its own way of seeing.
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
    rule = partition or parse_partition(experiment.partition.rule)
    groups = None if data.groups is None else data.groups.numpy()[rows]
    labels = data.y.numpy()[rows]
    parts = rule.assign(labels, experiment.partition.clients, seed, groups)
    tested = None if data.test is None else match_shares(parts, labels, data.test.labels.numpy(), seed)
    own = Allotment.of(parts)
    own = Allotment(rows[own.rows], own.ends)
    return _cut(experiment, data, rule, own, tested, Dealt((), (), shared_test, public))


def _cut(
    experiment: Experiment,
    data: Data,
    rule: Partition,
    own: Allotment,
    tested: Sequence[Rows] | None,
    common: Dealt,
) -> Dealt:
    """Every client's part in three, when it is asked for; at once where the rule has its own way of seeing."""
    settings, tests = experiment.data, None if tested is None else Allotment.of(tested)
    split = functools.partial(
        split_in_three, split=settings.split, seed=experiment.seed, test_apart=tests is not None
    )

    def share(client: int) -> Share:
        train, validation, test = (data.view(rows) for rows in split(own[client], client=f"client-{client}"))
        return train, validation, test if tests is None else data.test_view(tests[client])

    @functools.cache
    def sizes(rows: int) -> tuple[int, int]:  # how many rows are for what depends on how many there are alone
        train, validation, _ = split(np.arange(rows), client="any")
        return len(train), len(validation)

    clients = len(own.ends)
    if type(rule).seen is Partition.seen:
        arrays = [own.rows, own.ends, *([] if tests is None else [tests.rows, tests.ends])]
        return replace(
            common,
            shares=Lazily(clients, share),
            sizes=[sizes(rows) for rows in own.sizes()],
            holdings=[torch.from_numpy(array) for array in arrays],
        )
    views = zip(*map(share, range(clients)), strict=True)
    seen = (rule.seen(list(view), experiment.seed, data.input_shape) for view in views)
    shares = [(train, validation, test) for train, validation, test in zip(*seen, strict=True)]
    return replace(common, shares=shares, sizes=[(len(one[0]), len(one[1])) for one in shares])


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
