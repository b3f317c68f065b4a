"""States that a checkpoint cannot restore raise during the run, not at resume."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update
from potluck.core.payload import EmptyPayload
from potluck.core.task import ClientInfo, Context
from support.tiny import StopAt, tiny


@dataclass
class Record:
    mean: torch.Tensor


class Plain(Method[Any, EmptyPayload, EmptyPayload]):
    """Sends nothing; what it keeps is up to its children."""

    def init_server(self, ctx: Context) -> Any:
        return {}

    def broadcast(self, state: Any, client: ClientInfo, ctx: Context) -> EmptyPayload:
        return EmptyPayload()

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        return EmptyPayload()

    def server(self, state: Any, updates: Sequence[Update[EmptyPayload]], ctx: Context) -> Any:
        return state


THINGS: dict[str, Any] = {
    "module": lambda: {"net": nn.Linear(2, 2)},
    "dataclass": lambda: {"a": [Record(torch.ones(1))]},
    "key": lambda: {(0, 1): torch.ones(1)},
}


@dataclass
class Keeps(Plain):
    """Clients keep one thing."""

    thing: str = ""

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        me.private.update(THINGS[self.thing]())
        return EmptyPayload()


@dataclass
class Grows(Plain):
    """The server notes a record per client; with `ready` it has them from the beginning."""

    ready: bool = False

    def init_server(self, ctx: Context) -> dict[int, Record]:
        return {info.index: Record(torch.zeros(1)) for info in ctx.task.clients if self.ready}

    def server(self, state: Any, updates: Sequence[Update[EmptyPayload]], ctx: Context) -> Any:
        return {update.client.index: Record(torch.full((1,), float(ctx.round))) for update in updates}


def go(method: Method[Any, Any, Any], out: Path, **more: Any) -> potluck.Run:
    return potluck.run(method, federation=tiny(2), rounds=3, engine="serial", out=out, **more)


@pytest.mark.parametrize(
    ("thing", "sentence"),
    [
        ("module", r"me\.private\['net'\] is a Linear.*use me\.module"),
        ("dataclass", r"me\.private\['a'\]\[0\] is a Record.*in a dict"),
        ("key", r"has the key \(0, 1\)"),
    ],
)
def test_a_client_that_could_not_come_back_is_refused_in_its_first_round(
    tmp_path: Path, thing: str, sentence: str
):
    with pytest.raises(PotluckError, match=sentence) as refused:
        go(Keeps(thing), tmp_path / "run")
    assert "round 1" in str(refused.value)


def test_a_dataclass_that_a_fresh_server_has_not_is_refused_in_the_first_round(tmp_path: Path):
    with pytest.raises(PotluckError, match=r"state\[0\] is a Record that init_server does not make"):
        go(Grows(), tmp_path / "run")
    assert not list((tmp_path / "run").glob("checkpoint/*"))


def test_without_checkpoints_a_server_may_hold_what_it_likes(tmp_path: Path):
    assert go(Grows(), tmp_path / "run", checkpoint_every=0).summary["rounds"] == 3


def test_a_dataclass_that_a_fresh_server_has_comes_back(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        go(Grows(ready=True), tmp_path / "run", callbacks=[StopAt(2)])
    states: list[Any] = []

    class Look(potluck.Callback):
        def on_end(self, end: Any) -> None:
            states.append(end.state)

    go(Grows(ready=True), tmp_path / "run", resume=True, callbacks=[Look()])
    assert isinstance(states[0][0], Record)
