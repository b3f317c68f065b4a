"""Data × partition × models → clients: the population that a method trains."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TypeVar, overload

import torch
from torch import Tensor, nn

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel, any_channels_last, batch_norm_in_eval_mode, set_channels_last
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.task import CPU, Architecture, ClientInfo, Task
from potluck.core.trained import ALL, TrainRule, model_name, rules_by_name, share_frozen
from potluck.core.training import Training
from potluck.data.dataset import Data
from potluck.data.memory import Rows, as_samples, warn_of_small_bytes
from potluck.data.raw import RawInput
from potluck.federation.devices import Device
from potluck.models import SplitModel, split
from potluck.models.lora import apply_rule
from potluck.models.split import check_last

Builder = Callable[[], ClientModel]
One = TypeVar("One")
BUILT = ("built",)
OWN_DATA = "own data"
Augment = Callable[[Tensor, torch.Generator], Tensor]


class Member:
    """One client as its owner describes it: a model, training, validation and test samples, a name.

    `model` is a module, whose weights the client starts from, or what makes one. Samples are pairs of tensors
    `(x, y)`, views, or `Data`: its training rows, and as test samples its test part unless others are given. `Data`
    also carries its normalisation, class names and what raw inputs are to exports. `architecture` names the kind of
    model; clients of one kind share what is common to it.
    """

    def __init__(
        self,
        model: nn.Module | Callable[[], nn.Module],
        train: Rows,
        test: Rows | None = None,
        name: str | None = None,
        *,
        validation: Rows | None = None,
        architecture: str = "",
        device: str = "default",
    ) -> None:
        self.model, self.name, self.architecture, self.device = model, name, architecture, device
        self.facts: DataFacts | None = DataFacts.of(train) if isinstance(train, Data) else None
        self.train = as_samples(train)
        if isinstance(train, tuple | list):
            warn_of_small_bytes(self.train)
        if test is None and isinstance(train, Data):
            test = train.test
        self.test, self.validation = (
            self.train.select(torch.arange(0)) if samples is None else as_samples(samples)
            for samples in (test, validation)
        )

    def build(self) -> ClientModel:
        """Return a model of this client, in the state in which it should start."""
        network = copy.deepcopy(self.model) if isinstance(self.model, nn.Module) else self.model()
        return as_client_model(network, self.name)


class LazySequence(Sequence[One]):
    """A sequence that makes each entry when it is indexed, so that a large population is never in memory."""

    def __init__(self, length: int, make: Callable[[int], One]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, place: int) -> One: ...

    @overload
    def __getitem__(self, place: slice) -> list[One]: ...

    def __getitem__(self, place: int | slice) -> One | list[One]:
        chosen = range(self._length)[place]
        return self._make(chosen) if isinstance(chosen, int) else [self._make(index) for index in chosen]


def as_client_model(model: nn.Module, client: object) -> ClientModel:
    """Return the module, or its split at the last linear layer if it has no features and head of its own."""
    if isinstance(model, ClientModel):
        return model
    if not isinstance(model, nn.Module):
        raise PotluckError(
            f"The model of client {client} is {type(model).__name__}, not a torch module; pass one."
        )
    try:
        return split(model)
    except PotluckError as error:
        raise PotluckError(
            f"The model of client {client} cannot be split by itself ({str(error).rstrip('.')}); "
            'pass potluck.split(model, head="NAME OF ITS LAST LAYER").'
        ) from None


@dataclass(frozen=True)
class Federation:
    """A population ready to train: the agreed task, and a way to make each client when it is first needed."""

    task: Task
    members: Sequence[Member]
    _: KW_ONLY
    shared_test: Samples | None = None
    augment: Augment | None = None
    label: str = OWN_DATA
    devices: Sequence[Device] = ()
    vocabulary: int | None = None
    """How many different words samples are made of, where they are texts."""
    class_names: tuple[str, ...] = ()
    raw: RawInput | None = None
    """How raw images, texts or table rows become rows of the data set; None where rows come as numbers."""
    train_rules: Mapping[str, TrainRule] = field(default_factory=dict)
    """What of each architecture is trained; whole models where an architecture is not listed."""
    common_frozen: bool = False
    """Whether frozen tensors of a client are those of its architecture, so that all its clients share their memory;
    otherwise each client keeps those it was given."""
    channels_last: frozenset[str] | None = None
    """Architectures whose clients keep images, and the weights of convolutions, with the channels last; None: all
    networks as they were built."""
    partition_arrays: Sequence[Tensor] = ()
    """Which rows are whose, of all clients together, where clients are dealt from one data set and made when they are
    asked for: tells two populations apart without making all clients."""

    @property
    def training(self) -> Training:
        """How clients train."""
        return self.task.training

    def example(self) -> Tensor:
        """Return one sample as models see it."""
        return _example(self.members, self.task.dtype, self.task.device)

    def client(self, index: int) -> Client:
        """Return a new client of this index, as it is before its first job."""
        member, info = self.members[index], self.task.clients[index]
        model = member.build()
        rule = self.train_rules.get(member.architecture, ALL)
        apply_rule(model, rule, self.training, self.task.seed, "adapters", member.architecture)
        model = self._prepared(model, member.architecture)
        if model.frozen and self.common_frozen:
            share_frozen(model, self._common_model(member.architecture))
        return Client(
            info,
            model,
            member.train,
            member.test,
            self.task,
            self.training,
            validation=member.validation,
            shared_test=self.shared_test,
            augment=self.augment,
        )

    def _prepared(self, model: ClientModel, architecture: str) -> ClientModel:
        """Return a model as clients train it: device, precision, memory layout."""
        model = model.to(device=self.task.device, dtype=self.task.dtype).eval()
        if self.channels_last is not None:
            set_channels_last(model, architecture in self.channels_last)
        return model

    def _common_model(self, architecture: str) -> ClientModel:
        """Return a model of an architecture with its common first weights, made once per process."""
        if architecture not in self._common_models:
            build = self.task.architectures[architecture].build
            assert build is not None
            self._common_models[architecture] = self._prepared(build(), architecture)
        return self._common_models[architecture]

    @functools.cached_property
    def _common_models(self) -> dict[str, ClientModel]:
        return {}

    def cost(self, index: int) -> float:
        """Return what training a client costs relative to others, as a first guess: parameters × samples."""
        info = self.task.clients[index]
        return self.task.architectures[info.architecture].num_parameters * float(max(1, info.samples))

    def with_channels_last(self, words: Sequence[str]) -> Federation:
        """Return a copy with these architectures channels last and all others first; `built`: each as it was built."""
        return replace(self, channels_last=None if tuple(words) == BUILT else frozenset(words))

    def built_channels_last(self) -> tuple[str, ...]:
        """Return the architectures whose networks were built with the channels last."""
        kinds = self.task.architectures.items()
        return tuple(name for name, kind in kinds if any_channels_last(kind.initial.values()))

    def class_counts(self) -> list[list[int]]:
        """Training samples per client and class."""
        classes = self.task.num_classes
        return [torch.bincount(member.train.labels, minlength=classes).tolist() for member in self.members]


@dataclass(frozen=True, kw_only=True)
class DataFacts:
    """What is known of a population's data besides the rows."""

    num_classes: int
    input_shape: tuple[int, ...]
    label: str = OWN_DATA
    vocabulary: int | None = None
    class_names: tuple[str, ...] = ()
    raw: RawInput | None = None

    @classmethod
    def of(cls, data: Data, label: str = OWN_DATA) -> DataFacts:
        """Return the facts of a data set."""
        return cls(
            num_classes=data.num_classes,
            input_shape=data.input_shape,
            label=label,
            vocabulary=data.vocabulary,
            class_names=data.class_names,
            raw=data.raw,
        )


