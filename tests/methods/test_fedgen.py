"""FedGen: labels, shares, the generator's training, and what it is without a generator."""

import copy

import pytest
import torch
from torch.nn.functional import cross_entropy

import potluck
from potluck import kit
from potluck.core.model import tensors_of
from potluck.core.training import Training
from potluck.loop.schedule import Evaluation
from potluck.methods.fedgen import FedGen, HeadAndCounts, HeadAndGenerator, diversity, label_shares
from potluck.methods.lg_fedavg import LGFedAvg
from potluck.models import build_model
from support.tiny import Recorder, answer, context, is_one_step, make_loop, same, tiny, update, weights

SMALL = {"noise_dim": 4, "hidden_dim": 8, "server_steps": 5}
VARIANTS = pytest.mark.parametrize("variant", ["htfllib", "original"])


def head(value: float = 0.0) -> dict[str, torch.Tensor]:
    return {
        "weight": value * torch.eye(3, dtype=torch.float64),
        "bias": torch.zeros(3, dtype=torch.float64),
    }


def sent(value: float, counts: list[int] | None) -> HeadAndCounts:
    return HeadAndCounts(head(value), None if counts is None else torch.tensor(counts))


def test_label_weights_are_shares_of_the_class():
    method, ctx = FedGen(**SMALL, variant="original"), context()
    updates = [update(sent(1, [1, 4, 0]), 0), update(sent(1, [3, 0, 0]), 1)]
    state = method.server(method.init_server(ctx), updates, ctx)
    assert label_shares(state, updates)[:, 0].tolist() == [0.25, 0.75]
    assert label_shares(state, updates)[:, 1].tolist() == [1.0, 0.0]
    assert label_shares(state, updates)[:, 2].tolist() == [0.0, 0.0]


def test_labels_are_drawn_from_pool_or_evenly():
    ctx = context()
    updates = [update(sent(1, [1, 4, 0]), 0), update(sent(1, [1, 2, 0]), 1)]
    for variant, expected in [("htfllib", [2, 6, 0]), ("original", [0, 1, 0])]:
        method = FedGen(**SMALL, variant=variant)
        state = method.server(method.init_server(ctx), updates, ctx)
        assert method.draw(state, ctx).tolist() == expected


@VARIANTS
def test_the_generators_steps_are_those_of_torchs_adam(variant: str, monkeypatch: pytest.MonkeyPatch):
    method, ctx = FedGen(**SMALL, variant=variant), context()
    updates = [update(sent(1, [5, 5, 5]), 0), update(sent(2, [5, 5, 5]), 1)]
    actual = method.server(method.init_server(ctx), updates, ctx).generator.state_dict()
    first = method.init_server(ctx).generator.state_dict()
    monkeypatch.setattr(kit, "adam", lambda parameters, lr: torch.optim.Adam(parameters, lr, fused=True))
    expected = method.server(method.init_server(ctx), updates, ctx).generator.state_dict()
    assert same(actual, expected)
    assert not same(actual, first)


@VARIANTS
def test_generator_steps_lower_the_loss_under_fixed_headers(variant: str):
    method = FedGen(
        variant=variant, noise_dim=4, hidden_dim=16, server_steps=60, server_lr=0.02, diversity=0.0
    )
    ctx = context()
    updates = [update(sent(1, [5, 5, 5]), 0), update(sent(2, [5, 5, 5]), 1)]
    state = method.init_server(ctx)
    labels, noise = torch.tensor([0, 1, 2] * 4), torch.rand(12, 4).double()

    def loss() -> float:
        made = state.generator(labels, noise)
        return cross_entropy(made @ head(1.5)["weight"], labels).item()

    before = loss()
    state = method.server(state, updates, ctx)
    assert loss() < before / 2
    assert state.head["weight"].diagonal().tolist() == [1.5] * 3
    assert not state.generator.training


