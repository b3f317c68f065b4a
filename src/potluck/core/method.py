"""The contract of an algorithm: a few functions over explicit state, and what it needs of a federation."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.payload import Payload
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.core.training import Training

if TYPE_CHECKING:
    from potluck.core.client import Client


State = TypeVar("State")
Down = TypeVar("Down", bound=Payload)
Up = TypeVar("Up", bound=Payload)

Predictor = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to class scores; the largest score is the prediction."""


class Need(StrEnum):
    """What a method asks of the clients' models or of the task."""

    LOGITS = "logits"
    FEATURES = "features and head"
    EQUAL_FEATURES = "equal feature size"
    EQUAL_HEADS = "identical heads"
    LINEAR_HEADS = "linear heads"
    STAGES = "stages"
    SAME_ARCHITECTURE = "same architecture"
    NESTED_DEPTH = "nested depth"
    NESTED_WIDTH = "nested width"
    SHARED_MODEL = "shared small model"
    SHARED_FEATURES = "shared small model of the clients' feature size"
    SMALLER_FEATURES = "shared small model with no more features than a client's"
    PUBLIC_DATA = "public data"


@dataclass(frozen=True)
class Update(Generic[Up]):
    """One client's answer as the server sees it.

    `staleness` counts server steps since the client was asked; `weight` is 1 unless the schedule discounts stale
    answers. `sent` is the message it answers, `job` the client's own number of that job. Where answers do not come as a
    whole cohort, a method that asks for it (`Method.sees_latest`) is also given the latest answers of the other
    clients, which are not `fresh`: the server has had them before.
    """

    client: ClientInfo
    payload: Up
    staleness: int = 0
    weight: float = 1.0
    sent: Any = None
    job: int = 0
    fresh: bool = True


@dataclass(frozen=True)
class PaperAccounting:
    """How a paper counted its traffic, where that differs from what really travels."""

    up: int
    down: int
    note: str


class Method(ABC, Generic[State, Down, Up]):
    """A federated algorithm. Its settings are dataclass fields of the subclass: `lr: float = setting(0.1, "meaning")`.

    A method sees no disk, socket, clock or global random state: randomness comes from `me.rng(purpose)` on a
    client and `ctx.rng(purpose)` on the server, so a result depends on experiment and seed alone.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS})
    asynchronous: ClassVar[bool] = False
    """Whether the method's own mode is one server step per answer."""
    sees_latest: ClassVar[bool] = False
    """Whether `server` wants, beside a few answers that just came, the latest ones of the rest of a cohort."""
    averages: ClassVar[str] = ""
    """What `schedule.robust` acts on, by the kit's averages or by `kit.screened`; empty: on nothing."""
    guards_rows: ClassVar[bool] = False
    """Whether clients look at their rows through `me.fit` and `me.class_means` alone, so that noise there protects each
    row, and send nothing else that rows decide."""
    guarded_with: ClassVar[str] = ""
    """The settings under which `guarded` says yes, where not all do: words for whoever chose others."""
    guarded_fits: ClassVar[int] = 1
    """How often a job of such a client calls `me.fit`: what the accounts count, and no more is let through."""
    compares: ClassVar[bool] = True
    """Whether answers are of one form, so that rules that compare them as wholes (krum, geometric-median) can act."""
    no_average: ClassVar[str] = "does not say that its server takes averages (Method.averages)"
    """Why there is nothing to average, where there is not: words that follow the method's name."""

    def requires(self) -> frozenset[Need]:
        """The needs under the present options; override where an option changes them."""
        return self.needs

    def guarded(self) -> bool:
        """Whether noise in training and class means protects single rows under the present settings."""
        return self.guards_rows

    def averaged(self) -> str:
        """What a robust rule acts on under the present settings; empty where on nothing."""
        return self.averages

    def weighted(self) -> bool:
        """Whether clients count by their samples in those averages, which `schedule.max_share` bounds."""
        return getattr(self, "weight", "") == "samples"

    def whole_rounds(self) -> str:
        """Why the method makes no sense asynchronously under the present settings: words that follow its name."""
        return ""

    def check_training(self, training: Training) -> None:
        """Raise `PotluckError` for local training that the method cannot do justice to."""

    def workload(self, samples: int, training: Training) -> int:
        """How many training samples one job passes through the model, for the virtual clock."""
        return training.epochs * samples

    @abstractmethod
    def init_server(self, ctx: Context) -> State:
        """The server's state before the first step."""

    @abstractmethod
    def broadcast(self, state: State, client: ClientInfo, ctx: Context) -> Down:
        """What this client needs to start its work."""

    @abstractmethod
    def client(self, me: Client, message: Down) -> Up:
        """Train `me` in place and return what it shares."""

    @abstractmethod
    def server(self, state: State, updates: Sequence[Update[Up]], ctx: Context) -> State:
        """Fold one or more answers into the state."""

    def check_answer(self, payload: Up, client: ClientInfo, ctx: Context) -> None:
        """Raise `PayloadError` at an answer that its declared type allows but the present options do not."""

    def predict(self, me: Client, message: Down | None) -> Predictor:
        """What is tested on this client; `message` is given where the protocol says it was just received."""
        return me.model

    def predict_server(self, state: State, ctx: Context) -> Predictor | None:
        """The global model, where there is one."""
        return None

    def paper_accounting(self, down: Down, up: Up) -> PaperAccounting | None:
        """The count of the paper's own table for one exchange, where it leaves something out."""
        return None


