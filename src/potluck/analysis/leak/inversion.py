"""Reconstruct pictures of a client's classes from what the server received."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, one_hot

from potluck.analysis.leak.inference import SIZES, size_range, size_text, vector_function
from potluck.analysis.leak.observations import (
    LeakFindings,
    LeakScore,
    Reconstruction,
    class_vectors,
    head_vectors,
    whole_model,
)
from potluck.core.client import Client
from potluck.core.model import ClientModel
from potluck.core.random import generator, seeded
from potluck.core.samples import Samples
from potluck.runs.answers import KeptAnswer
from potluck.runs.restore import RestoredRun

MAX_AUXILIARY_SAMPLES = 2000
"""Largest number of samples that a decoder is fitted to."""
Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class InversionTarget:
    """Vectors of a client's classes, what they are, and the function whose class means they are.

    `sent`: the extractor itself was sent to the server.
    """

    rows: Tensor
    labels: Tensor
    what: str
    function: Function
    sent: bool = False

    def of(self, model: ClientModel) -> Function:
        """Return the same function of another model."""
        return model if self.what == "class logits" else model.features


def find_inversion_target(me: Client, last: KeptAnswer) -> InversionTarget | None:
    """Return the class vectors of an answer, or those learned by its head; None where it has neither."""
    if (vectors := class_vectors(last.answer)) is not None:
        function = vector_function(me, vectors[0])
        kind = "class logits" if function is me.model else "class means"
        return None if function is None else InversionTarget(*vectors, kind, function)
    if (vectors := head_vectors(last, me.task.num_classes)) is None:
        return None
    weights = whole_model(last, dict(me.model.named_parameters()))
    model = me.model.eval() if weights is None else me.predictor(weights)
    assert isinstance(model, ClientModel)
    return InversionTarget(*vectors, "what its head learned", model.features, sent=weights is not None)


def auxiliary_samples(ended: RestoredRun, client: int) -> Samples:
    """Return the server's auxiliary data: the public samples, else the test samples of all other clients."""
    federation = ended.plan.federation
    members, public = federation.members, federation.task.public
    tests = [member.test for index, member in enumerate(members) if index != client and len(member.test)]
    parts = tests if public is None else [public]
    if not parts:
        return members[client].train.select(torch.arange(0))
    pairs = [part.take(slice(None)) for part in parts]
    x, y = (torch.cat(list(each)) for each in zip(*pairs, strict=True))
    order = torch.randperm(len(y), generator=generator(federation.task.seed, "leak", "auxiliary", client))
    chosen = order[:MAX_AUXILIARY_SAMPLES].sort().values
    return Samples(x[chosen], y[chosen])


def train_surrogate(
    ended: RestoredRun, me: Client, kept: Sequence[KeptAnswer], known_samples: Samples
) -> ClientModel | None:
    """Train a surrogate of a client's model at the server; None where its architecture cannot be built.

    It has the client's architecture, trains by the run's own method on the auxiliary samples, and receives the client's
    messages. Its initial weights differ, unless all clients of an architecture start with the same weights.
    """
    federation, info = ended.plan.federation, me.info
    same_init = ended.plan.experiment.models.same_init
    build = (
        federation.members[info.index].build
        if same_init
        else federation.task.architectures[info.architecture].build
    )
    if build is None:
        return None
    model = build().to(device=me.task.device, dtype=me.task.dtype).eval()
    info = replace(info, name=f"stand-in for {info.name}", samples=len(known_samples))
    other = Client(
        info,
        model,
        known_samples,
        known_samples,
        federation.task,
        federation.training,
        validation=known_samples,
    )
    for exchange in kept:
        job = exchange.job
        with seeded(me.task.seed, "leak", "stand-in", info.index, job):
            other.begin("train", job, job + 1, max(job + 1, len(kept)))
            ended.plan.method.client(other, exchange.message.copy().to(me.task.device))
    return other.model.eval()


RIDGE_STRENGTHS = tuple(10.0**power for power in range(-4, 6))
"""Candidate ridge penalties."""