def assemble(
    members: Sequence[Member],
    facts: DataFacts,
    *,
    training: Training,
    seed: int,
    builders: Mapping[str, Builder],
    shared_builder: Builder | None = None,
    shared_test: Samples | None = None,
    public: Samples | None = None,
    augment: Augment | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    devices: Sequence[Device] = (),
    infos: tuple[ClientInfo, ...] = (),
    train_rules: Mapping[str, TrainRule] | None = None,
) -> Federation:
    """Put a population together; `builders` gives the common first weights of each architecture.

    Where `infos` says already what the server knows of each client, no member is made for it. Without `train_rules`
    those of `training` are assigned to the architectures in order, and clients keep their own frozen tensors.
    """
    rules = rules_by_name(training.train, list(builders)) if train_rules is None else train_rules
    example = _example(members, dtype, device)
    describe = partial(describe_architecture, example=example, num_classes=facts.num_classes, dtype=dtype)
    task = Task(
        facts.num_classes,
        facts.input_shape,
        infos or _infos(members),
        _architectures(builders, rules, training, seed, describe=describe),
        seed=seed,
        shared_builder=shared_builder,
        public=public,
        dtype=dtype,
        device=device,
        training=training,
    )
    return Federation(
        task,
        members,
        shared_test=shared_test,
        augment=augment,
        label=facts.label,
        devices=devices,
        vocabulary=facts.vocabulary,
        class_names=facts.class_names,
        raw=facts.raw,
        train_rules=rules,
        common_frozen=train_rules is not None,
    )


