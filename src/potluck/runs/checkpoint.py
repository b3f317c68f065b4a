"""A run's last good checkpoint, and how a run goes on from it as if it had never stopped."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.loop.loop import Loop
from potluck.loop.progress import Progress
from potluck.runs import folder
from potluck.runs.digests import check_experiment, of_file
from potluck.runs.generations import Damaged, Generations, Manifest
from potluck.runs.snapshot import rebuild

_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class Checkpoint:
    """A verified generation of one run. Clients are read one by one, when somebody asks for them."""

    run: Path
    generations: Generations
    manifest: Manifest

    def client(self, index: int) -> tree.Flat | None:
        """A client's saved state; None if it had not worked yet, so that it is still as it was made."""
        entry = self.manifest.clients.get(str(index))
        return None if entry is None else self.generations.read_state(entry)

    def restore(self, loop: Loop) -> None:
        """Put a new loop where the saved one stood."""
        flat = _on(loop.task.device, self.generations.read_state(self.manifest.server))
        held = tree.unflatten(flat, {"state": loop.progress.state})
        then = rebuild(self.manifest.progress, held, loop.method)
        for entry in fields(Progress):
            setattr(loop.progress, entry.name, getattr(then, entry.name))

    def rewind_metrics(self) -> None:
        """Forget the lines that were written after this checkpoint: they will be written again."""
        for name in folder.METRICS:
            os.truncate(self.run / name, self.manifest.metrics[name])

    def check_population(self, found: dict[str, str]) -> None:
        """Refuse to go on with other clients or models than those that began."""
        for part, digest in self.manifest.population.items():
            if found.get(part) != digest:
                raise PotluckError(
                    f"The {part} are not those of the run in {str(self.run)!r}, so it cannot go on; "
                    "pass the same data and models, or choose another folder."
                )


def _on(device: torch.device, flat: tree.Flat) -> tree.Flat:
    return tree.Flat({name: tensor.to(device) for name, tensor in flat.tensors.items()}, flat.layout)


def last_checkpoint(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None where there never was one."""
    generations = Generations(run / folder.CHECKPOINT)
    troubles = []
    for number in generations.numbers():
        try:
            manifest = generations.read(number)
            generations.verify(manifest)
            check_experiment(run, manifest.digests)
            _check_metrics(run, manifest)
        except Damaged as damage:
            troubles.append(str(damage))
            continue
        if troubles:
            _log.warning(
                "The newest checkpoint of %r is damaged (%s); going on from the one of round %d.",
                str(run),
                troubles[0],
                manifest.round,
            )
        return Checkpoint(run, generations, manifest)
    if troubles:
        raise PotluckError(
            f"No checkpoint of {str(run)!r} is whole ({troubles[0]}); delete {str(generations.path)!r} to start "
            "this run from its beginning."
        )
    return None


def _check_metrics(run: Path, manifest: Manifest) -> None:
    for name, size in manifest.metrics.items():
        path, digest = run / name, manifest.digests.get(name)
        if not path.exists() or path.stat().st_size < size:
            raise Damaged(f"{name} is shorter than when it was saved")
        if digest is not None and of_file(path, size) != digest:
            raise Damaged(f"{name} was changed after it was saved")