@dataclass(frozen=True)
class Decoder:
    """Linear decoder: the mean picture of the class plus a linear map of the vector's difference from its class mean.

    The picture of a mean of vectors is the mean of their pictures, so class means are decoded like samples.
    """

    vectors: Tensor
    pictures: Tensor
    spread: Tensor
    furthest: float
    weights: Tensor
    shape: tuple[int, ...]

    def __call__(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Decode a picture for each vector of a labelled class.

        Differences are limited to the largest one among the samples of the fit, since vectors of another network or
        with noise lie further from their class.
        """
        centred = (vectors.double().nan_to_num() - self.vectors[labels]) / self.spread
        length = centred.norm(dim=1, keepdim=True)
        centred = centred * (self.furthest / length.clamp(min=1e-12)).clamp(max=1)
        flat: Tensor = (self.pictures[labels] + centred @ self.weights).clamp(0, 1)
        return flat.view(-1, *self.shape)

    def mean_pictures(self, labels: Tensor) -> Tensor:
        """Return the mean picture of each class: the reconstruction without any vector."""
        return self.pictures[labels].view(-1, *self.shape)


def fit_decoder(vectors: Tensor, pictures: Tensor, labels: Tensor, classes: int) -> Decoder:
    """Fit a ridge regression of pictures on vectors within classes; cross-validation selects the penalty."""
    x, y = vectors.double(), pictures.flatten(1).double()
    mean_x, mean_y = (_class_means(rows, labels, classes) for rows in (x, y))
    features, targets = x - mean_x[labels], y - mean_y[labels]
    # A lower bound keeps features of little variance from dominating the scaled ones.
    deviation = features.square().mean(0).sqrt()
    spread = deviation.clamp(min=max(0.1 * float(deviation.square().mean().sqrt()), 1e-12))
    features = features / spread
    left, values, right = torch.linalg.svd(features, full_matrices=False)
    present = int((torch.bincount(labels) > 0).sum())
    ridge = min(RIDGE_STRENGTHS, key=lambda each: _expected_error(left, values, targets, each, present))
    weights = right.T @ ((values / (values.square() + ridge))[:, None] * (left.T @ targets))
    furthest = float(features.norm(dim=1).max())
    return Decoder(mean_x, mean_y, spread, furthest, weights, tuple(pictures.shape[1:]))


def _class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean of each class; of all samples for a class without samples."""
    member = one_hot(labels, classes).to(rows)
    count = member.sum(0)[:, None]
    return torch.where(count > 0, member.T @ rows / count.clamp(min=1), rows.mean(0))


def _expected_error(left: Tensor, values: Tensor, targets: Tensor, ridge: float, means: int) -> float:
    """Estimate the mean squared error on other samples by generalised cross-validation.

    `means` of the fitted parameters are class means. Infinite where no degrees of freedom are left.
    """
    shrinkage = values.square() / (values.square() + ridge)
    free = 1 - (float(shrinkage.sum()) + means) / len(targets)
    if free <= 1e-6:
        return float("inf")
    errors = targets - left @ (shrinkage[:, None] * (left.T @ targets))
    return float(errors.square().mean()) / free**2


WINDOW = 7
"""Side of the windows of SSIM, at most that of the picture."""
SSIM_C1, SSIM_C2 = 0.01**2, 0.03**2
"""C₁ and C₂ of Wang et al. (2004), for values in [0, 1]."""
MIN_ERROR = 1e-6
"""Lower bound of the mean squared error: PSNR is at most 60 dB."""


def is_image_shape(shape: tuple[int, ...], vocabulary: int | None) -> bool:
    """Return whether inputs of this shape are pictures with one or three channels."""
    return vocabulary is None and len(shape) == 3 and shape[0] in (1, 3) and min(shape[1:]) > 1


@dataclass(frozen=True)
class IntensityRange:
    """Range of model inputs per channel: the lowest and highest values of some samples."""

    low: Tensor
    span: Tensor

    @classmethod
    def of(cls, x: Tensor) -> IntensityRange:
        """Measure the range of samples `[n, channels, height, width]`."""
        low, high = x.amin((0, 2, 3), keepdim=True), x.amax((0, 2, 3), keepdim=True)
        return cls(low, torch.where(high > low, high - low, torch.ones_like(low)))

    def pictures(self, x: Tensor) -> Tensor:
        """Scale inputs to [0, 1]."""
        return ((x - self.low) / self.span).clamp(0, 1)


def psnr(first: Tensor, second: Tensor) -> float:
    """Return the peak signal-to-noise ratio in decibels, −10 log₁₀ of the mean squared difference."""
    error = (first - second).double().square().mean().clamp(min=MIN_ERROR)
    return float(-10 * torch.log10(error))


def ssim(first: Tensor, second: Tensor) -> float:
    """Return the structural similarity, a mean over windows and channels: 1 for equal pictures."""
    x, y = (picture.double()[None] for picture in (first, second))
    side = min(WINDOW, *x.shape[2:])

    def mean(values: Tensor) -> Tensor:
        return avg_pool2d(values, side, stride=1)

    mx, my = mean(x), mean(y)
    var_x, var_y, covariance = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    numerator = (2 * mx * my + SSIM_C1) * (2 * covariance + SSIM_C2)
    return float((numerator / ((mx * mx + my * my + SSIM_C1) * (var_x + var_y + SSIM_C2))).mean())


CLASSES_PER_SIZE = 3
"""Number of classes of each size that are shown: the first ones by client and class."""
WITH_EXTRACTOR, WITHOUT_EXTRACTOR = "with the extractor", "without it"
NONE = "No pictures were made"
SCORES: dict[str, Callable[[Tensor, Tensor], float]] = {"PSNR in dB": psnr, "SSIM": ssim}


@dataclass(frozen=True)
class Case:
    """One class of one client: its pictures, those of other clients, the class mean, and the reconstructions."""

    client: int
    label: int
    own: Tensor
    others: Tensor
    class_mean: Tensor
    reconstructed: Mapping[str, Tensor]


def reconstruct_pictures(ended: RestoredRun, by_client: Mapping[int, Sequence[KeptAnswer]]) -> LeakFindings:
    """Reconstruct pictures from each client's last answer and score them; or say why that is not possible."""
    federation = ended.plan.federation
    if not is_image_shape(federation.task.input_shape, federation.vocabulary):
        shape = "×".join(map(str, federation.task.input_shape))
        return LeakFindings(skipped=[f"{NONE}: the samples, of shape {shape}, are not images."])
    cases, ways = list[Case](), dict[str, str]()
    for client, answers in by_client.items():
        me, auxiliary = ended.client(client), auxiliary_samples(ended, client)
        if (target := find_inversion_target(me, answers[-1])) is None:
            return LeakFindings(skipped=[f"{NONE}: nothing that was sent is a vector of one class."])
        if len(auxiliary) <= federation.task.num_classes:
            return LeakFindings(skipped=[f"{NONE}: other clients have too few test samples to learn from."])
        extractors = {WITH_EXTRACTOR: target.function}
        ways[WITH_EXTRACTOR] = (
            f"{target.what}, through {'the weights it sent' if target.sent else 'its model'}"
        )
        if not target.sent and (other := train_surrogate(ended, me, answers, auxiliary)) is not None:
            extractors[WITHOUT_EXTRACTOR] = target.of(other)
            ways[WITHOUT_EXTRACTOR] = f"{target.what}, through a model of the server's own"
        cases += _cases(ended, me, target, auxiliary, extractors)
    scores = [
        leak
        for attack_name, description in ways.items()
        for leak in score_pictures(cases, attack_name, description)
    ]
    return LeakFindings(scores, [_shown(case) for case in _first(cases)])


def _cases(
    ended: RestoredRun,
    me: Client,
    target: InversionTarget,
    auxiliary: Samples,
    extractors: Mapping[str, Function],
) -> Iterator[Case]:
    """Yield every class that the client holds and of which a vector was sent."""
    x, y = auxiliary.take(slice(None))
    scale, labels = IntensityRange.of(x), target.labels.cpu()
    reconstructed, class_means = dict[str, Tensor](), torch.empty(0)
    for name, function in extractors.items():
        vectors = torch.cat([outputs.cpu() for outputs, _ in me.outputs(function, auxiliary)])
        decoder = fit_decoder(vectors, scale.pictures(x), y, me.task.num_classes)
        reconstructed[name], class_means = decoder(target.rows.cpu(), labels), decoder.mean_pictures(labels)
    for place, label in enumerate(labels.tolist()):
        own, other_pictures = _own_and_others(ended, me.info.index, label, scale)
        if len(own):
            pictures = {name: each[place] for name, each in reconstructed.items()}
            yield Case(me.info.index, label, own, other_pictures, class_means[place], pictures)


def _own_and_others(
    ended: RestoredRun, client: int, label: int, scale: IntensityRange
) -> tuple[Tensor, Tensor]:
    """Return training samples of a class: the client's, and at most as many of other clients, drawn at random."""
    members = ended.plan.federation.members
    pictures: list[Tensor] = []
    for member in (members[client], *(other for index, other in enumerate(members) if index != client)):
        rows = torch.nonzero(member.train.labels == label).flatten()
        pictures.append(scale.pictures(member.train.take(rows)[0]))
    own, other_pictures = pictures[0], torch.cat(pictures[1:]) if pictures[1:] else pictures[0][:0]
    draw = generator(ended.plan.federation.task.seed, "leak", "others", client, label)
    return own, other_pictures[torch.randperm(len(other_pictures), generator=draw)[: len(own)]]


def score_pictures(cases: Sequence[Case], extractor: str, way: str) -> Iterator[LeakScore]:
    """Score reconstructions against the client's mean picture, by class size, and against its nearest sample.

    The chance levels are those of the class's mean picture, and of as many samples of other clients.
    """
    for size in SIZES:
        sized = [
            case for case in cases if size_range(len(case.own)) == size and extractor in case.reconstructed
        ]
        for name, score in SCORES.items():
            pairs = [
                [
                    score(picture, case.own.mean(0))
                    for picture in (case.reconstructed[extractor], case.class_mean)
                ]
                for case in sized
            ]
            if pairs:
                text = f"inverted {extractor}, classes of {size_text(size)}: {name}"
                yield LeakScore(text, *_means(pairs), way, len(pairs))
    several = [
        case for case in cases if min(len(case.own), len(case.others)) > 1 and extractor in case.reconstructed
    ]
    for name, score in SCORES.items():
        pairs = [
            [_nearest(case, extractor, score, samples) for samples in (case.own, case.others)]
            for case in several
        ]
        if pairs:
            text = f"inverted {extractor}, nearest of two or more samples: {name}"
            yield LeakScore(text, *_means(pairs), way, len(pairs))


def _means(pairs: list[list[float]]) -> tuple[float, float]:
    score, chance = np.mean(pairs, axis=0).tolist()
    return score, chance


def _nearest(case: Case, extractor: str, score: Callable[[Tensor, Tensor], float], samples: Tensor) -> float:
    """Return the best score among as many samples as both sides have."""
    count = min(len(case.own), len(case.others))
    return max(score(case.reconstructed[extractor], sample) for sample in samples[:count])


def _first(cases: Sequence[Case]) -> Iterator[Case]:
    for size in SIZES:
        yield from [case for case in cases if size_range(len(case.own)) == size][:CLASSES_PER_SIZE]


def _shown(case: Case) -> Reconstruction:
    nearest = max(case.own, key=lambda sample: psnr(case.reconstructed[WITH_EXTRACTOR], sample))
    pictures = {"its mean picture": case.own.mean(0), "its nearest sample": nearest, **case.reconstructed}
    pictures["usual for the class"] = case.class_mean  # the keys are stored with results
    return Reconstruction(case.client, case.label, len(case.own), pictures)
