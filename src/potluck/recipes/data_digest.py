"""Which data a result was measured on, as a checksum of every sample and label."""

from __future__ import annotations

import functools
import hashlib

from torch import Tensor

from potluck.experiment import Experiment
from potluck.experiment.sections import DataSettings
from potluck.federation.population import experiment_data


def data_digest(experiment: Experiment) -> str:
    """Return the name of the data set and a SHA-256 of its rows as they were read, before any normalisation."""
    asked = experiment.data
    same = {name: getattr(asked, name) for name in ("name", "root", "label", "groups", "text", "image_size")}
    return _digest(DataSettings(**same))


@functools.cache
def _digest(settings: DataSettings) -> str:
    data = experiment_data(Experiment(data=settings))
    digest = hashlib.sha256()
    for part in (data.x, data.y, data.test_x, data.test_y):
        if part is not None and part.numel():
            digest.update(f"{part.dtype} {tuple(part.shape)}\n".encode())
            digest.update(_bytes(part))
    return f"{settings.name} sha256:{digest.hexdigest()[:16]}"


def _bytes(tensor: Tensor) -> memoryview:
    return memoryview(tensor.contiguous().numpy().data).cast("B")
