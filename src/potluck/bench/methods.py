"""What a method's own local work costs over a bare loop that does the very same arithmetic."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.bench.population import AnyMethod, endless, population, serial_engine
from potluck.bench.rows import Row
from potluck.bench.trials import in_turns, ratio
from potluck.core.model import ClientModel
from potluck.core.payload import Tensors
from potluck.loop.jobs import Answer, Job
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.methods.fedproto import FedProto
from potluck.methods.fedprox import FedProx
from potluck.methods.lg_fedavg import LGFedAvg

GOAL, NETWORK, BATCH, BIG = 1.05, "cnn-3", 10, 256

Loss = Callable[[Tensor, Tensor], Tensor]


class Bare:
    """A client's data and model in the hands of somebody who writes loops."""

    def __init__(self, model: ClientModel, x: Tensor, y: Tensor, lr: float) -> None:
        self.model, self.x, self.y, self.lr = model, x, y, lr

    def train(self, order: Tensor, loss: Loss) -> None:
        """One epoch."""
        optimizer = torch.optim.SGD(self.model.parameters(), self.lr)
        self.model.train()
        for rows in torch.split(order, BATCH):
            optimizer.zero_grad()
            loss(self.x[rows], self.y[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        self.model.eval()

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy."""
        return F.cross_entropy(self.model(x), y)

    def means(self) -> Tensor:
        """The mean feature of each class, in large batches."""
        total, count = torch.zeros(10, self.model.feature_dim), torch.bincount(self.y, minlength=10)
        with torch.no_grad():
            for x, y in zip(torch.split(self.x, BIG), torch.split(self.y, BIG), strict=True):
                total.index_add_(0, y, self.model.features(x))
        present = count > 0
        return total[present] / count[present, None]

    def copy(self) -> Tensors:
        """What is uploaded."""
        return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}


def fedavg(me: Bare, order: Tensor, message: Any) -> object:
    """Download, train, upload."""
    me.model.load_state_dict(message.tensors)
    me.train(order, me.plain)
    return me.copy()


def fedprox(me: Bare, order: Tensor, message: Any) -> object:
    """The same with a pull towards what was downloaded."""
    me.model.load_state_dict(message.tensors)
    start = [tensor.detach().clone() for tensor in me.model.parameters()]

    def loss(x: Tensor, y: Tensor) -> Tensor:
        pairs = zip(me.model.parameters(), start, strict=True)
        return me.plain(x, y) + 0.1 / 2 * torch.stack([(w - o).square().sum() for w, o in pairs]).sum()

    me.train(order, loss)
    return me.copy()


def fedgh(me: Bare, order: Tensor, message: Any) -> object:
    """The server's head, an epoch, class means."""
    me.model.head.load_state_dict(message.weights)
    me.train(order, me.plain)
    return me.means()


def fedproto(me: Bare, order: Tensor, message: Any) -> object:
    """Features near the prototypes, class means. Here every class has one."""
    rows = message.rows

    def loss(x: Tensor, y: Tensor) -> Tensor:
        features = me.model.features(x)
        distance: Tensor = (features - rows[y]).square().mean(dim=1).mean()
        return F.cross_entropy(me.model.head(features), y) + distance

    me.train(order, loss)
    return me.means()


def lg_fedavg(me: Bare, order: Tensor, message: Any) -> object:
    """The mean head, an epoch, the head."""
    me.model.head.load_state_dict(message.weights)
    me.train(order, me.plain)
    return {name: tensor.detach().clone() for name, tensor in me.model.head.state_dict().items()}


BY_HAND: dict[str, tuple[AnyMethod, Callable[[Bare, Tensor, Any], object]]] = {
    "fedavg": (FedAvg(), fedavg),
    "fedprox": (FedProx(), fedprox),
    "fedgh": (FedGH(), fedgh),
    "fedproto": (FedProto(prototype_weight=1.0), fedproto),
    "lg-fedavg": (LGFedAvg(), lg_fedavg),
}


class Pair:
    """One client's jobs twice: by the method in a worker, and by hand from the same start on the same batches."""

    def __init__(self, name: str, samples: int) -> None:
        method, self.by_hand = BY_HAND[name]
        federation = population(1, [NETWORK], samples, BATCH)
        engine = serial_engine(method, federation)
        loop = endless(method, federation, engine, 1)
        loop.step()  # from now on the server knows something
        self.worker, self.client = engine.worker, engine.worker.client(0)
        self.message = loop.server.message(federation.task.clients[0], loop.server.context())
        model = federation.members[0].build()
        model.load_state_dict(self.client.model.state_dict())
        self.bare_client = Bare(model.eval(), *self.client.train.take(slice(None)), self.client.lr)
        self.jobs = self.by_hands = 1

    def ours(self) -> None:
        """A job, not tested."""
        answer = self.worker.run(Job(self.jobs + 1, "train", 0, self.jobs, 1, 1, self.message))
        assert isinstance(answer, Answer), answer
        self.jobs += 1

    def bare(self) -> None:
        """The job of the same number by hand."""
        self.client.begin("train", self.by_hands, 1, 1)
        order = torch.randperm(len(self.bare_client.y), generator=self.client.rng("batches"))
        self.by_hand(self.bare_client, order, self.message)
        self.by_hands += 1

    def check(self) -> None:
        """Both must have done the very same arithmetic."""
        mine, theirs = self.client.model.state_dict(), self.bare_client.model.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), "the two loops differ"


def measure(*, quick: bool = False) -> Iterator[Row]:
    """A method's job ÷ its bare loop, in processor time."""
    for name in list(BY_HAND)[: 2 if quick else None]:
        pair = Pair(name, 20 if quick else 200)
        seconds = in_turns(
            {"ours": pair.ours, "bare": pair.bare}, 2 if quick else 25, clock=time.process_time
        )
        pair.check()
        spread = ratio(seconds["ours"], seconds["bare"])
        yield Row("method ÷ its bare loop", f"{name}, {NETWORK}, batch {BATCH}", spread, goal=GOAL)
