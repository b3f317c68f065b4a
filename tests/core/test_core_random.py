"""Results do not depend on the process's threads or its treatment of denormals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from potluck.core.client import Client
from potluck.core.payload import EmptyPayload
from potluck.core.random import add_up, without_denormals
from potluck.core.training import FitResult
from potluck.engines.pool import PoolEngine
from potluck.engines.serial import SerialEngine
from potluck.engines.vectorized import JobBatcher, VectorizedEngine
from potluck.methods.standalone import Standalone
from potluck.wire.jobs import Engine, Job
from potluck.worker.worker import Worker
from support.tiny import tiny


def product() -> float:
    """A number below the smallest normal one of float32."""
    return float(torch.tensor([1e-30]) * torch.tensor([1e-10]))


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("before", [True, False])
def test_denormals_count_as_zero_and_the_process_gets_its_setting_back(before: bool):
    if not torch.set_flush_denormal(before):
        pytest.skip("this processor cannot flush denormals")
    with without_denormals():
        assert product() == 0
    assert (product() == 0) is before
    with pytest.raises(ZeroDivisionError), without_denormals():
        raise ZeroDivisionError
    assert (product() == 0) is before


class Noting(Standalone):
    """Tells the loss what a product next to nothing comes to."""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        me.fit()
        me.report(FitResult(1, product()))
        return EmptyPayload()


@pytest.mark.parametrize(
    "engine",
    [
        lambda worker, batcher: SerialEngine(worker),
        VectorizedEngine,
        lambda worker, batcher: PoolEngine(lambda: worker, 1),
        lambda worker, batcher: PoolEngine(lambda: worker, 1, batcher=batcher),
    ],
    ids=["serial", "vectorized", "pool", "pool of stacks"],
)
def test_clients_compute_without_denormals_on_every_engine(engine: Any):
    torch.set_flush_denormal(False)
    fed = tiny(2)
    working: Engine = engine(Worker(Noting(), fed.client), JobBatcher(fed.task))
    try:
        for client in range(2):
            working.submit(Job(client + 1, "train", client, 0, round=1, rounds=1, message=EmptyPayload()))
        assert [answer.train_loss for answer in working.results()] == [0, 0]
    finally:
        working.close()


def test_numbers_are_added_from_left_to_right_on_every_python() -> None:
    assert add_up([1e16, 1.0, 1.0, -1e16]) == 0.0  # each 1 is lost; a compensated sum gives 2
    assert add_up([2, 3]) == 5
    assert isinstance(add_up([2, 3]), int)
    assert add_up([]) == 0
