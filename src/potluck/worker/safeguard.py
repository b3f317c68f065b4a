"""Safeguard: clients also train alone, and use the federated model only where validation samples support it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from potluck.core.client import Client
from potluck.core.method import Predictor
from potluck.core.model import batch_norm_in_eval_mode
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.settings import Settings, setting
from potluck.wire.jobs import Job
from potluck.wire.score import Comparison, Score, score_outputs

Mode = Literal["off", "select", "ensemble"]
BISECTIONS = 50
"""Halvings of the interval of an ensemble's weight: its error is below 1e-15."""


@dataclass(frozen=True)
class Safeguard(Settings):
    """Each client also keeps a standalone model, trained with the same jobs on the same samples.

    `select`: a client uses the federated model where an exact one-sided McNemar test on its validation samples says,
    at `level`, that it is right more often than the standalone model; otherwise the standalone model. `ensemble`: both
    models' class probabilities are mixed with a weight learned on the validation samples and drawn towards one half by
    `prior` samples; where the mixture makes more errors on them than the standalone model, that model alone is used. A
    client without validation samples always uses its standalone model. No answer to the server depends on any of this.
    """

    mode: Mode = setting("off", "what protects clients from a federation that does not help them", later=True)
    level: float = setting(
        0.05,
        "select: largest probability of choosing a federated model that is not better",
        gt=0,
        lt=1,
        later=True,
    )
    prior: float = setting(
        10.0, "ensemble: samples that draw its weight towards one half", ge=0, le=1e6, later=True
    )

    def __bool__(self) -> bool:
        return self.mode != "off"


# -- training the standalone model -----------------------------------------------------------------------------


def train_standalone(me: Client, job: Job) -> int:
    """Train a client's standalone model as the method `standalone` does in this job; return the samples trained on.

    It draws from the same random streams as that method's run with the same experiment would.
    """
    alone = me.standalone
    if alone is None:
        return 0
    alone.begin("train", job.number, job.round, job.rounds)
    if alone.trainer is not None:  # in a stack with other clients, whose layers draw together
        alone.fit()
    else:
        with seeded(me.task.seed, "torch", me.info.name, "train", job.number):
            alone.fit()
    alone.free_gradients()
    return alone.trained_samples


# -- the choice ------------------------------------------------------------------------------------------------


def learn_weight(safeguard: Safeguard, me: Client, federated: Predictor) -> float:
    """Return the share of the federated model that a client's validation samples support: from 0 to 1."""
    samples = me.validation
    if samples is None or not len(samples):
        return 0.0
    parts = zip(*_both_outputs(me, federated, samples), strict=True)
    first, second, labels = (torch.cat(part) for part in parts)
    return choose_weight(safeguard, first, second, labels)


def choose_weight(safeguard: Safeguard, federated: Tensor, alone: Tensor, labels: Tensor) -> float:
    """Return the federated model's share from both models' class scores of validation samples."""
    if safeguard.mode == "select":
        gained, lost = _discordant(federated, alone, labels)
        return 1.0 if mcnemar(gained, lost) <= safeguard.level else 0.0
    weight = mixture_weight(federated, alone, labels, safeguard.prior)
    gained, lost = _discordant(mix(federated, alone, weight), alone, labels)
    return weight if gained >= lost else 0.0


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact one-sided p-value of McNemar's test: the chance of so many gains if both are equally likely.

    >>> mcnemar(5, 0)
    0.03125
    """
    pairs = gained + lost
    return sum(math.comb(pairs, count) for count in range(gained, pairs + 1)) / (1 << pairs)


def mixture_weight(federated: Tensor, alone: Tensor, labels: Tensor, prior: float) -> float:
    """Return the weight w of the largest posterior density of the labels under w·federated + (1 - w)·alone.

    The prior counts as `prior` further samples, of which each model alone explains half: without samples w is one half.
    """
    rows = torch.arange(len(labels), device=labels.device)
    first, second = (
        F.softmax(scores.double(), dim=1)[rows, labels].nan_to_num(0.0).cpu().numpy()
        for scores in (federated, alone)
    )
    difference, low, high = first - second, 0.0, 1.0
    informative = difference != 0
    difference, second = difference[informative], second[informative]
    # The density is concave in w: its slope is positive below the maximum, and negative above.
    for _ in range(BISECTIONS if prior or len(difference) else 0):
        weight = (low + high) / 2
        slope = float((difference / (second + weight * difference)).sum())
        slope += prior / 2 * (1 / weight - 1 / (1 - weight))
        low, high = (weight, high) if slope > 0 else (low, weight) if slope < 0 else (weight, weight)
    return (low + high) / 2


def mix(federated: Tensor, alone: Tensor, weight: float | Tensor) -> Tensor:
    """Return logarithms of mixed class probabilities; the standalone ones where the federated ones are no numbers."""
    share = torch.as_tensor(weight, dtype=alone.dtype, device=alone.device)
    first, second = F.log_softmax(federated, dim=1), F.log_softmax(alone, dim=1)
    mixed = torch.logaddexp(first + share.log(), second + torch.log1p(-share))
    return torch.where(first.isnan().any(dim=1, keepdim=True), second, mixed)


def combine(federated: Tensor, alone: Tensor, weight: float) -> Tensor:
    """Return the class scores that a client uses: of one of the models where the weight is 0 or 1, else mixed ones."""
    if weight == 0:
        return alone
    if weight == 1:
        return torch.where(federated.isnan().any(dim=1, keepdim=True), alone, federated)
    return mix(federated, alone, weight)


# -- tests -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SafeguardedScores:
    """Scores on the same samples: of what the client uses, of the federated model, and of the standalone one."""

    used: Score
    federated: Score
    alone: Score


def safeguarded_scores(
    me: Client, federated: Predictor, weight: float, samples: Samples, *, details: bool = False
) -> SafeguardedScores:
    """Test what a client uses with this weight, and both models that it consists of."""
    batches = _both_outputs(me, federated, samples)
    used = [(combine(first, second, weight), second, labels) for first, second, labels in batches]
    comparison = Comparison(weight, *_count_discordant(used), *_count_discordant(batches))
    return SafeguardedScores(
        replace(
            score_outputs(((first, labels) for first, _, labels in used), details=details),
            comparison=comparison,
        ),
        score_outputs((first, labels) for first, _, labels in batches),
        score_outputs((second, labels) for _, second, labels in batches),
    )


Batch = tuple[Tensor, Tensor, Tensor]
"""Class scores by two predictors, and labels."""


def _count_discordant(batches: Sequence[Batch]) -> tuple[int, int]:
    """Return how many samples of all batches only the first predictor gets right, and how many only the second."""
    counts = [_discordant(*batch) for batch in batches]
    return sum(gained for gained, _ in counts), sum(lost for _, lost in counts)


def _both_outputs(me: Client, federated: Predictor, samples: Samples) -> list[Batch]:
    """Return batches of class scores by the federated and by the standalone model, with the labels."""
    assert me.standalone is not None
    model = me.standalone.model.eval()
    with batch_norm_in_eval_mode(*([me.model, model] if len(samples) == 1 else [])):
        outputs = me.outputs(lambda x: torch.stack([federated(x), model(x)]), samples)
        return [(*scores, labels) for scores, labels in outputs]


def _discordant(first: Tensor, second: Tensor, labels: Tensor) -> tuple[int, int]:
    """Return how many samples only the first class scores get right, and how many only the second."""
    rights = [~scores.isnan().any(dim=1) & (scores.argmax(dim=1) == labels) for scores in (first, second)]
    return int((rights[0] & ~rights[1]).sum()), int((rights[1] & ~rights[0]).sum())
