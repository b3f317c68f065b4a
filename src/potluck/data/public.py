"""Public data that every client may see (FedMD and similar methods): a held-out part, or another data set."""

from __future__ import annotations

import os

import numpy as np

from potluck.core.errors import PotluckError
from potluck.core.random import derive_seed
from potluck.core.samples import Samples
from potluck.data.dataset import Data
from potluck.data.load import load_data
from potluck.data.partitions.rules import Rows


def public_samples(
    data: Data, choice: float | str | Data, seed: int = 0, root: str | os.PathLike[str] | None = None
) -> tuple[Samples, Rows]:
    """Return the public samples, and the training rows of `data` that remain private (for `partition(rows=…)`).

    `choice` is a fraction such as `0.1` (that part of the training rows is held out and belongs to no client),
    or another data set or its name, whose inputs must have the same shape; then all rows stay private.
    """
    fraction = _fraction(choice)
    if fraction is not None:
        public, private = hold_out(len(data), fraction, seed)
        return data.view(public), private
    if not isinstance(choice, Data):
        choice = load_data(str(choice), root)
    _check(data, choice)
    dtype = getattr(
        data.transform, "dtype", None
    )  # each set keeps its own normalisation, in the same float type
    return (choice.to_dtype(dtype) if dtype else choice).train, np.arange(len(data))


def hold_out(n: int, fraction: float, seed: int = 0) -> tuple[Rows, Rows]:
    """Row numbers below `n`, cut at random: the public fraction, and the private rest."""
    if not 0 < fraction < 1:
        raise PotluckError(f"The public fraction is {fraction:g}; it must lie between 0 and 1.")
    order = np.random.default_rng(derive_seed("public", seed)).permutation(n)
    cut = min(max(round(fraction * n), 1), n - 1)
    return np.sort(order[:cut]), np.sort(order[cut:])


def _fraction(choice: float | str | Data) -> float | None:
    if isinstance(choice, Data):
        return None
    try:
        return float(choice)
    except ValueError:
        return None


def _check(data: Data, other: Data) -> None:
    if data.input_shape != other.input_shape:
        raise PotluckError(
            f"Public data {other.name!r} have inputs of shape {other.input_shape} but {data.name!r} has "
            f"{data.input_shape}; choose data of the same shape or a fraction."
        )
    if data.vocabulary is not None or other.vocabulary is not None:
        raise PotluckError(
            f"Public data {other.name!r} number their words unlike {data.name!r}; "
            "for text choose a fraction such as 0.1."
        )
