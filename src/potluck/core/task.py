"""What all parties agree on before training, and what a server function may know."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import torch
from torch import nn

from potluck.core.model import ClientModel, travels
from potluck.core.payload import Tensors
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.core.training import Training

CPU = torch.device("cpu")

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What the server learns of a client at registration, and nothing more."""

    index: int
    name: str
    samples: int
    architecture: str
    device: str = "default"
    validation: int = 0


@dataclass(frozen=True)
class Architecture:
    """The shape of one kind of client model, and the weights such a model starts from.

    `initial` holds parameters and buffers; `stage_shapes` the output shape of each stage for one sample;
    `build` makes such a model on the server, where the server can.
    """

    name: str
    feature_dim: int
    initial: Tensors
    parameters: frozenset[str]
    head: Mapping[str, tuple[int, ...]]
    stage_shapes: tuple[tuple[int, ...], ...] = ()
    width_rate: float | None = None
    build: Callable[[], ClientModel] | None = None

    @functools.cached_property
    def numbers(self) -> int:
        """How many numbers such a model learns."""
        return sum(self.initial[name].numel() for name in self.parameters)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor that may travel (batch counters never do)."""
        return {name: tuple(tensor.shape) for name, tensor in self.initial.items() if travels(name)}


@dataclass(frozen=True)
class Task:
    """The agreed facts: classes, sizes, who takes part with what, and what is shared from the start."""

    num_classes: int
    input_shape: tuple[int, ...]
    clients: tuple[ClientInfo, ...]
    architectures: Mapping[str, Architecture]
    seed: int = 0
    shared_builder: Callable[[], ClientModel] | None = None
    public: Samples | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    training: Training = field(default_factory=Training)

    # What is asked at every step is found once: a population may be large.

    @functools.cached_property
    def able(self) -> tuple[int, ...]:
        """The clients that have training samples, ascending; the others never take part."""
        return tuple(info.index for info in self.clients if info.samples > 0)

    @functools.cached_property
    def able_of(self) -> Mapping[str, int]:
        """How many of them have each architecture."""
        return Counter(info.architecture for info in self.clients if info.samples > 0)

    @functools.cached_property
    def mean_samples(self) -> float:
        """The size of a usual one of them."""
        return sum(info.samples for info in self.clients if info.samples > 0) / max(1, len(self.able))

    @functools.cached_property
    def first_of(self) -> Mapping[str, ClientInfo]:
        """The first client of each architecture, in the order of clients."""
        found: dict[str, ClientInfo] = {}
        for info in self.clients:
            if info.architecture not in found:
                found[info.architecture] = info
        return found

    @functools.cached_property
    def validates(self) -> bool:
        """Whether any client has validation samples."""
        return any(info.validation for info in self.clients)

    @property
    def feature_dim(self) -> int | None:
        """The feature size common to all architectures, or None where they differ."""
        sizes = {architecture.feature_dim for architecture in self.architectures.values()}
        return sizes.pop() if len(sizes) == 1 else None

    def shared_model(self) -> ClientModel:
        """A fresh shared small model, with the same first weights wherever it is built."""
        if self.shared_builder is None:
            raise RuntimeError("this task has no shared model; the method must declare that it needs one")
        with seeded(self.seed, "shared model"):
            return self.shared_builder().to(device=self.device, dtype=self.dtype)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the shared small model's tensors that may travel."""
        state = self.shared_model().state_dict()
        return {name: tuple(tensor.shape) for name, tensor in state.items() if travels(name)}

    def __hash__(self) -> int:
        return id(self)


Rule = Literal["mean", "median", "trimmed-mean", "norm-clip", "krum", "geometric-median"]


@dataclass(frozen=True)
class Averaging:
    """How a server step takes averages.

    `median` and `trimmed-mean` go scalar by scalar and count every answer alike, whatever its samples.
    `trimmed-mean` leaves out the share of expected attackers at either end (at least one answer of three).
    `norm-clip` shortens changes that are longer than the median one and then takes the usual mean.
    `krum` and `geometric-median` look at whole answers, or at whole rows of a class: the mean of those nearest to each
    other, without the share of expected attackers, and the point that is nearest to all.
    No client has more than `max_share` of an average that goes by samples, whatever it claims to have.
    """

    rule: Rule = "mean"
    attackers: float = 0.3
    max_share: float = 1.0

    @property
    def ranks(self) -> bool:
        """Whether scalars are ordered instead of summed."""
        return self.rule in ("median", "trimmed-mean")

    @property
    def weighs(self) -> bool:
        """Whether answers count by where they lie among the others."""
        return self.rule in ("krum", "geometric-median")

    @property
    def clips(self) -> bool:
        """Whether long changes are shortened first."""
        return self.rule == "norm-clip"


@dataclass(frozen=True)
class Context:
    """What a server function may know beyond its own state. `round` counts from 1.

    `cohort` is how many answers make a round where the server steps at fewer; 0 where it waits for whole rounds.
    `testing` says that a message is for a test, not for training.
    """

    task: Task
    round: int
    rounds: int
    seed: int
    step: int = 0
    averaging: Averaging = Averaging()
    cohort: int = 0
    testing: bool = False
    notes: dict[str, float] = field(default_factory=dict, compare=False)

    def note(self, name: str, value: float) -> None:
        """Record a number of this server step, in `notes` of its line of `rounds.jsonl`."""
        self.notes[name] = float(value)

    def rng(self, purpose: str) -> torch.Generator:
        """A random stream for one purpose of this server step."""
        return generator(self.seed, "server", self.step, purpose)

    def module(self, name: str, build: Callable[[], Module]) -> Module:
        """A module in the task's precision whose first weights come from this step's stream of that name."""
        with seeded(self.seed, "server", self.step, "module", name):
            return build().to(device=self.task.device, dtype=self.task.dtype)

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        """A linear layer in the task's precision whose first weights come from this step's stream."""
        with seeded(self.seed, "server", self.step, "linear", inputs, outputs):
            return nn.Linear(inputs, outputs, bias, device=self.task.device, dtype=self.task.dtype)

    def head(self) -> nn.Linear:
        """A fresh linear head from the common feature size to the classes, shaped as the clients' own."""
        architecture = next(iter(self.task.architectures.values()))
        bias = "bias" in architecture.head
        return self.linear(architecture.feature_dim, self.task.num_classes, bias=bias)
