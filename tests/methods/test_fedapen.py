"""FedAPEN: the ensemble weight by hand, gradients of both models, and the half round."""

import pytest
import torch
from torch.nn import functional as F

from potluck.core.task import Context
from potluck.core.training import Training
from potluck.core.tree import equal as same_state
from potluck.kit import SharedWeights
from potluck.methods.fedapen import FedAPEN, best_share, ensemble, learn_share
from support.tiny import Recorder, make_loop, tiny

PRIVATE = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
SHARED = torch.tensor([[0.0, 0.0]], dtype=torch.float64)
LABEL = torch.tensor([0])


def test_one_step_of_lambda_by_hand():
    share = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    loss = F.cross_entropy(ensemble(share, PRIVATE, SHARED), LABEL)
    assert loss.item() == pytest.approx(0.313262, abs=1e-6)
    assert torch.autograd.grad(loss, share)[0].item() == pytest.approx(-0.537883, abs=1e-6)
    batches = [(PRIVATE, SHARED, LABEL)]
    assert learn_share(0.5, batches, lr=1e-3, passes=1) == pytest.approx(0.500538, abs=1e-6)


def test_lambda_stays_between_zero_and_one():
    assert learn_share(0.5, [(PRIVATE, SHARED, LABEL)], lr=100.0, passes=2) == 1.0
    assert learn_share(0.5, [(PRIVATE, SHARED, 1 - LABEL)], lr=100.0, passes=2) == 0.0


def test_at_lambda_one_the_shared_model_gets_nothing_from_the_ensemble():
    shared = torch.tensor([[0.3, 0.1]], dtype=torch.float64, requires_grad=True)
    _, full = FedAPEN().losses(PRIVATE, shared, LABEL, 1.0)
    _, plain = FedAPEN(train_with="plain").losses(PRIVATE, shared, LABEL, 1.0)
    gradients = [torch.autograd.grad(loss, shared)[0] for loss in (full, plain)]
    assert full.item() != plain.item()
    assert torch.equal(*gradients)


def test_at_lambda_zero_the_ensemble_is_the_shared_model():
    assert torch.equal(ensemble(0.0, PRIVATE, SHARED), SHARED)
    fed = tiny(1, smooth=True)
    me = fed.client(0)
    me.private["lambda"] = 0.0
    x, _ = me.test.take(slice(None))
    assert torch.equal(FedAPEN().predict(me, None)(x), fed.task.shared_model()(x))


def test_losses_by_hand():
    """CE + KL + CE of the mean of both: each written out."""
    private_loss, shared_loss = FedAPEN().losses(PRIVATE, SHARED, LABEL, 0.5)
    p = torch.softmax(PRIVATE, 1)[0]
    half = torch.tensor([0.5, 0.5], dtype=torch.float64)
    ensemble_ce = 0.313262
    assert private_loss.item() == pytest.approx(
        (-p[0].log() + (half * (half / p).log()).sum()).item() + ensemble_ce, abs=1e-6
    )
    assert shared_loss.item() == pytest.approx(
        (-half[0].log() + (p * (p / half).log()).sum()).item() + ensemble_ce, abs=1e-6
    )


def context(fed) -> Context:
    return Context(fed.task, 1, 3, 0, 1)


def test_lambda_is_learned_with_the_aggregate_before_training():
    """Round 1 trains at 0.5; the next job first learns λ with what it received, as the paper's round ends."""
    fed = tiny(1, smooth=True, sizes=(60,), training=Training(epochs=1, batch_size=2, lr=0.1))
    method = FedAPEN(lambda_lr=0.1)
    me = fed.client(0)
    message = SharedWeights(method.init_server(context(fed)))
    method.client(me, message)
    assert me.private["lambda"] == 0.5
    _, held_out = method.split(me)
    x, y = held_out.take(slice(None))
    batches = [
        (me.model(x[rows]).detach(), fed.task.shared_model()(x[rows]).detach(), y[rows])
        for rows in torch.split(torch.arange(3), 2)
    ]
    expected = learn_share(0.5, batches, 0.1, 10)
    assert expected != 0.5
    before = me.state()
    private, shared = me.model(x), fed.task.shared_model()(x)
    assert torch.allclose(method.predict(me, message)(x), ensemble(expected, private, shared), atol=1e-12)
    assert same_state(me.state(), before)  # λ was learned on a copy
    method.client(me, message)
    assert me.private["lambda"] == pytest.approx(expected, abs=1e-12)


