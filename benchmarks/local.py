"""What a client's training costs over a bare PyTorch loop that does the same steps."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.population import CNNS, population
from benchmarks.rows import Row
from benchmarks.trials import ratio, time_alternately
from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.methods.standalone import Standalone
from potluck.wire.jobs import Answer, Job
from potluck.worker.worker import Worker

GOAL, SMALL_GOAL = 1.05, 1.15


def reference_loop(model: nn.Module, x: Tensor, y: Tensor, order: Tensor, batch: int, lr: float) -> None:
    """One epoch as one would write it by hand."""
    optimizer = torch.optim.SGD(model.parameters(), lr)
    model.train()
    for rows in torch.split(order, batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


class Pair:
    """The same training twice: as a job of a worker, and by hand on the same batches."""

    def __init__(self, name: str, batch: int, steps: int) -> None:
        federation = population(1, [name], batch * steps, batch)
        self.worker = Worker(Standalone(), federation.client)
        self.client: Client = self.worker.client(0)
        self.model = federation.members[0].build()
        self.x, self.y = self.client.train.take(slice(None))
        self.batch, self.jobs, self.epochs = batch, 0, 0

    def ours(self) -> None:
        """One job."""
        answer = self.worker.run(Job(self.jobs + 1, "train", 0, self.jobs, 1, 1, EmptyPayload()))
        assert isinstance(answer, Answer), answer
        self.jobs += 1

    def bare(self) -> None:
        """One epoch over the batches of the job of the same number."""
        self.client.begin("train", self.epochs, 1, 1)
        order = torch.randperm(len(self.y), generator=self.client.rng("batches"))
        reference_loop(self.model, self.x, self.y, order, self.batch, self.client.training.lr)
        self.epochs += 1

    def check(self) -> None:
        """Both must have done the very same arithmetic."""
        mine, theirs = self.client.model.state_dict(), self.model.state_dict()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), "the two loops differ"


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Serial engine ÷ bare loop, in processor time, for each network and batch size."""
    for name in ("lenet", "cnn-5") if quick else ("lenet", *CNNS):
        for batch, steps in ((10, 20), (64, 10)):
            pair = Pair(name, batch, 2 if quick else steps)
            actions = {"ours": pair.ours, "bare": pair.bare}
            seconds = time_alternately(actions, 2 if quick else 25, clock=time.process_time)
            pair.check()
            spread = ratio(seconds["ours"], seconds["bare"])
            goal = GOAL if name in CNNS else SMALL_GOAL
            yield Row("serial ÷ bare loop", f"{name}, batch {batch}", spread, goal=goal)
