"""Simulated devices, the virtual clock and injected faults."""

from pathlib import Path

import pytest

import potluck
from potluck.core.errors import PotluckError
from potluck.engines.serial import SerialEngine
from potluck.federation.devices import FLEETS, Device, assign_by_memory, fleet
from potluck.loop.dispatch import ClientFailed
from potluck.loop.faults import Faults, FaultyEngine
from potluck.methods.fedgh import FedGH
from potluck.methods.standalone import Standalone
from potluck.worker.worker import Worker
from support.tiny import Recorder, make_loop, tiny

QUICK = {"rounds": 3, "clients": 5, "partition": "iid", "models": "small-mlp", "training": {"epochs": 1}}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)


def test_time_of_a_job_by_hand():
    device = Device(speed=100.0, down=10.0, up=5.0, latency=1.0)
    assert device.work_seconds(flops=400, bytes_down=20) == 1 + 2 + 4
    assert device.upload_seconds(15) == 1 + 3


@pytest.mark.parametrize("name", list(FLEETS))
def test_named_fleets_are_seeded(name: str):
    assert fleet(name, 20, 1) == fleet(name, 20, 1)
    assert len(fleet(name, 20)) == 20
    if name != "uniform":
        assert fleet(name, 20, 1) != fleet(name, 20, 2)


def test_a_long_tail_has_one():
    speeds = sorted(device.speed for device in fleet("long-tail", 200))
    assert speeds[0] < speeds[100] / 10


def test_a_fleet_from_a_table(tmp_path: Path):
    (tmp_path / "f.csv").write_text("kind,speed,memory\nold,1e9,5e8\nnew,4e9,4e9\n")
    (tmp_path / "f.toml").write_text(
        '[[device]]\nkind = "old"\nspeed = 1e9\nmemory = 5e8\n[[device]]\nkind = "new"\nspeed = 4e9\nmemory = 4e9\n'
    )
    assert [device.kind for device in fleet("f.csv", 3)] == ["old", "new", "old"]
    assert fleet("f.csv", 2) == fleet("f.toml", 2)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind,speeed\na,1\n", "Did you mean 'speed'"),
        ("kind,speed\na,fast\n", "every column but kind is a number"),
        ("kind,speed\na,0\n", "speed = 0.0 must be greater than 0"),
        ("kind,speed\n", "lists no device"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, says: str):
    (tmp_path / "f.csv").write_text(text)
    with pytest.raises(PotluckError, match=says):
        fleet("f.csv", 1)
    with pytest.raises(PotluckError, match="Did you mean 'phones'"):
        fleet("phone", 1)


def test_each_device_gets_the_largest_model_that_fits():
    devices = [Device(memory=1600), Device(memory=1599), Device(memory=10)]
    assert assign_by_memory({"big": 100, "small": 10}, devices) == ["big", "small", "small"]


def test_models_by_memory_in_an_experiment(tmp_path: Path):
    (tmp_path / "f.csv").write_text("kind,memory\nold,120000\nnew,4e9\n")
    run = potluck.run(
        "standalone",
        **{**QUICK, "models": "small-mlp,small-sep"},
        devices={"fleet": "f.csv", "assign": "memory"},
    )
    assert run.summary["client_architectures"][:2] == ["small-sep", "small-mlp"]
    with pytest.raises(PotluckError, match="there are no devices; set devices.fleet"):
        potluck.run("standalone", **QUICK, devices={"assign": "memory"})


@pytest.mark.parametrize(
    ("memory", "why"),
    [
        ("4e9", "every device has memory for the largest"),
        ("1.5e5", "no device has memory for another"),
        ("10", "no device has memory even for this smallest one"),
    ],
)
def test_one_model_for_all_devices_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, memory: str, why: str
):
    (tmp_path / "f.csv").write_text(f"kind,memory\nboard,{memory}\n")
    devices = {"fleet": "f.csv", "assign": "memory"}
    with caplog.at_level("WARNING", logger="potluck"):
        run = potluck.run("standalone", **{**QUICK, "models": "small-mlp,small-sep"}, devices=devices)
    assert len(set(run.summary["client_architectures"])) == 1
    assert why in caplog.text
    assert "small-mlp needs" in caplog.text


def test_a_synchronous_round_lasts_as_long_as_its_slowest_client():
    recorder = Recorder()
    make_loop(Standalone(), tiny(3), callbacks=[recorder], duration=lambda info, n, m: 1.0 + info.index).run()
    assert [step.record.virtual_seconds for step in recorder.steps] == [3.0, 6.0]


def test_a_round_in_which_all_answer_ends_before_its_deadline():
    recorder = Recorder()
    make_loop(
        Standalone(),
        tiny(3),
        callbacks=[recorder],
        deadline=9.0,
        duration=lambda info, n, m: 1.0 + info.index,
    ).run()
    assert [step.record.participants for step in recorder.steps] == [[0, 1, 2], [0, 1, 2]]
    assert [step.record.virtual_seconds for step in recorder.steps] == [3.0, 6.0]


def test_the_late_are_dropped_at_the_deadline():
    recorder = Recorder()
    make_loop(
        Standalone(),
        tiny(3),
        callbacks=[recorder],
        deadline=2.5,
        duration=lambda info, n, m: 1.0 + info.index,
    ).run()
    assert [step.record.participants for step in recorder.steps] == [[0, 1], [0, 1]]
    for step in recorder.steps:  # counted from the round's beginning
        (late,) = step.record.failures
        assert (late["kind"], late["reason"]) == ("late", "answered after 3.0 virtual seconds of waiting")
    assert [step.record.virtual_seconds for step in recorder.steps] == [2.5, 5.0]


