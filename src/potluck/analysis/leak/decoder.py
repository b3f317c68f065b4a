"""From class vectors back to pictures: a decoder learned from samples whose vectors and pictures are both known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

STRENGTHS = tuple(10.0**power for power in range(-4, 6))
"""What is tried for the ridge."""


@dataclass(frozen=True)
class Decoder:
    """The mean picture of the class, moved by how the vector differs from the class's mean vector.

    Linear, so the picture of a mean of vectors is the mean of their pictures: class means are decoded as samples are.
    """

    vectors: Tensor
    pictures: Tensor
    spread: Tensor
    furthest: float
    weights: Tensor
    shape: tuple[int, ...]

    def __call__(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """A picture for each vector of a known class.

        No vector is taken to lie further from its class than the samples do that were learned from: of a vector of
        another network, or one with noise, only as much is believed.
        """
        apart = (vectors.double().nan_to_num() - self.vectors[labels]) / self.spread
        length = apart.norm(dim=1, keepdim=True)
        apart = apart * (self.furthest / length.clamp(min=1e-12)).clamp(max=1)
        flat: Tensor = (self.pictures[labels] + apart @ self.weights).clamp(0, 1)
        return flat.view(-1, *self.shape)

    def usual(self, labels: Tensor) -> Tensor:
        """The mean picture of each class: what is known without any vector."""
        return self.pictures[labels].view(-1, *self.shape)


def learn_decoder(vectors: Tensor, pictures: Tensor, labels: Tensor, classes: int) -> Decoder:
    """Ridge regression of pictures on vectors within classes, as strong as suits samples that were not seen."""
    x, y = vectors.double(), pictures.flatten(1).double()
    mean_x, mean_y = (_class_means(rows, labels, classes) for rows in (x, y))
    apart, moved = x - mean_x[labels], y - mean_y[labels]
    # A feature that hardly varies among the samples must not count for more than the others.
    deviation = apart.square().mean(0).sqrt()
    spread = deviation.clamp(min=max(0.1 * float(deviation.square().mean().sqrt()), 1e-12))
    apart = apart / spread
    left, values, right = torch.linalg.svd(apart, full_matrices=False)
    present = int((torch.bincount(labels) > 0).sum())
    ridge = min(STRENGTHS, key=lambda each: _expected_error(left, values, moved, each, present))
    weights = right.T @ ((values / (values.square() + ridge))[:, None] * (left.T @ moved))
    furthest = float(apart.norm(dim=1).max())
    return Decoder(mean_x, mean_y, spread, furthest, weights, tuple(pictures.shape[1:]))


def _class_means(rows: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Of each class; of all samples where there is none of a class."""
    member = one_hot(labels, classes).to(rows)
    count = member.sum(0)[:, None]
    return torch.where(count > 0, member.T @ rows / count.clamp(min=1), rows.mean(0))


def _expected_error(left: Tensor, values: Tensor, moved: Tensor, ridge: float, means: int) -> float:
    """The mean squared error to expect on other samples: generalised cross-validation, which counts what was fitted.

    `means` of it are class means. Where as much was fitted as there are samples, nothing is left to judge by.
    """
    kept = values.square() / (values.square() + ridge)
    free = 1 - (float(kept.sum()) + means) / len(moved)
    if free <= 1e-6:
        return float("inf")
    errors = moved - left @ (kept[:, None] * (left.T @ moved))
    return float(errors.square().mean()) / free**2
