"""Digests of a run's files and of the population it trained."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, parse_toml, read_text
from potluck.core.samples import Samples
from potluck.experiment.differences import result_settings, settings_digest
from potluck.federation.federation import Federation
from potluck.runs.folder import DIGESTS, EXPERIMENT, METRICS, SUMMARY
from potluck.wire import as_bytes


@dataclass
class GrowingDigest:
    """The SHA-256 of a file that only grows: each byte is read once."""

    path: Path
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)

    def now(self) -> tuple[int, str]:
        """Return the number of bytes, and their digest."""
        with open(self.path, "rb") as file:
            file.seek(self.size)
            while piece := file.read(1 << 20):
                self._digest.update(piece)
                self.size += len(piece)
        return self.size, str(self._digest.hexdigest())


def file_digest(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of a file's first `size` bytes, or of all."""
    digest, remaining = hashlib.sha256(), path.stat().st_size if size is None else size
    with open(path, "rb") as file:
        while piece := file.read(min(remaining, 1 << 20)):
            digest.update(piece)
            remaining -= len(piece)
    return digest.hexdigest()


def experiment_file_digest(run: Path) -> str:
    """Return the digest of a run's experiment (see `text_digest`); empty if the folder has none.

    The number of rounds is not part of it, since a run may be extended. Only a loop that was built by hand has no
    experiment file.
    """
    return text_digest(read_text(run / EXPERIMENT)) if (run / EXPERIMENT).exists() else ""


def text_digest(text: str) -> str:
    """Return the digest of the settings in an experiment file that results depend on, except the number of rounds."""
    settings = result_settings(parse_toml(text))
    settings.pop("schedule.rounds", None)
    return settings_digest(settings)


def run_digests(run: Path) -> dict[str, str]:
    """Return the digests of a finished run's files."""
    return {
        **{name: file_digest(run / name) for name in (*METRICS, SUMMARY)},
        EXPERIMENT: experiment_file_digest(run),
    }


def check_finished(run: Path) -> None:
    """Check that the files of a finished run are unchanged; a run without digests is not checked."""
    if not (run / DIGESTS).is_file() or not (run / SUMMARY).is_file():
        return
    try:
        recorded = parse_json(read_text(run / DIGESTS))
    except (OSError, ValueError):
        recorded = None
    for name in (*METRICS, SUMMARY, EXPERIMENT):
        if not isinstance(recorded, dict) or _digest(run, name) != recorded.get(name):
            raise PotluckError(
                f"{str(run / name)!r} was changed after the run ended: restore it or repeat the run; if the change "
                f"is intended, delete {DIGESTS} there."
            )


def check_experiment(run: Path, recorded: Mapping[str, str]) -> None:
    """Check that the experiment of a run is unchanged since the run began."""
    if EXPERIMENT in recorded and _digest(run, EXPERIMENT) != recorded[EXPERIMENT]:
        raise PotluckError(
            f"{str(run / EXPERIMENT)!r} was changed after the run began: restore it, or start a new run with --out; "
            "settings that results do not depend on may be changed by options such as --engine and --workers."
        )


def _digest(run: Path, name: str) -> str | None:
    try:
        return experiment_file_digest(run) if name == EXPERIMENT else file_digest(run / name)
    except (OSError, ValueError):
        return None


SAMPLED_BYTES = 16 << 20
"""Bytes of rows that are compared, of all arrays together; smaller data are compared completely."""

MIN_SAMPLED_ROWS = 64
"""Minimum number of rows that are compared of each array."""


MAX_SAMPLED_CLIENTS = 1000
"""Clients that are compared one by one if all have parts of one data set; of more, this many evenly spaced ones."""


def fingerprint(federation: Federation) -> dict[str, str]:
    """Return digests of the clients (names, rows, labels) and of the models (initial weights of each architecture)."""
    task, dealt = federation.task, federation.partition_arrays
    indexes: Sequence[int] = range(len(federation.members))
    clients: list[Any] = [task.num_classes, list(task.input_shape), task.seed]
    if dealt and len(indexes) > MAX_SAMPLED_CLIENTS:
        # Rows of all clients as they were partitioned; their split into train and test follows one rule.
        indexes = (
            torch.linspace(0, len(indexes) - 1, MAX_SAMPLED_CLIENTS, dtype=torch.float64)
            .round()
            .long()
            .tolist()
        )
        kinds = [(info.name, info.architecture, info.samples, info.validation) for info in task.clients]
        labels = [part.y for part in (federation.members[0].train, federation.members[0].test)]
        clients += [kinds, *(_tensor(array) for array in (*dealt, *labels))]
    members = [federation.members[index] for index in indexes]
    seen = _Arrays(
        [samples.x for member in members for samples in (member.train, member.test, member.validation)]
    )
    for member, index in zip(members, indexes, strict=True):
        # A transform is code; its result for the first row represents it.
        first, info = _tensor(member.train.take(slice(0, 1))[0]), task.clients[index]
        views = [seen.view(part) for part in (member.train, member.test, member.validation)]
        clients.append([info.name, info.architecture, *views, first])
    common = [
        None if samples is None else seen.view(samples) for samples in (federation.shared_test, task.public)
    ]
    models = {
        name: {key: _tensor(tensor) for key, tensor in architecture.initial.items()}
        for name, architecture in task.architectures.items()
    }
    return {"clients": _text([*clients, common]), "models": _text(models)}


class _Arrays:
    """Digests of arrays that many clients may share: each array is read once."""

    def __init__(self, arrays: list[Tensor]) -> None:
        self._budget = SAMPLED_BYTES // max(1, len({_place(array) for array in arrays}))
        self._digests: dict[object, str] = {}

    def view(self, samples: Samples) -> list[str]:
        """Return digests of the array, the row indexes and the labels."""
        place = _place(samples.x)
        if place not in self._digests:
            self._digests[place] = self._compute(samples.x)
        rows = "all" if samples.index is None else _tensor(samples.index)
        return [self._digests[place], rows, _tensor(samples.labels)]

    def _compute(self, array: Tensor) -> str:
        """Return the digest of all rows of a small array, or of evenly spaced rows."""
        count, size = len(array), max(1, array[:1].nbytes)
        indexes = max(MIN_SAMPLED_ROWS, self._budget // size)
        if count > indexes:
            spread = torch.linspace(0, count - 1, indexes, dtype=torch.float64).round().long()
            return _text([list(array.shape), _tensor(array[spread.to(array.device)])])
        return _text([list(array.shape), _tensor(array)])


def _place(array: Tensor) -> object:
    return array.data_ptr(), tuple(array.shape), array.stride(), array.dtype


def _tensor(tensor: Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(repr((plain.dtype, tuple(plain.shape))).encode())
    digest.update(as_bytes(plain))
    return digest.hexdigest()


def _text(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
