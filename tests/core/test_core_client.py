"""A client's batches, optimiser, random streams and saved state."""

import pytest
import torch

from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from support.tiny import tiny


def client(**training: object):
    return tiny(
        1, sizes=[9], training=Training(**{"epochs": 1, "batch_size": 4, "lr": 0.1, **training})
    ).client(0)


def sizes(me) -> list[int]:
    return [len(y) for _, y in me.batches()]


def test_batches_cover_the_data_once_per_epoch():
    me = client(epochs=2)
    batch_rows = torch.cat([x for x, _ in me.batches()])
    x, _ = me.train.take(slice(None))
    assert len(batch_rows) == 18
    assert torch.equal(batch_rows[:9].sort(0).values, x.sort(0).values)
    assert not torch.equal(batch_rows[:9], batch_rows[9:])


def test_batch_size_zero_is_everything_at_once():
    assert sizes(client(batch_size=0)) == [9]


def test_drop_last_drops_the_rest_but_never_everything():
    assert sizes(client(drop_last=True)) == [4, 4]
    assert sizes(client(drop_last=True, batch_size=20)) == [9]


def test_a_trailing_single_sample_is_dropped_for_batch_norm_only():
    assert sizes(client()) == [4, 4, 1]
    norm = tiny(1, sizes=[9], norm=True, training=Training(batch_size=4, epochs=1)).client(0)
    assert sizes(norm) == [4, 4]


def test_batch_norm_survives_a_client_with_one_sample():
    me = tiny(1, sizes=[1], norm=True, training=Training(batch_size=4, epochs=1, lr=0.1)).client(0)
    before = me.model.body[1].running_mean.clone()
    assert me.fit().steps == 1
    assert torch.equal(me.model.body[1].running_mean, before)


def test_fit_is_plain_sgd():
    me = client(batch_size=0, weight_decay=0.01)
    twin = tiny(1, sizes=[9], training=me.training).client(0)
    x, y = twin.train.take(slice(None))
    twin.model.train()
    loss = torch.nn.functional.cross_entropy(twin.model(x), y)
    gradients = torch.autograd.grad(loss, list(twin.model.parameters()))
    fit = me.fit()
    assert fit.loss == pytest.approx(loss.item(), abs=1e-12)
    for actual, expected, gradient in zip(
        me.model.parameters(), twin.model.parameters(), gradients, strict=True
    ):
        assert torch.allclose(actual, expected - 0.1 * (gradient + 0.01 * expected), atol=1e-12)


def test_gradients_are_clipped_and_the_rate_decays():
    me = client(batch_size=0, clip_norm=1e-3, lr_decay=0.5)
    me.round = 3
    assert me.lr == pytest.approx(0.025)
    before = torch.nn.utils.parameters_to_vector(me.model.parameters()).detach().clone()
    me.fit()
    moved = torch.nn.utils.parameters_to_vector(me.model.parameters()) - before
    assert moved.norm().item() == pytest.approx(0.025 * 1e-3, rel=1e-4)


def test_random_streams_depend_on_job_and_purpose_not_on_order():
    me, same_client = client(), client()
    same_client.rng("something else")
    assert torch.equal(torch.rand(3, generator=me.rng("a")), torch.rand(3, generator=same_client.rng("a")))
    assert not torch.equal(torch.rand(3, generator=me.rng("a")), torch.rand(3, generator=client().rng("a")))
    me.begin("train", 1, 2, 2)
    assert not torch.equal(torch.rand(3, generator=me.rng("a")), torch.rand(3, generator=client().rng("a")))


def test_a_kept_optimizer_goes_on_and_is_saved():
    me = client(optimizer="adam", keep_optimizer=True, lr=0.01)
    me.fit()
    twin = client(optimizer="adam", keep_optimizer=True, lr=0.01)
    twin.restore(me.state())
    for participant in (me, twin):
        participant.begin("train", 1, 2, 2)
        participant.fit()
    fresh = client(optimizer="adam", lr=0.01)
    fresh.fit()
    fresh.begin("train", 1, 2, 2)
    fresh.fit()
    weight = me.model.head.weight
    assert torch.equal(weight, twin.model.head.weight)
    assert not torch.equal(weight, fresh.model.head.weight)


def test_private_modules_persist_and_are_saved():
    me = client()
    module = me.module("projector", lambda: torch.nn.Linear(2, 2))
    torch.nn.init.constant_(module.weight, 5.0)
    assert me.module("projector", lambda: torch.nn.Linear(2, 2)) is module
    twin = client()
    twin.restore(me.state())
    assert (twin.module("projector", lambda: torch.nn.Linear(2, 2)).weight == 5).all()


def test_augmentation_is_applied_to_training_batches_only():
    from dataclasses import replace

    fed = replace(tiny(1, sizes=[4]), augment=lambda x, rng: torch.zeros_like(x))
    me = fed.client(0)
    assert all((x == 0).all() for x, _ in me.batches())
    assert not any((x == 0).all() for x, _ in me.outputs(lambda x: x))


def test_modules_created_in_prediction_are_not_kept():
    """What `keep=False` builds is what the first job will build, but the client's state does not show it."""
    me = tiny(1).client(0)
    before = me.state()
    looked_at = me.module("extra", lambda: torch.nn.Linear(2, 2), keep=False)
    assert same_state(me.state(), before)
    module = me.module("extra", lambda: torch.nn.Linear(2, 2))
    assert torch.equal(looked_at.weight, module.weight)
    assert me.module("extra", torch.nn.Identity, keep=False) is module
    restored = tiny(1).client(0)
    restored.restore(me.state())
    assert torch.equal(
        restored.module("extra", lambda: torch.nn.Linear(2, 2), keep=False).weight, module.weight
    )
    assert same_state(restored.state(), me.state())


def test_a_batch_size_for_other_data():
    """Ten public rows in batches of four, where the experiment says one batch of all."""
    fed = tiny(1, training=Training(batch_size=0))
    me = fed.client(0)
    sizes = [len(y) for _, y in me.batches(1, fed.task.public, batch_size=4)]
    assert sizes == [4, 4, 2]
    assert [len(y) for _, y in me.batches(1, fed.task.public)] == [10]


def test_batch_norm_rests_on_other_data_of_one_row():
    """The client's own data make full batches; the single public row must not be normalised over itself."""
    fed = tiny(1, norm=True)
    me = fed.client(0)
    row = fed.task.public.select(torch.tensor([0]))
    mean = me.model.body[1].running_mean.clone()
    assert me.fit(samples=row, epochs=2, batch_size=8).steps == 2
    assert torch.equal(me.model.body[1].running_mean, mean)
