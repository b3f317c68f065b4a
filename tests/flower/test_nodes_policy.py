"""Node policy: every limit of [policy] is enforced before anything is computed or sent."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.method import payload_types
from potluck.core.payload import EmptyPayload
from potluck.core.samples import Samples
from potluck.core.tree import Flat
from potluck.experiment import Experiment
from potluck.flower.node import host, space
from potluck.flower.node import node as node_side
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.audit_report import node_log
from potluck.flower.node.check import check_node
from potluck.flower.node.config import Policy, jobs_to_keep, read_node
from potluck.flower.node.federation import node_federation, without_small_classes
from potluck.flower.node.guard import spent_epsilon
from potluck.flower.node.host import NodeHost
from potluck.flower.node.journal import Journal
from potluck.flower.node.registration import Assignment
from potluck.privacy.accounting import epsilon, tightest
from potluck.wire import Message as WireMessage
from potluck.wire import pack_job, unpack_result
from potluck.wire.jobs import Answer, Failure, Job
from support.own_nodes import experiment, write_node

RUN = "ab12"


def node_with(folder: Path, policy: str = "", model: str = "mlp-1+6") -> Path:
    """A node whose policy is the default but for these lines."""
    path = write_node(folder, "guarded", model, 3)
    for line in policy.splitlines():
        name = line.split(" =")[0].strip()
        lines = [old for old in path.read_text().splitlines() if not old.startswith(f"{name} =")]
        path.write_text("\n".join([*lines, line.strip()]) + "\n")
    return path


def ask(path: Path, settings: Experiment, request: Job | str = "registration", run: str = RUN) -> WireMessage:
    order = Assignment(settings.model_dump_json(exclude_none=True), run)
    letter = WireMessage({"ask": request}) if isinstance(request, str) else pack_job(request)
    return NodeHost().handle_message(order.attach_to(letter), {"node-file": str(path)})


def refused(path: Path, settings: Experiment, request: Job | str = "registration") -> str:
    reply = ask(path, settings, request)
    assert set(reply.facts) == {"refusal"}
    assert reply.payload is reply.state is None
    return str(reply.facts["refusal"])


def training(number: int = 0, **more: Any) -> Job:
    return Job(1, "train", 0, number, round=1, rounds=9, message=EmptyPayload(), tests=("own",), **more)


def result(reply: WireMessage, settings: Experiment, job: Job) -> Answer | Failure:
    return unpack_result(reply, payload_types(settings.build_method())[1], job)


@pytest.mark.parametrize(
    ("sections", "policy", "sentence"),
    [
        ({"method": "subprocess:Popen"}, "", "method 'subprocess:Popen' is not among its policy.methods (the built-in ones)"),
        ({"method": "fedavg"}, 'methods = ["fedgh"]', "method 'fedavg' is not among its policy.methods (fedgh)"),
        ({"data": {"public": "csv:/etc/passwd"}}, "", "data.public = 'csv:/etc/passwd' names a file or an address"),
        ({"training": {"epochs": 10**9}}, "", "training.epochs = 1000000000 is above its policy.epochs = 100"),
        ({"engine": {"name": "flower", "nodes": 1, "classes": 3, "checkpoint_every": 63}}, "", "engine.checkpoint_every = 63 needs 65 kept jobs, above its policy.kept_jobs = 64"),
        ({}, "clip = 1.0", "privacy.clip = 0 must be above 0 and at most its policy.clip = 1"),
        ({"privacy": {"clip": 2.0}}, "clip = 1.0", "privacy.clip = 2 must be above 0 and at most its policy.clip = 1"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 0.5, "reproducible": False}}, "noise = 0.6", "privacy.noise_multiplier = 0.5 is too little for it (policy.noise = 0.6)"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0}}, "noise = 0.6", "privacy.reproducible = true gives noise that the server can take away"),
        ({"privacy": {"unit": "record", "clip": 1.0, "noise_multiplier": 1.0, "reproducible": False}}, "epsilon = 3.0", "privacy.unit = 'record' protects single rows, and its policy.clip, noise and epsilon are about whole answers"),
        ({}, "epsilon = 3.0", "privacy.noise_multiplier = 0 is too little for it (policy.epsilon = 3 needs noise)"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 2.0, "reproducible": False}, "schedule": {"rounds": 50}}, "epsilon = 3.0", "ε of 50 answers with privacy.noise_multiplier = 2 is"),
        ({"privacy": {"clip": 1.0, "noise_multiplier": 1.0, "reproducible": False}}, "row_epsilon = 3.0", "its policy.row_epsilon = 3 needs privacy.unit = 'record', with privacy.clip"),
        ({"privacy": {"unit": "record", "clip": 1.0, "noise_multiplier": 1.0}}, "row_epsilon = 3.0", "its policy.row_epsilon = 3 needs secret noise"),
    ],
)  # fmt: skip
def test_forbidden_jobs_are_rejected_before_the_client_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sections: dict[str, Any], policy: str, sentence: str
) -> None:
    path, settings = node_with(tmp_path / "n", policy), experiment(**{"method": "standalone", **sections})
    for name in ("_load_own", "AuditLog"):
        monkeypatch.setattr(host, name, lambda *_: pytest.fail("something was built"))
    for request in ("registration", "first weights", training()):
        assert sentence in refused(path, settings, request)
    with pytest.raises(PotluckError, match="This node refuses the run"):
        check_node(path, settings)
    assert not (tmp_path / "n" / "potluck-state").exists()


def test_a_listed_method_of_ones_own_is_allowed() -> None:
    settings = experiment().model_copy(
        update={"method": experiment().method.model_copy(update={"name": "mine:Own"})}
    )
    assert Policy(methods=("mine:Own",)).problems(settings) == []
    assert len(Policy().problems(settings)) == 1


def test_a_folder_of_the_servers_is_never_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = node_with(tmp_path / "n")
    opened: list[Any] = []

    def load(name: str, root: str | None = None, **more: Any) -> Any:
        opened.append((name, root))
        raise PotluckError("no such set here")

    monkeypatch.setattr("potluck.flower.node.federation.load_data", load)
    settings = experiment(data={"public": "digits", "root": "/etc"})
    with pytest.raises(PotluckError, match="no such set"):
        node_federation(settings, read_node(path))
    assert opened == [("digits", None)]


@pytest.mark.parametrize("kind", ["fetch", "restore"])
def test_a_nodes_state_is_neither_handed_over_nor_replaced(tmp_path: Path, kind: Any) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("standalone")
    ask(path, settings, training())
    refusal = refused(path, settings, Job(2, kind, 0, 1, round=1, rounds=9))
    assert refusal == f"This node refuses the job: it does not {kind} its state, which is its own."


def test_a_newcomer_trains_no_longer_than_the_policy_says(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n", "epochs = 3"), experiment("standalone")
    assert "4 epochs are above its policy.epochs = 3" in refused(
        path, settings, Job(1, "join", 0, 0, round=1, rounds=9, epochs=4)
    )


def test_a_job_that_trains_on_too_many_rows_is_stopped(tmp_path: Path) -> None:
    settings = experiment("standalone", training={"epochs": 5, "batch_size": 6})
    allowed = node_with(tmp_path / "a", "samples = 90")  # 5 epochs of 18 rows
    assert isinstance(result(ask(allowed, settings, training()), settings, training()), Answer)
    short = node_with(tmp_path / "b", "samples = 89")
    failure = result(ask(short, settings, training()), settings, training())
    assert isinstance(failure, Failure)
    assert "it trained on more than its policy.samples = 89" in failure.reason
    with pytest.raises(PotluckError, match="5 epochs of 18 rows are above its policy.samples = 89"):
        check_node(short, settings)


def test_a_run_has_so_many_answers_and_no_more(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n", "jobs = 2"), experiment("standalone")
    for number in range(2):
        assert "answer" in ask(path, settings, training(number)).facts
    assert "the run had its policy.jobs = 2" in refused(path, settings, training(2))
    assert "the run had its policy.jobs = 2" in refused(
        path, settings, Job(9, "evaluate", 0, 2, round=1, rounds=9, tests=("own",))
    )
    assert "answer" in ask(path, settings, training(1)).facts  # what was answered is answered again
    assert "answer" in ask(path, settings, training(0), run="cd34").facts  # another run has its own count


def test_a_job_without_end_is_stopped_where_the_runs_hours_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, settings = node_with(tmp_path / "n", f"hours = {0.5 / 3600}"), experiment("standalone")
    monkeypatch.setattr("potluck.methods.standalone.Standalone.client", lambda *_: time.sleep(60))
    began, before = time.monotonic(), signal.getsignal(signal.SIGALRM)
    failure = result(ask(path, settings, training()), settings, training())
    assert time.monotonic() - began < 30
    assert isinstance(failure, Failure)
    assert "This node stopped the job: the run had its policy.hours" in failure.reason
    assert signal.getsignal(signal.SIGALRM) is before
    assert "the run had its policy.hours" in refused(path, settings, training(1))


NOISY = {"clip": 1.0, "noise_multiplier": 2.0, "reproducible": False}


def noisy(**more: Any) -> Experiment:
    return experiment("fd", privacy={**NOISY, **more}, schedule={"rounds": 1})


def means(path: Path, settings: Experiment, number: int, run: str = RUN) -> WireMessage:
    from potluck.core.task import Context

    task = node_federation(settings, read_node(path)).task
    method = settings.build_method()
    context = Context(task, 1, 9, settings.seed)
    message = method.broadcast(method.init_server(context), task.clients[0], context)
    return ask(path, settings, replace(training(number), message=message), run)


def test_two_hundred_questions_under_one_number_are_answered_once(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n"), noisy()
    first = means(path, settings, 0)
    for repeated in (first, means(path, settings, 0), means(path, noisy(clip=0.5), 0)):
        assert repeated.payload is not None
        assert first.payload is not None
        for name, tensor in first.payload.tensors.items():
            assert torch.equal(tensor, repeated.payload.tensors[name])
    log = list(AuditLog(read_node(path).audit_log()).lines())
    assert [line["again"] for line in log] == [False, True, True]
    assert [line["spent"] for line in log] == [0.25] * 3  # 1/2², once


def test_privacy_is_summed_over_all_runs_and_stops_at_the_nodes_own_limit(tmp_path: Path) -> None:
    three = epsilon(2.0, 3, 1e-5)
    path = node_with(tmp_path / "n", f"epsilon = {three + 0.01}")
    for number, run in ((0, "a1"), (1, "a1"), (0, "b2")):
        assert "answer" in means(path, noisy(), number, run).facts
    totals = AuditLog(read_node(path).audit_log()).last()
    assert spent_epsilon(totals, 1e-5) == pytest.approx(three)
    refusal = means(path, noisy(), 1, "b2").facts["refusal"]
    assert f"({three:.3g} is spent)" in refusal
    with pytest.raises(PotluckError, match="over all its runs, above its policy.epsilon"):
        check_node(path, noisy())
    assert "answer" in means(path, noisy(), 0, "b2").facts  # the same again costs nothing
    assert "answer" in means(path, noisy(noise_multiplier=1000.0), 0, "c3").facts
    text = "\n".join(node_log(path, 3))
    assert f"ε = {three:.3g} at δ = 1e-05 is spent of its policy.epsilon" in text
    assert "in all: 5 answers" in text


def test_budget_of_a_run_is_that_of_its_expected_answers() -> None:
    rounds = {"rounds": 8, "participation": 0.5}
    four, noise = epsilon(2.0, 4, 1e-5), {"privacy": NOISY, "schedule": rounds}
    assert Policy(epsilon=four + 0.01).problems(experiment("fd", **noise)) == []
    (problem,) = Policy(epsilon=four - 0.01).problems(experiment("fd", **noise))
    assert problem.startswith(
        f"ε of 4 answers with privacy.noise_multiplier = 2 is {four:.3g} at δ = 1e-05, above"
    )


def test_a_limit_for_single_rows_is_checked_at_the_start_and_bounds_the_jobs(tmp_path: Path) -> None:
    settings = experiment(
        "standalone",
        privacy={"unit": "record", "clip": 1.0, "noise_multiplier": 2.0, "reproducible": False},
        training={"epochs": 1, "batch_size": 0},
    )
    spent = tightest([(2.0, 1.0, 2)], 1e-5)  # two rounds of one step with all rows, noise 2
    tight, loose = (
        node_with(tmp_path / name, f"row_epsilon = {spent + more}")
        for name, more in (("tight", -0.01), ("loose", 0.01))
    )
    assert f"ε of each of its 18 rows would be {spent:.3g} at δ = 1e-05" in refused(tight, settings)
    with pytest.raises(PotluckError, match=r"above its policy\.row_epsilon"):
        check_node(tight, settings)

    assert "refusal" not in ask(loose, settings).facts
    assert "answer" in ask(loose, settings, training(1)).facts
    assert "allows one training job in each of the run's 2 rounds" in refused(loose, settings, training(2))


def test_two_runs_at_the_same_time_do_not_spend_the_same_privacy_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the job of one run is computed, that of another is asked for and answered: there was enough for either."""
    path = node_with(tmp_path / "n", f"epsilon = {epsilon(2.0, 1, 1e-5) + 0.01}")
    run, replies = node_side.Worker.run, list[WireMessage]()

    def slow(worker: Any, job: Job) -> Any:
        if not replies:
            replies.append(WireMessage({}))
            replies[0] = means(path, noisy(), 0, "b2")
        return run(worker, job)

    monkeypatch.setattr(node_side.Worker, "run", slow)
    reply = means(path, noisy(), 0, "a1")

    assert "answer" in replies[0].facts
    assert "above its policy.epsilon" in reply.facts["refusal"]
    assert reply.payload is None
    assert len(list(AuditLog(read_node(path).audit_log()).lines())) == 1
    assert not list((tmp_path / "n").rglob("a1/answer-*"))  # nor is it given to who asks again


