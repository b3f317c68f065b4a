"""The contract of a method: a few functions over explicit state, and what it requires and supports."""

from __future__ import annotations

import inspect
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.needs import Need
from potluck.core.payload import Payload
from potluck.core.supports import Supports
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training

if TYPE_CHECKING:
    from potluck.core.client import Client


State = TypeVar("State")
Down = TypeVar("Down", bound=Payload)
Up = TypeVar("Up", bound=Payload)

Predictor = Callable[[Tensor], Tensor]
"""Maps a batch of inputs to class scores; the largest score is the prediction."""


@dataclass(frozen=True)
class Update(Generic[Up]):
    """One client's payload as the server receives it.

    `sent` is the message that the payload answers, `job` the client's number of that job. `staleness` counts server
    steps since the message was sent; `weight` is 1 unless the schedule discounts stale updates. Where a server step
    has fewer updates than a cohort, the latest ones of other clients are passed as well; they are not `fresh`.
    """

    client: ClientInfo
    payload: Up
    staleness: int = 0
    weight: float = 1.0
    sent: Any = None
    job: int = 0
    fresh: bool = True
    members: tuple[ClientInfo, ...] = ()
    """Where the payload is the average of many clients that only their sum is known of: these clients."""

    @property
    def clients(self) -> tuple[ClientInfo, ...]:
        """Return the clients that the payload is of."""
        return self.members or (self.client,)


@dataclass(frozen=True)
class PaperAccounting:
    """Numbers that a paper counts for one exchange, where its count differs from what really travels."""

    up: int
    down: int
    note: str


class Method(ABC, Generic[State, Down, Up]):
    """A federated algorithm. Its settings are dataclass fields of the subclass: `lr: float = setting(0.1, "meaning")`.

    A method uses no disk, socket, clock or global random state: randomness comes from `me.rng(purpose)` on a
    client and `ctx.rng(purpose)` on the server, so a result depends on experiment and seed alone.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS})
    """What the method requires of the clients' models or of the task."""
    supports: ClassVar[Supports] = Supports()
    """Which robust rules, privacy and schedules act on the method; the defaults claim nothing."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Check that the subclass names its state and payload types."""
        super().__init_subclass__(**kwargs)
        for payload in _declared_types(cls)[1:]:
            _check_payload_type(cls, payload)

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Check that a class with settings is a dataclass."""
        fields_left = any(isinstance(value, Field) for base in cls.__mro__ for value in vars(base).values())
        if fields_left or ((args or kwargs) and cls.__init__ is object.__init__):
            raise PotluckError(
                f"{cls.__name__} has settings but is not a dataclass; put @dataclass above its class line."
            )
        return super().__new__(cls)

    # -- the algorithm --------------------------------------------------------------------------------

    @abstractmethod
    def init_server(self, ctx: Context) -> State:
        """Return the server's state before the first step."""

    @abstractmethod
    def broadcast(self, state: State, client: ClientInfo, ctx: Context) -> Down:
        """Return the message for this client."""

    @abstractmethod
    def client(self, me: Client, message: Down) -> Up:
        """Train `me` in place and return what it shares."""

    @abstractmethod
    def server(self, state: State, updates: Sequence[Update[Up]], ctx: Context) -> State:
        """Aggregate one or more updates into the next state."""

    def predict(self, me: Client, message: Down | None) -> Predictor:
        """Return the model to evaluate on this client; `message` is given where it was just received."""
        return me.model

    def predict_server(self, state: State, ctx: Context) -> Predictor | None:
        """Return the global model, where there is one."""
        return None

    # -- optional: where the algorithm's settings or its paper demand it --------------------------------

    def requires(self) -> frozenset[Need]:
        """Return the needs under the present settings; override where a setting changes them."""
        return self.needs

    def check_training(self, training: Training) -> None:
        """Raise `PotluckError` for local training settings that the algorithm does not allow."""

    def check_update(self, payload: Up, client: ClientInfo, ctx: Context) -> None:
        """Raise `PayloadError` for an update that its declared type allows but the present settings do not."""

    def workload(self, samples: int, training: Training) -> int:
        """Return how many training samples one job passes through the model, for the virtual clock."""
        return training.epochs * samples

    def forget(self, state: State, me: Client, ctx: Context) -> State | None:
        """Return the state without what a client contributed, where the state keeps that apart; None: it does not."""
        return None

    def paper_accounting(self, down: Down, up: Up) -> PaperAccounting | None:
        """Return the paper's count of one exchange, where it differs from what travels."""
        return None


def payload_types(method: Method[Any, Any, Any]) -> tuple[type[Payload], type[Payload]]:
    """Return the declared (down, up) payload types of a method, read from its `Method[State, Down, Up]` base."""
    _, down, up = _declared_types(type(method))
    return down, up


def _declared_types(cls: type[Method[Any, Any, Any]]) -> tuple[Any, Any, Any]:
    for base in (base for parent in cls.__mro__ for base in vars(parent).get("__orig_bases__", ())):
        if typing.get_origin(base) is Method:
            state, down, up = typing.get_args(base)
            return state, down, up
    raise PotluckError(
        f"{cls.__name__} does not name its types; write class {cls.__name__}(Method[State, Down, Up]) with the type of "
        "the server's state and the payloads that travel down and up."
    )


def _check_payload_type(cls: type[Method[Any, Any, Any]], payload: Any) -> None:
    """Raise for a declared payload that is no `Payload` or no dataclass; names in quotes are not resolved here."""
    if isinstance(payload, TypeVar | str | typing.ForwardRef):
        return
    name = getattr(payload, "__name__", repr(payload))
    if not (isinstance(payload, type) and issubclass(payload, Payload)):
        raise PotluckError(f"{cls.__name__} sends {name}, which is no payload; write class {name}(Payload).")
    if inspect.get_annotations(payload) and "__dataclass_params__" not in vars(payload):
        raise PotluckError(
            f"{cls.__name__} sends {name}, which is not a dataclass; put @dataclass(frozen=True) above its class line."
        )
