"""FedRolex: windows by hand, and HeteroFL as the case that does not roll."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from potluck.core.method import Update
from potluck.core.task import ClientInfo, Context
from potluck.methods.fedavg import FedAvg
from potluck.methods.fedrolex import FedRolex
from potluck.methods.heterofl import HeteroFL, Slice, Widest
from support.families import wide
from support.tiny import Recorder, make_loop


def at(step: int) -> Context:
    """Server step `step`, counted from 0 as the paper counts."""
    return Context(wide(1.0).task, step + 1, 10, 0, step + 1)


def window_indices(step: int, size: int, full: int, **options) -> list[int]:
    return FedRolex(**options).window(at(step))(size, full).tolist()


def run(method, fed, **settings):
    recorder = Recorder()
    make_loop(method, fed, callbacks=[recorder], **{"rounds": 3, **settings}).run()
    return recorder


def same(state: dict, expected: dict) -> bool:
    return state.keys() == expected.keys() and all(torch.equal(state[name], expected[name]) for name in state)


@pytest.mark.parametrize(
    ("step", "ascending", "descending"), [(0, [0, 1], [0, 1]), (1, [1, 2], [3, 0]), (3, [3, 0], [1, 2])]
)
def test_windows_of_half_a_layer_of_four(step: int, ascending: list[int], descending: list[int]):
    assert window_indices(step, 2, 4) == ascending
    assert window_indices(step, 2, 4, direction="descending") == descending


@pytest.mark.parametrize(("size", "full"), [(2, 4), (3, 5), (1, 7)])
def test_over_a_cycle_every_index_is_trained_equally_often(size: int, full: int):
    counts = Counter(index for step in range(full) for index in window_indices(step, size, full))
    assert counts == dict.fromkeys(range(full), size)


def test_a_larger_shift_overlaps_less():
    assert window_indices(1, 2, 8, shift=2) == [2, 3]
    assert window_indices(3, 2, 8, shift=3) == [1, 2]


def test_random_windows_are_the_same_for_all_layers_of_one_width_and_new_each_step():
    first, again, later = (
        window_indices(2, 4, 9, order="random"),
        window_indices(2, 4, 9, order="random"),
        window_indices(3, 4, 9, order="random"),
    )
    assert first == again != later
    assert len(set(first)) == 4


def test_a_late_answer_goes_back_to_where_it_was_taken():
    assert FedRolex().window(at(5), staleness=2)(2, 4).tolist() == window_indices(3, 2, 4)
    assert FedRolex(order="random").window(at(5), staleness=2)(2, 9).tolist() == window_indices(
        3, 2, 9, order="random"
    )


def test_a_late_slice_is_laid_where_it_was_taken():
    """Half of four channels, sent in step 1 (indices 0 and 1) and back in step 2, whose window is 1 and 2."""
    context = replace(make_loop(FedRolex(), wide(1.0)).server.context(), step=2)
    state = Widest({"w": torch.zeros(4, dtype=torch.float64)}, {})
    answer = Slice({"w": torch.ones(2, dtype=torch.float64)})
    late = Update(ClientInfo(0, "c", 1, "Wide"), answer, staleness=1)
    assert FedRolex().server(state, [late], context).weights["w"].tolist() == [1.0, 1.0, 0.0, 0.0]
    prompt = replace(late, staleness=0)
    state = Widest({"w": torch.zeros(4, dtype=torch.float64)}, {})
    assert FedRolex().server(state, [prompt], context).weights["w"].tolist() == [0.0, 1.0, 1.0, 0.0]


def test_at_full_rate_it_is_unweighted_fedavg_bit_for_bit():
    fed = wide(1.0, 1.0, 1.0, sizes=(12, 9, 6))
    plain = run(FedAvg(aggregate="full", weight="uniform"), fed)
    assert same(run(FedRolex(), fed).end.state.weights, plain.end.state["all"])


def test_without_rolling_equals_heterofl():
    fed = wide(1.0, 0.5, 0.25)
    assert same(run(FedRolex(order="static"), fed).end.state.weights, run(HeteroFL(), fed).end.state.weights)
    assert not same(run(FedRolex(), fed).end.state.weights, run(HeteroFL(), fed).end.state.weights)


def test_windows_roll_through_a_bottleneck_network():
    """In the second round a half-wide client gets, trains and returns channels 1 and 2 of the stem's four."""
    fed = wide(0.5, 1.0)
    recorder = run(FedRolex(), fed, rounds=2)
    small, large = (message.tensors for number, _, message in recorder.sent if number == 2)
    assert torch.equal(small["stem.weight"], large["stem.weight"][1:3])
    assert torch.equal(small["block.conv1.weight"], large["block.conv1.weight"][1:2, 1:3])
    rows = [1, 2, 3, 4]  # half of the eight channels that leave the block, on both branches of the sum
    assert torch.equal(small["block.conv3.weight"], large["block.conv3.weight"][rows][:, 1:2])
    assert torch.equal(small["block.shortcut.weight"], large["block.shortcut.weight"][rows][:, 1:3])
    assert torch.equal(small["head.weight"], large["head.weight"][:, rows])
    narrow_stem, wide_stem = (
        update.payload.tensors["stem.weight"] for number, update in recorder.updates if number == 2
    )
    expected = wide_stem.clone()
    expected[1:3] = (narrow_stem + wide_stem[1:3]) / 2
    assert torch.equal(recorder.end.state.weights["stem.weight"], expected)


def test_only_the_window_of_the_round_is_trained():
    fed = wide(0.5, 0.5)  # architectures of one width: nothing wider to slice
    recorder = run(FedRolex(), fed, rounds=1)
    assert recorder.end.state.weights["stem.weight"].shape[0] == 2
    fed = wide(0.5, 1.0)
    recorder = run(FedRolex(), fed, rounds=3, participation=0.5)
    narrow = [number for number, client, _ in recorder.sent if client == 0]
    assert narrow  # in such a round, channels outside of the window stay
    states = [step.state.weights["stem.weight"] for step in recorder.steps]
    for number in (number for number in narrow if number > 1):
        window = window_indices(number - 1, 2, 4)
        outside = [index for index in range(4) if index not in window]
        assert torch.equal(states[number - 1][outside], states[number - 2][outside])
        assert not torch.equal(states[number - 1][window], states[number - 2][window])


def test_asynchronous_buffers_are_served():
    recorder = run(FedRolex(), wide(1.0, 0.5, 0.5, 0.25), rounds=3, buffer=1, concurrency=2)
    assert any(update.staleness for _, update in recorder.updates)
    assert all(torch.isfinite(tensor).all() for tensor in recorder.end.state.weights.values())
