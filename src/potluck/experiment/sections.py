"""The sections that only an experiment has; those that the loop obeys are declared where they act."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from potluck.core.settings import Settings, setting


def _words(value: Any) -> Any:
    return [word.strip() for word in value.split(",") if word.strip()] if isinstance(value, str) else value


_FORMS = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
Words = Annotated[tuple[str, ...], BeforeValidator(_words), WithJsonSchema(_FORMS)]
"""A list of words; one text with commas is such a list as well."""


class MethodSection(BaseModel):
    """`name`, and any setting of that method."""

    model_config = ConfigDict(extra="allow", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)
    name: str = "fedgh"


@dataclass(frozen=True)
class DataSettings(Settings):
    """Which data, how much of it, and how each client's part is split."""

    name: str = setting(
        "digits", "a data set of `potluck datasets`, or folder:PATH, csv:PATH, npz:PATH, hf:NAME"
    )
    root: str | None = setting(None, "where data files lie; unset: POTLUCK_DATA or the cache", results=False)
    label: str | None = setting(None, "the column of a table to predict")
    groups: str | None = setting(None, "the column of a table that says who produced a row")
    text: str | None = setting(None, "the column of a table that holds texts to read", later=True)
    image_size: int | None = setting(None, "resize pictures that come in many sizes", ge=1)
    normalise: Literal["own", "half", "mean-image", "unit", "none"] = setting(
        "own", "how images become numbers: as usual for the data set, or as one of the papers does"
    )
    limit: int = setting(0, "class-balanced sample of this many rows; 0 takes all", ge=0)
    split: str = setting("75:25", "train:test or train:val:test of each client")
    pool: Literal["auto", "merged", "train"] = setting(
        "auto", "what is dealt to clients: all rows, or the training part (test part shared)"
    )
    shared_test: float = setting(
        0.2, "held out for the shared protocol where the publisher has no test part", gt=0, lt=1
    )
    public: float | str = setting(
        "auto", "public data: a fraction held out, another set's name, or auto (0.1 if the method needs it)"
    )
    augment: Words = setting((), "random changes of training pictures: flip, crop, …")


@dataclass(frozen=True)
class PartitionSettings(Settings):
    """How rows are dealt to clients."""

    rule: str = setting(
        "dirichlet:0.5", "iid, dirichlet:A, pathological:K, contiguous, natural, skew:…, file:PATH"
    )
    clients: int = setting(10, "how many clients", ge=1)


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Which networks the clients bring."""

    names: Words = setting(
        ("auto",), "groups or models; auto: a group that suits the data and the method's needs"
    )
    feature_dim: int | None = setting(None, "bring all features to this size by a projection", ge=1)
    projection: Literal["linear", "mlp", "pool"] = setting(
        "linear", "how features come to feature_dim: one learned layer, two, or by averaging"
    )
    shared: str | None = setting(
        None, "shared small model; unset: the smallest of the group (for fedmrl with half of its features)"
    )
    same_init: bool = setting(False, "clients of one architecture start from the same weights")
    precision: Literal["float32", "float64"] = setting("float32", "numbers that models are made of")


@dataclass(frozen=True)
class DeviceSettings(Settings):
    """What clients run on, for the virtual clock and for models that have to fit."""

    fleet: str = setting("", "uniform, phones, silos, long-tail, or a .toml or .csv table; empty: no clock")
    assign: Literal["cycle", "memory"] = setting(
        "cycle", "who gets which model: client i model i mod X, or the largest that fits the device"
    )


@dataclass(frozen=True)
class EngineSettings(Settings):
    """Where clients work. Results do not depend on it, but for the two settings that change rounding."""

    name: Literal["auto", "serial", "pool", "flower"] = setting(
        "auto",
        "auto: the pool; serial on one accelerator that one process keeps busy",
        results=False,
    )
    workers: int = setting(
        0,
        "worker processes of the pool, per device; 0: one per core, on accelerators as many as a short trial finds",
        results=False,
        ge=0,
        le=4096,
    )
    memory: float = setting(
        0.0,
        "gigabytes that clients may hold, per device; 0: half of what is free",
        results=False,
        ge=0,
        le=1e9,
    )
    nodes: int = setting(0, "flower: machines with data of their own; 0: data are dealt", ge=0)
    classes: int = setting(0, "flower: classes that the nodes' labels have together", ge=0)
    wait: float = setting(300.0, "flower: seconds to wait for the nodes", results=False, gt=0, le=1e9)
    lost_after: float = setting(
        1800.0,
        "flower: seconds without an answer after which a job is asked again (twice, each time later); 0: never",
        results=False,
        ge=0,
        le=1e9,
    )
    server: str = setting("", "flower: address of the server; empty: all on this machine", results=False)
    ca: str = setting("", "flower: certificate of the server's authority; empty: no TLS", results=False)
    simulation: bool = setting(False, "flower: clients in Ray's workers, one server, no nodes", results=False)
    device: str = setting(
        "cpu", "where clients compute: cpu, cuda, mps, or several: cuda:0,cuda:1", results=False
    )
    vectorize: Literal["off", "on", "auto"] = setting(
        "off", "train clients of one architecture together; auto measures once"
    )
    channels_last: Words = setting(
        ("built",),
        "architectures whose images lie channels last in memory; built: as the zoo knows best, and networks of your "
        "own as you made them; all; auto: measure your own once",
    )
    keep_answers: bool = setting(
        False, "keep every answer in the run's folder, for potluck leak", results=False
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints; 0: none", results=False, ge=0)
