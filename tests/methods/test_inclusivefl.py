"""InclusiveFL: momentum from deep to shallow by hand, and layer-wise FedAvg as the case without it."""

import pytest
import torch

from potluck.core.errors import PotluckError
from potluck.core.method import Update
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.kit import ALL, Weights
from potluck.methods.fedavg import FedAvg
from potluck.methods.inclusivefl import InclusiveFL
from support.families import deep
from support.tiny import Recorder, make_loop, tiny

BLOCK0, BLOCK1, BLOCK2, HEAD = "layer1.0.w", "layer1.1.w", "layer1.2.w", "head.w"
SMALL, LARGE = (BLOCK0, HEAD), (BLOCK0, BLOCK1, HEAD)
SHARED = (("small", SMALL), ("large", LARGE))


def number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def served(method: InclusiveFL, sizes=SHARED, **answers: dict[str, float]) -> dict[str, dict[str, float]]:
    """One server step from zeros; each size has one client, whose answer is its new weights."""
    architectures = {
        size: Architecture(size, 1, {n: number(0.0) for n in names}, frozenset(names), {"w": (1,)})
        for size, names in sizes
    }
    samples = {"small": 1, "large": 3, "huge": 1}
    infos = tuple(ClientInfo(i, size, samples[size], size) for i, (size, _) in enumerate(sizes))
    context = Context(Task(2, (1,), infos, architectures), 1, 1, 0, 1)
    updates = [
        Update(info, Weights({name: number(value) for name, value in answers[info.name].items()}))
        for info in infos
        if info.name in answers
    ]
    state = method.server(method.init_server(context), updates, context)
    return {size: {name: tensor.item() for name, tensor in group.items()} for size, group in state.items()}


def test_names_are_averaged_over_sizes_by_their_samples():
    """Shares ¼ and ¾, values 0 and 4: 3."""
    result = served(
        InclusiveFL(beta=0.0, tops="shared"),
        small={BLOCK0: 0.0, HEAD: 0.0},
        large={BLOCK0: 4.0, BLOCK1: 8.0, HEAD: 4.0},
    )
    assert result == {"small": {BLOCK0: 3.0, HEAD: 3.0}, "large": {BLOCK0: 3.0, BLOCK1: 8.0, HEAD: 3.0}}


def test_the_top_block_takes_a_part_of_its_change_from_deeper_blocks():
    """Own change 1, the deeper model's blocks carry 2 and 4: 0.8·1 + 0.2·3 = 1.4."""
    own = InclusiveFL(beta=0.2, tops="own")
    result = served(own, small={BLOCK0: 1.0, HEAD: 5.0}, large={BLOCK0: 2.0, BLOCK1: 4.0, HEAD: 7.0})
    assert result["small"] == {BLOCK0: pytest.approx(1.4), HEAD: 5.0}
    assert result["large"] == {BLOCK0: 2.0, BLOCK1: 4.0, HEAD: 7.0}  # the largest gets no momentum
    shared = InclusiveFL(beta=0.2, tops="shared")
    result = served(shared, small={BLOCK0: 1.0, HEAD: 0.0}, large={BLOCK0: 1.0, BLOCK1: 6.0, HEAD: 0.0})
    assert result["small"][BLOCK0] == pytest.approx(0.8 * 1 + 0.2 * (1 + 6) / 2)
    assert result["large"][BLOCK0] == 1.0


def test_the_mean_is_over_all_deeper_blocks():
    """The published code keeps the last block's value instead of adding them up."""
    sizes = (("small", SMALL), ("huge", (BLOCK0, BLOCK1, BLOCK2, HEAD)))
    result = served(
        InclusiveFL(beta=0.5, tops="own"),
        sizes,
        small={BLOCK0: 0.0, HEAD: 0.0},
        huge={BLOCK0: 1.0, BLOCK1: 2.0, BLOCK2: 6.0, HEAD: 0.0},
    )
    assert result["small"][BLOCK0] == pytest.approx(0.5 * 3.0)


def test_a_size_without_participants_is_passed_over():
    sizes = (*SHARED, ("huge", (BLOCK0, BLOCK1, BLOCK2, HEAD)))
    answers = {
        "small": {BLOCK0: 0.0, HEAD: 0.0},
        "huge": {BLOCK0: 3.0, BLOCK1: 3.0, BLOCK2: 3.0, HEAD: 0.0},
    }
    result = served(InclusiveFL(beta=0.2, tops="own"), sizes, **answers)
    assert result["small"][BLOCK0] == pytest.approx(0.6)  # from the next size that took part
    assert result["large"] == {BLOCK0: 3.0, BLOCK1: 0.0, HEAD: 0.0}  # shared names only, no momentum
    alone = served(InclusiveFL(tops="shared"), sizes, small={BLOCK0: 2.0, HEAD: 2.0})
    assert alone["huge"] == {BLOCK0: 2.0, BLOCK1: 0.0, BLOCK2: 0.0, HEAD: 2.0}


