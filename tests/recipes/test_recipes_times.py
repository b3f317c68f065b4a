"""Times of clients and server: what the meter keeps, and what a table makes of it."""

from __future__ import annotations

import json
import math
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

import potluck
from potluck.core.client import Client
from potluck.loop.callbacks import Arrival, Callback
from potluck.methods.fedgh import FedGH
from potluck.methods.standalone import Standalone
from potluck.recipes.measures import relative
from potluck.recipes.recipe import find_recipe
from potluck.recipes.reproduce import plan, run_all, run_path
from potluck.recipes.times import FILE, TimeMeter, read_time
from potluck.wire.jobs import Failure

MINE = """
title = "Mine"
paper = "Somebody, 2026."

[base]
data = { limit = 100 }
partition = { rule = "iid", clients = 2 }
models = { names = ["small-mlp"] }
training = { epochs = 1 }
schedule = { rounds = 2 }
engine = { name = "serial" }

[settings.digits]

[columns]
client = { setting = "digits", measure = "client-time" }
server = { setting = "digits", measure = "server-time" }

[rows]
Standalone = { method = "standalone", paper = "1.0 1.0" }
FedGH = { method = "fedgh", paper = "1.5 9.2" }
"""


class Sleeping(Standalone):
    """Waits 0.3 s in each job."""

    name: ClassVar[str] = "sleeping"

    def client(self, me: Client, message: Any) -> Any:
        time.sleep(0.3)
        return super().client(me, message)


def test_means_are_over_training_jobs_and_rounds(tmp_path: Path):
    meter = TimeMeter(tmp_path)
    loop: Any = SimpleNamespace(
        progress=SimpleNamespace(ended=4), cohort=2, server=SimpleNamespace(seconds=0.6)
    )
    meter.on_start(loop)  # resumed after two rounds
    for client, seconds in ((0, 50.0), (0, 1.0), (1, 70.0), (0, 2.0), (1, 6.0)):  # 50 and 70 are first jobs
        arrival = Arrival("train", client, 3, samples=5, seconds=900.0, processor_seconds=seconds)
        meter.on_arrival(arrival)
    meter.on_arrival(Arrival("evaluate", 0, 3, seconds=100.0))
    meter.on_arrival(Arrival("train", 1, 3, failure=Failure(2, 1, "gone", "lost"), seconds=100.0))
    loop.progress.ended = 8
    end: Any = None
    meter.on_end(end)
    assert (read_time(tmp_path, "client"), read_time(tmp_path, "server")) == pytest.approx((3.0, 0.3))
    assert math.isnan(read_time(tmp_path / "none", "client"))
    assert (relative("client-time", 6.18, 9.53), relative("server-time", 0.04, 0.37)) == pytest.approx(
        (1.542, 9.25), abs=1e-3
    )


def test_first_jobs_count_where_there_are_no_others(tmp_path: Path):
    meter = TimeMeter(tmp_path)
    loop: Any = SimpleNamespace(
        progress=SimpleNamespace(ended=0), cohort=2, server=SimpleNamespace(seconds=0.5)
    )
    meter.on_start(loop)
    for client, seconds in ((0, 1.0), (1, 3.0)):
        meter.on_arrival(Arrival("train", client, 1, processor_seconds=seconds))
    loop.progress.ended = 2
    end: Any = None
    meter.on_end(end)
    assert (read_time(tmp_path, "client"), read_time(tmp_path, "server")) == (2.0, 0.5)


@pytest.mark.parametrize(
    "engine",
    [{"name": "serial"}, {"name": "serial", "vectorize": "on"}, {"name": "pool", "workers": 2}],
)
def test_jobs_record_processor_time_not_waiting_time(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    """A job that sleeps takes wall time and no processor time."""
    arrivals: list[Arrival] = []

    class Listener(Callback):
        def on_arrival(self, arrival: Arrival) -> None:
            arrivals.append(arrival)

    potluck.run(
        Sleeping(),
        clients=2,
        rounds=2,
        models="small-mlp",
        partition="iid",
        data={"name": "digits", "limit": 100},
        engine=engine,
        callbacks=[Listener()],
        out=None,
    )
    trained = [arrival for arrival in arrivals if arrival.kind == "train" and arrival.round == 2]
    assert len(trained) == 2
    assert all(0 < arrival.processor_seconds < arrival.seconds - 0.15 for arrival in trained)


def test_a_table_compares_times_with_its_first_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    plain = FedGH.server

    def slow(self: FedGH, *arguments: Any) -> Any:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        return plain(self, *arguments)

    monkeypatch.setattr(FedGH, "server", slow)
    (tmp_path / "mine.toml").write_text(MINE)
    table = plan(find_recipe(str(tmp_path / "mine.toml")), "paper")
    run_all(table, tmp_path, watch=lambda label: nullcontext([]), keep=lambda table: None)
    assert table.failures == {}
    ratios = {
        row: json.loads((run_path(tmp_path, (row, "digits", 0)) / FILE).read_text()) for row in table.rows
    }
    assert ratios["FedGH"]["server"] >= 0.05
    assert table.cell("Standalone", "client").values == (1.0,)
    assert table.cell("FedGH", "server").mean == pytest.approx(
        ratios["FedGH"]["server"] / ratios["Standalone"]["server"]
    )
    assert table.cell("FedGH", "client").mean == pytest.approx(
        ratios["FedGH"]["client"] / ratios["Standalone"]["client"]
    )
