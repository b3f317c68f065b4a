"""Profile a training step by kind of operator: as Potluck trains, and as a plain loop does."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.profiler import profile, record_function

from benchmarks.population import CNNS, population
from benchmarks.results import Action, Row, Spread, patched_attribute, ratio, time_alternately
from benchmarks.small_clients import BATCH, cohort
from benchmarks.training import reference_loop
from potluck.core.payload import EmptyPayload
from potluck.core.samples import Samples
from potluck.core.torch_fast import PlainSGD
from potluck.federation.federation import Federation
from potluck.methods.standalone import Standalone
from potluck.models.cnn import CNN
from potluck.wire.jobs import Answer, Job
from potluck.worker.worker import Worker

PART, PLAIN = "share of a step", "share of a plain step"
REST = "Python, dispatch and the rest"

KINDS: Mapping[str, tuple[str, ...]] = {
    "convolutions, forward": ("aten::conv2d",),
    "convolutions, backward": ("ConvolutionBackward0",),
    "linear layers, forward": ("aten::linear", "_Product"),
    "linear layers, backward": ("AddmmBackward0", "_ProductBackward"),
    "max-pooling": ("aten::max_pool2d", "MaxPool2DWithIndicesBackward0"),
    "rectifiers": ("aten::relu", "ReluBackward0"),
    "dropout": ("aten::dropout", "MulBackward0"),
    "loss": ("aten::cross_entropy_loss", "NllLossBackward0", "LogSoftmaxBackward0"),
    "optimiser": ("optimiser", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad"),
    "gathering batches": ("batches", "aten::index"),
}
"""What torch's profiler calls the operators of a kind; backward passes are named after what they go back through."""

_KIND_OF = {name: kind for kind, names in KINDS.items() for name in names}
_LABELS = (
    (PlainSGD, "step", "optimiser"),
    (PlainSGD, "zero_grad", "optimiser"),
    (Samples, "take", "batches"),
)
_NODE = "autograd::engine::evaluate_function: "


def measure(*, quick: bool = False) -> Iterator[Row]:
    """Shares of the processor time of one epoch in batches of 10, and how much longer the plain steps take."""
    os.environ.setdefault(
        "KINETO_LOG_LEVEL", "6"
    )  # or the profiler writes a line whenever it begins and ends
    samples, trials = (20, 2) if quick else (100, 9)
    works = {
        "cnn-1 … cnn-5": population(1, CNNS[-1:], samples, BATCH)
        if quick
        else population(5, CNNS, samples, BATCH),
        "pfl-research's CNN": cohort(1, samples),
    }
    for label, federation in works.items():
        actions = {PART: jobs(federation)}
        if isinstance(federation.client(0).model, CNN):  # others are what their owners wrote
            actions[PLAIN] = plain_epochs(federation)
        by_part: dict[str, list[Profile]] = {part: [] for part in actions}
        watched = {f"{part}, watched": partial(_watch, actions[part], by_part[part]) for part in actions}
        seconds = time_alternately({**actions, **watched}, trials, clock=time.process_time)
        for part, profiles in by_part.items():
            parts = shares(profiles[1:], statistics.median(seconds[part]))  # the first warmed up
            for kind in (*KINDS, REST):
                spread = Spread.of([100 * share[kind] for share in parts])
                if spread.median > 0:
                    yield Row(part, f"{label}: {kind}", spread, "%")
        if PLAIN in actions:
            yield Row("plain ÷ our step", label, ratio(seconds[PLAIN], seconds[PART]))


@dataclass(frozen=True)
class Profile:
    """What torch's profiler saw of an action: processor seconds, of each kind of operator and in all, and operators."""

    spent: Mapping[str, float]
    noted: Mapping[str, int]
    seconds: float
    operators: int


