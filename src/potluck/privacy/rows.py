"""Privacy of single training rows: DP-SGD for local training, and class means of clipped vectors with noise.

Abadi et al. 2016. A step takes every row with the same chance (Poisson sampling), clips each row's own gradient, and
adds noise to their sum. A class mean is a noisy sum over a noisy count; classes with too small a noisy count are left
out, so that not even a label tells of a single row.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import has_batch_norm
from potluck.core.samples import Samples
from potluck.core.training import FitRequest, FitResult, LossParts
from potluck.privacy.messages import secret_normal, seeded_normal
from potluck.privacy.settings import Privacy

ROWS_PER_CHUNK = 32
"""Rows whose gradients are held in memory at once."""
MIN_COUNT_DEVIATIONS = 2.0
"""A class is answered for if its noisy count is above so many standard deviations of the noise, and one row more."""


def steps_per_job(rows: int, batch_size: int, epochs: int) -> tuple[int, float]:
    """Return the steps of a training job, and the probability of a row to be in a step."""
    size = min(batch_size or rows, rows)
    return epochs * math.ceil(rows / size), size / rows


class RecordPrivacy:
    """Protects the rows of a client during one training job."""

    def __init__(self, settings: Privacy, me: Client, fits: int = 1, sums: int = 1) -> None:
        self.settings, self.me = settings, me
        self._left = {"training": fits, "class means": sums}
        secret = not settings.reproducible
        self._normal = secret_normal if secret else partial(seeded_normal, me.rng("privacy"))
        self._uniform = _secret_uniform if secret else partial(_seeded_uniform, me.rng("poisson"))

    def train(self, request: FitRequest) -> FitResult:
        """Train as `Client.fit` requests, by DP-SGD; the loss is not reported."""
        me, model = self.me, request.model
        self._spend("training")
        if any(option is not None for option in (request.samples, request.epochs, request.batch_size)):
            raise PotluckError(
                "privacy.unit = 'record' trains on a client's own rows, in epochs and batches as set."
            )
        if has_batch_norm(model):
            raise PotluckError(
                f"The model of {me.info.name!r} has batch normalisation, which mixes rows, and privacy.unit = 'record' "
                "cannot separate their effects; choose models without."
            )
        steps, chance = steps_per_job(len(me.train), me.training.batch_size, me.training.epochs)
        optimizer, expected = me.optimizer(model, name=request.name), chance * len(me.train)
        loss = _RowLoss(request)
        learned = {name: tensor for name, tensor in loss.named_parameters() if tensor.requires_grad}
        gradients = _row_gradients(loss)
        augment = me.rng("augment") if me.augment else None
        with me.training_mode(model):
            for _ in range(steps):
                rows = torch.nonzero(self._uniform(len(me.train)) < chance).flatten()
                x, y = me.prepare(*me.train.take(rows))
                if me.augment is not None and augment is not None and len(y):
                    x = me.augment(x, augment)
                total = {name: torch.zeros_like(value) for name, value in learned.items()}
                for start in range(0, len(y), ROWS_PER_CHUNK):
                    self._add(
                        total,
                        gradients(
                            learned, x[start : start + ROWS_PER_CHUNK], y[start : start + ROWS_PER_CHUNK]
                        ),
                    )
                for name, value in learned.items():
                    value.grad = (total[name] + self._noise(value, self.settings.clip)) / expected
                if request.adjust is not None:
                    request.adjust()  # what is done to gradients that have noise needs none of its own
                me.apply(optimizer)
                if request.after is not None:
                    request.after()
                me.trained_samples += round(expected)  # the real number of rows would reveal the sampling
        return FitResult(steps, float("nan"))

    def _spend(self, what: str) -> None:
        """Count one use of the rows; raise if the accounting does not cover it."""
        self._left[what] -= 1
        if self._left[what] < 0:
            raise PotluckError(
                f"privacy.unit = 'record' has no place in its accounts for so many rounds of {what} in one job: a "
                "method declares how many (supports.fits), and class means go once with their labels."
            )

    def _add(self, total: dict[str, Tensor], gradients: dict[str, Tensor]) -> None:
        """Add the rows' gradients, each as one vector no longer than `clip`; one that is not finite is left out."""
        squares = [gradient.double().flatten(1).square().sum(dim=1) for gradient in gradients.values()]
        length = torch.stack(squares).sum(dim=0).sqrt()
        scale = torch.where(
            length.isfinite(), (self.settings.clip / length.clamp(min=1e-12)).clamp(max=1), 0.0
        )
        for name, gradient in gradients.items():
            shape = (-1, *[1] * (gradient.dim() - 1))
            total[name] += (scale.to(gradient.dtype).view(shape) * torch.nan_to_num(gradient)).sum(dim=0)

    def _noise(self, like: Tensor, clip: float) -> Tensor:
        noise = self._normal(like.shape).to(device=like.device, dtype=like.dtype)
        return clip * self.settings.noise_multiplier * noise

    def class_means(
        self, function: Callable[[Tensor], Tensor], samples: Samples | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return class means as noisy sums over noisy counts, of the classes that are surely present."""
        me, settings = self.me, self.settings
        self._spend("class means")
        me.model.eval()
        total = count = torch.zeros(())
        for vectors, y in me.outputs(function, samples):
            if not total.dim():
                total = vectors.new_zeros(me.task.num_classes, vectors.shape[1])
                count = vectors.new_zeros(me.task.num_classes)
            length = vectors.norm(dim=1, keepdim=True)
            finite = torch.where(length.isfinite(), vectors, torch.zeros_like(vectors))
            total.index_add_(0, y, finite * (settings.vector_clip / length.clamp(min=1e-12)).clamp(max=1))
            count += torch.bincount(y, minlength=me.task.num_classes).to(count.dtype)
        total = total + self._noise(total, settings.vector_clip)
        count = count + self._noise(count, 1.0)
        labels = torch.nonzero(count > 1 + MIN_COUNT_DEVIATIONS * settings.noise_multiplier).flatten()
        return total[labels] / count[labels][:, None], labels, count[labels].round().long()


class _RowLoss(nn.Module):
    """The loss of a single row as a function of the model's parameters and of those that are trained along with it."""

    def __init__(self, request: FitRequest) -> None:
        super().__init__()
        self.also = nn.ParameterList(request.also)
        self.model, self.request = request.model, request

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the loss of one row."""
        loss = self.request.loss(self.model, x[None], y[None], *self.request.loss_args, *self.also)
        return LossParts.of(loss).objective


def _row_gradients(loss: _RowLoss) -> Callable[..., dict[str, Tensor]]:
    """Return `f(parameters, x, y)`: the gradient of every row by itself, of all rows at once."""

    def value(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        row_loss: Tensor = functional_call(loss, parameters, (x, y))
        return row_loss

    rows: Callable[..., dict[str, Tensor]] = vmap(grad(value), in_dims=(None, 0, 0), randomness="different")
    return lambda parameters, x, y: rows({name: tensor.detach() for name, tensor in parameters.items()}, x, y)


def _seeded_uniform(rng: torch.Generator, count: int) -> Tensor:
    return torch.rand(count, generator=rng, dtype=torch.float64)


def _secret_uniform(count: int) -> Tensor:
    bits: Any = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    return torch.from_numpy(bits * 2.0**-53)
