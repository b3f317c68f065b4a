"""Data × partition × models → clients: the population that a method trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.task import CPU, Architecture, ClientInfo, Task
from potluck.core.training import Training

Pair = tuple[Tensor, Tensor]
Builder = Callable[[], ClientModel]
Augment = Callable[[Tensor, torch.Generator], Tensor]


@dataclass(frozen=True)
class Participant:
    """One client as its owner describes it. `build` gives its model, in whatever state it should start."""

    name: str
    architecture: str
    build: Builder
    train: Samples
    test: Samples
    device: str = "default"


@dataclass(frozen=True)
class Federation:
    """A population ready to train: the agreed task, and a way to make each client when it is first needed."""

    task: Task
    participants: Sequence[Participant]
    training: Training
    shared_test: Samples | None = None
    augment: Augment | None = None
    label: str = "own data"
    _templates: dict[str, ClientModel] = field(default_factory=dict)

    def client(self, index: int) -> Client:
        """A new client of this index, as it is before its first job."""
        one, info = self.participants[index], self.task.clients[index]
        model = one.build().to(device=self.task.device, dtype=self.task.dtype).eval()
        return Client(
            info,
            model,
            one.train,
            one.test,
            self.task,
            self.training,
            shared_test=self.shared_test,
            augment=self.augment,
        )

    def class_counts(self) -> list[list[int]]:
        """Training samples per client and class."""
        classes = self.task.num_classes
        return [torch.bincount(one.train.labels, minlength=classes).tolist() for one in self.participants]


def assemble(
    participants: Sequence[Participant],
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    training: Training,
    seed: int,
    builders: Mapping[str, Builder],
    shared_builder: Builder | None = None,
    shared_test: Samples | None = None,
    public: Samples | None = None,
    augment: Augment | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device = CPU,
    label: str = "own data",
) -> Federation:
    """Put a population together; `builders` gives the common first weights of each architecture."""
    infos = tuple(
        ClientInfo(index, one.name, len(one.train), one.architecture, one.device)
        for index, one in enumerate(participants)
    )
    names = [info.name for info in infos]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise PotluckError(f"Two clients are called {twice!r}; give every client a name of its own.")
    example = _example(participants, dtype, device)
    architectures = {
        name: describe(name, _seeded_builder(build, seed, name), example, dtype, device)
        for name, build in builders.items()
    }
    task = Task(num_classes, input_shape, infos, architectures, seed, shared_builder, public, dtype, device)
    return Federation(task, participants, training, shared_test, augment, label)


def _seeded_builder(build: Builder, seed: int, name: str) -> Builder:
    def seeded_build() -> ClientModel:
        with seeded(seed, "architecture", name):
            return build()

    return seeded_build


def _example(participants: Sequence[Participant], dtype: torch.dtype, device: torch.device) -> Tensor:
    one = next((one for one in participants if len(one.train)), None)
    if one is None:
        raise PotluckError("No client has any training sample; give at least one client some data.")
    x, _ = one.train.take(slice(0, 1))
    return x.to(device=device, dtype=dtype if x.is_floating_point() else x.dtype)


def describe(
    name: str, build: Builder, example: Tensor, dtype: torch.dtype = torch.float32, device: torch.device = CPU
) -> Architecture:
    """What all parties may know of an architecture, read off one model of it."""
    model = build().to(device=device, dtype=dtype).eval()
    shapes: list[tuple[int, ...]] = []
    with torch.no_grad():
        x = example
        for stage in model.stages:
            x = stage(x)
            shapes.append(tuple(x.shape[1:]))
        features = model.features(example)
    rate = getattr(model, "width_rate", None)
    return Architecture(
        name=name,
        feature_dim=features.shape[1],
        initial={key: tensor.detach().clone() for key, tensor in model.state_dict().items()},
        parameters=frozenset(key for key, _ in model.named_parameters()),
        head={key: tuple(tensor.shape) for key, tensor in model.head.state_dict().items()},
        stage_shapes=tuple(shapes),
        width_rate=None if rate is None else float(rate),
        build=build,
    )


# -- a federation of the user's own clients ---------------------------------------------------------------


@dataclass
class Member:
    """One client of the user's own: a model instance with its weights as they are, and its tensors."""

    model: nn.Module
    train: Pair
    test: Pair | None = None
    name: str | None = None


def federation(
    members: Sequence[Member],
    *,
    training: Training | None = None,
    num_classes: int | None = None,
    shared_model: nn.Module | None = None,
    shared_test: Pair | None = None,
    public: Pair | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from your own list of clients. Weights start exactly as given; your modules stay as they are.

    A model that is no `ClientModel` must be split first: `potluck.split(model, head="fc")`. Clients whose models
    have the same class and the same tensor shapes count as one architecture. The precision is that of the models.
    """
    if not members:
        raise PotluckError("A federation needs at least one client; the list is empty.")
    models = [_as_client_model(member.model, index) for index, member in enumerate(members)]
    names = _architecture_names(models)
    participants = [
        Participant(
            member.name or f"client-{index}",
            names[index],
            lambda model=models[index]: copy.deepcopy(model),  # type: ignore[misc]
            Samples(*member.train),
            Samples(*(member.test or _empty(member.train))),
        )
        for index, member in enumerate(members)
    ]
    builders = {one.architecture: one.build for one in reversed(participants)}
    labels = [member.train[1] for member in members] + [member.test[1] for member in members if member.test]
    small = None if shared_model is None else _as_client_model(shared_model, "shared model")
    return assemble(
        participants,
        num_classes=num_classes or 1 + max(int(label.max()) for label in labels if len(label)),
        input_shape=tuple(members[0].train[0].shape[1:]),
        training=training or Training(),
        seed=seed,
        builders=builders,
        shared_builder=None if small is None else lambda: copy.deepcopy(small),
        shared_test=None if shared_test is None else Samples(*shared_test),
        public=None if public is None else Samples(*public),
        dtype=dtype or next(models[0].parameters()).dtype,
    )


def _as_client_model(model: nn.Module, who: object) -> ClientModel:
    if not isinstance(model, ClientModel):
        raise PotluckError(
            f"The model of client {who} is a {type(model).__name__}, which has no features and head; "
            'pass potluck.split(model, head="NAME OF ITS LAST LAYER").'
        )
    return model


def _empty(pair: Pair) -> Pair:
    return pair[0][:0], pair[1][:0]


def _architecture_names(models: Sequence[ClientModel]) -> list[str]:
    """The class's name; a number is added where one class comes in several shapes."""
    seen: dict[str, list[object]] = {}
    names = []
    for model in models:
        shapes = tuple((key, tuple(tensor.shape)) for key, tensor in model.state_dict().items())
        variants = seen.setdefault(getattr(model, "name", None) or type(model).__name__, [])
        if shapes not in variants:
            variants.append(shapes)
        position = variants.index(shapes)
        base = getattr(model, "name", None) or type(model).__name__
        names.append(base if position == 0 else f"{base}-{position + 1}")
    return names