def profiled(action: Action) -> Profile:
    """Do it under the profiler, which goes by the clock: what other programs take is left out in proportion."""
    with ExitStack() as stack:
        for owner, name, label in _LABELS:
            stack.enter_context(patched_attribute(owner, name, partial(_labelled, label=label)))
        watch = stack.enter_context(profile(use_kineto=False))
        started, busy = time.perf_counter(), time.process_time()
        action()
        seconds, passed = time.process_time() - busy, time.perf_counter() - started
    events = list(watch.function_events or ())
    spent, noted = by_kind(event for event in events if event.cpu_parent is None)
    return Profile({kind: spent[kind] * seconds / passed for kind in KINDS}, noted, seconds, len(events))


def _watch(action: Action, profiles: list[Profile]) -> None:
    profiles.append(profiled(action))


def shares(profiles: Sequence[Profile], plain_seconds: float) -> list[dict[str, float]]:
    """What part of the usual processor time each kind of operator takes, profile by profile.

    The profiler makes an action longer, by about the same for every operator that it notes.
    """
    longer = statistics.median(each.seconds for each in profiles) - plain_seconds
    parts = []
    for each in profiles:
        overhead = longer / each.operators
        part = {kind: (each.spent[kind] - each.noted[kind] * overhead) / plain_seconds for kind in KINDS}
        parts.append({**part, REST: 1 - sum(part.values())})
    return parts


def by_kind(events: Iterable[Any]) -> tuple[Counter[str], Counter[str]]:
    """Seconds of the outermost operators of each kind, and how many operators these are with what they call."""
    spent, noted = Counter[str](), Counter[str]()
    for event in events:
        kind = _KIND_OF.get(event.name.removeprefix(_NODE))
        if kind is None:
            for total, inner in zip((spent, noted), by_kind(event.cpu_children), strict=True):
                total.update(inner)
        else:
            spent[kind] += event.time_range.elapsed_us() / 1e6
            noted[kind] += _size(event)
    return spent, noted


def _size(event: Any) -> int:
    return 1 + sum(_size(inner) for inner in event.cpu_children)


def _labelled(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    """A function that the profiler sees under this name."""

    def labelled(*args: Any, **options: Any) -> Any:
        with record_function(label):
            return function(*args, **options)

    labelled.hooked = True  # type: ignore[attr-defined]  # or torch would wrap an optimiser's step once more
    return labelled


def jobs(federation: Federation) -> Action:
    """A training job of every client, as a worker does it; the next ones with every call."""
    worker, jobs_done = Worker(Standalone(), federation.client), [0]

    def run() -> None:
        for index in range(len(federation.members)):
            answer = worker.run(
                Job(jobs_done[0] + 1, "train", index, jobs_done[0], round=1, rounds=1, message=EmptyPayload())
            )
            assert isinstance(answer, Answer), answer
        jobs_done[0] += 1

    return run


def plain_epochs(federation: Federation) -> Action:
    """An epoch of every client in a loop as one would write it by hand, on a network written as in most tutorials."""
    clients = [federation.client(index) for index in range(len(federation.members))]
    works = [(as_written(me.model), *me.train.take(slice(None)), me.training) for me in clients]

    def run() -> None:
        for model, x, y, training in works:
            reference_loop(model, x, y, torch.randperm(len(y)), training.batch_size, training.lr)

    return run


def as_written(model: nn.Module) -> nn.Sequential:
    """The same network with torch's own layers, each convolution followed by its rectifier, channels first."""
    assert isinstance(model, CNN)
    layers: list[nn.Module] = []
    for conv in (model.conv1, model.conv2):
        layers += [nn.Conv2d(conv.in_channels, conv.out_channels, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for dense in (model.fc1, model.fc2):
        layers += [nn.Linear(dense.in_features, dense.out_features), nn.ReLU()]
    written = nn.Sequential(*layers, copy.deepcopy(model.head))
    own = (tensor.detach().contiguous() for tensor in model.parameters())
    written.load_state_dict(dict(zip(written.state_dict(), own, strict=True)))
    return written