def test_the_models_never_see_the_adaptability_split():
    fed = tiny(1, smooth=True, sizes=(60,))
    method, me = FedAPEN(), fed.client(0)
    learn, adapt = method.split(me)
    assert (len(learn), len(adapt)) == (57, 3)
    assert not set(learn.index.tolist()) & set(adapt.index.tolist())
    me.begin("train", 5, 6, 9)
    assert torch.equal(method.split(me)[1].index, adapt.index)
    method.client(me, SharedWeights(method.init_server(context(fed))))
    assert me.trained_samples == 57


def test_too_few_samples_for_a_split_fix_lambda():
    loop = make_loop(FedAPEN(lambda_lr=10.0), tiny(1, sizes=(19,)), rounds=3)
    loop.run()
    assert loop.fetch(0)["private"]["lambda"] == 0.5


@pytest.mark.parametrize(("weight", "expected"), [("uniform", 0.5), ("samples", 0.25)])
def test_mean_is_unweighted_by_default(weight: str, expected: float):
    recorder = Recorder()
    make_loop(
        FedAPEN(weight=weight), tiny(2, smooth=True, sizes=(12, 36)), rounds=1, callbacks=[recorder]
    ).run()
    first, second = (update.payload.tensors["head.weight"] for _, update in recorder.updates)
    mean = expected * first + (1 - expected) * second
    assert torch.allclose(recorder.end.state["head.weight"], mean, atol=1e-12)


def test_the_learning_rate_decays():
    """The release rebuilds its optimisers after setting the rate, so its decay never acts."""
    moved = []
    for decay in (1.0, 0.25):
        fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1, lr_decay=decay))
        me, method = fed.client(0), FedAPEN()
        start = {name: tensor.clone() for name, tensor in me.model.state_dict().items()}
        me.begin("train", 0, 2, 2)
        method.client(me, SharedWeights(method.init_server(context(fed))))
        moved.append({name: me.model.state_dict()[name] - start[name] for name in start})
    assert moved[0]["head.weight"].abs().sum() > 0
    assert all(torch.allclose(moved[1][name], 0.25 * moved[0][name], atol=1e-12) for name in moved[0])


def test_one_round_against_plain_torch():
    fed = tiny(1, smooth=True, training=Training(epochs=1, batch_size=0, lr=0.1))
    me, shared, method = fed.client(0), fed.task.shared_model(), FedAPEN()
    me.private["lambda"] = 0.8
    upload = method.client(me, SharedWeights(method.init_server(context(fed)))).tensors
    twin = fed.client(0).model
    x, y = me.train.take(slice(None))
    p, s = twin(x), shared(x)
    kl = lambda target, out: F.kl_div(out.log_softmax(1), target.softmax(1), reduction="batchmean")  # noqa: E731
    private_loss = F.cross_entropy(p, y) + kl(s.detach(), p) + F.cross_entropy(0.8 * p + 0.2 * s.detach(), y)
    shared_loss = F.cross_entropy(s, y) + kl(p.detach(), s) + F.cross_entropy(0.8 * p.detach() + 0.2 * s, y)
    for model, loss, actual in ((twin, private_loss, me.model.state_dict()), (shared, shared_loss, upload)):
        parameters = dict(model.named_parameters())
        gradients = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
        for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
            assert torch.allclose(actual[name], parameter - 0.1 * gradient, atol=1e-12)


def test_equal_training_uses_one_half_whatever_was_learned():
    """And still learns λ for prediction."""
    uploads = []
    for start in (0.5, 0.9):
        fed = tiny(1, smooth=True)
        me, method = fed.client(0), FedAPEN(train_with="equal")
        me.private["lambda"] = start
        uploads.append(method.client(me, SharedWeights(method.init_server(context(fed)))).tensors)
        assert me.private["lambda"] == start  # 12 samples hold none out: λ stays
    assert all(torch.equal(uploads[0][name], uploads[1][name]) for name in uploads[0])


