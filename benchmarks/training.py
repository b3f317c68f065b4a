"""Measure what local training and scoring cost over bare PyTorch loops with the same arithmetic."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.population import CLASSES, CNNS, SHAPE, endless_loop, population, serial_engine
from benchmarks.reference import REFERENCE_LOOPS, ReferenceClient, Upload
from benchmarks.results import Action, Row, Spread, ratio, time_alternately
from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.core.random import generator
from potluck.methods import METHODS, method_class
from potluck.methods.standalone import Standalone
from potluck.wire.jobs import Answer, Job
from potluck.wire.score import score_outputs
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


class LocalPair:
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
        answer = self.worker.run(
            Job(self.jobs + 1, "train", 0, self.jobs, round=1, rounds=1, message=EmptyPayload())
        )
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
        actual, expected = self.client.model.state_dict(), self.model.state_dict()
        assert all(torch.equal(actual[name], expected[name]) for name in actual), "the two loops differ"


def measure_local(*, quick: bool = False) -> Iterator[Row]:
    """Serial engine ÷ bare loop, in processor time, for each network and batch size."""
    for name in ("lenet", "cnn-5") if quick else ("lenet", *CNNS):
        for batch, steps in ((10, 20), (64, 10)):
            pair = LocalPair(name, batch, 2 if quick else steps)
            actions = {"ours": pair.ours, "bare": pair.bare}
            seconds = time_alternately(actions, 2 if quick else 25, clock=time.process_time)
            pair.check()
            spread = ratio(seconds["ours"], seconds["bare"])
            goal = GOAL if name in CNNS else SMALL_GOAL
            yield Row("serial ÷ bare loop", f"{name}, batch {batch}", spread, goal=goal)


GOAL, BATCH = 1.05, 10


@dataclass(frozen=True)
class Setting:
    """What is trained on: a usual network, the small one beside it, those that some methods need, and the images."""

    usual: str = "cnn-3"
    shared: str = "cnn-5"
    special: Mapping[str, str] | None = None
    shape: tuple[int, ...] = SHAPE
    public: int = 40

    def network(self, method: str) -> str:
        """The client's."""
        return (self.special or {}).get(method, self.usual)


STAGED, NESTED = "mini-resnet-3", "slim-cnn@0.5"
FULL = Setting(
    special={"fedin": STAGED, "inclusivefl": STAGED, "heterofl": NESTED, "fedrolex": NESTED},
)
TINY = Setting(
    "small-mlp",
    "small-cnn",
    {"fedin": "mini-resnet-1", "inclusivefl": "mini-resnet-1", "heterofl": NESTED, "fedrolex": NESTED},
    (1, 8, 8),
    20,
)


class MethodPair:
    """One client's jobs twice: by the method in a worker, and by hand from the same start on the same batches."""

    def __init__(self, name: str, samples: int, setting: Setting = FULL) -> None:
        method, self.by_hand = method_class(name)(), REFERENCE_LOOPS[name]
        federation = population(
            1,
            [setting.network(name)],
            samples,
            BATCH,
            shape=setting.shape,
            shared=setting.shared,
            public=setting.public,
        )
        engine = serial_engine(method, federation)
        loop = endless_loop(method, federation, engine, 1)
        loop.step()  # from now on the server knows something
        self.worker, self.client = engine.worker, engine.worker.client(0)
        self.message = loop.server.message(federation.task.clients[0], loop.server.context())
        self.hand = _hand(self.client)
        self.jobs = self.by_hands = 1
        self.sent: Upload = {}
        self.sent_by_hand: Upload = {}

    def ours(self) -> None:
        """A job, not tested."""
        answer = self.worker.run(
            Job(self.jobs + 1, "train", 0, self.jobs, round=1, rounds=1, message=self.message)
        )
        assert isinstance(answer, Answer), answer
        assert answer.payload is not None
        tensors, numbers = answer.payload.flatten()
        self.sent = {**tensors, **numbers}
        self.jobs += 1

    def bare(self) -> None:
        """The job of the same number by hand."""
        self.client.begin("train", self.by_hands, 1, 1)
        self.sent_by_hand = self.by_hand(self.hand, self.message)
        self.by_hands += 1

    def check(self) -> None:
        """Both must have done the very same arithmetic, and have the same to send."""
        assert _same(self.client.model.state_dict(), self.hand.model.state_dict()), "the two models differ"
        assert _same(self.sent, self.sent_by_hand), "what the two would send differs"


def _hand(client: Client) -> ReferenceClient:
    """What a client is between two jobs, without its ways."""
    task, public = client.task, client.task.public
    return ReferenceClient(
        copy.deepcopy(client.model),
        *client.train.take(slice(None)),
        client.lr,
        BATCH,
        client.rng,
        copy.deepcopy({**client.private, **client._modules}),
        CLASSES,
        client.info.name,
        task.seed,
        None if public is None else public.take(slice(None)),
    )


def _same(actual: Upload, expected: Upload) -> bool:
    """The same names with the very same numbers."""
    pairs = [
        (torch.as_tensor(actual[name]), torch.as_tensor(expected.get(name, torch.nan))) for name in actual
    ]
    return actual.keys() == expected.keys() and all(
        torch.equal(actual_tensor, expected_tensor) for actual_tensor, expected_tensor in pairs
    )


def measure_methods(*, quick: bool = False) -> Iterator[Row]:
    """A method's job ÷ its bare loop, in processor time."""
    setting = TINY if quick else FULL
    for name in [name for name in METHODS if name in REFERENCE_LOOPS][: 2 if quick else None]:
        pair = MethodPair(name, 20 if quick else 200, setting)
        actions = {"ours": pair.ours, "bare": pair.bare}
        seconds = time_alternately(actions, 2 if quick else 25, clock=time.process_time)
        pair.check()
        label = f"{name}, {setting.network(name)}, batch {BATCH}"
        yield Row("method ÷ its bare loop", label, ratio(seconds["ours"], seconds["bare"]), goal=GOAL)


SCORE_GOAL = 1.0
REPEATS = 20

Batches = Sequence[tuple[Tensor, Tensor]]


def count_right(outputs: Batches) -> tuple[int, float]:
    """Accuracy and loss alone."""
    right = sum(int((scores.argmax(dim=1) == y).sum()) for scores, y in outputs)
    return right, sum(float(F.cross_entropy(scores, y, reduction="sum")) for scores, y in outputs)


def measure_scores(*, quick: bool = False) -> Iterator[Row]:
    """Processor time of all measures less that of the count, as a share of one epoch over three times the samples."""
    for name, samples in (("lenet", 150), ("cnn-5", 150), ("cnn-5", 600)):
        pair, rng = LocalPair(name, 10, 2 if quick else samples // 10), generator("measures")
        scores = torch.randn(samples // 3, CLASSES, generator=rng)
        batch = [(scores, torch.randint(CLASSES, (samples // 3,), generator=rng))]
        actions: dict[str, Action] = {
            "job": pair.ours,
            "all": partial(_often, score_outputs, batch),
            "count": partial(_often, count_right, batch),
        }
        seconds = time_alternately(actions, 2 if quick else 40, clock=time.process_time)
        parts = zip(seconds["all"], seconds["count"], seconds["job"], strict=True)
        added = Spread.of([100 * (more - less) / REPEATS / job for more, less, job in parts])
        yield Row("measures of a test", f"{name}, {samples} samples", added, "%", SCORE_GOAL)


def _often(score: Callable[[Batches], object], batches: Batches) -> None:
    for _ in range(REPEATS):
        score(batches)