def test_one_step_under_the_ensemble_of_heads_in_plain_torch():
    method, ctx = FedGen(**{**SMALL, "server_steps": 1}), context()
    state = method.init_server(ctx)
    generator = copy.deepcopy(state.generator).train()
    optimizer = torch.optim.Adam(generator.parameters(), 0.001)
    labels = torch.multinomial(torch.tensor([4.0, 4, 4]).double(), 32, True, generator=ctx.rng("labels"))
    made = generator(labels, torch.rand(32, 4, generator=ctx.rng("noise"), dtype=torch.float64))
    logits = 0.25 * made @ head(1)["weight"].T + 0.75 * made @ head(-2)["weight"].T
    cross_entropy(logits, labels).backward()
    optimizer.step()
    updates = [update(sent(1, [1, 2, 0]), 0, samples=1), update(sent(-2, [3, 2, 4]), 1, samples=3)]
    state = method.server(state, updates, ctx)
    for expected, actual in zip(state.generator.parameters(), generator.parameters(), strict=True):
        assert torch.allclose(expected, actual)


@VARIANTS
@pytest.mark.parametrize(("batch", "tracked"), [(1, 0), (2, 3)])
def test_generator_learns_on_batch_statistics_of_two_or_more(variant: str, batch: int, tracked: int):
    """BatchNorm has no statistics of a single vector: that one is scaled by the running ones, which stay."""
    options = {**SMALL, "server_steps": 3, "server_batch": batch}
    method, ctx = FedGen(**options, variant=variant), context()
    state = method.server(method.init_server(ctx), [update(sent(1, [4, 4, 4]))], ctx)
    norm = state.generator.net[1]
    assert norm.num_batches_tracked.item() == tracked
    assert torch.equal(norm.running_mean, torch.zeros_like(norm.running_mean)) == (batch == 1)
    assert not state.generator.training


def test_one_step_on_a_batch_of_two_in_plain_torch():
    """Normalised by the mean and variance of the two vectors, without `BatchNorm1d`."""
    method, ctx = FedGen(**{**SMALL, "server_steps": 1, "server_batch": 2}), context()
    state = method.init_server(ctx)
    first, norm, _, last = generator = copy.deepcopy(state.generator.net)
    optimizer = torch.optim.Adam(generator.parameters(), 0.001)
    labels = torch.multinomial(torch.tensor([4.0, 4, 4]).double(), 2, True, generator=ctx.rng("labels"))
    noise = torch.rand(2, 4, generator=ctx.rng("noise"), dtype=torch.float64)
    hidden = first(torch.cat([noise, torch.eye(3, dtype=torch.float64)[labels]], dim=1))
    spread = (hidden.var(dim=0, correction=0) + norm.eps).sqrt()
    made = last(((hidden - hidden.mean(dim=0)) / spread * norm.weight + norm.bias).relu())
    cross_entropy(made @ head(1)["weight"].T, labels).backward()
    optimizer.step()
    trained = method.server(state, [update(sent(1, [4, 4, 4]))], ctx).generator
    for expected, actual in zip(trained.parameters(), generator.parameters(), strict=True):
        assert torch.allclose(expected, actual, atol=1e-6)


@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_one_step_of_the_original_in_plain_torch(weight: float):
    """Each head counts on a class by its share of the class's samples; the diversity term by its weight."""
    method, ctx = FedGen(**{**SMALL, "server_steps": 1}, variant="original", diversity=weight), context()
    state = method.init_server(ctx)
    generator = copy.deepcopy(state.generator).train()
    optimizer = torch.optim.Adam(generator.parameters(), 0.0003)
    labels = torch.multinomial(torch.tensor([1.0, 1, 1]).double(), 32, True, generator=ctx.rng("labels"))
    noise = torch.rand(32, 4, generator=ctx.rng("noise"), dtype=torch.float64)
    made = generator(labels, noise)
    loss = weight * diversity(made, noise)
    for value, share in ((1, [0.25, 0.5, 0.0]), (-2, [0.75, 0.5, 1.0])):  # counts (1, 2, 0) and (3, 2, 4)
        each = cross_entropy(made @ head(value)["weight"].T, labels, reduction="none")
        loss = loss + (torch.tensor(share, dtype=torch.float64)[labels] * each).mean()
    loss.backward()
    optimizer.step()
    state = method.server(state, [update(sent(1, [1, 2, 0]), 0), update(sent(-2, [3, 2, 4]), 1)], ctx)
    for actual, expected in zip(state.generator.parameters(), generator.parameters(), strict=True):
        assert torch.allclose(actual, expected)