def test_stages_of_equal_depth_are_not_mixed():
    names = (BLOCK0, HEAD, "layer2.0.w")
    sizes = (("small", names), ("large", (*names, BLOCK1)))
    result = served(
        InclusiveFL(tops="own"),
        sizes,
        small={BLOCK0: 0.0, HEAD: 0.0, "layer2.0.w": 0.0},
        large={BLOCK0: 1.0, BLOCK1: 1.0, HEAD: 1.0, "layer2.0.w": 4.0},
    )
    assert result["small"]["layer2.0.w"] == result["large"]["layer2.0.w"] == 3.0
    assert result["small"][BLOCK0] == pytest.approx(0.2)


@pytest.mark.parametrize("weight", ["samples", "uniform"])
def test_without_momentum_it_is_layerwise_fedavg_bit_for_bit(weight: str):
    fed = deep((1, 1), (2, 1), (2, 2), norm=True, sizes=(12, 9, 10))
    inclusive, plain = Recorder(), Recorder()
    make_loop(
        InclusiveFL(beta=0.0, weight=weight, tops="shared"),
        fed,
        rounds=3,
        callbacks=[inclusive],
        participation=0.7,
    ).run()
    method = FedAvg(aggregate="layerwise", weight=weight)
    make_loop(method, fed, rounds=3, callbacks=[plain], participation=0.7).run()
    for group in inclusive.end.state.values():
        assert all(torch.equal(tensor, plain.end.state[ALL][name]) for name, tensor in group.items())


def test_the_momentum_acts_in_every_round():
    """The published code mixes only while its momentum is still the number 0, that is, never."""
    fed = deep((1, 1), (3, 1))
    recorder = Recorder()
    loop = make_loop(InclusiveFL(), fed, rounds=3, callbacks=[recorder])
    for _ in range(3):
        before = {name: tensor.clone() for name, tensor in loop.progress.state["Deep-2"].items()}
        loop.step()
        small, large = loop.progress.state["Deep"], loop.progress.state["Deep-2"]
        apart = small["layer1.0.fc.weight"] - large["layer1.0.fc.weight"]
        assert apart.abs().max() > 0
        assert torch.equal(small["layer2.0.fc.weight"], large["layer2.0.fc.weight"])
        changes = [
            large[f"layer1.{block}.fc.weight"] - before[f"layer1.{block}.fc.weight"] for block in range(3)
        ]
        assert all(change.abs().max() > 0 for change in changes)
    first = [message.tensors["layer1.0.fc.weight"] for n, _, message in recorder.sent if n == 1]
    assert torch.equal(*first)


def test_statistics_are_averaged_without_momentum():
    fed = deep((1, 1), (2, 1), norm=True)
    loop = make_loop(InclusiveFL(tops="shared"), fed, rounds=1)
    loop.run()
    small, large = loop.progress.state["Deep"], loop.progress.state["Deep-2"]
    assert torch.equal(small["layer1.0.bn.running_mean"], large["layer1.0.bn.running_mean"])
    assert not torch.equal(small["layer1.0.bn.weight"], large["layer1.0.bn.weight"])


def test_each_size_sends_its_own_model():
    fed = deep((1, 1), (2, 1), norm=True)
    recorder = Recorder()
    make_loop(InclusiveFL(), fed, rounds=1, callbacks=[recorder]).run()
    small, large = 30 + 2 * 66 + 21, 30 + 3 * 66 + 21
    assert [message.numel() for _, _, message in recorder.sent] == [small, large]
    assert [update.payload.numel() for _, update in recorder.updates] == [small, large]
    accounted = InclusiveFL().paper_accounting(recorder.sent[0][2], recorder.updates[0][1].payload)
    assert (accounted.up, accounted.down) == (small - 24, small - 24)


def test_the_global_model_is_the_deepest():
    fed = deep((2, 1), (1, 1))
    method = InclusiveFL()
    loop = make_loop(method, fed, rounds=1)
    loop.run()
    model = fed.client(0).model
    model.load_state_dict(loop.progress.state["Deep"])
    x, _ = fed.client(0).train.take(slice(None))
    assert torch.equal(method.predict_server(loop.progress.state, loop.server.context())(x), model(x))


def test_unrelated_models_are_refused_and_corner_cases_survived():
    with pytest.raises(PotluckError, match="nested depth"):
        make_loop(InclusiveFL(), tiny(2))
    for tops in ("shared", "own"):
        fed = deep((1, 1), (2, 1), (2, 2), norm=True, sizes=(1, 12, 5), classes_of=[(0,), None, (1, 2)])
        recorder = Recorder()
        make_loop(InclusiveFL(tops=tops), fed, rounds=3, participation=0.67, callbacks=[recorder]).run()
        assert len(recorder.end.scores) == 3