def test_predict_mixes_both_models():
    fed = tiny(1, smooth=True)
    me, method = fed.client(0), FedAPEN()
    upload = method.client(me, SharedWeights(method.init_server(context(fed))))
    shared = fed.task.shared_model()
    shared.load_state_dict(upload.tensors)
    x, _ = me.test.take(slice(None))
    assert torch.equal(method.predict(me, None)(x), 0.5 * me.model(x) + (1 - 0.5) * shared(x))
    assert torch.equal(FedAPEN(predict_with="private").predict(me, None)(x), me.model(x))
    assert torch.equal(FedAPEN(predict_with="shared").predict(me, None)(x), shared(x))


def test_numbers_that_travel():
    recorder = Recorder()
    make_loop(FedAPEN(), rounds=1, callbacks=[recorder]).run()
    assert recorder.steps[0].record.floats_up == recorder.steps[0].record.floats_down == 4 * 31


def test_the_exact_share_is_the_best_one():
    """A convex problem in one number: no λ of a fine grid does better, and the ends are found too."""
    rng = torch.Generator().manual_seed(3)
    y = torch.arange(12) % 3
    private, shared = (torch.randn(12, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    private[torch.arange(12), y] += 1.0
    actual = best_share(private, shared, y)

    def loss(share: float) -> float:
        return F.cross_entropy(ensemble(share, private, shared), y).item()

    grid = [number / 1000 for number in range(1001)]
    assert loss(actual) <= min(map(loss, grid)) + 1e-12
    assert 0 < actual < 1
    right = torch.nn.functional.one_hot(y, 3).double()
    assert best_share(right, -right, y) == pytest.approx(1.0, abs=1e-9)
    assert best_share(-right, right, y) == pytest.approx(0.0, abs=1e-9)


def test_one_sample_does_not_put_a_steady_share_at_an_end():
    """Of one sample with scores (2, 0) against (0, 0) the best λ is 1; held, 2κ(λ−½) = 2(1−σ(2λ)) at λ = 0.5457 for κ = 5."""
    assert best_share(PRIVATE, SHARED, LABEL) == pytest.approx(1.0, abs=1e-9)
    share = best_share(PRIVATE, SHARED, LABEL, 5.0)
    assert 10 * (share - 0.5) == pytest.approx(
        2 * (1 - torch.sigmoid(torch.tensor(2 * share)).item()), abs=1e-6
    )
    assert 0.5 < share < 0.6
    many = [part.repeat(1000, *[1] * (part.dim() - 1)) for part in (PRIVATE, SHARED, LABEL)]
    assert best_share(*many, 5.0) == pytest.approx(1.0, abs=1e-9)  # a thousand such samples overrule it


def test_the_setting_reaches_the_share():
    """Thirty samples hold out one, on which the best share is at an end; held strongly it stays near one half."""
    ends, penalised = Recorder(), Recorder()
    for method, recorder in ((FedAPEN(), ends), (FedAPEN(steadiness=1e6), penalised)):
        make_loop(method, tiny(2, sizes=(30,)), rounds=3, callbacks=[recorder]).run()
    assert penalised.steps[-1].fetch(0)["private"]["lambda"] == pytest.approx(0.5, abs=1e-3)
    assert abs(ends.steps[-1].fetch(0)["private"]["lambda"] - 0.5) > 0.05


def test_sgd_on_the_share_is_there_for_the_paper():
    assert FedAPEN().solve == "exact"
    exact, slow = Recorder(), Recorder()
    for method, recorder in (
        (FedAPEN(adaptability=0.4), exact),
        (FedAPEN(adaptability=0.4, solve="sgd"), slow),
    ):
        make_loop(method, tiny(2, sizes=(20,)), rounds=3, callbacks=[recorder]).run()
    moved = abs(slow.steps[-1].fetch(0)["private"]["lambda"] - 0.5)
    assert 0 < moved < 0.05  # thirty steps of 0.001
