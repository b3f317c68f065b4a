"""Feature skew: every client sees the world its own way, whatever classes it has."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import affine_grid, conv2d, grid_sample, pad

from potluck.core.errors import PotluckError
from potluck.core.random import derive_seed
from potluck.core.samples import Samples, Transform
from potluck.data.partitions.rules import Iid, Partition, Rows


@dataclass(frozen=True)
class ClientTransform:
    """How one client's images differ: turned by degrees, blurred by so many pixels, contrast times a factor."""

    rotate: float = 0.0
    blur: float = 0.0
    contrast: float = 1.0
    before: Transform | None = None
    """What makes images of raw rows; the changes come after it."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return a batch of images `[n, channels, height, width]`, changed."""
        x = x if self.before is None else self.before(x)
        if self.rotate:
            x = rotate_images(x, self.rotate)
        if self.blur:
            x = blur_images(x, self.blur)
        if self.contrast != 1:
            mean = x.mean(dim=(1, 2, 3), keepdim=True)
            x = mean + self.contrast * (x - mean)
        return x


def rotate_images(x: Tensor, degrees: float) -> Tensor:
    """Return images turned anticlockwise about their centre; what comes in from outside repeats the border."""
    turn = math.radians(degrees)
    tall, wide = x.shape[2:]
    # In grid coordinates an image is 2 × 2 whatever its sides, so sides that differ come into the angle.
    matrix = x.new_tensor(
        [
            [math.cos(turn), -math.sin(turn) * tall / wide, 0.0],
            [math.sin(turn) * wide / tall, math.cos(turn), 0.0],
        ]
    )
    grid = affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    return grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def blur_images(x: Tensor, sigma: float) -> Tensor:
    """Return a Gaussian of `sigma` pixels, one direction after the other."""
    reach = max(1, math.ceil(2 * sigma))
    places = torch.arange(-reach, reach + 1, dtype=x.dtype, device=x.device)
    weights = torch.exp(-((places / sigma) ** 2) / 2)
    weights = weights / weights.sum()
    channels = x.shape[1]
    across = weights.expand(channels, 1, 1, -1)
    x = pad(x, (reach, reach, reach, reach), mode="replicate")
    return conv2d(conv2d(x, across, groups=channels), across.transpose(2, 3), groups=channels)


@dataclass(frozen=True)
class Skew(Partition):
    """Rows by another rule (default: equal shares), and to each client its own rotation, blur and contrast.

    Rotations are spread evenly over ±`rotate` degrees, blurs over 0 to `blur` pixels, contrasts over 1 ± `contrast`;
    which client has which is drawn from the seed, each kind apart. A client's training, validation and test images are
    all changed alike; a shared test set is not.
    """

    rotate: float = 0.0
    blur: float = 0.0
    contrast: float = 0.0
    base: Partition = field(default_factory=Iid)

    def __post_init__(self) -> None:
        if not (0 <= self.rotate <= 180 and 0 <= self.blur <= 10 and 0 <= self.contrast < 1):
            raise PotluckError(
                f"Partition '{self}' is out of bounds; rotate is at most 180 degrees, blur 10 pixels, contrast below 1."
            )
        if not (self.rotate or self.blur or self.contrast):
            raise PotluckError("Partition 'skew' changes nothing; write skew:rotate=45, skew:blur=1 or both.")

    def deal(
        self,
        labels: NDArray[np.generic],
        clients: int,
        rng: np.random.Generator,
        groups: NDArray[np.generic] | None,
    ) -> list[Rows]:
        """Return the rows of each client by the base rule."""
        return self.base.deal(labels, clients, rng, groups)

    def transform_samples(
        self, samples: list[Samples], seed: int, input_shape: tuple[int, ...]
    ) -> list[Samples]:
        """Return each client's samples with the client's own image transform."""
        client_transforms = self.client_transforms(len(samples), seed, input_shape)
        return [
            replace(client_samples, transform=replace(look, before=client_samples.transform))
            for client_samples, look in zip(samples, client_transforms, strict=True)
        ]

    def client_transforms(
        self, clients: int, seed: int, input_shape: tuple[int, ...]
    ) -> list[ClientTransform]:
        """Return every client's own way of seeing."""
        if len(input_shape) != 3:
            raise PotluckError(
                f"partition.rule = '{self}' changes images, and these data have inputs of shape {input_shape}; "
                f"choose image data, or partition.rule = '{self.base}'."
            )
        spread = np.linspace(-1, 1, clients) if clients > 1 else np.zeros(1)
        turns, blurs, contrasts = (
            spread[np.random.default_rng(derive_seed("skew", kind, seed)).permutation(clients)]
            for kind in ("rotate", "blur", "contrast")
        )
        return [
            ClientTransform(self.rotate * turn, self.blur * (1 + blur) / 2, 1 + self.contrast * contrast)
            for turn, blur, contrast in zip(turns.tolist(), blurs.tolist(), contrasts.tolist(), strict=True)
        ]

    def __str__(self) -> str:
        parts = [
            f"{name}={getattr(self, name):g}"
            for name in ("rotate", "blur", "contrast")
            if getattr(self, name)
        ]
        return "skew:" + ",".join([*parts, *([] if self.base == Iid() else [f"base={self.base}"])])