def test_diversity_of_two_samples_by_hand():
    made, noise = torch.tensor([[0.0, 0.0], [1.0, 3.0]]), torch.tensor([[0.0], [2.0]])
    # pairs: (0,0) and (1,1) give 0, the two others mean|Δ| = 2 times Δnoise² = 4, mean over four pairs = 4
    assert diversity(made, noise).item() == pytest.approx(torch.exp(torch.tensor(-4.0)).item())


@pytest.mark.parametrize("norm", [False, True])
def test_without_generator_it_is_lg_fedavg_bit_for_bit(norm: bool):
    runs = []
    for method in (FedGen(generator_weight=0), LGFedAvg()):
        recorder = Recorder()
        make_loop(method, tiny(4, norm=norm, sizes=(12, 7)), rounds=3, callbacks=[recorder]).run()
        runs.append(recorder)
    assert same(runs[0].end.state.head, runs[1].end.state)
    for index in range(4):
        assert same(runs[0].end.fetch(index)["model"], runs[1].end.fetch(index)["model"])
    for step, two in zip(runs[0].steps, runs[1].steps, strict=True):
        assert (step.record.floats_up, step.record.floats_down) == (
            two.record.floats_up,
            two.record.floats_down,
        )


@pytest.mark.parametrize(("wait", "first"), [(True, False), (False, True)])
def test_untrained_generator_is_held_back_by_default(wait: bool, first: bool):
    recorder = Recorder()
    make_loop(FedGen(**SMALL, wait=wait), tiny(2), rounds=2, callbacks=[recorder]).run()
    assert [message.generator is not None for _, _, message in recorder.sent] == [first, first, True, True]


def test_the_first_round_is_that_of_lg_fedavg():
    fed = tiny(1)
    plain, untrained = fed.client(0), fed.client(0)
    method, ctx = FedGen(**SMALL), context(fed)
    message = method.broadcast(method.init_server(ctx), untrained.info, ctx)
    answer(method, untrained, message)
    answer(LGFedAvg(), plain, LGFedAvg().broadcast(message.head, plain.info, ctx))
    assert same(weights(plain), weights(untrained))


def test_counts_are_asked_for_until_they_came():
    method, ctx = FedGen(**SMALL), context()
    state = method.init_server(ctx)
    client = update(None, 0).client
    assert method.broadcast(state, client, ctx).counts_wanted == 1
    state = method.server(state, [update(sent(1, None), 0), update(sent(1, [2, 2, 2]), 1)], ctx)
    assert method.broadcast(state, client, ctx).counts_wanted == 1  # this answer came without
    state = method.server(state, [update(sent(1, [3, 3, 3]), 0)], ctx)
    assert method.broadcast(state, client, ctx).counts_wanted is None
    assert method.draw(state, ctx).tolist() == [5, 5, 5]


def test_numbers_that_travel():
    """Up H, and C counts once; down H, then the generator with its statistics and C label weights."""
    recorder = Recorder()
    make_loop(FedGen(**SMALL), tiny(1), rounds=3, callbacks=[recorder]).run()
    head = 3 * 3 + 3
    generator = (4 + 3) * 8 + 8 + 2 * 8 + 2 * 8 + 8 * 3 + 3
    assert [item.payload.numel() for _, item in recorder.updates] == [head + 3, head, head]
    assert [message.numel() for _, _, message in recorder.sent] == [
        head + 1,
        head + generator + 3,
        head + generator + 3,
    ]


@pytest.mark.parametrize(("variant", "alike"), [("htfllib", True), ("original", False)])
def test_generated_features_reach_the_extractor_only_by_distillation(variant: str, alike: bool):
    method = FedGen(**SMALL, variant=variant)
    fed = tiny(1, seed=1, training=Training(epochs=1, batch_size=0, lr=0.1))
    ctx = context(fed)
    state = method.server(method.init_server(ctx), [update(sent(1, [9, 9, 9]))], ctx)
    message = method.broadcast(state, update(None).client, ctx)
    plain, taught = fed.client(0), fed.client(0)
    answer(FedGen(**SMALL, generator_weight=0), plain, HeadAndGenerator(message.head))
    answer(method, taught, message)
    assert not torch.equal(plain.model.head.weight, taught.model.head.weight)
    assert torch.equal(plain.model.body[0].weight, taught.model.body[0].weight) == alike