def test_a_client_that_fails_when_enough_have_answered_still_failed():
    class Broken(Standalone):
        def client(self, me, message):
            if me.info.index == 3:
                raise ValueError("a bug")
            return super().client(me, message)

    plan = {"participation": 0.5, "over_select": 2.0, "duration": lambda info, n, m: 1.0 + info.index}
    with pytest.raises(ClientFailed, match="ValueError: a bug"):
        make_loop(Broken(), tiny(4), **plan).run()
    recorder = Recorder()
    make_loop(Broken(), tiny(4), callbacks=[recorder], on_failure="continue", **plan).run()
    assert [failure["kind"] for failure in recorder.steps[0].record.failures] == ["late", "error"]


def test_over_selection_takes_the_first_answers():
    recorder = Recorder()
    make_loop(
        Standalone(),
        tiny(4),
        callbacks=[recorder],
        participation=0.5,
        over_select=2.0,
        duration=lambda info, n, m: 4.0 - info.index,
    ).run()
    assert [step.record.participants for step in recorder.steps] == [[2, 3], [2, 3]]
    assert recorder.steps[0].record.virtual_seconds == 2.0
    assert len(recorder.steps) == 2


def test_uploads_take_time_and_can_change_the_order():
    """Client 0 is ready first, but its upload takes 5 seconds: client 1 arrives before."""
    recorder = Recorder()
    make_loop(
        Standalone(),
        tiny(2),
        rounds=1,
        buffer=1,
        callbacks=[recorder],
        duration=lambda info, n, m: 1.0 + info.index,
        upload=lambda info, size: 5.0 - 5.0 * info.index,
    ).run()
    assert [step.record.participants for step in recorder.steps] == [[1], [0]]
    assert [step.record.virtual_seconds for step in recorder.steps] == [2.0, 6.0]


def test_staleness_weight_lowers_stale_answers():
    weights = []

    class Watch(potluck.Callback):
        def on_update(self, update, round_number) -> None:
            weights.append((update.staleness, update.weight))

    make_loop(Standalone(), tiny(2), callbacks=[Watch()], buffer=1, staleness_power=0.5).run()
    assert (0, 1.0) in weights
    assert (1, 1.5**-0.5) in weights


def test_sample_weights_discount_stale_updates():
    from potluck.core.method import Update
    from potluck.core.payload import EmptyPayload
    from potluck.core.task import ClientInfo
    from potluck.kit import sample_weights

    updates = [
        Update(ClientInfo(0, "a", 3, "net"), EmptyPayload(), 3, 0.5),
        Update(ClientInfo(1, "b", 1, "net"), EmptyPayload()),
    ]
    assert sample_weights(updates) == [0.6, 0.4]


def faulty(rates: Faults, rounds: int = 40) -> list[dict[str, object]]:
    fed, recorder, method = tiny(4), Recorder(), FedGH()
    loop = make_loop(method, fed, rounds=rounds, callbacks=[recorder], min_clients=0)
    loop.dispatcher.engine = FaultyEngine(SerialEngine(Worker(method, fed.client)), rates, seed=3)
    loop.run()
    return [failure for step in recorder.steps for failure in step.record.failures]


@pytest.mark.parametrize(
    ("fault", "kind"), [("dropout", "dropped"), ("crash", "lost"), ("corrupt", "invalid")]
)
def test_faults_come_at_their_rate_and_the_run_goes_on(fault: str, kind: str):
    failures = faulty(Faults(**{fault: 0.25}))
    assert {failure["kind"] for failure in failures} == {kind}
    assert 20 <= len(failures) <= 60  # 160 jobs at a rate of a quarter: 40 ± 5.5


def test_closing_an_engine_with_faults_closes_the_engine_behind(tmp_path: Path):
    class Closing(SerialEngine):
        closed = 0

        def close(self) -> None:
            self.closed += 1
            super().close()

    method, fed = Standalone(), tiny(1)
    engine = Closing(Worker(method, fed.client), spill_dir=tmp_path)
    FaultyEngine(engine, Faults(dropout=0.5), seed=0).close()
    assert engine.closed == 1


def test_faults_do_not_depend_on_anything_but_the_seed():
    rates = Faults(dropout=0.2, crash=0.2, corrupt=0.2)
    assert faulty(rates, 5) == faulty(rates, 5)


def test_a_fleet_and_faults_from_an_experiment():
    run = potluck.run(
        "fedgh",
        **QUICK,
        devices={"fleet": "phones"},
        faults={"dropout": 0.3, "slow": 0.5},
        schedule={"min_clients": 0},
    )
    times = [row["virtual_seconds"] for row in run.rounds]
    assert times == sorted(times)
    assert times[0] > 0.1
    assert run.summary["failures"] > 0


@pytest.mark.parametrize(
    "schedule",
    [
        {"mode": "async", "deadline": 3.0},
        {"mode": "sync", "buffer": 2, "deadline": 3.0},
        {"mode": "sync", "concurrency": 2, "over_select": 2.0},
    ],
)
def test_deadline_and_over_selection_need_whole_rounds(schedule: dict[str, object]):
    with pytest.raises(PotluckError, match="need synchronous rounds: set schedule.mode = 'sync'"):
        potluck.run("fedgh", **QUICK, schedule=schedule)


@pytest.mark.parametrize(
    "schedule", [{"mode": "sync", "lead": 2}, {"mode": "async", "lead": 2, "order": [[0], [1]]}]
)
def test_a_lead_that_cannot_act_is_refused(schedule: dict[str, object]):
    with pytest.raises(PotluckError, match=r"schedule\.lead = 2"):
        potluck.run("fedgh", **QUICK, schedule=schedule)