def payload_types(method: Method[Any, Any, Any]) -> tuple[type[Payload], type[Payload]]:
    """The declared (down, up) message types of a method, read from its `Method[State, Down, Up]` base."""
    for cls in type(method).__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if typing.get_origin(base) is Method:
                _, down, up = typing.get_args(base)
                return down, up
    raise TypeError(f"{type(method).__name__} must be declared as Method[State, Down, Up]")


# -- does a federation have what a method asks for? ------------------------------------------------------------


def check_needs(method: Method[Any, Any, Any], task: Task) -> None:
    """Raise for the first need that the clients' models or the task do not meet."""
    for need in sorted(method.requires()):
        if need in _CHECKS and (problem := _CHECKS[need](task)):
            raise PotluckError(f"{type(method).__name__} needs {need}: {problem}")


def _odd_one(task: Task, facts: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first client whose architecture's fact is not the commonest one: (who, its fact, the others')."""
    usual = Counter(facts[info.architecture] for info in task.clients).most_common(1)[0][0]
    for info in task.first_of.values():
        if facts[info.architecture] != usual:
            return f"client {info.index} {info.architecture!r}", facts[info.architecture], usual
    return None


def _project(size: int) -> str:
    """How features come to one size: for models of the zoo, and for a user's own."""
    return f"Pass models.feature_dim={size} to project; a model of your own: potluck.split(…, feature_dim={size})."


def _equal_features(task: Task) -> str | None:
    odd = _odd_one(task, {name: a.feature_dim for name, a in task.architectures.items()})
    if odd is None:
        return None
    return f"{odd[0]} gives {odd[1]}, others {odd[2]}. {_project(odd[2])}"


def _equal_heads(task: Task) -> str | None:
    odd = _odd_one(task, {name: tuple(sorted(a.head.items())) for name, a in task.architectures.items()})
    if odd is None:
        return None
    mine, usual = (", ".join(f"{name} {'×'.join(map(str, s))}" for name, s in heads) for heads in odd[1:])
    size = max(architecture.feature_dim for architecture in task.architectures.values())
    return f"{odd[0]} has a head of {mine}, others of {usual}. {_project(size)}"


def _linear_heads(task: Task) -> str | None:
    for info in task.first_of.values():
        if not set(task.architectures[info.architecture].head) <= {"weight", "bias"}:
            return (
                f"client {info.index} {info.architecture!r} has a head of several layers. "
                "Split that model at its last linear layer."
            )
    return None


