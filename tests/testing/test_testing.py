"""The public conformance check: built-in methods pass, and each broken promise is reported."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch

from potluck.core.client import Client
from potluck.core.method import Method, Predictor, Update
from potluck.core.model import load_tensors, tensors_of
from potluck.core.payload import Payload, Tensors
from potluck.core.task import ClientInfo, Context
from potluck.methods import METHODS, method_class
from potluck.testing import MethodError, check_method

QUICK = {"fedgen": {"hidden_dim": 16, "server_steps": 5}, "fedtgp": {"server_epochs": 5}}
"""Less work on the server: the contract is the same."""


@pytest.mark.parametrize("name", list(METHODS))
def test_built_in_methods_keep_the_contract(name: str):
    check_method(method_class(name)(**QUICK.get(name, {})))


@dataclass(frozen=True)
class Head(Payload):
    weights: Tensors


@dataclass
class Shared(Method[Tensors, Head, Head]):
    """A correct little method to break: the heads' plain mean."""

    def init_server(self, ctx: Context) -> Tensors:
        return tensors_of(ctx.head())

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Head:
        return Head(state)

    def client(self, me: Client, message: Head) -> Head:
        load_tensors(me.model.head, message.weights)
        me.fit()
        return Head(tensors_of(me.model.head))

    def server(self, state: Tensors, updates: Sequence[Update[Head]], ctx: Context) -> Tensors:
        return {
            name: torch.stack([update.payload.weights[name] for update in updates]).mean(0) for name in state
        }


def test_the_correct_method_passes():
    check_method(Shared())


class GlobalRandomness(Shared):
    def client(self, me: Client, message: Head) -> Head:
        torch.rand(1, generator=torch.default_generator)
        answer = super().client(me, message)
        return Head({name: tensor + next(COUNTER) for name, tensor in answer.weights.items()})


COUNTER = itertools.count()


class LiveAnswer(Shared):
    def client(self, me: Client, message: Head) -> Head:
        super().client(me, message)
        return Head(dict(me.model.head.state_dict()))


class RawData(Shared):
    def client(self, me: Client, message: Head) -> Head:
        super().client(me, message)
        return Head({"weight": me.train.x.to(me.task.dtype, copy=True)})

    def server(self, state: Tensors, updates: Sequence[Update[Head]], ctx: Context) -> Tensors:
        return state


class PredictTrains(Shared):
    def predict(self, me: Client, message: Head | None) -> Predictor:
        with torch.no_grad():
            me.model.head.bias.add_(1.0)
        return me.model


class HiddenServerState(Shared):
    def server(self, state: Tensors, updates: Sequence[Update[Head]], ctx: Context) -> Tensors:
        self.seen = getattr(self, "seen", 0) + 1 if ctx.step > 1 else 1
        return {name: tensor * self.seen for name, tensor in super().server(state, updates, ctx).items()}


class HiddenClientState(Shared):
    def client(self, me: Client, message: Head) -> Head:
        me.visits = getattr(me, "visits", 0) + 1  # type: ignore[attr-defined]
        answer = super().client(me, message)
        return Head({name: tensor * me.visits for name, tensor in answer.weights.items()})  # type: ignore[attr-defined]


@dataclass
class UnsavableState(Shared):
    def init_server(self, ctx: Context) -> Tensors:
        return {**tensors_of(ctx.head()), "who": {1, 2}}  # type: ignore[dict-item]

    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Head:
        return Head({name: tensor for name, tensor in state.items() if name != "who"})

    def server(self, state: Tensors, updates: Sequence[Update[Head]], ctx: Context) -> Tensors:
        return state


class NeedsEveryClass(Shared):
    def client(self, me: Client, message: Head) -> Head:
        if len(me.train.classes()) < 2:
            raise ValueError("a class is missing")
        return super().client(me, message)


@dataclass(frozen=True)
class Other(Payload):
    weights: Tensors = field(default_factory=dict)


class WrongType(Shared):
    def broadcast(self, state: Tensors, client: ClientInfo, ctx: Context) -> Head:
        return Other(state)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (GlobalRandomness, "two different results"),
        (LiveAnswer, "shares memory with the client"),
        (RawData, "raw data"),
        (PredictTrains, "predict changed the client"),
        (HiddenServerState, "a resumed run's"),
        (HiddenClientState, "a resumed run's"),
        (UnsavableState, "cannot be saved"),
        (NeedsEveryClass, "did not survive a client that lacks a class"),
        (WrongType, "declared is Head"),
    ],
)
def test_each_broken_promise_is_reported(broken: type[Shared], says: str):
    with pytest.raises(MethodError, match=says):
        check_method(broken())
