"""Stress tests of minutes: ten thousand clients, and repeatedly killed workers."""

from __future__ import annotations

import random
import threading

import pytest
from same_runs import assert_equal, federation, outcome, worker

from benchmarks.scaling import peak_memory
from potluck.engines.pool import PoolEngine
from potluck.engines.serial import SerialEngine
from potluck.loop.schedule import Schedule
from potluck.methods.fedgh import FedGH


@pytest.mark.slow
def test_ten_thousand_clients_of_26_gigabytes_take_less_than_4() -> None:
    assert peak_memory(10_000, rounds=6) < 4_000_000_000


@pytest.mark.slow
def test_workers_may_be_killed_again_and_again() -> None:
    fed, method, schedule = federation(), FedGH(), Schedule(60)
    serial = outcome(method, SerialEngine(worker(method, fed)), fed, schedule)
    engine, over, rng = PoolEngine(lambda: worker(method, fed), 3), threading.Event(), random.Random(1)
    kills = 0

    def kill() -> None:
        nonlocal kills
        while not over.wait(0.5 * rng.random()):
            rng.choice(engine._processes).handle.kill()
            kills += 1

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        pool = outcome(method, engine, fed, schedule)
    finally:
        over.set()
        killer.join()
    assert kills > 5
    assert_equal(pool, serial)
