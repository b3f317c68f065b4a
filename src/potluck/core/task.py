"""What all parties agree on before training, and what a server function may know."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal, TypeVar

import torch
from torch import nn

from potluck.core.model import ClientModel, is_transferable
from potluck.core.payload import Tensors
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.core.training import Training

CPU = torch.device("cpu")

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What the server learns of a client at registration."""

    index: int
    name: str
    samples: int
    architecture: str
    device: str = "default"
    validation: int = 0


@dataclass(frozen=True)
class Architecture:
    """The shape of one kind of client model, and the weights such a model starts from.

    `initial` holds parameters and buffers, without frozen ones, which `build` gives and which never change;
    `stage_shapes` is the output shape of each stage for one sample; `build` makes such a model on the server, where
    the server can.
    """

    name: str
    feature_dim: int
    initial: Tensors
    parameters: frozenset[str]
    head: Mapping[str, tuple[int, ...]]
    stage_shapes: tuple[tuple[int, ...], ...] = ()
    width_rate: float | None = None
    build: Callable[[], ClientModel] | None = None
    partly_frozen: bool = False

    @functools.cached_property
    def num_parameters(self) -> int:
        """The number of trained parameters."""
        return sum(self.initial[name].numel() for name in self.parameters)

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every transferable tensor."""
        return {name: tuple(tensor.shape) for name, tensor in self.initial.items() if is_transferable(name)}


@dataclass(frozen=True)
class Task:
    """What all parties agree on: classes, sizes, clients and their architectures, shared model and public data."""

    num_classes: int
    input_shape: tuple[int, ...]
    clients: tuple[ClientInfo, ...]
    architectures: Mapping[str, Architecture]
    _: KW_ONLY
    seed: int = 0
    shared_builder: Callable[[], ClientModel] | None = None
    public: Samples | None = None
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    training: Training = field(default_factory=Training)

    # Computed once, as a population may be large.

    @functools.cached_property
    def eligible(self) -> tuple[int, ...]:
        """The clients that have training samples, ascending; others never train."""
        return tuple(info.index for info in self.clients if info.samples > 0)

    @functools.cached_property
    def eligible_per_architecture(self) -> Mapping[str, int]:
        """The number of eligible clients of each architecture."""
        return Counter(info.architecture for info in self.clients if info.samples > 0)

    @functools.cached_property
    def mean_client_samples(self) -> float:
        """The mean number of training samples of an eligible client."""
        return sum(info.samples for info in self.clients if info.samples > 0) / max(1, len(self.eligible))

    @functools.cached_property
    def first_client_of(self) -> Mapping[str, ClientInfo]:
        """The first client of each architecture, in the order of clients."""
        first: dict[str, ClientInfo] = {}
        for info in self.clients:
            first.setdefault(info.architecture, info)
        return first

    @functools.cached_property
    def has_validation(self) -> bool:
        """Whether any client has validation samples."""
        return any(info.validation for info in self.clients)

    @property
    def feature_dim(self) -> int | None:
        """The feature size common to all architectures, or None where they differ."""
        sizes = {architecture.feature_dim for architecture in self.architectures.values()}
        return sizes.pop() if len(sizes) == 1 else None

    def shared_model(self) -> ClientModel:
        """Build the shared small model; its initial weights are the same everywhere."""
        if self.shared_builder is None:
            raise RuntimeError("this task has no shared model; the method must declare that it needs one")
        with seeded(self.seed, "shared model"):
            return self.shared_builder().to(device=self.device, dtype=self.dtype)

    @functools.cache  # noqa: B019 - a task lives as long as its run
    def shared_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return names and shapes of the shared small model's transferable tensors."""
        state = self.shared_model().state_dict()
        return {name: tuple(tensor.shape) for name, tensor in state.items() if is_transferable(name)}

    def __hash__(self) -> int:
        return id(self)


Rule = Literal["mean", "median", "trimmed-mean", "norm-clip", "krum", "geometric-median"]


@dataclass(frozen=True)
class Averaging:
    """How a server step averages.

    `median` and `trimmed-mean` work coordinate-wise and count every answer equally, whatever its samples.
    `trimmed-mean` leaves out the share of expected attackers at either end (at least one answer of three).
    `norm-clip` shortens changes that are longer than the median one and then takes the plain mean.
    `krum` and `geometric-median` look at whole answers, or at whole rows of a class: the mean of those nearest to each
    other, without the share of expected attackers, and the point that is nearest to all.
    No client has more than `max_share` of an average that goes by samples, whatever it claims to have.
    """

    rule: Rule = "mean"
    attackers: float = 0.3
    max_share: float = 1.0

    @property
    def is_coordinatewise(self) -> bool:
        """Whether the rule is coordinate-wise."""
        return self.rule in ("median", "trimmed-mean")

    @property
    def is_distance_based(self) -> bool:
        """Whether the rule weighs answers by their distances from each other."""
        return self.rule in ("krum", "geometric-median")

    @property
    def clips_updates(self) -> bool:
        """Whether long updates are clipped first."""
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
        """Return a random stream for one purpose of this server step."""
        return generator(self.seed, "server", self.step, purpose)

    def module(self, name: str, build: Callable[[], Module]) -> Module:
        """Return a module in the task's precision whose first weights come from this step's stream of that name."""
        with seeded(self.seed, "server", self.step, "module", name):
            return build().to(device=self.task.device, dtype=self.task.dtype)

    def linear(self, inputs: int, outputs: int, *, bias: bool = True) -> nn.Linear:
        """Return a linear layer in the task's precision whose first weights come from this step's stream."""
        with seeded(self.seed, "server", self.step, "linear", inputs, outputs):
            return nn.Linear(inputs, outputs, bias, device=self.task.device, dtype=self.task.dtype)

    def head(self) -> nn.Linear:
        """Return a fresh linear head from the common feature size to the classes, shaped as the clients' own."""
        architecture = next(iter(self.task.architectures.values()))
        bias = "bias" in architecture.head
        return self.linear(architecture.feature_dim, self.task.num_classes, bias=bias)
