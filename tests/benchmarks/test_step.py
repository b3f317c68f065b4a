"""The step profile counts every operator once, under torch's names, and all of the time."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from benchmarks import step
from benchmarks.population import population
from benchmarks.results import patched_attribute
from benchmarks.small_clients import cohort
from potluck.core.torch_fast import PlainSGD
from potluck.models import build_model, dense


def event(name: str, microseconds: float, *inner: Any) -> Any:
    span = SimpleNamespace(elapsed_us=lambda: microseconds)
    return SimpleNamespace(name=name, time_range=span, cpu_children=list(inner))


def test_outermost_operator_of_a_kind_includes_its_calls() -> None:
    convolution = event("aten::conv2d", 30.0, event("aten::_convolution", 29.0, event("aten::relu", 4.0)))
    back = event("autograd::engine::evaluate_function: ReluBackward0", 5.0, event("ReluBackward0", 4.0))
    spent, noted = step.by_kind([event("other", 90.0, convolution, back), event("aten::relu", 2.0)])
    assert dict(spent) == pytest.approx({"convolutions, forward": 30e-6, "rectifiers": 7e-6})
    assert dict(noted) == {"convolutions, forward": 3, "rectifiers": 3}


def test_time_of_other_processes_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    relu = event("aten::relu", 18_000.0, event("aten::clamp_min", 17_000.0))
    events = [relu, *relu.cpu_children, event("job", 1.0)]
    for item, parent in zip(events, (None, relu, None), strict=True):
        item.cpu_parent = parent
    monkeypatch.setattr(step, "profile", lambda **_: _Watch(events))
    clock = iter((0.0, 0.014)), iter((0.0, 0.028))  # half of the time is ours
    fake = SimpleNamespace(process_time=lambda: next(clock[0]), perf_counter=lambda: next(clock[1]))
    monkeypatch.setattr(step, "time", fake)
    profiled = step.profiled(lambda: None)
    assert (profiled.seconds, profiled.operators, profiled.noted) == (0.014, 3, {"rectifiers": 2})
    assert {kind: spent for kind, spent in profiled.spent.items() if spent} == {
        "rectifiers": pytest.approx(0.009)
    }


def test_shares_sum_to_one_without_profiler_time() -> None:
    """Ten milliseconds by themselves, fourteen under the profiler: one for each of four operators."""
    nothing = dict.fromkeys(step.KINDS, 0)
    slow = step.Profile({**nothing, "rectifiers": 0.009}, {**nothing, "rectifiers": 2}, 0.014, 4)
    faster = step.Profile({**nothing, "rectifiers": 0.006}, {**nothing, "rectifiers": 2}, 0.014, 4)
    shares = step.shares([slow, faster], 0.010)
    assert [part["rectifiers"] for part in shares] == pytest.approx([0.7, 0.4])
    assert [part[step.REST] for part in shares] == pytest.approx([0.3, 0.6])
    assert [sum(part.values()) for part in shares] == pytest.approx([1, 1])


class _Watch:
    def __init__(self, events: list[Any]) -> None:
        self.function_events = events

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def names(events: Iterable[Any]) -> set[str]:
    return {item.name.removeprefix("autograd::engine::evaluate_function: ") for item in events}


def test_every_profiled_operator_name_exists_in_torch() -> None:
    seen: set[str] = set()
    network = population(1, ["cnn-5"], 10, 10)
    for action in (step.jobs(network), step.plain_epochs(network), step.jobs(cohort(1, 10))):
        with profile(use_kineto=False) as watch:
            action()
        seen |= names(watch.function_events or ())
    wanted = {name for operators in step.KINDS.values() for name in operators} - {"optimiser", "batches"}
    assert wanted - seen <= (set() if dense._AVAILABLE else {"_Product", "_ProductBackward"})


def test_the_plain_network_computes_the_same_with_torchs_own_layers() -> None:
    torch.manual_seed(0)
    model, x = build_model("cnn-4", (3, 32, 32), 10), torch.randn(10, 3, 32, 32)
    written = step.as_written(model)
    assert {type(layer).__module__.split(".")[0] for layer in written.modules()} == {"torch"}
    assert all(tensor.is_contiguous() for tensor in written.parameters())
    torch.testing.assert_close(written(x), model(x))


def test_wrapped_attributes_are_restored_inherited_or_not() -> None:
    before = PlainSGD.step, PlainSGD.zero_grad
    with (
        patched_attribute(PlainSGD, "step", lambda _: max),
        patched_attribute(PlainSGD, "zero_grad", lambda _: min),
    ):
        assert (PlainSGD.step, PlainSGD.zero_grad) == (max, min)
    assert (PlainSGD.step, PlainSGD.zero_grad) == before
    assert "step" in vars(PlainSGD)
    assert "zero_grad" not in vars(PlainSGD)
