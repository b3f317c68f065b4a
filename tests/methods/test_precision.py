"""float64 means float64: nothing depends on torch's default precision."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from potluck.core import tree
from potluck.core.random import seeded
from potluck.experiment import make_method
from potluck.loop.server import Server
from potluck.methods import METHODS, method_class
from potluck.models import build_model
from potluck.testing import small_federation
from potluck.worker.worker import Worker
from support.tiny import make_loop

QUICK: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 2}, "fedgen": {"server_steps": 2}}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in METHODS),
    ("fedtgp", {"margin": "fixed", "threshold": 0.1}),
    ("fedgen", {"variant": "original"}),
    ("fedproto", {"collect": "training", "aggregate": "weighted"}),
    ("fedproto", {"aggregate": "literal"}),
    ("fedhe", {"collect": "after"}),
    ("fedhe", {"store": "latest_per_client", "inner_batches": 1}),
]
SCHEDULES: list[dict[str, Any]] = [{}, {"buffer": 1, "concurrency": 2, "staleness_power": 0.3}]


@contextmanager
def default(precision: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(precision)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def work_in(precision: torch.dtype, patch: pytest.MonkeyPatch) -> None:
    """Let client and server work see `precision` as torch's default, which `seeded` makes single.

    Only first weights are still drawn in single precision: they are random numbers, others in each precision.
    """

    @contextmanager
    def block(*parts: object) -> Iterator[None]:
        with seeded(*parts), default(torch.float32 if "init_server" in parts else precision):
            yield

    for worker in (Server, Worker):
        patch.setattr(inspect.getmodule(worker), "seeded", block)


def outcome(
    name: str, options: dict[str, Any], schedule: dict[str, Any], precision: torch.dtype
) -> dict[str, torch.Tensor]:
    """The server's and every client's tensors after three rounds in float64."""
    method = make_method(method_class(name), QUICK.get(name, {}) | options)
    federation = small_federation(method, dtype=torch.float64)
    with default(precision), pytest.MonkeyPatch.context() as patch:
        work_in(precision, patch)
        loop = make_loop(method, federation, rounds=3, **schedule)
        loop.run()
        context = loop.server.context()
        parts = [loop.dispatcher.fetch(index, context) for index in range(len(federation.members))]
    parts.append(tree.flatten(loop.progress.state))
    return {
        f"{number}{key}": tensor for number, flat in enumerate(parts) for key, tensor in flat.tensors.items()
    }


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["rounds", "asynchronous"])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_float64_run_is_the_same_whatever_torch_is_set_to(
    name: str, options: dict[str, Any], schedule: dict[str, Any]
):
    single, double = (outcome(name, options, schedule, kind) for kind in (torch.float32, torch.float64))
    assert single.keys() == double.keys()
    for key, tensor in single.items():
        assert tensor.dtype in (torch.float64, torch.int64, torch.bool), key
        assert torch.equal(tensor, double[key]), key


def test_client_and_server_work_see_the_default_precision_of_the_test(monkeypatch: pytest.MonkeyPatch):
    """Otherwise the comparison above compares a run with itself."""
    seen: list[torch.dtype] = []
    method = make_method(method_class("fedproto"), {})
    for part in ("broadcast", "client", "server"):
        original = getattr(method, part)

        def watched(*arguments: Any, original: Any = original) -> Any:
            seen.append(torch.get_default_dtype())
            return original(*arguments)

        monkeypatch.setattr(method, part, watched)
    work_in(torch.float64, monkeypatch)
    make_loop(method, small_federation(method), rounds=1).run()
    assert seen == [torch.float64] * 7  # three messages, three clients, one server step


def test_first_weights_are_the_same_whatever_torch_is_set_to():
    made = []
    for precision in (torch.float32, torch.float64):
        with default(precision), seeded(1, "model"):
            made.append(build_model("small-cnn", (1, 8, 8), 10).conv1.weight)
    assert made[0].dtype == made[1].dtype == torch.float32
    assert torch.equal(*made)
    with default(torch.float64):
        with seeded(1):
            pass
        assert torch.get_default_dtype() == torch.float64
