"""Jobs and answers taken apart for a wire or a disk: named tensors and a header of plain values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import safetensors

from potluck.codec import decode_state
from potluck.core.job import Answer, Failure, Job, Score
from potluck.core.payload import Payload, PayloadError
from potluck.core.tree import Flat


@dataclass(frozen=True)
class Order:
    """What every message to a node says of its run: the experiment, the run's id, where dealt clients live."""

    experiment: str
    run: str
    state: str = ""

    def on(self, flat: Flat) -> Flat:
        """The message with this written on it."""
        return Flat(flat.tensors, {**flat.layout, "order": asdict(self)})

    @staticmethod
    def read(flat: Flat) -> Order:
        """What is written on a message. A run's id names a folder, so it may hold nothing else."""
        values = _section(flat, "order")
        if set(values) != {"experiment", "run", "state"} or not all(
            isinstance(v, str) for v in values.values()
        ):
            raise PayloadError("The message does not say which experiment it belongs to.")
        if not re.fullmatch(r"[0-9a-f]{0,32}", values["run"]):
            raise PayloadError(f"The run id {values['run']!r} is not one of Potluck's.")
        return Order(**values)


def read_image(data: bytes) -> Flat:
    """The tensors and the header of an image, or a sentence why it is none."""
    try:
        flat = decode_state(data)
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise PayloadError(f"The message could not be read: {error}.") from None
    if not isinstance(flat.layout, dict):
        raise PayloadError("The message could not be read: it has no header.")
    return flat


def pack_job(job: Job) -> Flat:
    """A job as it goes to a node."""
    return _pack("job", job, job.message)


def unpack_job(flat: Flat, down: type[Payload]) -> Job:
    """The job that a node received; its message must have the type that the method declares."""
    values = _section(flat, "job")
    try:
        job = Job(**{**values, "tests": tuple(values["tests"])})
    except (TypeError, KeyError) as error:
        raise PayloadError(f"The job could not be read: {error}.") from None
    return replace(job, message=_payload(flat, down))


def pack_result(result: Answer | Failure) -> Flat:
    """A node's answer. A failure goes without its trace, which may quote private data."""
    if isinstance(result, Failure):
        return Flat({}, {"failure": asdict(replace(result, trace=""))})
    flat = _pack("answer", result, result.payload)
    scores = {test: asdict(score) for test, score in result.scores.items()}
    return Flat(flat.tensors, {**flat.layout, "scores": scores})


def unpack_result(flat: Flat, job: Job, up: type[Payload]) -> Answer | Failure:
    """The answer to a job. Which job and whose it is, is what we know, not what the node says."""
    try:
        if "refusal" in flat.layout:
            return Failure(job.id, job.client, str(flat.layout["refusal"]))
        if "failure" in flat.layout:
            told = _section(flat, "failure")
            invalid = told["kind"] == "invalid"
            return Failure(job.id, job.client, str(told["reason"]), "invalid" if invalid else "error")
        values = {**_section(flat, "answer"), "job": job.id, "client": job.client}
        scores = {test: Score(**_numbers(score)) for test, score in flat.layout["scores"].items()}
        answer = Answer(**_numbers(values), scores=scores)
        return replace(answer, payload=_payload(flat, up) if job.kind == "train" else None)
    except (PayloadError, KeyError, TypeError, AttributeError) as error:
        return Failure(job.id, job.client, str(error), "invalid")


_APART = ("message", "payload", "state", "scores")


def _pack(name: str, thing: Job | Answer, payload: Payload | None) -> Flat:
    plain = {entry.name: getattr(thing, entry.name) for entry in fields(thing) if entry.name not in _APART}
    tensors, scalars = ({}, None) if payload is None else payload.flatten()
    return Flat(tensors, {name: plain, "scalars": scalars, "names": list(tensors)})


def _payload(flat: Flat, kind: type[Payload]) -> Payload | None:
    scalars, names = flat.layout.get("scalars"), flat.layout.get("names")
    if scalars is None:
        return None
    if not isinstance(names, list) or sorted(map(str, names)) != sorted(flat.tensors):
        raise PayloadError("The message does not list the tensors that it holds.")
    # In the order in which they were sent: sums over them, and their encoded size, depend on it.
    return kind.unflatten({name: flat.tensors[name] for name in names}, _numbers(scalars))


def _section(flat: Flat, name: str) -> dict[str, Any]:
    section = flat.layout.get(name)
    if not isinstance(section, dict):
        raise PayloadError(f"The message has no {name}.")
    return section


def _numbers(values: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise PayloadError(f"{key} = {value!r} is not a number.")
    return dict(values)
