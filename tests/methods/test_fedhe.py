"""FedHe: the store, the denominator, and asynchronous running."""

import copy
from dataclasses import replace

import pytest
import torch

from potluck.core.samples import ClassMean
from potluck.core.training import Training
from potluck.kit import ClassLogits, ClassVectors, class_mse
from potluck.methods.fedhe import FedHe
from support.tiny import Recorder, answer, context, make_loop, same, tiny, update, weights

EMPTY = ClassVectors(torch.zeros(0, 3).double(), torch.zeros(0).long())
NATIVE = {"buffer": 1, "concurrency": 1}


def logits(row: list[float], label: int = 0) -> ClassLogits:
    return ClassLogits(torch.tensor([[*row, 0.0]], dtype=torch.float64), torch.tensor([label]))


def shared(method: FedHe) -> ClassLogits:
    means = ClassMean(3)
    means.add(torch.tensor([[1.0, 3.0, 0.0], [3.0, 5.0, 0.0]], dtype=torch.float64), torch.tensor([1, 1]))
    return method.shared(*means.result(), classes=3)


def row_of_class_0(method: FedHe, state: object) -> list[float]:
    return method.broadcast(state, update(None).client, context()).rows[0].tolist()[:2]


def test_the_mean_divides_by_one_more_than_it_has():
    assert shared(FedHe()).rows[0].tolist() == pytest.approx([4 / 3, 8 / 3, 0.0])
    assert shared(FedHe(denominator="v")).rows[0].tolist() == pytest.approx([2.0, 4.0, 0.0])


def test_absent_classes_are_left_out_unless_sent_as_zeros():
    assert shared(FedHe()).labels.tolist() == [1]
    zeros = shared(FedHe(absent="zeros"))
    assert zeros.labels.tolist() == [0, 1, 2]
    assert zeros.rows[0].tolist() == [0.0, 0.0, 0.0]
    assert zeros.rows[1].tolist() == pytest.approx([4 / 3, 8 / 3, 0.0])


def test_the_loss_of_one_sample():
    o, y = torch.tensor([[2.0, 0.0]]), torch.tensor([0])
    pull = class_mse(o, y, torch.ones(2, 2), torch.tensor([True, True]))
    assert pull.item() == 1.0
    total = torch.nn.functional.cross_entropy(o, y) + 1.0 * pull
    assert total.item() == pytest.approx(1.126928, abs=1e-6)


@pytest.mark.parametrize(("store", "after"), [("all", [2.0, 2.0]), ("collapse", [1.5, 2.5])])
def test_the_store_keeps_everything_or_collapses_to_one_vote(store: str, after: list[float]):
    method, ctx = FedHe(store=store, collapse_every=2), context()
    state = method.init_server(ctx)
    for index, row in enumerate([[2.0, 2.0], [4.0, 0.0]]):
        state = method.server(state, [update(logits(row), index)], ctx)
    assert row_of_class_0(method, state) == [3.0, 1.0]
    state = method.server(state, [update(logits([0.0, 4.0]), 2)], ctx)
    assert row_of_class_0(method, state) == pytest.approx(after)


def test_history_collapses_every_ten_answers_per_client():
    method, ctx = FedHe(store="collapse"), context(tiny(2))
    state = method.init_server(ctx)
    for _ in range(19):
        state = method.server(state, [update(logits([1.0, 1.0]))], ctx)
    assert state.count[0] == 19
    assert method.server(state, [update(logits([1.0, 1.0]))], ctx).count.tolist() == [1, 0, 0]


def test_only_latest_update_of_each_client_counts_if_configured():
    method, ctx = FedHe(store="latest_per_client"), context()
    state = method.init_server(ctx)
    sent = [(0, [2.0, 2.0], 0), (1, [4.0, 0.0], 0), (0, [8.0, 8.0], 0), (0, [1.0, 1.0], 1)]
    for index, row, label in sent:
        state = method.server(state, [update(logits(row, label), index)], ctx)
    assert row_of_class_0(method, state) == [6.0, 4.0]
    assert state.count.tolist() == [2, 1, 0]