def _architectures(
    builders: Mapping[str, Builder],
    rules: Mapping[str, TrainRule],
    training: Training,
    seed: int,
    *,
    describe: Callable[[str, Builder], Architecture],
) -> dict[str, Architecture]:
    """Return the architectures with their common first weights, frozen as their rules say."""
    return {
        name: describe(name, partial(_build_seeded, build, seed, name, rules.get(name, ALL), training))
        for name, build in builders.items()
    }


def _infos(members: Sequence[Member]) -> tuple[ClientInfo, ...]:
    """Return what the server knows of each client."""
    names = [member.name or f"client-{index}" for index, member in enumerate(members)]
    if len(set(names)) < len(names):
        duplicate = next(name for name in names if names.count(name) > 1)
        raise PotluckError(f"Two clients are called {duplicate!r}; give every client a name of its own.")
    return tuple(
        ClientInfo(index, name, len(member.train), member.architecture, member.device, len(member.validation))
        for index, (name, member) in enumerate(zip(names, members, strict=True))
    )


def _build_seeded(build: Builder, seed: int, name: str, rule: TrainRule, training: Training) -> ClientModel:
    """Build a model with an architecture's common first weights, frozen as its rule says."""
    with seeded(seed, "architecture", model_name(name)):
        model = build()
    apply_rule(model, rule, training, seed, "adapters", name)
    return model


def _example(members: Sequence[Member], dtype: torch.dtype, device: torch.device) -> Tensor:
    member = next((member for member in members if len(member.train)), None)
    if member is None:
        raise PotluckError("No client has any training sample; give at least one client some data.")
    x, _ = member.train.take(slice(0, 1))
    return x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype)


def describe_architecture(
    name: str,
    build: Builder,
    example: Tensor,
    num_classes: int,
    dtype: torch.dtype = torch.float32,
) -> Architecture:
    """Return what all parties may know of an architecture, read off one model of it, if it fits the data."""
    model = build().to(device=example.device, dtype=dtype).eval()
    shapes: list[tuple[int, ...]] = []
    try:
        with torch.no_grad(), batch_norm_in_eval_mode(model):  # one sample is no batch to normalise over
            x = example
            for stage in model.stages:
                x = stage(x)
                shapes.append(tuple(x.shape[1:]))
            features = model.features(example)
            scores = model.head(features)
            if isinstance(model, SplitModel):
                check_last(model, example)
    except (RuntimeError, ValueError, IndexError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PotluckError(
            f"Model {name!r} cannot take a sample of shape {tuple(example.shape[1:])} ({reason}); "
            "bring a model for this shape, or reshape the data."
        ) from None
    if scores.dim() == 2 and scores.shape[1] != num_classes:
        outputs = scores.shape[1]
        more = f", or list all {outputs} classes in data.class_names (in Python also: num_classes={outputs})"
        raise PotluckError(
            f"Model {name!r} gives {outputs} class scores and the data have {num_classes} classes; give its "
            f"last layer {num_classes} outputs{more if outputs > num_classes else ''}."
        )
    rate, state = getattr(model, "width_rate", None), model.trained_state()
    return Architecture(
        name=name,
        feature_dim=features.shape[1],
        initial={key: tensor.detach().clone() for key, tensor in state.items()},
        parameters=frozenset(key for key, _ in model.named_parameters() if key in state),
        head={key: tuple(tensor.shape) for key, tensor in model.head.state_dict().items()},
        stage_shapes=tuple(shapes),
        width_rate=None if rate is None else float(rate),
        build=build,
        partly_frozen=bool(model.frozen),
    )