def test_answers_without_noise_are_said_to_be_so(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("standalone")
    ask(path, settings, training())
    ask(path, settings, Job(2, "evaluate", 0, 1, round=1, rounds=9, tests=("own",)))
    end = AuditLog(read_node(path).audit_log()).last()
    assert end["bare"] == 1
    assert spent_epsilon(end, 1e-5) == math.inf
    assert "privacy: 1 training answers left without noise" in "\n".join(node_log(path, 0))


def test_where_scores_stay_no_score_or_loss_leaves(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n", "scores = false"), experiment("standalone")
    for job in (training(), Job(2, "evaluate", 0, 1, round=1, rounds=9, tests=("own",))):
        answer = result(ask(path, settings, job), settings, job)
        assert isinstance(answer, Answer)
        assert (answer.scores, answer.train_loss, answer.notes) == ({}, None, {})
    assert any("scores stay here" in line for line in check_node(path, settings))


def test_a_class_of_one_row_is_not_described() -> None:
    y = torch.tensor([0, 0, 1, 2, 2, 2, 4])
    rows = Samples(torch.arange(7.0)[:, None], y)
    assert without_small_classes(rows, 2).labels.tolist() == [0, 0, 2, 2, 2]
    assert without_small_classes(rows, 3).take(slice(None))[0].flatten().tolist() == [3.0, 4.0, 5.0]
    assert without_small_classes(rows, 1) is rows
    assert len(without_small_classes(rows, 9)) == 0


def test_a_small_class_is_left_out_of_what_a_node_sends(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n", "smallest_class = 6"), experiment("fd")
    train = (
        node_federation(settings, read_node(write_node(tmp_path / "all", "guarded", "mlp-1+6", 3)))
        .members[0]
        .train
    )
    counts = torch.bincount(train.labels, minlength=3).tolist()
    assert min(counts) < 6 <= max(counts)
    reply = means(path, settings, 0)
    assert reply.payload is not None
    labels = next(tensor for tensor in reply.payload.tensors.values() if not tensor.is_floating_point())
    assert [count >= 6 for count in counts] == [label in labels.tolist() for label in range(3)]


def test_exception_text_stays_at_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("standalone")

    def fail(*_: Any) -> None:
        raise ValueError("could not read 'Jane Doe'")

    monkeypatch.setattr("potluck.methods.standalone.Standalone.client", fail)
    failure = result(ask(path, settings, training()), settings, training())
    assert isinstance(failure, Failure)
    assert failure.reason == "train in round 1: ValueError"
    assert "Jane Doe" in caplog.text


def test_what_the_checkpoint_needs_is_kept(tmp_path: Path) -> None:
    path = node_with(tmp_path / "n")
    settings = experiment(
        "standalone", engine={"name": "flower", "nodes": 1, "classes": 3, "checkpoint_every": 8}
    )
    for number in range(14):
        ask(path, settings, training(number))
    stored_jobs = sorted(
        int(file.stem.split("-")[1]) for file in (tmp_path / "n").glob("potluck-state/*/answer-*")
    )
    assert stored_jobs == list(range(4, 14))  # ten: eight rounds since the last checkpoint, and two
    assert (
        jobs_to_keep(experiment(schedule={"mode": "async"})) == 5
    )  # three nodes, one of which may do a whole round


def test_audit_log_lists_messages_and_detects_changed_lines(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("fd")
    assert list(node_log(path, 5)) == ["Nothing has left node 'guarded' yet."]
    ask(path, settings)
    means(path, settings, 0)
    log = read_node(path).audit_log()
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["kind"], second["kind"], second["run"], second["method"]) == (
        "registration",
        "train",
        RUN,
        "fd",
    )
    assert second["fields"]["payload"]["rows"] == ["float32", 3, 3]
    assert second["fields"]["scores"] == ["own"]
    text = "\n".join(node_log(path, 5))
    assert f"the chain holds; note in a place that only you can write: 2 {second['chain']}" in text
    assert stat_mode(log) == 0o600
    original = log.read_text()
    for change in (original.replace('"job": 0', '"job": 1', 1), original.split("\n", 1)[1]):
        log.write_text(change)
        with pytest.raises(PotluckError, match="was changed at line 1"):
            list(node_log(path, 5))


def test_an_unfinished_line_is_taken_off_and_a_changed_end_stops_the_node(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("standalone")
    ask(path, settings)
    log = read_node(path).audit_log()
    with log.open("a") as file:
        file.write('{"number": 2, "ti')  # the power went
    ask(path, settings)
    assert [line["number"] for line in AuditLog(log).lines()] == [1, 2]
    log.write_text(log.read_text().replace('"registration"', '"nothing"'))
    assert "was changed at its end" in refused(path, settings, training())


def test_an_answer_waits_until_its_line_fits_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, settings, write = node_with(tmp_path / "n"), experiment("standalone"), os.write
    sizes: list[int] = []

    def free_the_disk(seconds: float) -> None:
        sizes.append(read_node(path).audit_log().stat().st_size)
        if len(sizes) == 2:
            monkeypatch.setattr(os, "write", write)

    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:10]))
    monkeypatch.setattr(time, "sleep", free_the_disk)
    monkeypatch.setattr(space.write_with_space, "__defaults__", (free_the_disk,))
    assert "registration" in ask(path, settings).facts
    assert sizes == [0, 0]  # no part of a line stays
    assert [line["number"] for line in AuditLog(read_node(path).audit_log()).lines()] == [1]


def test_a_state_waits_for_space_and_other_errors_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, waited = Journal(tmp_path, 4), list[float]()
    sync, errors = os.fsync, [errno.ENOSPC, errno.EDQUOT]

    def full(file: int) -> None:
        if errors:
            raise OSError(errors.pop(0), "no space")
        sync(file)

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr(space.write_with_space, "__defaults__", (waited.append,))
    with journal.locked():
        journal.commit(0, b"answer", Flat({"x": torch.ones(2)}, None))
    assert waited == [5.0, 5.0]
    assert journal.answer(0) == b"answer"
    assert not list(tmp_path.glob("*.new"))
    errors.append(errno.EIO)
    with pytest.raises(OSError, match="no space"):
        journal.commit(1, b"other", Flat({"x": torch.ones(2)}, None))


def test_missing_last_newline_keeps_the_hash_chain(tmp_path: Path) -> None:
    path, settings = node_with(tmp_path / "n"), experiment("standalone")
    ask(path, settings)
    with read_node(path).audit_log().open("a") as file:
        file.write("x" * (1 << 20))
    assert "was changed at its end" in refused(path, settings)


def stat_mode(path: Path) -> int:
    return os.stat(path).st_mode & 0o777


def test_check_says_what_an_experiment_is_allowed(tmp_path: Path) -> None:
    lines = check_node(node_with(tmp_path / "n"), experiment("standalone"))
    assert "policy: standalone is allowed; 1 of 100 epochs and 18 of 10000000 samples per job" in lines
    assert any("scores travel; classes below 2 rows are not described" in line for line in lines)