def test_a_stale_answer_counts_by_its_weight():
    """2 by half a vote and 4 by a whole one: (1 + 4) / 1.5."""
    method, ctx = FedHe(), context()
    updates = [replace(update(logits([2.0, 0.0]), 0), weight=0.5), update(logits([4.0, 0.0]), 1)]
    state = method.server(method.init_server(ctx), updates, ctx)
    assert row_of_class_0(method, state) == pytest.approx([10 / 3, 0.0])
    assert state.count.tolist() == [1.5, 0, 0]


def test_a_stale_row_takes_the_place_of_a_clients_earlier_one_by_its_weight():
    method, ctx = FedHe(store="latest_per_client"), context()
    state = method.server(method.init_server(ctx), [update(logits([2.0, 0.0]))], ctx)
    state = method.server(state, [replace(update(logits([6.0, 4.0])), weight=0.25)], ctx)
    assert row_of_class_0(method, state) == pytest.approx([3.0, 1.0])  # a quarter of the way


def test_logits_after_training_are_those_of_every_sample_whatever_the_batches():
    for options in ({"inner_batches": 2}, {}):
        me = tiny(1, training=Training(epochs=2, batch_size=4, lr=0.1)).client(0)
        sent = answer(FedHe(collect="after", denominator="v", **options), me, EMPTY)
        x, y = me.train.take(slice(None))
        assert torch.allclose(sent.rows[2], me.model(x)[y == 2].mean(0), atol=1e-12)


def test_the_work_of_a_job_is_its_batches():
    training = Training(epochs=5, batch_size=4)
    assert FedHe(inner_batches=3).workload(40, training) == 3 * 4
    assert FedHe(inner_batches=3).workload(2, training) == 3 * 2
    assert FedHe().workload(40, training) == 5 * 40


def test_several_answers_at_once_are_merged_like_one_after_another():
    method, ctx = FedHe(), context()
    updates = [update(logits([2.0, 2.0]), 0), update(logits([4.0, 0.0]), 1)]
    together = method.server(method.init_server(ctx), updates, ctx)
    one_by_one = method.init_server(ctx)
    for item in updates:
        one_by_one = method.server(one_by_one, [item], ctx)
    assert torch.equal(together.total, one_by_one.total)
    assert together.events == one_by_one.events == 2


def test_cold_start_can_be_held_back_for_all_classes():
    method, ctx = FedHe(cold_start_events=2), context()
    state = method.server(method.init_server(ctx), [update(logits([2.0, 2.0]))], ctx)
    assert method.broadcast(state, update(None).client, ctx).numel() == 0
    state = method.server(state, [update(logits([2.0, 2.0]))], ctx)
    assert row_of_class_0(method, state) == [2.0, 2.0]


def test_numbers_that_travel():
    """110 numbers in Tables III and IV: ten classes, ten logits and an id each, one direction."""
    up = ClassLogits(torch.zeros(10, 10), torch.arange(10))
    down = ClassVectors(torch.zeros(10, 10), torch.arange(10))
    assert up.numel() == down.numel() == 110
    accounted = FedHe().paper_accounting(down, up)
    assert (accounted.up, accounted.down) == (110, 0)


def test_the_paper_counts_all_classes_whatever_the_batches_held():
    """Batches of two cannot hold three classes: (3 + 1) numbers travel per class met, the paper counts 3 · (3 + 1)."""
    fed = tiny(1, training=Training(epochs=1, batch_size=2, lr=0.1))
    up = answer(FedHe(inner_batches=1), fed.client(0), EMPTY)
    assert 1 <= len(up.labels) <= 2
    assert up.numel() == len(up.labels) * 4
    assert FedHe().paper_accounting(EMPTY, up).up == 12


def test_ids_always_travel_with_the_store():
    recorder = Recorder()
    make_loop(FedHe(), tiny(1), rounds=3, callbacks=[recorder], **NATIVE).run()
    assert [message.numel() for _, _, message in recorder.sent] == [0, 3 * 4, 3 * 4]


def test_a_job_is_three_batches_and_a_small_client_goes_round_again():
    fed = tiny(2, sizes=(40, 5), training=Training(epochs=5, batch_size=4, lr=0.1))
    large, small = fed.client(0), fed.client(1)
    answer(FedHe(inner_batches=3), large, EMPTY)
    assert large.trained_samples == 3 * 4
    answer(FedHe(inner_batches=3), small, EMPTY)
    assert small.trained_samples == 4 + 1 + 4
    answer(FedHe(), small, EMPTY)  # as it comes: the work of every other method
    assert small.trained_samples == 5 * 5


