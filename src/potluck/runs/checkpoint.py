"""Read a run's last checkpoint, and convert progress to named tensors and back."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from potluck import wire
from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method, payload_types
from potluck.core.payload import Payload, PayloadError
from potluck.core.schema import check_payload
from potluck.core.task import Task
from potluck.loop.loop import Loop
from potluck.loop.records import PendingJob, Progress
from potluck.runs import folder
from potluck.runs.digests import check_experiment, file_digest
from potluck.runs.generations import CheckpointStore, DamagedCheckpoint, Manifest
from potluck.wire.jobs import Answer, Failure

_COUNTERS = ("step", "ended", "clock", "jobs", "draws", "answered")


def progress_numbers(now: Progress) -> dict[str, Any]:
    """Return the part of the progress that JSON can hold."""
    return {
        **{name: getattr(now, name) for name in _COUNTERS},
        "numbers": [[client, number] for client, number in now.job_counts.items()],
        "scores": [[client, wire.pack_scores(scores)] for client, scores in now.scores.items()],
        "flights": [{"step": flight.step, "finish": flight.finish} for flight in now.pending],
        "recent": [{"step": flight.step, "finish": flight.finish} for flight in now.recent.values()],
    }


def progress_tensors(now: Progress, method: Method[Any, Any, Any], task: Task) -> dict[str, Any]:
    """Return the server's state, and unfinished jobs with their results as bytes; all results must have arrived."""
    upload = payload_types(method)[1]
    return {
        "state": now.state,
        "flights": [_encode_flight(flight, upload, task) for flight in now.pending],
        "recent": [_encode_flight(_without_id(flight), upload, task) for flight in now.recent.values()],
    }


def _without_id(flight: PendingJob) -> PendingJob:
    """Return a finished flight without its job's id, which depends on how often states were fetched."""
    assert isinstance(flight.result, Answer)
    return replace(flight, job=replace(flight.job, id=0), result=replace(flight.result, job=0, seconds=0.0))


def read_progress(numbers: dict[str, Any], held: dict[str, Any], method: Method[Any, Any, Any]) -> Progress:
    """Rebuild the progress from the results of `progress_numbers` and `progress_tensors`."""
    recent = [_flight(*pair, method) for pair in zip(numbers["recent"], held["recent"], strict=True)]
    return Progress(
        held["state"],
        **{name: numbers[name] for name in _COUNTERS},
        job_counts=dict(numbers["numbers"]),
        scores={client: wire.unpack_scores(scores) for client, scores in numbers["scores"]},
        pending=[_flight(*pair, method) for pair in zip(numbers["flights"], held["flights"], strict=True)],
        recent={flight.job.client: flight for flight in recent},
    )


def _encode_flight(flight: PendingJob, upload: type[Payload], task: Task) -> dict[str, Tensor]:
    return {"job": _bytes(wire.pack_job(flight.job)), "result": _bytes(_result(flight, upload, task))}


def _flight(numbers: dict[str, Any], encoded: dict[str, Tensor], method: Method[Any, Any, Any]) -> PendingJob:
    down, up = payload_types(method)
    return PendingJob(
        wire.unpack_job(_letter(encoded["job"]), down),
        numbers["step"],
        numbers["finish"],
        wire.unpack_result(_letter(encoded["result"]), up),
    )


def _result(flight: PendingJob, upload: type[Payload], task: Task) -> wire.Message:
    """Return the result as a message; an answer of an undeclared type is saved as the failure that it will become."""
    result = flight.result
    assert result is not None
    if isinstance(result, Answer) and result.payload is not None and type(result.payload) is not upload:
        try:
            check_payload(result.payload, upload, task, task.clients[result.client])
        except PayloadError as error:
            result = Failure(result.job, result.client, str(error), "invalid")
    return wire.pack_result(replace(result, state=None) if isinstance(result, Answer) else result)


def _bytes(message: wire.Message) -> Tensor:
    return torch.frombuffer(bytearray(wire.to_bytes(message)), dtype=torch.uint8)


def _letter(tensor: Tensor) -> wire.Message:
    return wire.from_bytes(wire.as_bytes(tensor.cpu().contiguous()))


_log = logging.getLogger("potluck")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint of one run. Clients' states are read on request."""

    run: Path
    generations: CheckpointStore
    manifest: Manifest

    def client(self, index: int) -> tree.Flat | None:
        """Return a client's saved state; None if it had not worked yet."""
        entry = self.manifest.clients.get(str(index))
        return None if entry is None else self.generations.read_state(entry)

    def restore(self, loop: Loop) -> None:
        """Set a new loop to the saved state."""
        flat = _on(loop.task.device, self.generations.read_state(self.manifest.server))
        restored_state = tree.unflatten(flat, {"state": loop.progress.state})
        progress = read_progress(self.manifest.progress, restored_state, loop.method)
        for entry in fields(Progress):
            setattr(loop.progress, entry.name, getattr(progress, entry.name))

    def rewind_metrics(self) -> None:
        """Truncate metrics that were written after this checkpoint; they will be written again."""
        for name in folder.METRICS:
            os.truncate(self.run / name, self.manifest.metrics[name])

    def check_population(self, digests: dict[str, str]) -> None:
        """Check that clients and models are those that the run began with."""
        for part, digest in self.manifest.population.items():
            if digests.get(part) != digest:
                raise PotluckError(
                    f"The {part} are not those of the run in {str(self.run)!r}, so it cannot continue; "
                    "pass the same data and models, or choose another folder."
                )


def _on(device: torch.device, flat: tree.Flat) -> tree.Flat:
    return tree.Flat({name: tensor.to(device) for name, tensor in flat.tensors.items()}, flat.layout)


def last_checkpoint(run: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint of a run; None if there is none."""
    generations = CheckpointStore(run / folder.CHECKPOINT)
    damages = []
    for number in generations.numbers():
        try:
            manifest = generations.read(number)
            generations.verify(manifest)
            check_experiment(run, manifest.digests)
            _check_metrics(run, manifest)
        except DamagedCheckpoint as damage:
            damages.append(str(damage))
            continue
        if damages:
            _log.warning(
                "The newest checkpoint of %r is damaged (%s); continuing from the checkpoint of round %d.",
                str(run),
                damages[0],
                manifest.round,
            )
        return Checkpoint(run, generations, manifest)
    if damages:
        raise PotluckError(
            f"All checkpoints of {str(run)!r} are damaged ({damages[0]}); delete {str(generations.path)!r} to start "
            "this run from its beginning."
        )
    return None


def _check_metrics(run: Path, manifest: Manifest) -> None:
    for name, size in manifest.metrics.items():
        path, digest = run / name, manifest.digests.get(name)
        if not path.exists() or path.stat().st_size < size:
            raise DamagedCheckpoint(f"{name} is shorter than when it was saved")
        if digest is not None and file_digest(path, size) != digest:
            raise DamagedCheckpoint(f"{name} was changed after it was saved")
