"""A whole data set as plain tensors: raw rows, labels, and how to turn raw rows into model input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from potluck.core.errors import PotluckError, unknown
from potluck.core.random import derive_seed
from potluck.core.samples import Samples, Transform
from potluck.data.raw import RawInput


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Labelled rows, kept raw (uint8 pixels stay uint8) so that many clients can share one array.

    `transform` turns a batch of raw rows into model input of shape `[batch, *input_shape]`. `test_x` and
    `test_y` are the publisher's test part where there is one. `groups` says who produced each training row
    (a person, a writer); `test_groups` the same of the test part. For text, rows are word numbers below
    `vocabulary`, padded with 0.
    """

    name: str
    x: Tensor
    y: Tensor
    num_classes: int
    input_shape: tuple[int, ...]
    _: KW_ONLY
    test_x: Tensor | None = None
    test_y: Tensor | None = None
    groups: Tensor | None = None
    test_groups: Tensor | None = None
    transform: Transform | None = None
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None
    raw: RawInput | None = None
    """How a raw image, text or table row becomes a row of `x`; None where rows come as numbers."""
    group_names: tuple[str, ...] = ()
    """What the groups are called, where each should be a client of that name: sites, or values of a column."""

    def __len__(self) -> int:
        """Return the number of training rows."""
        return len(self.y)

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and standard deviation that model inputs were normalised by; None where it was not per channel."""
        transform = self.transform
        while isinstance(transform, Cast):
            transform = transform.first
        if transform is None:
            return (0.0,), (1.0,)
        return (transform.mean, transform.std) if isinstance(transform, Normalise) else None

    @property
    def train(self) -> Samples:
        """All training rows as a labelled view."""
        return self.view()

    @property
    def test(self) -> Samples | None:
        """The publisher's test part as a labelled view, or nothing."""
        if self.test_x is None or self.test_y is None:
            return None
        return Samples(self.test_x, self.test_y, None, self.transform)

    def view(self, index: Tensor | np.ndarray | None = None) -> Samples:
        """Return some training rows (all of them without `index`) as a labelled view that copies nothing."""
        rows = None if index is None else torch.as_tensor(index, dtype=torch.int64)
        return Samples(self.x, self.y, rows, self.transform)

    def subset(self, rows: Tensor | np.ndarray | Sequence[int]) -> Data:
        """Return the same data with only these training rows, for one client, say; the test part stays."""
        index = torch.as_tensor(rows, dtype=torch.int64)
        return replace(self, x=self.x[index], y=self.y[index], groups=_rows(self.groups, index))

    def test_view(self, index: Tensor | np.ndarray) -> Samples:
        """Return some rows of the publisher's test part as a labelled view."""
        if self.test is None:
            raise PotluckError(
                f"Data {self.name!r} has no test part of its own; split the clients' rows instead."
            )
        return self.test.select(torch.as_tensor(index, dtype=torch.int64))

    def to_dtype(self, dtype: torch.dtype) -> Data:
        """Return the same data whose model input comes as `dtype` (integers, such as tokens, stay integers)."""
        return replace(self, transform=in_dtype(self.transform, dtype))

    def to_device(self, device: torch.device) -> Data:
        """Return the same data with its rows on `device`, brought there once; labels stay where counts are taken."""
        test_x = None if self.test_x is None else self.test_x.to(device)
        return replace(self, x=self.x.to(device), test_x=test_x)

    def normalised(self, how: str) -> Data:
        """Return the same rows with another normalisation, for papers that differ in it.

        `"unit"` scales to [0, 1], `"half"` to [-1, 1], `"mean-image"` to [0, 1] minus the mean training row,
        `"none"` changes nothing and gives floats.
        """
        if self.vocabulary is not None:
            raise PotluckError(
                f"data.normalise = {how!r} has no effect on texts ({self.name!r}); leave it out."
            )
        dtype = getattr(self.transform, "dtype", torch.float32)
        scale = getattr(self.transform, "scale", 1 / 255 if self.x.dtype == torch.uint8 else 1.0)
        if how == "mean-image":
            mean = self.x.mean(dim=0, dtype=torch.float32) * scale
            return replace(self, transform=MeanImage(mean, scale, dtype))
        choices = {
            "unit": Normalise(scale=scale, dtype=dtype),
            "half": Normalise((0.5,), (0.5,), scale, dtype),
            "none": Normalise(scale=1.0, dtype=dtype),
        }
        if how not in choices:
            raise unknown("normalisation", how, [*choices, "mean-image"])
        return replace(self, transform=choices[how])

    def merged(self) -> Data:
        """Training and test part pooled into one training part, for experiments that split per client."""
        if self.test_x is None or self.test_y is None:
            return self
        groups = None
        if self.groups is not None and self.test_groups is not None:
            groups = join(self.groups, self.test_groups)
        return replace(
            self,
            x=join(self.x, self.test_x),
            y=join(self.y, self.test_y),
            groups=groups,
            test_x=None,
            test_y=None,
            test_groups=None,
        )

    def limit(self, n: int, seed: int = 0) -> Data:
        """Return a class-balanced sample of `n` rows in all; training and test part shrink in proportion."""
        total = len(self.y) + (0 if self.test_y is None else len(self.test_y))
        if n < 1:
            raise PotluckError(f"data.limit is {n}; it must be at least 1.")
        if n >= total:
            return self
        keep_test = 0 if self.test_y is None else round(n * len(self.test_y) / total)
        rows = balanced(self.y, n - keep_test, derive_seed("limit", seed, "train"))
        small = replace(self, x=self.x[rows], y=self.y[rows], groups=_rows(self.groups, rows))
        if self.test_x is None or self.test_y is None:
            return small
        rows = balanced(self.test_y, keep_test, derive_seed("limit", seed, "test"))
        return replace(
            small,
            test_x=self.test_x[rows],
            test_y=self.test_y[rows],
            test_groups=_rows(self.test_groups, rows),
        )

    def __repr__(self) -> str:
        parts = [f"{len(self.y):,} rows"]
        if self.test_y is not None:
            parts.append(f"{len(self.test_y):,} test rows")
        parts.append(f"{self.num_classes} classes")
        parts.append("input " + "×".join(map(str, self.input_shape)))
        if self.vocabulary is not None:
            parts.append(f"{self.vocabulary:,} words")
        if self.groups is not None:
            parts.append(f"{len(torch.unique(self.groups))} groups")
        return (
            f"Data({self.name!r}: {', '.join(parts)}, stored as {str(self.x.dtype).removeprefix('torch.')})"
        )


