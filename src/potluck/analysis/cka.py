"""Linear centred kernel alignment: how alike two networks see the same inputs, whatever their widths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potluck.core.errors import PotluckError

if TYPE_CHECKING:
    from torch import Tensor

Features = Union[ArrayLike, "Tensor"]


def linear_cka(a: Features, b: Features) -> float:
    """‖BᵀA‖² ÷ (‖AᵀA‖ ‖BᵀB‖) of column-centred features [samples, …] of the same inputs, in [0, 1].

    It does not change when features are rotated, mirrored or scaled as a whole. Features that are the same
    for every input have no direction to compare: the result is nan.
    """
    first, second = _gram(a), _gram(b)
    if len(first) != len(second):
        raise PotluckError(
            f"CKA needs features of the same inputs, not of {len(first)} and {len(second)} samples."
        )
    return _alignment(first, second)


def cka_matrix(features: Sequence[Features]) -> NDArray[np.float64]:
    """The similarity of every pair of clients, from their features of common inputs."""
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
    """The mean similarity over pairs of different clients."""
    if len(features) < 2:
        raise PotluckError(f"A mean CKA needs the features of at least 2 clients, not of {len(features)}.")
    matrix = cka_matrix(features)
    return float(matrix[np.triu_indices(len(matrix), k=1)].mean())


def as_matrix(features: Features) -> NDArray[np.float64]:
    """Features as plain numbers [samples, dimensions]; maps and tokens are flattened."""
    detach = getattr(features, "detach", None)
    plain = detach().cpu().numpy() if detach is not None else features
    array = np.asarray(plain, dtype=np.float64)
    if array.ndim < 2:
        raise PotluckError(
            f"Features need a row for every sample; shape {array.shape} has no second dimension."
        )
    return array.reshape(len(array), -1)


def _gram(features: Features) -> NDArray[np.float64]:
    """Samples × samples products of centred features: small, since inputs are few and dimensions many."""
    matrix = as_matrix(features)
    centred = matrix - matrix.mean(axis=0, keepdims=True)
    return np.asarray(centred @ centred.T)


def _alignment(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    norms = float(np.linalg.norm(first) * np.linalg.norm(second))
    return min(float((first * second).sum()) / norms, 1.0) if norms > 0 else math.nan
