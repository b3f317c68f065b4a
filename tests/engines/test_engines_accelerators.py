"""The pool on accelerators: processes per fake device, and checks before training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.engines.pool import tune_workers
from potluck.engines.pool.scheduling import DurationEstimates, JobQueue
from potluck.engines.pool.spawn import pickling_error
from potluck.federation.population import resolve_devices
from potluck.runs.plan import Parts, RunBlueprint
from potluck.wire.jobs import Job
from potluck.worker import memory
from potluck.worker.hardware import accelerators, free_memory, isolate_device, peak_memory, synchronize

HERE = Path(__file__).parent


def test_pools_on_two_devices_give_the_bits_of_one_process_whatever_dies_or_moves(tmp_path: Path):
    log = tmp_path / "devices"
    paths = [HERE / "away", HERE, HERE.parent, *sys.path]
    finished = subprocess.run(
        [sys.executable, str(HERE / "accelerated_pools.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "AWAY_LOG": str(log)},
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    results = json.loads(finished.stdout.splitlines()[-1])
    assert results["killed"]
    assert results["resumed"]
    first: dict[str, str] = {}
    for line in log.read_text().splitlines():
        process, number = line.split()
        first.setdefault(process, number)
    assert sorted(list(first.values())[1:4]) == ["0", "1", "1"]  # two workers, and the heir of the killed one
    assert results["stacked"]
    # Once for the run alone; of the other, a stack of three and one at a time: what they came to was on record afterwards.
    assert results["asked"] == [[["away"], 1, 3], [["away"], 3, 1], [["away"], 1, 3]]
    assert results["stacks by trial"] == "on"
    assert results["one worker on one device"] == "serial"
    assert results["closure, auto"] == "serial"
    assert "cannot receive what they have to build" in finished.stderr
    assert "use --engine serial" in results["closure, pool"]
    _check_doctor({(part, subject): (text, well) for part, subject, text, well in results["doctor"]})


def _check_doctor(checks: dict[tuple[str, str], tuple[str, bool]]) -> None:
    assert checks["cpu", "pool"] == (
        "the serial engine's numbers, bit for bit",
        True,
    )  # a fork could not train here
    text, well = checks["away", "changed gradients (scaffold)"]
    assert text.startswith("differs by 0.0e+00 from the CPU")
    assert well
    text, well = checks["away", "derivatives forward (fedl2g-f)"]  # make-believe tensors know no forward mode
    assert text.startswith("fails: ")
    assert not well
    assert checks["away", "half precision"][0].startswith("bf16 not available")


class Portable:
    """Stands for what a user brings."""


def test_objects_that_a_spawned_process_cannot_import_are_named(monkeypatch: pytest.MonkeyPatch):
    from potluck.experiment import parse_experiment
    from potluck.methods.fedgh import FedGH

    def plan(*models: Any) -> RunBlueprint:
        return RunBlueprint(parse_experiment({}), FedGH(), Parts(models=models))

    assert pickling_error(plan(Portable)) is None
    assert "lambda" in str(pickling_error(plan(lambda: Portable())))
    monkeypatch.setattr(Portable, "__module__", "__main__")
    assert pickling_error(plan(Portable)) == "Portable is defined in the main program"
    monkeypatch.setitem(sys.modules, "made_by_hand", ModuleType("made_by_hand"))
    monkeypatch.setattr(Portable, "__module__", "made_by_hand")
    assert pickling_error(plan(Portable)) == "Portable is defined in no module that can be imported"


@pytest.mark.parametrize(
    ("seen", "own_device"), [(None, "1"), ("", "1"), ("3,5", "5"), ("GPU-a, GPU-b", "GPU-b")]
)
def test_a_process_sees_its_own_nvidia_device_alone(seen: str | None, own_device: str):
    environment = {"HOME": "/"} if seen is None else {"HOME": "/", "CUDA_VISIBLE_DEVICES": seen}
    assert isolate_device("cuda:1", environment) == (
        "cuda:0",
        {"HOME": "/", "CUDA_VISIBLE_DEVICES": own_device},
    )
    assert isolate_device("mps", environment) == ("mps", environment)
    assert isolate_device("cpu", environment)[1]["CUDA_VISIBLE_DEVICES"] == ""


def test_without_an_accelerator_there_is_none_to_ask():
    cpu = torch.device("cpu")
    synchronize(cpu)
    assert (accelerators(), free_memory(cpu), peak_memory(cpu)) == ([], None, 0)


def test_a_device_with_memory_of_its_own_sets_the_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 1000 if device.type == "cuda" else None)
    monkeypatch.setattr(memory, "available_memory", lambda: 64)
    assert memory.default_budget(torch.device("cuda")) == 500
    assert memory.default_budget() == 32


@pytest.mark.parametrize(
    ("speeds", "free", "cores", "best"),
    [
        ({1: 10.0, 2: 19.0, 4: 20.0}, None, 8, 2),  # four do hardly more than two
        ({1: 10.0, 2: 10.5}, None, 8, 1),
        (
            {1: 10.0, 2: 20.0, 4: 40.0},
            None,
            8,
            4,
        ),  # eight clients would be too few for more than four of two devices
        ({1: 10.0, 2: 20.0}, 250, 8, 2),  # two more of 200 bytes do not fit
        ({1: 10.0}, None, 2, 1),  # a core each
    ],
)
def test_a_trial_doubles_workers_while_they_pay_and_fit(
    speeds: dict[int, float], free: int | None, cores: int, best: int, monkeypatch: pytest.MonkeyPatch
):
    ended: list[bool] = []

    class Fake:
        def end(self) -> None:
            ended.append(True)

    monkeypatch.setattr(tune_workers, "spawn_worker", lambda place, post: Fake())
    monkeypatch.setattr(tune_workers, "wait_until_ready", lambda process: None)
    monkeypatch.setattr(tune_workers, "_together", lambda present: (speeds[len(present)], 200))
    monkeypatch.setattr(tune_workers, "free_memory", lambda device: free)
    monkeypatch.setattr(os, "sched_getaffinity", lambda number: set(range(cores)))
    assert tune_workers.best_worker_count(None, ["cpu", "other"], [0], 8) == (best, speeds)  # type: ignore[arg-type]
    assert len(ended) == max(speeds)


def job(number: int, client: int) -> Job:
    return Job(number, "train", client, 0, round=1, rounds=1)


def test_costs_know_how_slow_a_device_is():
    """Alike jobs of 1 s on one device and 3 s on the other: the mean is 2 s, so they are half and one and a half as slow."""
    costs = DurationEstimates()
    costs.record(job(1, 0), 1.0, "fast")
    costs.record(job(2, 1), 3.0, "slow")
    assert costs.slowness("train", "fast") == 0.5
    assert costs.slowness("train", "slow") == 1.5
    assert costs.slowness("evaluate", "slow") == 1.0
    assert costs.of(job(3, 7), "slow") == pytest.approx(1.5 * costs.of(job(3, 7)))


def test_a_slow_device_helps_only_where_the_wait_is_longer_than_its_own_time():
    costs = DurationEstimates()
    devices = {0: "fast", 1: "slow"}
    for client in range(4):
        costs.record(job(client, client), 1.0, "fast")
    for client in range(4, 8):
        costs.record(job(client, client), 9.0, "slow")
    for helper, helped in ((0, True), (1, False)):
        agenda = JobQueue(costs, 0.01, lambda worker: devices[worker])
        second = 1 - helper
        for client in (0, 1):
            agenda.add([job(10 + client, client)])
            agenda.take(second, {})
            agenda.done([job(10 + client, client)])
        for client in (0, 1):
            agenda.add([job(20 + client, client)])
        agenda.take(second, {})  # busy with one, the next one waits
        assert (agenda.take(helper, {second: 1.0}) is not None) == helped


@pytest.mark.parametrize(
    ("device", "sentence"),
    [
        ("cpu,cpu", "must list different devices of one kind"),
        ("cpu,meta", "must list different devices of one kind"),
        ("cpu:0,cpu:1", "there is one CPU; set engine.workers"),
    ],
)
def test_devices_that_make_no_sense_together_are_one_sentence(device: str, sentence: str):
    with pytest.raises(PotluckError, match=sentence):
        resolve_devices(device)


def test_several_devices_need_the_pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("potluck.federation.population.resolve_devices", lambda text: [torch.device("cpu")])
    with pytest.raises(PotluckError, match="lists several devices; engine.name = 'serial' works on one"):
        potluck.run("fedgh", engine={"name": "serial", "device": "cuda:0,cuda:1"}, out=tmp_path / "run")
