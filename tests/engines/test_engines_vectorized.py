"""Stacked training agrees with one-by-one training for any loss over the model."""

import threading
import time
from typing import Any

import pytest
import torch
from torch import Tensor

from potluck.core.training import Training
from potluck.engines.tuning import is_stacking_faster
from potluck.engines.vectorized import JobBatcher, VectorizedEngine, stack
from potluck.engines.vectorized.rendezvous import JobThreads, run_paused_jobs
from potluck.engines.vectorized.stack import Stack
from potluck.federation.members import Member, federate
from potluck.methods import METHODS, method_class
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedgh import FedGH
from potluck.methods.fedprox import FedProx
from potluck.methods.standalone import Standalone
from potluck.worker.worker import Worker
from support.tiny import Net, Recorder, make_loop, points, tiny


def both(method: Any, make: Any, **schedule: Any) -> tuple[list[Any], list[Any]]:
    """Every client's final state, serially and stacked."""
    states = []
    for vectorized in (False, True):
        fed, recorder = make(), Recorder()
        loop = make_loop(method, fed, callbacks=[recorder], **schedule)
        if vectorized:
            loop.dispatcher.engine = VectorizedEngine(Worker(method, fed.client), JobBatcher(fed.task))
        loop.run()
        states.append([loop.fetch(info.index)["model"] for info in fed.task.clients])
    return states[0], states[1]


def assert_close(actual: list[Any], expected: list[Any]) -> None:
    for actual_result, expected_result in zip(actual, expected, strict=True):
        for name in actual_result:
            assert torch.allclose(actual_result[name], expected_result[name], atol=1e-10), name


@pytest.mark.parametrize(
    "training",
    [
        Training(epochs=2, batch_size=4, lr=0.1),
        Training(epochs=2, batch_size=4, lr=0.1, momentum=0.9, weight_decay=0.01),
        Training(epochs=2, batch_size=0, lr=0.01, optimizer="adam"),
        Training(epochs=1, batch_size=4, lr=0.1, clip_norm=0.05),
        Training(epochs=1, batch_size=4, lr=0.1, drop_last=True),
    ],
)
def test_unequal_clients_train_as_they_do_alone(training: Training):
    """Different sizes give different numbers of steps and different last batches."""
    serial, stacked = both(
        Standalone(), lambda: tiny(5, sizes=(7, 12, 4, 13, 9), training=training), rounds=2
    )
    assert_close(serial, stacked)


@pytest.mark.parametrize("method", [FedGH(), FedAvg(), FedProx(mu=0.5)])
def test_losses_with_extra_inputs_agree_stacked_and_serial(method: Any):
    serial, stacked = both(method, lambda: tiny(4, sizes=(7, 12)), rounds=2)
    assert_close(serial, stacked)


def test_large_models_are_stacked_in_pieces(monkeypatch: pytest.MonkeyPatch):
    """A network of 55 numbers of 8 bytes: two make a stack of 1,000 bytes, so five clients are three pieces."""
    sizes: list[int] = []

    class Counted(Stack):
        def __init__(self, pairs: Any) -> None:
            sizes.append(len(pairs))
            super().__init__(pairs)

    monkeypatch.setattr(stack, "Stack", Counted)
    unlimited = both(Standalone(), lambda: tiny(5, hidden=(5,)), rounds=1)[1]
    monkeypatch.setattr(stack, "MAX_STACK_BYTES", 1000)
    serial, stacked = both(Standalone(), lambda: tiny(5, hidden=(5,)), rounds=1)
    assert sizes == [5, 2, 2]  # and one alone
    assert_close(serial, stacked)
    assert_close(unlimited, stacked)


def test_batch_norm_statistics_are_each_clients_own():
    serial, stacked = both(Standalone(), lambda: tiny(4, norm=True, sizes=(8, 11)), rounds=2)
    assert_close(serial, stacked)
    assert not torch.equal(stacked[0]["body.1.running_mean"], stacked[2]["body.1.running_mean"])


