"""Compare learned representations: CKA and t-SNE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError

if TYPE_CHECKING:
    from torch import Tensor


Features = Union[ArrayLike, "Tensor"]


def linear_cka(a: Features, b: Features) -> float:
    """Compute ‖BᵀA‖² ÷ (‖AᵀA‖ ‖BᵀB‖) of column-centred features [samples, …] of the same inputs, in [0, 1].

    It is invariant to rotation, reflection and scaling of the features, and nan for features that are the same for
    every input.
    """
    first, second = _gram(a), _gram(b)
    if len(first) != len(second):
        raise PotluckError(
            f"CKA needs features of the same inputs, not of {len(first)} and {len(second)} samples."
        )
    return _alignment(first, second)


def cka_matrix(features: Sequence[Features]) -> NDArray[np.float64]:
    """Return the similarity of every pair of clients, from their features of common inputs."""
    grams = [_gram(each) for each in features]
    if len({len(gram) for gram in grams}) > 1:
        raise PotluckError(
            f"CKA needs features of the same inputs, not of {[len(gram) for gram in grams]} samples."
        )
    matrix = np.empty((len(grams), len(grams)))
    for row, first in enumerate(grams):
        for column in range(row, len(grams)):
            matrix[row, column] = matrix[column, row] = _alignment(first, grams[column])
    return matrix


def mean_cka(features: Sequence[Features]) -> float:
    """Return the mean similarity over pairs of different clients."""
    if len(features) < 2:
        raise PotluckError(f"A mean CKA needs the features of at least 2 clients, not of {len(features)}.")
    matrix = cka_matrix(features)
    return float(matrix[np.triu_indices(len(matrix), k=1)].mean())


def as_matrix(features: Features) -> NDArray[np.float64]:
    """Convert features to an array [samples, dimensions]; feature maps and tokens are flattened."""
    detach = getattr(features, "detach", None)
    plain = detach().cpu().numpy() if detach is not None else features
    array = np.asarray(plain, dtype=np.float64)
    if array.ndim < 2:
        raise PotluckError(f"Features need at least two dimensions [samples, …], not shape {array.shape}.")
    return array.reshape(len(array), -1)


def _gram(features: Features) -> NDArray[np.float64]:
    """Return products of centred features [samples, samples]."""
    matrix = as_matrix(features)
    centred = matrix - matrix.mean(axis=0, keepdims=True)
    return np.asarray(centred @ centred.T)


def _alignment(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return min(float((first * second).sum()) / norms, 1.0) if norms > 0 else math.nan


_MIN_POINTS = 4


@dataclass(frozen=True)
class Embedding:
    """Points in the plane with the set and the class of each; `sets` are the names in order."""

    points: NDArray[np.float64]  # [n, 2]
    sets: tuple[str, ...]
    set_of: NDArray[np.int64]  # [n], an index into `sets`
    labels: NDArray[np.int64] | None  # [n], the class of each point


def tsne(
    features: Mapping[str, Features],
    labels: Mapping[str, Sequence[int]] | None = None,
    perplexity: float | None = None,
    seed: int = 0,
) -> Embedding:
    """Embed all sets together in the plane by t-SNE.

    `perplexity` is roughly the number of neighbours of a point: 30, or fewer for few points. scikit-learn's t-SNE
    starts from the first two principal components, on one thread: the same input and seed give the same layout.
    """
    sets = {name: as_matrix(values) for name, values in features.items()}
    dimensions = {name: matrix.shape[1] for name, matrix in sets.items()}
    if len(set(dimensions.values())) > 1:
        raise PotluckError(f"t-SNE needs features of one size, not {dimensions}: project them first.")
    count = sum(map(len, sets.values()))
    if count < _MIN_POINTS:
        raise PotluckError(f"t-SNE needs at least {_MIN_POINTS} points, not {count}.")
    stacked = np.concatenate(list(sets.values()))
    set_of = np.repeat(np.arange(len(sets)), [len(matrix) for matrix in sets.values()])
    classes = None if labels is None else _classes(sets, labels)
    points = _embed(stacked, perplexity or min(30.0, (count - 1) / 3), seed)
    return Embedding(points, tuple(sets), set_of, classes)


def _classes(
    sets: Mapping[str, NDArray[np.float64]], labels: Mapping[str, Sequence[int]]
) -> NDArray[np.int64]:
    for name, matrix in sets.items():
        if len(labels.get(name, ())) != len(matrix):
            raise PotluckError(
                f"labels of {name!r} are {len(labels.get(name, ()))} for {len(matrix)} points: give one each."
            )
    return np.concatenate([np.asarray(labels[name], dtype=np.int64) for name in sets])


def _embed(matrix: NDArray[np.float64], perplexity: float, seed: int) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = "pca" if matrix.shape[1] >= 2 else "random"
    model = TSNE(n_components=2, perplexity=perplexity, init=start, random_state=seed)
    with threadpool_limits(1):  # the order of sums over threads varies
        return np.asarray(model.fit_transform(matrix), dtype=np.float64)