def _stages(task: Task) -> str | None:
    for info in task.first_of.values():
        if not task.architectures[info.architecture].stage_shapes:
            return (
                f"client {info.index} {info.architecture!r} cannot be cut. Use models with stages (nested5, "
                "resnet5), or name the cut points in potluck.split(model, stages=...)."
            )
    odd = _odd_one(task, {n: (a.stage_shapes[0], a.stage_shapes[-1]) for n, a in task.architectures.items()})
    if odd is None:
        return None
    return f"{odd[0]} exchanges features of shape {odd[1]}, others {odd[2]}. Choose models of one family."


def _same_architecture(task: Task) -> str | None:
    odd = _odd_one(task, {name: name for name in task.architectures})
    if odd is None:
        return None
    return f"{odd[0]} differs from the others' {odd[2]!r}. Choose one model for all clients."


def _largest(task: Task) -> Architecture:
    def size(architecture: Architecture) -> tuple[int, int]:
        return len(architecture.initial), sum(tensor.numel() for tensor in architecture.initial.values())

    return max(task.architectures.values(), key=size)


def _nested_depth(task: Task) -> str | None:
    deepest = _largest(task)
    for info in task.first_of.values():
        for name, shape in task.architectures[info.architecture].shapes.items():
            if deepest.shapes.get(name) != shape:
                return (
                    f"client {info.index} {info.architecture!r} has {name!r}, which is no part of "
                    f"{deepest.name!r}. Choose a depth-nested family (nested5, resnet5)."
                )
    return None


def _nested_width(task: Task) -> str | None:
    widest = _largest(task)
    for info in task.first_of.values():
        shapes = task.architectures[info.architecture].shapes
        fits = shapes.keys() == widest.shapes.keys() and all(
            len(shape) == len(widest.shapes[name])
            and all(mine <= theirs for mine, theirs in zip(shape, widest.shapes[name], strict=True))
            for name, shape in shapes.items()
        )
        if not fits:
            return (
                f"client {info.index} {info.architecture!r} is no slice of {widest.name!r}. "
                "Choose a width-nested family (width5, or slim-cnn@1,slim-cnn@0.5)."
            )
    return None


def _shared_model(task: Task) -> str | None:
    return None if task.shared_builder else "the federation has none. Pass models.shared=NAME."


def _shared_features(task: Task) -> str | None:
    return _shared_size(task, lambda mine, shared: mine == shared)


def _smaller_features(task: Task) -> str | None:
    return _shared_size(task, lambda mine, shared: mine >= shared)


def _shared_size(task: Task, fits: Callable[[int, int], bool]) -> str | None:
    if task.shared_builder is None:
        return _shared_model(task)
    shared = task.shared_model().feature_dim
    for info in task.first_of.values():
        mine = task.architectures[info.architecture].feature_dim
        if not fits(mine, shared):
            return (
                f"client {info.index} {info.architecture!r} gives {mine}, the shared model {shared}. "
                f"Pass models.shared=NAME of a model with {mine} features. {_project(mine)}"
            )
    return None


def _public_data(task: Task) -> str | None:
    return (
        None if task.public is not None else "the federation has none. Pass data.public=0.1 to hold some out."
    )


_CHECKS: dict[Need, Callable[[Task], str | None]] = {
    Need.EQUAL_FEATURES: _equal_features,
    Need.EQUAL_HEADS: _equal_heads,
    Need.LINEAR_HEADS: _linear_heads,
    Need.STAGES: _stages,
    Need.SAME_ARCHITECTURE: _same_architecture,
    Need.NESTED_DEPTH: _nested_depth,
    Need.NESTED_WIDTH: _nested_width,
    Need.SHARED_MODEL: _shared_model,
    Need.SHARED_FEATURES: _shared_features,
    Need.SMALLER_FEATURES: _smaller_features,
    Need.PUBLIC_DATA: _public_data,
}
