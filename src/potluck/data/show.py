"""How samples spread over clients and classes: counts, a table of sizes, the papers' bubble plot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def counts(labels: ArrayLike, parts: Sequence[NDArray[np.int64]], num_classes: int) -> NDArray[np.int64]:
    """The number of rows per client and class, `[clients, classes]`."""
    values = np.asarray(labels)
    rows = [np.bincount(values[part], minlength=num_classes) for part in parts]
    return np.stack(rows).astype(np.int64)
