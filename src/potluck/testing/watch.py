"""Run a method and keep everything that can be seen of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from potluck.core import tree
from potluck.core.method import Method, Update
from potluck.core.payload import Payload
from potluck.core.task import ClientInfo
from potluck.engines.serial import SerialEngine
from potluck.federation.federation import Federation
from potluck.loop.callbacks import Callback, End, Step
from potluck.loop.jobs import Engine
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation, Schedule
from potluck.loop.worker import Worker


class MethodError(AssertionError):
    """The contract that a method breaks, and how."""


class Trace(Callback):
    """Everything that can be seen of a run, as comparable tensors; messages are also kept as first seen."""

    def __init__(self) -> None:
        self.messages: list[tuple[str, Payload, Payload]] = []
        self.accuracies: list[float | None] = []
        self.clients: list[tree.Flat] = []
        self.state: Any = None  # the last server state; taken apart once the run is over

    def on_send(self, client: ClientInfo, message: Payload, round_number: int) -> None:
        self.messages.append((f"broadcast to client {client.index}", message, message.copy()))

    def on_update(self, update: Update[Any], round_number: int) -> None:
        self.messages.append(
            (f"answer of client {update.client.index}", update.payload, update.payload.copy())
        )

    def on_step(self, step: Step) -> None:
        self.accuracies.append(step.record.accuracy)

    def on_end(self, end: End) -> None:
        self.state = end.state


def run_method(
    method: Method[Any, Any, Any],
    federation: Federation,
    *,
    engine: Callable[[Worker], Engine] = SerialEngine,
    rounds: int = 2,
    **schedule: Any,
) -> Trace:
    method, trace = copy.deepcopy(method), Trace()  # what an earlier run left on the object must not help
    working = engine(Worker(method, federation.client))
    try:
        plan = Schedule(rounds, **schedule)
        loop = Loop(method, federation.task, working, plan, Evaluation(also=("received",)), [trace])
        loop.run()
        trace.state = saved_state(method, trace.state)
        trace.clients = loop.dispatcher.fetch_all(
            [info.index for info in federation.task.clients], loop.server.context()
        )
    finally:
        working.close()
    return trace


def saved_state(method: Method[Any, Any, Any], state: Any) -> tree.Flat:
    try:
        return tree.flatten(state)
    except TypeError as error:
        raise MethodError(f"{type(method).__name__}: {error}.") from None


def same_state(a: tree.Flat, b: tree.Flat) -> bool:
    """Whether two states are equal bit for bit."""
    return (
        a.layout == b.layout
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(tensor, b.tensors[name]) for name, tensor in a.tensors.items())
    )


def same_payload(one: Payload, other: Payload) -> bool:
    """Equal content; the order of a dict's names carries no meaning on a wire."""
    (tensors, scalars), (others, numbers) = one.flatten(), other.flatten()
    same_names = tensors.keys() == others.keys() and scalars == numbers
    return same_names and all(torch.equal(tensor, others[name]) for name, tensor in tensors.items())


def require(holds: bool, method: Method[Any, Any, Any], sentence: str) -> None:
    if not holds:
        raise MethodError(f"{type(method).__name__}: {sentence}")