@VARIANTS
def test_one_full_batch_with_a_generator_of_one_feature_vector(variant: str):
    """CE(o, y) + w·CE(head(g), 0), in the original form also w·KL(σ(head(g)) ‖ σ(o)) with head(g) held fixed."""
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    method, ctx = FedGen(**SMALL, variant=variant, generator_weight=2.0), context(fed)
    generator = method.init_server(ctx).generator
    made = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    torch.nn.init.zeros_(generator.net[3].weight)  # the noise has no say
    generator.net[3].bias.data.copy_(made)
    me, net = fed.client(0), fed.client(0).model
    x, y = me.train.take(slice(None))
    only_the_first = torch.tensor([9, 0, 0])
    head = dict(net.head.state_dict())
    scores, taught = net(x), net.head(made)[None]
    loss = cross_entropy(scores, y) + 2.0 * cross_entropy(taught, torch.tensor([0]))
    if variant == "original":
        expected_scores = taught.detach().softmax(dim=1)
        loss = (
            loss
            + 2.0 * (expected_scores * (expected_scores.log() - scores.log_softmax(dim=1))).sum(dim=1).mean()
        )
    message = HeadAndGenerator({k: v.clone() for k, v in head.items()}, tensors_of(generator), only_the_first)
    answer(method, me, message)
    assert is_one_step(net, loss, me.model)


def test_the_original_fades_its_terms_by_two_percent_a_round():
    method = FedGen(**SMALL, variant="original", generator_weight=1.0)
    fed = tiny(1)
    ctx = context(fed)
    state = method.server(method.init_server(ctx), [update(sent(1, [9, 9, 9]))], ctx)
    message = method.broadcast(state, update(None).client, ctx)
    distances = []
    for number in (1, 200):
        plain, taught = fed.client(0), fed.client(0)
        answer(FedGen(**SMALL, generator_weight=0), plain, HeadAndGenerator(message.head), number, 200)
        answer(method, taught, message, number, 200)
        distances.append(float((plain.model.head.weight - taught.model.head.weight).norm().detach()))
    assert distances[1] < 0.1 * distances[0]  # 0.98¹⁹⁹ = 0.018


def test_received_protocol_tests_the_averaged_header():
    me = tiny(1).client(0)
    message = HeadAndGenerator({**head(), "bias": torch.tensor([0.0, 9.0, 0.0]).double()})
    x, _ = me.train.take(slice(None))
    assert (FedGen().predict(me, message)(x).argmax(1) == 1).all()
    assert torch.equal(FedGen().predict(me, None)(x), me.model(x))


@VARIANTS
def test_missing_classes_single_samples_and_a_generator_batch_of_one(variant: str):
    fed = tiny(4, classes_of=[(0,), (1, 2), None], norm=True, sizes=(12, 1, 7))
    recorder = Recorder()
    method = FedGen(**SMALL, variant=variant, server_batch=1)
    evaluation = Evaluation("received", also=("local",))
    make_loop(method, fed, rounds=4, participation=0.5, callbacks=[recorder], evaluation=evaluation).run()
    assert all(torch.isfinite(tensor).all() for tensor in recorder.end.state.head.values())
    assert all(step.record.accuracy is not None for step in recorder.steps)


class Trained(potluck.Callback):
    """The server's state and a client's model at the end of a run."""

    def on_end(self, end: potluck.End) -> None:
        self.state, self.model = end.state, end.fetch(0)["model"]


def test_generated_features_are_of_the_size_of_real_ones(tmp_path):
    """At HtFLlib's rate of 0.1 they grow to norms of 120 to 170 where real ones have 3."""
    recorder = Trained()
    settings = {"data": {"limit": 600}, "models": "small-mlp", "engine": "serial", "rounds": 4}
    potluck.run("fedgen", callbacks=[recorder], out=tmp_path / "run", **settings)
    labels = torch.arange(10).repeat(20)
    noise = torch.rand(len(labels), 32, generator=torch.Generator().manual_seed(0))
    made = recorder.state.generator(labels, noise).norm(dim=1).mean()
    model = build_model("small-mlp", (1, 8, 8), 10)
    model.load_state_dict(recorder.model)
    real = model.features(potluck.load_data("digits").train.take(slice(0, 300))[0]).norm(dim=1).mean()
    assert 0.2 < float(made / real) < 5