@pytest.mark.parametrize("options", [{}, {"inner_batches": 1}])
def test_logits_are_those_before_each_step(options: dict[str, int]):
    """Eqs. 7 and 8 in one pass over four samples of class 2, with default settings and with batches counted."""
    me = tiny(1, training=Training(epochs=1, batch_size=0, lr=0.1)).client(0)
    x, y = me.train.take(slice(None))
    scores = me.model(x).detach()
    sent = answer(FedHe(**options), me, EMPTY)
    assert not torch.allclose(me.model(x), scores)
    assert sent.labels.tolist() == [0, 1, 2]
    for label in range(3):
        assert torch.allclose(sent.rows[label], scores[y == label].sum(0) / (4 + 1), rtol=1e-12)


def test_logits_of_all_passes_are_added_up_with_default_settings():
    """Eqs. 7 and 8 over two epochs: Σ of both passes' logits over 2·4 + 1, by plain gradient steps of full batches."""
    me = tiny(1, training=Training(epochs=2, batch_size=0, lr=0.1)).client(0)
    x, y = me.train.take(slice(None))
    net, passes = copy.deepcopy(me.model), []
    for _ in range(2):
        scores = net(x)
        passes.append(scores.detach())
        slopes = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, y), list(net.parameters()))
        with torch.no_grad():
            for parameter, slope in zip(net.parameters(), slopes, strict=True):
                parameter -= 0.1 * slope
    sent = answer(FedHe(), me, EMPTY)
    for label in range(3):
        total = sum(scores[y == label].sum(0) for scores in passes)
        assert torch.allclose(sent.rows[label], total / (2 * 4 + 1), rtol=1e-12)


def test_a_class_the_server_does_not_know_is_not_distilled():
    fed = tiny(2, classes_of=[(1,), (0,)])
    plain, informed, blind = (fed.client(0) for _ in range(3))
    row = torch.tensor([[5.0, -5.0, 0.0]], dtype=torch.float64)
    answer(FedHe(distillation_weight=0.0), plain, ClassVectors(row, torch.tensor([1])))
    answer(FedHe(), blind, ClassVectors(row, torch.tensor([0])))
    answer(FedHe(), informed, ClassVectors(row, torch.tensor([1])))
    assert same(weights(plain), weights(blind))
    assert not same(weights(plain), weights(informed))


def test_native_mode_is_one_client_at_a_time_on_the_newest_store():
    assert FedHe.supports.schedule == "async"
    recorder = Recorder()
    make_loop(FedHe(), tiny(3), rounds=4, callbacks=[recorder], **NATIVE).run()
    assert len(recorder.steps) == 4 * 3  # the budget is counted in jobs
    assert all(len(step.record.participants) == 1 for step in recorder.steps)
    assert all(step.record.staleness == [0] for step in recorder.steps)
    state = recorder.steps[-1].state
    assert state.events == 12
    assert state.count.tolist() == [12.0] * 3


def test_synchronous_mode_sends_one_snapshot_to_all():
    recorder = Recorder()
    make_loop(FedHe(), tiny(3), rounds=2, callbacks=[recorder]).run()
    second = [message.rows for number, _, message in recorder.sent if number == 2]
    assert len(second) == 3
    assert torch.equal(second[0], second[1])
    assert torch.equal(second[0], second[2])
    first = [update.payload.rows[0] for number, update in recorder.updates if number == 1]
    assert torch.allclose(second[0][0], sum(first) / 3)


@pytest.mark.parametrize("store", ["all", "collapse", "latest_per_client"])
@pytest.mark.parametrize("schedule", [NATIVE, {"participation": 0.5}, {"buffer": 2, "concurrency": 3}])
def test_missing_classes_single_samples_and_schedules(store: str, schedule: dict[str, float]):
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    make_loop(FedHe(store=store, collapse_every=3), fed, rounds=2, callbacks=[recorder], **schedule).run()
    assert torch.isfinite(recorder.end.state.total).all()
    assert recorder.end.state.events == len(recorder.updates)
