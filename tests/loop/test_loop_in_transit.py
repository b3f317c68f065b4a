"""Large populations: testing everybody does not hold everybody's message at once."""

from __future__ import annotations

import pytest

from potluck.loop import dispatch
from potluck.loop.jobs import Job
from potluck.loop.schedule import Evaluation
from potluck.methods.fedavg import FedAvg
from tiny import Recorder, make_loop, tiny


def final_scores(monkeypatch: pytest.MonkeyPatch, limit: int) -> tuple[list[tuple[int, float]], int]:
    """Every client's final accuracy, and the most evaluation jobs that waited at once."""
    monkeypatch.setattr(dispatch, "IN_TRANSIT", limit)
    seen, waiting, most = Recorder(), 0, 0
    loop = make_loop(
        FedAvg(), tiny(5), rounds=1, evaluation=Evaluation("received", every=9), callbacks=[seen]
    )
    submit, answers = loop.dispatcher.submit, loop.dispatcher.answers

    def counted(kind, *args, **options):  # type: ignore[no-untyped-def]
        nonlocal waiting, most
        waiting += kind == "evaluate"
        most = max(most, waiting)
        return submit(kind, *args, **options)

    def answered(jobs: list[Job]):  # type: ignore[no-untyped-def]
        nonlocal waiting
        waiting = 0
        return answers(jobs)

    monkeypatch.setattr(loop.dispatcher, "submit", counted)
    monkeypatch.setattr(loop.dispatcher, "answers", answered)
    loop.run()
    return [(one.client.index, one.score.loss) for one in seen.end.scores], most


def test_messages_wait_only_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    plenty, all_at_once = final_scores(monkeypatch, 1 << 26)
    assert [index for index, _ in plenty] == [0, 1, 2, 3, 4]
    assert all_at_once == 5
    # The two networks hold 55 and 71 numbers: 100 are passed by the second message.
    assert final_scores(monkeypatch, 100) == (plenty, 2)
