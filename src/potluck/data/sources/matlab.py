"""MATLAB files, read with scipy."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from potluck.data.files import damaged_file


def read_mat(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the named arrays of a .mat file; a file without them, or cut short, is named as damaged."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path, variable_names=list(names))
        return {name: np.asarray(content[name]) for name in names}
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        zlib.error,
        MatReadError,
        NotImplementedError,
    ) as problem:
        raise damaged_file(path, str(problem)) from problem
    except KeyError as problem:
        raise damaged_file(path, f"it has no array {problem}") from problem