def join(first: Tensor, second: Tensor) -> Tensor:
    """Return rows of both, without a copy when `second` follows `first` in the same memory (as in our caches)."""
    same = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    follows = first.storage_offset() + first.numel() == second.storage_offset()
    if same and follows and first.is_contiguous() and second.is_contiguous() and first.dtype == second.dtype:
        return first.as_strided((len(first) + len(second), *first.shape[1:]), first.stride())
    return torch.cat([first, second])


def balanced(labels: Tensor, n: int, seed: int) -> Tensor:
    """`n` rows, as equal in number per class as the classes' sizes allow, in file order."""
    values = labels.numpy()
    rng = np.random.default_rng(seed)
    rank = np.empty(len(values), dtype=np.int64)  # the place of each row in its class's random order
    for label in np.unique(values):
        rows = np.flatnonzero(values == label)
        rank[rng.permutation(rows)] = np.arange(len(rows))
    # Taking first every class's first row, then every second one, … fills small classes up and stops evenly.
    order = np.lexsort((rng.permutation(len(values)), rank))
    return torch.from_numpy(np.sort(order[:n]))


def _rows(values: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if values is None else values[rows]


# -- from raw rows to model input: uint8 pixels to normalised floats, in any float type ------------------------


@dataclass(frozen=True)
class Normalise:
    """`(x * scale - mean) / std` per channel (dimension 1), computed in `dtype`.

    One multiplication and one addition: `gain` and `offset` are worked out in double precision first,
    so that float32 and float64 experiments see the same numbers up to rounding.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1 / 255
    dtype: torch.dtype = torch.float32
    gain: Tensor = field(init=False, repr=False, compare=False)
    offset: Tensor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        std, mean = torch.tensor(self.std, dtype=torch.float64), torch.tensor(self.mean, dtype=torch.float64)
        object.__setattr__(self, "gain", (self.scale / std).to(self.dtype))
        object.__setattr__(self, "offset", (-mean / std).to(self.dtype))

    def __call__(self, x: Tensor) -> Tensor:
        shape = (-1,) + (1,) * (x.dim() - 2)
        gain, offset = (part.to(x.device).view(shape) for part in (self.gain, self.offset))
        values = x.to(self.dtype) if x.is_floating_point() else x  # bytes are converted by the product itself
        return torch.mul(values, gain).add_(offset)

    def to_dtype(self, dtype: torch.dtype) -> Normalise:
        """Return the same normalisation in another float type."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class MeanImage:
    """`x * scale` minus a mean row (FedHe's preprocessing: pixels / 255 minus the mean image)."""

    mean: Tensor
    scale: float = 1 / 255
    dtype: torch.dtype = torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).mul(self.scale).sub_(self.mean.to(x.device, self.dtype))

    def to_dtype(self, dtype: torch.dtype) -> MeanImage:
        """Return the same subtraction in another float type."""
        return replace(self, dtype=dtype)


@dataclass(frozen=True)
class Cast:
    """Run `first` (when there is one), then bring floats to `dtype`; tokens stay integers."""

    dtype: torch.dtype
    first: Transform | None = None

    def __call__(self, x: Tensor) -> Tensor:
        x = x if self.first is None else self.first(x)
        return x.to(self.dtype) if x.is_floating_point() else x

    def to_dtype(self, dtype: torch.dtype) -> Cast:
        """Return the same steps ending in another float type."""
        return Cast(dtype, self.first)


def in_dtype(transform: Transform | None, dtype: torch.dtype) -> Transform:
    """`transform` made to give `dtype`: by asking it when it knows how, by a cast after it otherwise."""
    if isinstance(transform, Normalise | MeanImage | Cast):
        return transform.to_dtype(dtype)
    return Cast(dtype, transform)


def statistics(
    x: Tensor, rows: Sequence[int] | Tensor | None = None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel of raw float rows, for a `Normalise` with `scale=1`."""
    chosen = (x if rows is None else x[rows]).to(torch.float64)
    axes = [axis for axis in range(chosen.dim()) if axis != 1]
    std = chosen.std(axes, correction=0)
    std = torch.where(std > 0, std, torch.ones_like(std))
    return tuple(chosen.mean(axes).tolist()), tuple(std.tolist())
