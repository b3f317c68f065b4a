"""Baselines that every method is held against: computed from the data alone, or trained on other samples.

All use the clients, the splits and the seed of the experiment that they stand beside, and test on clients' own test
samples. What is chosen (a penalty) is chosen on validation samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from potluck.core.errors import PotluckError
from potluck.core.samples import Samples, prepare
from potluck.core.task import Task
from potluck.federation.features import is_numbered, with_features
from potluck.federation.federation import Federation, LazySequence, Member

if TYPE_CHECKING:
    from potluck.runs.plan import RunPlan

LINES: Mapping[str, str] = {
    "majority": "the most frequent class of each client's training samples",
    "ridge": "ridge regression on the inputs, or the stored features of frozen networks, each client alone",
    "logistic": "logistic regression on the same, each client alone",
    "pooled-ridge": "ridge regression on the inputs of all clients together",
}
"""Baselines that need no network: what each is."""
TRAIN = ("own", "public", "pooled")
"""What a client trains on: its own samples, those and the public ones, or those of all clients that take part."""
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Of ridge regression, on standardised inputs."""
STRENGTHS = (0.01, 0.1, 1.0, 10.0)
"""Of logistic regression, as scikit-learn's C."""

Array = NDArray[Any]
Part = tuple[Array, Array]
Fit = Callable[[Array, Array], Sequence[Any]]


@dataclass(frozen=True)
class LineScores:
    """What a baseline without training reaches: accuracy of each client on its test samples."""

    clients: tuple[float, ...]
    samples: tuple[int, ...]
    newcomers: float | None


def compute_line(name: str, plan: RunPlan) -> LineScores:
    """Compute a baseline of `LINES` for every client that takes part, on one thread.

    More threads take many times as long on so few samples, and scikit-learn warns that so many classes among so few
    samples look like a regression.
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes", UserWarning)
        return _compute_line(name, plan)


def _compute_line(name: str, plan: RunPlan) -> LineScores:
    federation, absent = plan.federation, plan.newcomers
    indexes = [info.index for info in federation.task.clients if info.index not in absent]
    parts = {info.index: _parts(federation, info.index) for info in federation.task.clients}
    choose = _chooser(name, [parts[index] for index in indexes])
    scores = {index: choose(*parts[index]) for index in parts}
    joined = [scores[index] for index in absent]
    return LineScores(
        tuple(scores[index] for index in indexes),
        tuple(len(parts[index][0][1]) for index in indexes),
        float(np.mean(joined)) if joined else None,
    )


def _chooser(name: str, parts: Sequence[tuple[Part, Part, Part]]) -> Callable[[Part, Part, Part], float]:
    """Return a function of a client's training, validation and test samples that gives its test accuracy."""
    if name == "majority":
        return lambda train, validation, test: _share(test[1] == np.bincount(train[1]).argmax())
    if name == "logistic":
        return lambda *own: _best(own[0], [own[1]], own[2], _logistic)
    if name == "ridge":
        return lambda *own: _best(own[0], [own[1]], own[2], _ridge)
    train = _join([train for train, _, _ in parts])
    models = _ridge(*train)
    best = max(models, key=lambda model: _mean_accuracy(model, [validation for _, validation, _ in parts]))
    return lambda own, validation, test: _share(best.predict(test[0]) == test[1])


def _best(train: Part, validation: Sequence[Part], test: Part, fit: Fit) -> float:
    """Return the test accuracy of the model that is best on validation samples; of equals, the first."""
    if len(np.unique(train[1])) == 1:
        return _share(test[1] == train[1][0])
    models = fit(*train)
    best = max(models, key=lambda model: _mean_accuracy(model, validation))
    return _share(best.predict(test[0]) == test[1])


def _ridge(x: Array, y: Array) -> Sequence[Any]:
    from sklearn.linear_model import RidgeClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return [make_pipeline(StandardScaler(), RidgeClassifier(penalty)).fit(x, y) for penalty in PENALTIES]


def _logistic(x: Array, y: Array) -> Sequence[Any]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return [
        make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=500)).fit(x, y)
        for strength in STRENGTHS
    ]


def _mean_accuracy(model: Any, parts: Sequence[Part]) -> float:
    shares = [_share(model.predict(x) == y) for x, y in parts if len(y)]
    return float(np.mean(shares)) if shares else math.nan


def _share(right: Array) -> float:
    return float(np.mean(right)) if len(right) else math.nan


def _parts(federation: Federation, index: int) -> tuple[Part, Part, Part]:
    member = federation.members[index]
    architecture = federation.task.architectures[member.architecture]
    train, validation, test = (
        _arrays(with_features(samples, architecture), federation.task)
        for samples in (member.train, member.validation, member.test)
    )
    return train, validation, test


def _arrays(samples: Samples, task: Task) -> Part:
    x, y = prepare(*samples.take(slice(0, len(samples))), task)
    return x.flatten(1).cpu().numpy(), y.cpu().numpy()


def _join(parts: Sequence[Part]) -> Part:
    return np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])


def with_training_samples(federation: Federation, train: str, absent: Collection[int]) -> Federation:
    """Return the federation with other training samples: `public` adds the public ones to each client's own, `pooled`
    gives each client those of all that take part. Validation and test samples stay as they are."""
    task = federation.task
    if train == "pooled" and len(task.architectures) > 1 and is_numbered(federation):
        raise PotluckError(
            "train = 'pooled' needs every client's features from every network, and each has those of its own; set "
            "models.cache = false, or choose one model."
        )
    if train == "public":
        if task.public is None:
            raise PotluckError("train = 'public' needs public samples; set data.public, for instance to 0.1.")
        public = task.public
        added = [[member.train, public] for member in federation.members]
    else:
        everyone = [federation.members[info.index].train for info in task.clients if info.index not in absent]
        added = [everyone for _ in federation.members]
    joined = [join_samples(parts) for parts in added]

    def member(index: int) -> Member:
        original = federation.members[index]
        return Member(
            original.model,
            joined[index],
            original.test,
            original.name,
            validation=original.validation,
            architecture=original.architecture,
            device=original.device,
        )

    infos = tuple(replace(info, samples=len(joined[info.index])) for info in task.clients)
    return replace(
        federation,
        task=replace(task, clients=infos),
        members=LazySequence(len(infos), member),
        partition_arrays=(),
    )


def join_samples(parts: Sequence[Samples]) -> Samples:
    """Return copies of the rows of several views as one, transformed as models see them."""
    pairs = [samples.take(slice(0, len(samples))) for samples in parts]
    return Samples(torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs]))
