"""Validation samples: scored in existing jobs, and used to select the best round."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.federation.federation import Federation, Member
from potluck.federation.members import federate
from potluck.loop.schedule import Evaluation
from potluck.methods.fedavg import FedAvg
from potluck.methods.standalone import Standalone
from support.tiny import Recorder, make_loop, points, seeded_net


def validated(clients: int = 3, *, with_test: bool = True, rows: int = 6) -> Federation:
    """Clients with 12 training, `rows` validation and 9 test samples; the first has no validation."""
    members = [
        Member(
            seeded_net(index),
            points(12, 10 + index),
            points(9, 90 + index) if with_test else None,
            validation=points(rows, 50 + index) if index else None,
        )
        for index in range(clients)
    ]
    return federate(members, num_classes=3, shared_test=points(9, 1000))


def watched(
    protocol: Any = "local", fed: Federation | None = None, **more: Any
) -> tuple[Recorder, list[Any]]:
    """What callbacks saw of two rounds, and every job that was sent."""
    recorder, jobs = Recorder(), list[Any]()
    loop = make_loop(
        FedAvg(), fed or validated(), evaluation=Evaluation(protocol, **more), callbacks=[recorder]
    )
    submit = loop.dispatcher.engine.submit
    loop.dispatcher.engine.submit = lambda job: (jobs.append(job), submit(job))[1]  # type: ignore[method-assign]
    loop.run()
    return recorder, jobs


@pytest.mark.parametrize(
    ("protocol", "tests", "extra"),
    [
        ("local", {"own", "validation"}, 0),
        ("received", {"own", "validation"}, 6),
        ("shared", {"shared", "validation"}, 6),
    ],
)
def test_validation_comes_with_the_jobs_of_the_chosen_protocol(protocol: str, tests: set[str], extra: int):
    recorder, jobs = watched(protocol)
    after_rounds = [job for job in jobs if job.kind == "evaluate"][:-3]
    assert len(after_rounds) == extra  # as many as without validation samples
    requested = {test for job in jobs for test in job.tests}
    assert requested == tests
    for step in recorder.steps:
        assert [score.client.index for score in step.validation] == [1, 2]
        assert {score.protocol for score in step.validation} == {protocol}
        assert all(score.score.samples == 6 for score in step.validation)
        mean = sum(score.score.accuracy for score in step.validation) / 2
        assert step.record.accuracy_validation == pytest.approx(mean)
        assert step.record.loss_validation == pytest.approx(
            sum(score.score.loss for score in step.validation) / 2
        )


def test_validation_is_of_the_chosen_protocol_alone():
    recorder, jobs = watched("local", also=("received",))
    assert all("validation" not in job.tests for job in jobs[:-3] if job.kind == "evaluate")
    assert {score.protocol for step in recorder.steps for score in step.validation} == {"local"}
    recorder, jobs = watched("received", also=("local",))
    assert all(job.tests == ("own",) for job in jobs if job.kind == "train")
    assert {score.protocol for step in recorder.steps for score in step.validation} == {"received"}


def test_server_model_is_selected_by_received_validation_scores():
    fed = federate(
        [
            Member(seeded_net(0), points(12, i), points(9, 90 + i), validation=points(6, 50 + i))
            for i in range(2)
        ],
        num_classes=3,
        shared_test=points(9, 1000),
    )
    recorder, _ = watched("global", fed)
    assert recorder.steps[0].record.accuracy == recorder.steps[0].record.accuracy_global is not None
    assert len(recorder.steps[0].validation) == 2
    received, _ = watched("received", fed)
    assert recorder.steps[0].record.accuracy_validation == received.steps[0].record.accuracy_validation


def test_all_clients_are_validated_at_the_end():
    recorder, _ = watched()
    assert [score.client.index for score in recorder.end.validation] == [1, 2]
    assert all(score.final for score in recorder.end.validation)
    assert len(recorder.end.scores) == 3


def test_validation_samples_are_neither_trained_nor_tested_on():
    """Other validation samples change the validation scores, and nothing else."""

    def run(rows: int) -> tuple[list[float], list[float]]:
        recorder, _ = watched(fed=validated(rows=rows))
        return [s.score.loss for s in recorder.end.scores], [s.score.loss for s in recorder.end.validation]

    (losses, validation_scores), (same, test_scores) = run(6), run(4)
    assert losses == same
    assert validation_scores != test_scores


def test_a_run_without_validation_samples_has_none():
    fed = federate([Member(seeded_net(i), points(12, i), points(9, 90 + i)) for i in range(2)], num_classes=3)
    recorder, jobs = watched(fed=fed)
    assert recorder.steps[0].record.accuracy_validation is None
    assert recorder.steps[0].validation == recorder.end.validation == []
    assert all("validation" not in job.tests for job in jobs)


def test_clients_without_test_samples_are_validated(tmp_path):
    run = potluck.run(
        "standalone", federation=validated(with_test=False), rounds=1, engine="serial", out=tmp_path / "run"
    )
    rows = [row for row in run.clients if not row["final"]]
    assert [(row["client"], row["accuracy"], row["validation_samples"]) for row in rows] == [
        (1, None, 6),
        (2, None, 6),
    ]
    assert run.rounds[0]["accuracy"] is None
    assert run.rounds[0]["accuracy_validation"] is not None


def test_best_round_is_selected_on_validation_and_stated(tmp_path):
    run = potluck.run("standalone", federation=validated(), rounds=3, engine="serial", out=tmp_path / "run")
    assert (
        run.experiment["evaluate"]["select"] == run.summary["selected_by"] == run.selected_by == "validation"
    )
    by_round = {row["round"]: row for row in run.rounds}
    best = max(by_round.values(), key=lambda row: row["accuracy_validation"])
    assert run.summary["best_round"] == best["round"]
    assert run.summary["best_accuracy"] == best["accuracy"]
    assert run.summary["best_accuracy_validation"] == best["accuracy_validation"]
    final = [
        row["accuracy_validation"] for row in run.clients if row["final"] and "accuracy_validation" in row
    ]
    assert run.summary["final_accuracy_validation"] == pytest.approx(sum(final) / 2)


def test_to_ask_for_validation_where_there_is_none_is_refused_with_the_remedy():
    fed = federate([Member(seeded_net(0), points(12, 1), points(9, 90))], num_classes=3)
    with pytest.raises(PotluckError, match=r"no client has any; give clients some: potluck\.Member"):
        potluck.run("standalone", federation=fed, evaluate={"select": "validation"})
    with pytest.raises(
        PotluckError, match=r"no client has any; set data\.split to three parts, such as 8:1:1\."
    ):
        potluck.run("standalone", data="digits", clients=2, evaluate={"select": "validation"})
    with pytest.raises(PotluckError, match=r"evaluate\.select = 'train' is not valid"):
        potluck.run("standalone", evaluate={"select": "train"})


def test_standalone_needs_no_message_for_its_validation():
    recorder = Recorder()
    make_loop(Standalone(), validated(), rounds=1, callbacks=[recorder]).run()
    assert torch.tensor([s.score.loss_sum for s in recorder.end.validation]).isfinite().all()
