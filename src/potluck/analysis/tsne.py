"""t-SNE: features, prototypes or guiding vectors of several clients laid out together in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from potluck.analysis.cka import Features, as_matrix
from potluck.core.errors import PotluckError

_MIN_POINTS = 4


@dataclass(frozen=True)
class Embedding:
    """Points in the plane with the set and the class each came from; `sets` are the names in order."""

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
    """Lay out all sets together, so that distances between them mean something.

    `perplexity` is about how many neighbours a point has: 30, or fewer when there are few points.
    scikit-learn's t-SNE, begun from the first two principal components, on one thread: the same input and seed give
    the same picture on any number of cores.
    """
    sets = {name: as_matrix(values) for name, values in features.items()}
    dimensions = {name: matrix.shape[1] for name, matrix in sets.items()}
    if len(set(dimensions.values())) > 1:
        raise PotluckError(f"t-SNE needs features of one size, not {dimensions}: project them first.")
    count = sum(map(len, sets.values()))
    if count < _MIN_POINTS:
        raise PotluckError(f"t-SNE needs at least {_MIN_POINTS} points, not {count}.")
    everything = np.concatenate(list(sets.values()))
    set_of = np.repeat(np.arange(len(sets)), [len(matrix) for matrix in sets.values()])
    classes = None if labels is None else _classes(sets, labels)
    points = _lay_out(everything, perplexity or min(30.0, (count - 1) / 3), seed)
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


def _lay_out(matrix: NDArray[np.float64], perplexity: float, seed: int) -> NDArray[np.float64]:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    start = "pca" if matrix.shape[1] >= 2 else "random"
    model = TSNE(n_components=2, perplexity=perplexity, init=start, random_state=seed)
    with threadpool_limits(1):  # sums over threads come in any order, and a layout magnifies the difference
        return np.asarray(model.fit_transform(matrix), dtype=np.float64)
