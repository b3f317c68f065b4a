"""Data × partition × models → clients: the population that a method trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel, put_channels_last
from potluck.core.norm import norms_at_rest
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.task import CPU, Architecture, ClientInfo, Task
from potluck.core.training import Training
from potluck.devices import Device

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
    devices: Sequence[Device] = ()
    channels_last: frozenset[str] = frozenset()
    """Architectures whose clients keep images, and the weights of convolutions, with the channels last."""

    def example(self) -> Tensor:
        """One sample as models see it."""
        return _example(self.participants, self.task.dtype, self.task.device)

    def client(self, index: int) -> Client:
        """A new client of this index, as it is before its first job."""
        one, info = self.participants[index], self.task.clients[index]
        model = one.build().to(device=self.task.device, dtype=self.task.dtype).eval()
        if one.architecture in self.channels_last:
            put_channels_last(model)
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

    def cost(self, index: int) -> float:
        """What training a client costs relative to others, as a first guess: parameters × samples."""
        info = self.task.clients[index]
        return self.task.architectures[info.architecture].numbers * float(max(1, info.samples))

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
    devices: Sequence[Device] = (),
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
    return Federation(task, participants, training, shared_test, augment, label, devices)


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
    with torch.no_grad(), norms_at_rest(model):  # one sample is no batch to normalise over
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
