"""What a node tells the server about itself, and what every message says of its run."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from potluck.core.payload import PayloadError
from potluck.core.task import Architecture, ClientInfo
from potluck.wire import (
    MAX_ROWS,
    Message,
    bounded_list,
    choice,
    from_bytes,
    integer,
    number,
    section,
    string,
    table,
)

MEGABYTE = 1 << 20


def read_message(data: bytes | None, limit: int) -> Message:
    """Read a wire message of at most `limit` bytes; None stands for the content of another app."""
    if data is None:
        raise PayloadError("The message is not one of Potluck's.")
    if len(data) > limit:
        raise PayloadError(f"The message holds {len(data)} bytes, the limit is {limit}.")
    return from_bytes(data)


@dataclass(frozen=True)
class Assignment:
    """The experiment as JSON, the run's id, and where clients of a dealt data set keep their states."""

    experiment: str
    run: str
    state: str = ""

    def attach_to(self, message: Message) -> Message:
        """Return the message with these facts in its header."""
        return replace(message, facts={**message.facts, "assignment": asdict(self)})

    @staticmethod
    def read(message: Message) -> Assignment:
        """Read the facts in a message's header. A run's id names a folder, so it may hold nothing else."""
        values = section(message, "assignment")
        if set(values) != {"experiment", "run", "state"} or not all(
            isinstance(value, str) for value in values.values()
        ):
            raise PayloadError("The message does not say which experiment it belongs to.")
        if not re.fullmatch(r"[0-9a-f]{0,32}", values["run"]):
            raise PayloadError(f"The run id {values['run']!r} is not one of Potluck's.")
        return Assignment(**values)


DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_BYTES |= {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1}
"""Numbers that models are made of, and their bytes."""
MAX_MODEL = 1 << 30
"""Bytes that a model may claim wherever messages are smaller: it need not travel."""
MAX_REGISTRATION = 16 << 20
"""Bytes of a registration: it names tensors and holds none."""
MAX_NAME, MAX_TENSORS, MAX_DIMENSIONS, MAX_FEATURES = 200, 100_000, 8, 1 << 20
"""Far beyond any honest node; what it claims is looked up, and allocated, on the server."""


@dataclass(frozen=True, kw_only=True)
class Registration:
    """All that a node tells of itself: its name, how many rows it has, and the shape of its model."""

    name: str
    samples: int
    architecture: str
    device: str
    input_shape: list[int]
    feature_dim: int
    tensors: dict[str, list[Any]]
    parameters: list[str]
    head: dict[str, list[int]]
    stage_shapes: list[list[int]]
    width_rate: float | None
    validation: int = 0

    @staticmethod
    def of(info: ClientInfo, architecture: Architecture, input_shape: tuple[int, ...]) -> Registration:
        """Return what a client may say of itself."""
        shapes = {
            name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape]
            for name, tensor in architecture.initial.items()
        }
        return Registration(
            name=info.name,
            samples=info.samples,
            architecture=info.architecture,
            device=info.device,
            input_shape=list(input_shape),
            feature_dim=architecture.feature_dim,
            tensors=shapes,
            parameters=sorted(architecture.parameters),
            head={name: list(shape) for name, shape in architecture.head.items()},
            stage_shapes=[list(shape) for shape in architecture.stage_shapes],
            width_rate=architecture.width_rate,
            validation=info.validation,
        )

    @staticmethod
    def read(message: Message, limit: int) -> Registration:
        """Read a node's registration; a message, and so a model, may have `limit` bytes."""
        limit = max(limit, MAX_MODEL)
        facts = section(message, "registration")
        if set(facts) != {field.name for field in fields(Registration)}:
            raise PayloadError(
                "The registration has other fields than ours; install the same Potluck everywhere."
            )
        tensors = _tensors(facts["tensors"], limit)
        parameters = bounded_list(facts["parameters"], "parameters", MAX_TENSORS)
        if not all(isinstance(name, str) and name in tensors for name in parameters):
            raise PayloadError("The registration has parameters that are none of its tensors.")
        head = table(facts["head"], "head")
        stages = bounded_list(facts["stage_shapes"], "stage_shapes", MAX_TENSORS)
        rate = facts["width_rate"]
        return Registration(
            name=_name(facts["name"], "name"),
            samples=integer(facts["samples"], "samples", MAX_ROWS),
            architecture=_name(facts["architecture"], "architecture"),
            device=_name(facts["device"], "device"),
            input_shape=_shape(facts["input_shape"], "input_shape", limit, low=1),
            feature_dim=integer(facts["feature_dim"], "feature_dim", MAX_FEATURES),
            tensors=tensors,
            parameters=sorted(parameters),
            head={name: _shape(shape, "head", limit) for name, shape in head.items()},
            stage_shapes=[_shape(shape, "stage_shapes", limit) for shape in stages],
            width_rate=None if rate is None else number(rate, "width_rate", low=0.0, high=1.0),
            validation=integer(facts["validation"], "validation", MAX_ROWS),
        )

    def model(self) -> tuple[Any, ...]:
        """Return all that is said of the model: two nodes have one kind of model where this is the same."""
        return (
            self.tensors,
            self.parameters,
            self.feature_dim,
            self.head,
            self.stage_shapes,
            self.width_rate,
        )

    def message(self) -> Message:
        """Return the registration as it travels."""
        return Message({"registration": asdict(self)})


MAX_CLASSES = 100_000
"""Names of classes that a node may tell."""


@dataclass(frozen=True)
class ClassNames:
    """The names of a node's classes, told before it registers; None: it keeps them to itself."""

    name: str
    classes: list[str] | None

    @staticmethod
    def read(message: Message) -> ClassNames:
        """Read and check what a node tells."""
        facts = section(message, "class names")
        if set(facts) != {"name", "classes"}:
            raise PayloadError("The names of classes have other fields; install the same Potluck everywhere.")
        class_names = facts["classes"]
        if class_names is not None:
            class_names = [
                _name(name, "a class") for name in bounded_list(class_names, "classes", MAX_CLASSES)
            ]
        return ClassNames(_name(facts["name"], "name"), class_names)

    def message(self) -> Message:
        """Return the names as they travel."""
        return Message({"class names": asdict(self)})


def _name(value: Any, what: str) -> str:
    name = string(value, what, MAX_NAME)
    if name != value or not name.strip():
        raise PayloadError(f"{what} is no name of 1 to {MAX_NAME} characters.")
    return name


def _tensors(value: Any, limit: int) -> dict[str, list[Any]]:
    """Names, types and shapes that together do not claim more bytes than a message may have."""
    entries = table(value, "tensors")
    tensors, size = dict[str, list[Any]](), 0
    bounded_list(list(entries), "tensors", MAX_TENSORS)
    for name, entry in entries.items():
        dtype, *sides = bounded_list(entry, "an entry of tensors", 1 + MAX_DIMENSIONS, low=1)
        shape = _shape(sides, "tensors", limit)
        size += math.prod(shape) * DTYPE_BYTES[choice(dtype, "the type of a tensor", list(DTYPE_BYTES))]
        if size > limit:
            raise PayloadError(
                f"Its model claims more than {limit / 2**20:g} MB; raise schedule.max_payload_mb if it is that large."
            )
        tensors[name] = [dtype, *shape]
    return tensors


def _shape(value: Any, what: str, limit: int, *, low: int = 0) -> list[int]:
    shape = [integer(side, what, limit, low=low) for side in bounded_list(value, what, MAX_DIMENSIONS)]
    if math.prod(shape) > limit:
        raise PayloadError(f"{what} claims more numbers than a message may have.")
    return shape
