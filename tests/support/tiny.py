"""Small hand-made float64 federations that need no data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from potluck.core.client import Client
from potluck.core.method import Method, Update
from potluck.core.model import ClientModel
from potluck.core.needs import check_needs
from potluck.core.random import seeded
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.engines.serial import SerialEngine
from potluck.federation.federation import Federation, Member
from potluck.federation.members import federate
from potluck.loop.callbacks import Callback, Step
from potluck.loop.loop import Loop
from potluck.loop.newcomers import draw_newcomers
from potluck.loop.schedule import Clock, Evaluation, Schedule
from potluck.worker.worker import Worker


class Net(ClientModel):
    """Linear body of any width to `features` sizes, linear head; a `smooth` one has no feature that can die."""

    def __init__(
        self,
        inputs: int = 4,
        features: int = 3,
        classes: int = 3,
        hidden: int = 5,
        norm: bool = False,
        smooth: bool = False,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(inputs, hidden)]
        if norm:
            layers.append(nn.BatchNorm1d(hidden))
        bend = nn.Tanh if smooth else nn.ReLU
        self.body = nn.Sequential(*layers, bend(), nn.Linear(hidden, features), bend())
        self.head = nn.Linear(features, classes)
        self.feature_dim = features

    def features(self, x: Tensor) -> Tensor:
        return self.body(x)


def seeded_net(seed: int = 0, **shape: Any) -> Net:
    """A float64 `Net` with the same first weights in every run of the tests."""
    with seeded(seed, "net"):
        return Net(**shape).double()


def points(
    count: int, seed: int, inputs: int = 4, classes: int = 3, only: Sequence[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Separable blobs, one per class; `only` restricts the classes."""
    rng = torch.Generator().manual_seed(seed)
    kinds = torch.tensor(list(only) if only is not None else list(range(classes)))
    y = kinds[torch.arange(count) % len(kinds)]
    centres = 3 * torch.eye(max(classes, inputs), dtype=torch.float64)[:classes, :inputs]
    return centres[y] + 0.5 * torch.randn(count, inputs, generator=rng, dtype=torch.float64), y


def tiny(
    clients: int = 4,
    *,
    hidden: Sequence[int] = (5, 7),
    norm: bool = False,
    smooth: bool = False,
    classes_of: Sequence[Sequence[int] | None] = (),
    sizes: Sequence[int] = (12,),
    training: Training | None = None,
    seed: int = 0,
    validation: bool = True,
    **more: Any,
) -> Federation:
    """Clients with networks of cycling widths, and blobs as data."""
    members = []
    for index in range(clients):
        with seeded(seed, "net", index):
            net = Net(hidden=hidden[index % len(hidden)], norm=norm, smooth=smooth).double()
        only = classes_of[index % len(classes_of)] if classes_of else None
        size = sizes[index % len(sizes)]
        train, test = points(size, 10 + index, only=only), points(9, 90 + index, only=only)
        validation_part = points(5, 50 + index, only=only) if validation else None
        members.append(Member(net, train, test, validation=validation_part))
    with seeded(seed, "shared"):
        shared = Net(hidden=2, smooth=smooth).double()
    settings = training or Training(epochs=1, batch_size=4, lr=0.1)
    more.setdefault("shared_model", shared)
    more.setdefault("shared_test", points(9, 1000))
    more.setdefault("public", points(10, 2000))
    return federate(members, training=settings, num_classes=3, seed=seed, **more)


def context(fed: Federation | None = None, number: int = 1, rounds: int = 1) -> Context:
    """What a server function sees in round `number`."""
    return Context((fed or tiny()).task, number, rounds, 0, number)


def update(payload: Any, index: int = 0, samples: int = 1) -> Update[Any]:
    """A client's answer, as the server gets it."""
    return Update(ClientInfo(index, f"client-{index}", samples, "Net"), payload)


def answer(method: Method[Any, Any, Any], me: Client, message: Any, number: int = 1, rounds: int = 1) -> Any:
    """Let a client do its job of round `number`, as a worker would."""
    me.begin("train", number - 1, number, rounds)
    with seeded(me.task.seed, "torch", me.info.name, "train", number - 1):
        return method.client(me, message).copy()


def weights(me: Client) -> dict[str, Tensor]:
    """Copies of a client's tensors, to compare with later ones."""
    return {name: tensor.clone() for name, tensor in me.model.state_dict().items()}


def is_one_step(before: nn.Module, loss: Tensor, after: nn.Module, lr: float = 0.1) -> bool:
    """Whether `after` is where one plain gradient step on a loss of `before` leads."""
    slopes = torch.autograd.grad(loss, list(before.parameters()))
    steps = zip(before.parameters(), slopes, after.parameters(), strict=True)
    return all(torch.allclose(end, start - lr * slope, atol=1e-12) for start, slope, end in steps)


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two sets of tensors are equal bit for bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def make_loop(
    method: Method[Any, Any, Any],
    fed: Federation | None = None,
    *,
    rounds: int = 2,
    evaluation: Evaluation | None = None,
    callbacks: Sequence[Callback] = (),
    **schedule: Any,
) -> Loop:
    """A loop on the serial engine."""
    fed = fed or tiny()
    check_needs(method, fed.task)
    engine = SerialEngine(Worker(method, fed.client))
    clock = Clock(
        **{name: schedule.pop(name) for name in ("duration", "upload", "available") if name in schedule}
    )
    evaluation = evaluation or Evaluation()
    return Loop(
        method,
        fed.task,
        engine,
        Schedule(rounds, **schedule),
        evaluation,
        callbacks,
        clock=clock,
        shared_test=fed.shared_test,
        newcomers=draw_newcomers(evaluation, fed.task),
    )


class Recorder(Callback):
    """Keeps everything it sees."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.updates: list[Any] = []
        self.steps: list[Any] = []
        self.end: Any = None

    def on_send(self, client: Any, message: Any, round_number: int) -> None:
        self.sent.append((round_number, client.index, message))

    def on_update(self, update: Any, round_number: int) -> None:
        self.updates.append((round_number, update))

    def on_step(self, step: Any) -> None:
        self.steps.append(step)

    def on_end(self, end: Any) -> None:
        self.end = end


class StopAt(Callback):
    """Ctrl-C after a server step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, step: Step) -> None:
        if step.record.step == self.step:
            raise KeyboardInterrupt