def test_all_methods_run_and_learn_the_same_to_rounding():
    """Methods with steps of their own are trained plainly inside a cohort, so every method may be asked for."""
    from potluck.testing import small_federation

    for name in METHODS:
        method = method_class(name)()
        serial, stacked = both(method, lambda method=method: small_federation(method), rounds=1)
        assert_close(serial, stacked)


def test_clients_really_train_together(monkeypatch: pytest.MonkeyPatch):
    sizes = []

    def watched(pairs: Any) -> Any:
        sizes.append(len(pairs))
        return Stack(pairs)

    monkeypatch.setattr(stack, "Stack", watched)
    both(FedGH(), lambda: tiny(6, hidden=(5, 7)), rounds=1)
    assert sizes == [3, 3]


def test_a_client_that_raises_does_not_stop_the_others():
    fed = tiny(3, hidden=(5,))
    clients = [fed.client(index) for index in range(3)]

    def job(me: Any) -> Any:
        if me.info.index == 1:
            raise ValueError("no luck")
        return me.fit()

    results = run_paused_jobs([(me, lambda me=me: job(me)) for me in clients], JobThreads())
    assert isinstance(results[1], ValueError)
    assert results[0].steps == results[2].steps == 3


def test_raising_loss_fails_every_stacked_client():
    fed = tiny(2, hidden=(5,))

    def bad(model: Any, x: Any, y: Any) -> Any:
        raise ValueError("bad loss")

    results = run_paused_jobs(
        [(me, lambda me=me: me.fit(bad)) for me in (fed.client(0), fed.client(1))], JobThreads()
    )
    assert all(isinstance(result, ValueError) for result in results)


def test_threads_of_jobs_are_used_again_and_end_with_their_engine():
    fed, threads, before = tiny(3, hidden=(5,)), JobThreads(), threading.active_count()
    for _ in range(2):
        jobs = [(me, lambda me=me: me.fit()) for me in map(fed.client, range(3))]
        assert [fit.steps for fit in run_paused_jobs(jobs, threads)] == [3, 3, 3]
        assert threading.active_count() <= before + 3
    threads.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def test_auto_decides_once_and_writes_it_down(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    import potluck
    from potluck.runs import engine as run_engine

    monkeypatch.chdir(tmp_path)
    for answer, word in ((True, "on"), (False, "off")):
        monkeypatch.setattr(run_engine, "is_stacking_faster", lambda *arguments, answer=answer: answer)
        values = {"engine": {"name": "serial", "vectorize": "auto"}, "method": {"name": "standalone"}}
        run = potluck.run(values, rounds=1, clients=4, models="small-mlp", training={"epochs": 1})
        assert f'vectorize = "{word}"' in (run.path / "experiment.toml").read_text()
        assert run.summary["engine"] == ("vectorized" if answer else "serial")


def test_the_measurement_leaves_clients_and_random_state_alone():
    from potluck.engines.tuning import is_stacking_faster

    fed = tiny(4, hidden=(5,))
    before = torch.random.get_rng_state()
    assert is_stacking_faster(fed.task, fed.client, 4) in (True, False)
    assert torch.equal(before, torch.random.get_rng_state())
    assert not is_stacking_faster(tiny(2, hidden=(5, 7)).task, fed.client, 2)


class Fickle(Net):
    """Looks at its own numbers to decide what to do, which no stack can."""

    def features(self, x: Tensor) -> Tensor:
        features = super().features(x)
        return features if float(features.detach().sum()) > 0 else 2 * features


def test_auto_leaves_networks_alone_that_cannot_be_stacked():
    members = [Member(Fickle().double(), points(12, seed)) for seed in range(3)]
    federation = federate(members, training=Training(epochs=1, batch_size=4, lr=0.1), num_classes=3)
    assert not is_stacking_faster(federation.task, federation.client, 3)
