"""What a method's own local work costs over a bare loop that does the very same arithmetic."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from benchmarks.population import CLASSES, SHAPE, endless_loop, population, serial_engine
from benchmarks.reference import REFERENCE_LOOPS, ReferenceClient, Upload
from benchmarks.rows import Row
from benchmarks.trials import ratio, time_alternately
from potluck.core.client import Client
from potluck.methods import METHODS, method_class
from potluck.wire.jobs import Answer, Job

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


class Pair:
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
        answer = self.worker.run(Job(self.jobs + 1, "train", 0, self.jobs, 1, 1, self.message))
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


def _same(mine: Upload, theirs: Upload) -> bool:
    """The same names with the very same numbers."""
    pairs = [(torch.as_tensor(mine[name]), torch.as_tensor(theirs.get(name, torch.nan))) for name in mine]
    return mine.keys() == theirs.keys() and all(torch.equal(one, other) for one, other in pairs)


def measure(*, quick: bool = False) -> Iterator[Row]:
    """A method's job ÷ its bare loop, in processor time."""
    setting = TINY if quick else FULL
    for name in [name for name in METHODS if name in REFERENCE_LOOPS][: 2 if quick else None]:
        pair = Pair(name, 20 if quick else 200, setting)
        actions = {"ours": pair.ours, "bare": pair.bare}
        seconds = time_alternately(actions, 2 if quick else 25, clock=time.process_time)
        pair.check()
        what = f"{name}, {setting.network(name)}, batch {BATCH}"
        yield Row("method ÷ its bare loop", what, ratio(seconds["ours"], seconds["bare"]), goal=GOAL)
