"""Fuzzed payloads are rejected with a reason, or leave the server finite."""

from __future__ import annotations

import copy
import functools
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from potluck.core import tree
from potluck.core.method import Update, payload_types
from potluck.core.payload import PayloadError
from potluck.core.schema import check_payload
from potluck.experiment import make_method
from potluck.loop.loop import Loop
from potluck.methods import METHODS, method_class
from potluck.testing import small_federation
from support.mutations import spoil
from support.tiny import Recorder, make_loop

# Server-side training is cut short; options that change what the server does with an answer are tried as well.
QUICK: dict[str, dict[str, Any]] = {"fedtgp": {"server_epochs": 1}, "fedgen": {"server_steps": 2}}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("fedgh", {"server_mode": "per_client"}),
    ("fedgh", {"server_mode": "pooled"}),
    ("fedproto", {"aggregate": "weighted"}),
    ("fedhe", {"store": "latest_per_client"}),
    ("fd", {"target": "softmax_excl_own"}),
    ("fednova", {"weight": "uniform"}),
    ("heterofl", {"rates": "dynamic"}),
    ("fedkd", {"uplink": "params"}),
]
CASES = [(name, QUICK.get(name, {})) for name in METHODS] + [
    (n, {**QUICK.get(n, {}), **o}) for n, o in VARIANTS
]
SEEN: Counter[str] = Counter()


@dataclass
class Scene:
    """A method after two rounds, and the honest answers of its last round."""

    loop: Loop
    updates: list[Update[Any]]


@functools.cache
def scene(case: int) -> Scene:
    name, options = CASES[case]
    method = make_method(method_class(name), options)
    watcher = Recorder()
    loop = make_loop(method, small_federation(method, dtype=torch.float32), rounds=3, callbacks=[watcher])
    loop.step()
    watcher.updates.clear()
    loop.step()
    return Scene(loop, [update for _, update in watcher.updates])


def feed(case: int, seed: int, client: int, company: int) -> None:
    """Spoil one client's answer and treat it as the loop does."""
    stage, rng = scene(case), Random(seed)
    loop, updates = stage.loop, stage.updates
    honest = updates[client % len(updates)]
    SEEN["payloads"] += 1
    try:
        payload = spoil(honest.payload, rng)
        payload = loop.server._checked(payload, honest.client, loop.server.context())
    except PayloadError:
        SEEN["refused"] += 1
        return
    before = copy.deepcopy(loop.progress.state)
    neighbours = [update for update in updates if update.client != honest.client][: company % len(updates)]
    with torch.random.fork_rng():
        together = sorted(
            [replace(honest, payload=payload), *neighbours], key=lambda update: update.client.index
        )
        loop.server.aggregate(together, [], loop.server.context())
    SEEN["learned"] += 1
    finite = tree.is_finite(loop.progress.state)
    loop.progress.state = before
    assert finite


anything = given(
    case=st.integers(0, len(CASES) - 1),
    seed=st.integers(0, 2**63),
    client=st.integers(0, 2),
    company=st.integers(0, 2),
)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Torch warns of the odd tensors that are made here on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@fuzz(2000)
@anything
def test_no_spoiled_answer_harms_the_server(case: int, seed: int, client: int, company: int):
    feed(case, seed, client, company)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_spoiled_answers():
    SEEN.clear()

    @fuzz(100_000)
    @anything
    def run(case: int, seed: int, client: int, company: int) -> None:
        feed(case, seed, client, company)

    run()
    print(dict(SEEN))
    assert SEEN["payloads"] >= 100_000
    assert SEEN["learned"] > 5_000  # not everything is refused at the door
    assert SEEN["refused"] > 30_000


@pytest.mark.parametrize("case", range(len(METHODS)))
def test_honest_messages_pass_both_ways(case: int):
    """Nodes check what they receive as servers do."""
    stage = scene(case)
    loop, down = stage.loop, payload_types(stage.loop.method)[0]
    for update in stage.updates:
        loop.server._checked(update.payload, update.client, loop.server.context())
        check_payload(
            loop.server.message(update.client, loop.server.context()), down, loop.task, update.client
        )
