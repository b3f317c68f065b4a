"""Sections of an experiment for data, models, devices and engine; others are declared where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

from potluck.core.settings import Settings, setting


def split_list(text: str | None) -> list[str]:
    """Split a comma-separated list; a missing text has no entries."""
    return [entry.strip() for entry in text.split(",") if entry.strip()] if text else []


def _as_list(value: Any) -> Any:
    return split_list(value) if isinstance(value, str) else value


_FORMS = {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}
WordList = Annotated[tuple[str, ...], BeforeValidator(_as_list), WithJsonSchema(_FORMS)]
"""A list of texts; a text with commas is accepted, too."""


class MethodSection(BaseModel):
    """The method's name and its settings."""

    model_config = ConfigDict(extra="allow", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)
    name: str = "fedgh"


@dataclass(frozen=True)
class DataSettings(Settings):
    """Which data, how many rows, and how each client's rows are split."""

    name: str = setting(
        "digits", "a data set of `potluck datasets`, or folder:PATH, csv:PATH, npz:PATH, hf:NAME"
    )
    root: str | None = setting(None, "folder of data files; unset: POTLUCK_DATA or the cache", results=False)
    label: str | None = setting(None, "the column of a table to predict")
    groups: str | None = setting(None, "the column of a table that names the producer of a row")
    text: str | None = setting(None, "the column of a table that holds texts", later=True)
    class_names: WordList = setting(
        (),
        "the classes in the order of their numbers; empty: those of the data, on own nodes those of all nodes together",
        later=True,
    )
    missing: Literal["refuse", "impute"] = setting(
        "refuse",
        "missing values of a table: an error, or the column's mean or most frequent word over all rows",
        later=True,
    )
    image_size: int | None = setting(None, "resize images to this size", ge=1)
    normalise: Literal["own", "half", "mean-image", "unit", "none"] = setting(
        "own", "normalisation of images: the data set's own, or that of one of the papers"
    )
    limit: int = setting(0, "class-balanced sample of this many rows; 0: all", ge=0)
    split: str = setting("75:25", "train:test or train:val:test of each client")
    pool: Literal["auto", "merged", "train"] = setting(
        "auto", "rows that are partitioned: all, or the training part (the test part is shared)"
    )
    shared_test: float = setting(
        0.2, "held out for the shared protocol if the publisher has no test part", gt=0, lt=1
    )
    public: float | str = setting(
        "auto", "public data: a fraction held out, another set's name, or auto (0.1 if the method needs it)"
    )
    augment: WordList = setting((), "augmentation of training images: flip, crop, …")


@dataclass(frozen=True)
class PartitionSettings(Settings):
    """How rows are partitioned among clients."""

    rule: str = setting(
        "dirichlet:0.5", "iid, dirichlet:A, pathological:K, contiguous, natural, skew:…, file:PATH"
    )
    clients: int = setting(10, "number of clients", ge=1)


@dataclass(frozen=True)
class ModelSettings(Settings):
    """Which networks the clients have."""

    names: WordList = setting(("auto",), "groups or models; auto: a group that fits the data and the method")
    feature_dim: int | None = setting(None, "project all features to this size", ge=1)
    projection: Literal["linear", "mlp", "pool"] = setting(
        "linear", "projection to feature_dim: one learned layer, two, or averaging"
    )
    shared: str | None = setting(
        None, "shared small model; unset: the smallest of the group (for fedmrl with half of its features)"
    )
    pretrained: bool | str | None = setting(
        None,
        "weights of networks that have some: true, false (drawn at random), or a file or folder; unset: for lite0, "
        "minilm, hf: and file:, not for timm: and torchvision:",
        later=True,
    )
    image_size: int | None = setting(
        None,
        "side of the pictures that pretrained networks see; unset: as in their training",
        ge=32,
        later=True,
    )
    cache: bool = setting(
        True, "compute the features of frozen pretrained networks once and keep them on disk", later=True
    )
    same_init: bool = setting(False, "clients of one architecture start from the same weights")
    precision: Literal["float32", "float64"] = setting("float32", "type of the models' numbers")


@dataclass(frozen=True)
class DeviceSettings(Settings):
    """The clients' devices, for the virtual clock and for models that must fit."""

    fleet: str = setting("", "uniform, phones, silos, long-tail, or a .toml or .csv table; empty: no clock")
    assign: Literal["cycle", "memory"] = setting(
        "cycle", "assignment of models: client i gets model i mod X, or the largest that fits its device"
    )


@dataclass(frozen=True)
class EngineSettings(Settings):
    """Where clients train. Results do not depend on it, except for two settings that change rounding."""

    name: Literal["auto", "serial", "pool", "flower"] = setting(
        "auto",
        "auto: pool; serial on one accelerator if one process uses it fully",
        results=False,
    )
    workers: int = setting(
        0,
        "worker processes of the pool, per device; 0: one per core, on accelerators found by a short trial",
        results=False,
        ge=0,
        le=4096,
    )
    memory: float = setting(
        0.0,
        "gigabytes of memory for clients, per device; 0: half of the free memory",
        results=False,
        ge=0,
        le=1e9,
    )
    nodes: int = setting(0, "flower: number of machines with their own data; 0: data are partitioned", ge=0)
    min_nodes: int = setting(
        0,
        "flower: nodes with which a run begins half a minute after the latest came; 0: engine.nodes, or when "
        "engine.wait is over more than half of them, if the others cannot take part",
        results=False,
        later=True,
        ge=0,
    )
    classes: int = setting(0, "flower: number of classes of all nodes together", ge=0)
    wait: float = setting(300.0, "flower: seconds to wait for the nodes", results=False, gt=0, le=1e9)
    lost_after: float = setting(
        900.0,
        "flower: seconds without an answer after which a job is sent again (twice, with growing delays), less where "
        "answers have come quickly; 0: never",
        results=False,
        earlier=(1800.0,),
        ge=0,
        le=1e9,
    )
    upload_grace: float = setting(
        30.0,
        "flower: seconds that a node has for an upload, beside those that engine.upload_rate gives it",
        results=False,
        later=True,
        gt=0,
        le=1e9,
    )
    upload_rate: float = setting(
        50.0,
        "flower: kilobytes per second below which a node's upload counts as stopped; 0: no limit",
        results=False,
        later=True,
        ge=0,
        le=1e9,
    )
    cooldown: float = setting(
        600.0,
        "flower: seconds for which a node is left out whose last two answers did not come, doubled each time; 0: never",
        results=False,
        later=True,
        ge=0,
        le=1e9,
    )
    server: str = setting("", "flower: address of the server; empty: all on this machine", results=False)
    ca: str = setting("", "flower: certificate of the server's authority; empty: no TLS", results=False)
    simulation: bool = setting(
        False, "flower: simulation with clients in Ray's workers, without nodes", results=False
    )
    device: str = setting(
        "cpu", "where clients compute: cpu, cuda, mps, or several: cuda:0,cuda:1", results=False
    )
    vectorize: Literal["off", "on", "auto"] = setting(
        "off", "train clients of one architecture together; auto: measured once"
    )
    channels_last: WordList = setting(
        ("built",),
        "architectures with channels-last memory layout; built: the zoo's choice, and your own networks as they were "
        "built; all; auto: your own networks are measured once",
    )
    keep_answers: bool = setting(
        False, "store every answer in the run's folder, for potluck leak", results=False
    )
    checkpoint_every: int = setting(1, "rounds between checkpoints; 0: none", results=False, ge=0)
