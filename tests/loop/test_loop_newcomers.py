"""Newcomers: excluded from training, then compared with standalone training, on every method and engine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import potluck
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Update
from potluck.core.payload import EmptyPayload
from potluck.core.random import seeded
from potluck.core.task import ClientInfo, Context
from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from potluck.core.tree import flatten
from potluck.federation.federation import Federation, Member
from potluck.federation.members import federate
from potluck.loop.newcomers import Newcomer, draw_newcomers, hide_samples, means
from potluck.loop.schedule import Evaluation
from potluck.methods import METHODS, method_class
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedhe import FedHe
from potluck.methods.standalone import Standalone
from potluck.testing.conformance import small_federation
from potluck.wire.jobs import Failure, Job
from potluck.wire.score import Score, score_outputs
from potluck.worker.worker import Worker, join
from support.tiny import Recorder, StopAt, make_loop, points, seeded_net, tiny

TWO_OF_FIVE = Evaluation(newcomers=0.4)


def test_newcomers_are_drawn_by_seed_from_clients_that_can_train():
    task = tiny(10).task
    assert len(draw_newcomers(Evaluation(newcomers=0.2), task)) == 2
    assert len(draw_newcomers(Evaluation(newcomers=0.29), task)) == 2
    assert len(draw_newcomers(Evaluation(newcomers=0.01), task)) == 1
    assert draw_newcomers(Evaluation(), task) == {}
    drawn = {tuple(draw_newcomers(Evaluation(newcomers=0.3), tiny(10, seed=seed).task)) for seed in range(8)}
    assert len(drawn) > 4
    assert tuple(draw_newcomers(Evaluation(newcomers=0.3), tiny(10).task)) in drawn
    assert all(list(clients) == sorted(clients) for clients in drawn)


def test_newcomers_samples_are_hidden_during_training():
    task = tiny(5).task
    newcomers = draw_newcomers(TWO_OF_FIVE, task)
    absent = hide_samples(task, newcomers)
    counts = {info.index: (info.samples, info.validation) for info in absent.clients}
    assert all(counts[index] == (0, 0) for index in newcomers)
    assert all(counts[info.index] == (12, 5) for info in task.clients if info.index not in newcomers)
    assert hide_samples(task, {}) is task


@pytest.mark.parametrize("protocol", ["local", "received", "shared"])
def test_newcomers_neither_train_nor_are_tested_before_the_end(protocol: Any):
    recorder = Recorder()
    evaluation = Evaluation(protocol, newcomers=0.4)
    loop = make_loop(FedAvg(), tiny(5), evaluation=evaluation, callbacks=[recorder])
    newcomers = set(loop.newcomers)
    assert len(newcomers) == 2
    loop.run()
    members = sorted(set(range(5)) - newcomers)
    assert [step.record.participants for step in recorder.steps] == [members, members]
    scores = [score for step in recorder.steps for score in (*step.scores, *step.validation)]
    tested = {score.client.index for score in (*scores, *recorder.end.scores, *recorder.end.validation)}
    assert tested == set(members)
    assert [newcomer.client.index for newcomer in recorder.end.newcomers] == sorted(newcomers)
    assert all(newcomer.client.samples == 12 for newcomer in recorder.end.newcomers)


def test_another_client_stands_for_a_newcomers_architecture():
    task = tiny(4, hidden=(5, 7)).task
    evaluation = Evaluation("received", clients="one-per-architecture")
    assert evaluation.population(task) == [0, 1]
    assert evaluation.population(task, absent={0}) == [1, 2]


def test_alone_means_standalone_so_standalone_gains_nothing():
    recorder = Recorder()
    make_loop(Standalone(), tiny(5, norm=True), evaluation=TWO_OF_FIVE, callbacks=[recorder]).run()
    assert [newcomer.score for newcomer in recorder.end.newcomers] == [
        newcomer.alone for newcomer in recorder.end.newcomers
    ]


def test_fedavg_newcomer_starts_from_the_global_model():
    """The same by hand: load the message, train three epochs, test."""
    recorder, fed = Recorder(), tiny(3, hidden=(5,))
    loop = make_loop(
        FedAvg(), fed, evaluation=Evaluation(newcomers=0.3, newcomer_epochs=3), callbacks=[recorder]
    )
    loop.run()
    (newcomer,) = recorder.end.newcomers
    message = loop.server.message(newcomer.client, loop.server.context())
    for tensors, expected in ((message.tensors, newcomer.score), (None, newcomer.alone)):
        me = fed.client(newcomer.client.index)
        if tensors is not None:
            me.model.load_state_dict(tensors)
        me.begin("train", 0, 2, 2)
        with seeded(0, "torch", me.info.name, "train", 0):
            me.fit(epochs=3)
        assert score_outputs(me.outputs(me.model.eval(), me.test)) == expected
    assert newcomer.score != newcomer.alone


def test_the_learning_rate_is_that_of_a_first_round():
    rates = []

    @dataclass
    class Spy(Standalone):
        def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
            rates.append((me.info.index, me.round, me.lr, me.training.epochs))
            return super().client(me, message)

    fed = tiny(3, training=Training(epochs=1, batch_size=4, lr=0.5, lr_decay=0.5))
    evaluation = Evaluation(newcomers=0.3, newcomer_epochs=2)
    loop = make_loop(Spy(), fed, rounds=3, evaluation=evaluation)
    loop.run()
    (newcomer,) = loop.newcomers
    assert rates[-1] == (newcomer, 3, 0.5, 2)
    assert rates[-2][2:] == (0.125, 1)


def test_jobs_of_few_batches_repeat_until_the_epochs_are_complete():
    calls = []

    @dataclass
    class Spy(FedHe):
        def client(self, me: Client, message: Any) -> Any:
            calls.append((me.info.index, me.job))
            return super().client(me, message)

    fed = tiny(3, sizes=(24,), training=Training(epochs=2, batch_size=4))
    loop = make_loop(Spy(inner_batches=3), fed, rounds=1, evaluation=Evaluation(newcomers=0.3))
    loop.run()
    (newcomer,) = loop.newcomers
    assert [job for client, job in calls if client == newcomer] == [
        0,
        1,
        2,
        3,
    ]  # 2 · 24 samples, 12 at a time


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_joined(name: str):
    method = method_class(name)()
    recorder, fed = Recorder(), small_federation(method, clients=4)
    loop = make_loop(method, fed, evaluation=Evaluation(newcomers=0.25), callbacks=[recorder])
    (newcomer,) = loop.newcomers
    before = fed.client(newcomer).state()
    loop.run()
    (joined,) = recorder.end.newcomers
    assert joined.client.index == newcomer
    assert torch.isfinite(torch.tensor([joined.score.loss, joined.alone.loss])).all()
    assert same_state(flatten(recorder.end.fetch(newcomer)), before)  # it leaves the client as it was


def test_failed_newcomer_is_restored_and_others_join(monkeypatch: pytest.MonkeyPatch):
    fed = tiny(5)
    worker = Worker(Standalone(), fed.client)
    before = worker.client(1).state()
    monkeypatch.setattr(Standalone, "predict", lambda *_: pytest.fail("no prediction"))
    with pytest.raises(BaseException, match="no prediction"):
        join(
            Standalone(),
            worker.client(1),
            EmptyPayload(),
            Job(1, "join", 1, 0, round=1, rounds=1, message=EmptyPayload()),
        )
    assert same_state(worker.client(1).state(), before)
    assert worker.client(1).training == fed.training


@dataclass
class Picky(Method[None, EmptyPayload, EmptyPayload]):
    """Fails in the very last round at a client of this number."""

    fails: int = -1

    def init_server(self, ctx: Context) -> None:
        return None

    def broadcast(self, state: None, client: ClientInfo, ctx: Context) -> EmptyPayload:
        return EmptyPayload()

    def client(self, me: Client, message: EmptyPayload) -> EmptyPayload:
        if me.info.index == self.fails:
            raise ValueError("not me")
        return EmptyPayload()

    def server(self, state: None, updates: Sequence[Update[EmptyPayload]], ctx: Context) -> None:
        return None


def test_a_newcomer_that_fails_is_left_out_or_stops_the_run():
    newcomers = sorted(draw_newcomers(TWO_OF_FIVE, tiny(5).task))
    recorder = Recorder()
    options: dict[str, Any] = {"evaluation": TWO_OF_FIVE, "callbacks": [recorder], "rounds": 1}
    make_loop(Picky(newcomers[0]), tiny(5), on_failure="continue", **options).run()
    assert [newcomer.client.index for newcomer in recorder.end.newcomers] == newcomers[1:]
    with pytest.raises(PotluckError, match="join in round 1: ValueError: not me"):
        make_loop(Picky(newcomers[0]), tiny(5), **options).run()


def test_a_newcomer_without_test_samples_has_no_score():
    fed = federate([Member(seeded_net(i), points(12, i)) for i in range(3)], num_classes=3)
    recorder = Recorder()
    make_loop(Standalone(), fed, rounds=1, evaluation=TWO_OF_FIVE, callbacks=[recorder]).run()
    assert recorder.end.newcomers == []


def test_means():
    info = ClientInfo(0, "a", 1, "Net")
    actual = [
        Newcomer(info, Score(3, 4, 1.0), Score(1, 4, 1.0)),
        Newcomer(info, Score(1, 2, 1.0), Score(1, 2, 1.0)),
    ]
    assert means(actual) == {"accuracy": 0.625, "alone": 0.375, "gain": 0.25}


# -- whole runs ---------------------------------------------------------------------------------------------


def federation() -> Federation:
    return tiny(5, norm=True, hidden=(5,), training=Training(2, 4, momentum=0.9, keep_optimizer=True))


def run(out: Path, engine: str = "serial", **more: Any) -> potluck.Run:
    return potluck.run(
        "fedavg", federation=federation(), rounds=3, engine=engine, workers=2, evaluate={"newcomers": 0.4},
        out=out, **more,
    )  # fmt: skip


def test_the_summary_has_them_and_engines_agree(tmp_path: Path):
    serial, pool = run(tmp_path / "serial"), run(tmp_path / "pool", "pool")
    summary = serial.summary["newcomers"]
    assert summary == pool.summary["newcomers"]
    assert len(summary["clients"]) == 2
    assert summary["gain"] == pytest.approx(summary["accuracy"] - summary["alone"])
    assert summary["accuracy"] == pytest.approx(sum(row["accuracy"] for row in summary["clients"]) / 2)
    missing = [row["client"] for row in summary["clients"]]
    assert [serial.summary["client_accuracy"][client] for client in missing] == [None, None]
    assert serial.newcomers("gain") == summary["gain"]
    assert len(serial.client_accuracy) == 3
    assert serial.summary["flops_per_client_round"] > 0


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_that_was_stopped_meets_the_same_newcomers(tmp_path: Path, step: int):
    uninterrupted = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", callbacks=[StopAt(step)])
    again = run(tmp_path / "stopped", resume=True)
    assert again.summary["newcomers"] == uninterrupted.summary["newcomers"]


def test_a_run_killed_while_they_join_meets_them_again(tmp_path: Path):
    class DiesAtTheEnd(potluck.Callback):
        def on_end(self, end: potluck.End) -> None:
            assert len(end.newcomers) == 2
            raise KeyboardInterrupt

    uninterrupted = run(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "stopped", callbacks=[DiesAtTheEnd()])
    (tmp_path / "stopped" / "summary.json").unlink()
    again = run(tmp_path / "stopped", "pool", resume=True)
    assert again.summary["newcomers"] == uninterrupted.summary["newcomers"]


def test_exporting_one_is_refused(tmp_path: Path):
    finished = potluck.run("fedavg", clients=4, models="small-mlp", rounds=1, out=tmp_path / "run", engine="serial",
                       evaluate={"newcomers": 0.25})  # fmt: skip
    (newcomer,) = (row["client"] for row in finished.summary["newcomers"]["clients"])
    with pytest.raises(PotluckError, match=f"Client {newcomer} was excluded from training"):
        potluck.export_client(finished.path, newcomer, tmp_path / "model")


def test_tables_show_them_only_where_there_are_some(tmp_path: Path):
    from potluck.analysis import compare, to_csv, to_markdown

    table = to_markdown(compare([run(tmp_path / "a")]))
    assert "| newcomers | newcomers' gain |" in table.splitlines()[0]
    assert "newcomers_gain" in to_csv(compare([run(tmp_path / "b")])).splitlines()[0]
    plain = potluck.run("fedavg", federation=tiny(2, hidden=(5,)), rounds=1, out=tmp_path / "c")
    assert "newcomers" not in to_markdown(compare([plain])).splitlines()[0]


def test_settings_that_cannot_be():
    with pytest.raises(
        PotluckError, match=r"evaluate\.newcomers = 0\.5 keeps 1 of 1 clients out of training"
    ):
        potluck.run("standalone", federation=tiny(1), evaluate={"newcomers": 0.5})
    with pytest.raises(
        PotluckError, match=r"evaluate\.newcomer_epochs = 3 has no effect: evaluate\.newcomers is 0"
    ):
        potluck.run("standalone", federation=tiny(2), evaluate={"newcomer_epochs": 3})
    with pytest.raises(PotluckError, match=r"evaluate\.newcomers = 1"):
        potluck.run("standalone", federation=tiny(2), evaluate={"newcomers": 1})


def test_join_job_roundtrip():
    from potluck.wire import from_bytes, pack_job, to_bytes, unpack_job

    job = Job(3, "join", 1, 0, round=2, rounds=2, message=EmptyPayload(), epochs=7, details=True)
    assert unpack_job(from_bytes(to_bytes(pack_job(job))), EmptyPayload) == dataclasses.replace(job)
    assert not isinstance(
        Worker(Standalone(), tiny(2).client).run(dataclasses.replace(job, epochs=1)), Failure
    )
