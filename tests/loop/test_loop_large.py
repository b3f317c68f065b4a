"""Evaluation of large populations bounds memory and leaves no client busy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from potluck.engines.serial import SerialEngine
from potluck.loop import dispatch
from potluck.loop.loop import Loop
from potluck.loop.schedule import Evaluation
from potluck.methods.fedavg import FedAvg
from potluck.wire.jobs import Answer, Failure, Job
from potluck.worker.worker import Worker
from support.tiny import Recorder, make_loop, tiny


class Telling(SerialEngine):
    """Does the job that came last first, and keeps a diary of its tests."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self.diary: list[str] = []

    def submit(self, job: Job) -> None:
        if job.kind == "evaluate":
            self.diary.append("submit")
        super().submit(job)

    def refill(self) -> None:
        self.diary.append("refill")

    def results(self) -> Iterator[Answer | Failure]:
        while self._jobs:
            job = self._jobs.pop()
            if job.kind == "evaluate":
                self.diary.append("answer")
            yield self.worker.run(job)

    @property
    def waiting(self) -> list[int]:
        """How many tests were under way after each entry."""
        steps = [{"submit": 1, "answer": -1}.get(entry, 0) for entry in self.diary]
        return [sum(steps[: place + 1]) for place in range(len(steps))]


def telling(loop: Loop) -> Telling:
    """The loop's engine from now on."""
    engine = loop.dispatcher.engine
    assert isinstance(engine, SerialEngine)
    loop.dispatcher.engine = telling_engine = Telling(engine.worker)
    return telling_engine


def final_scores(monkeypatch: pytest.MonkeyPatch, limit: int) -> tuple[list[tuple[int, float]], Telling]:
    """Every client's final accuracy, and what the engine saw of it."""
    monkeypatch.setattr(dispatch, "MAX_VALUES_IN_FLIGHT", limit)
    recorder = Recorder()
    loop = make_loop(
        FedAvg(), tiny(5), rounds=1, evaluation=Evaluation("received", every=9), callbacks=[recorder]
    )
    engine = telling(loop)
    loop.run()
    return [(score.client.index, score.score.loss) for score in recorder.end.scores], engine


def test_messages_wait_only_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty, all_at_once = final_scores(monkeypatch, 1 << 26)
    assert [index for index, _ in plenty] == [0, 1, 2, 3, 4]
    assert max(all_at_once.waiting) == 5
    # The two networks hold 55 and 71 numbers: 100 are passed by the second message.
    few, two_at_once = final_scores(monkeypatch, 100)
    assert few == plenty
    assert max(two_at_once.waiting) == 2


def test_others_follow_before_all_that_are_under_way_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _, engine = final_scores(monkeypatch, 150)  # passed by the third message
    # Everybody is tested twice, after the round and at the end: this is the first time.
    assert engine.diary[:10] == [*["submit"] * 3, *["answer", "submit"] * 2, *["answer"] * 3]


def test_the_servers_own_model_is_tested_while_clients_are() -> None:
    records = []
    for engine_of in (telling, lambda loop: loop.dispatcher.engine):
        recorder = Recorder()
        evaluation = Evaluation("received", ("global",))
        fed = tiny(3, hidden=(5,))
        loop = make_loop(FedAvg(), fed, rounds=1, evaluation=evaluation, callbacks=[recorder])
        engine = engine_of(loop)
        loop.step()
        records.append(replace(recorder.steps[0].record, seconds=0.0))
        if isinstance(engine, Telling):
            # All tests are under way; between batches of the server's own the engine is looked after.
            assert engine.diary == ["submit"] * 3 + ["refill"] + ["answer"] * 3
    assert records[0] == records[1]
    assert records[0].accuracy_global is not None
