"""The contract of an algorithm: a few functions over explicit state."""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor

from potluck.core.payload import Payload
from potluck.core.task import ClientInfo, Context
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
