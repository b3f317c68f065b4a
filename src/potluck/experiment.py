"""The whole question as data: one validated object, read from TOML or built in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from potluck.core.errors import PotluckError, unknown
from potluck.core.method import Method
from potluck.limits import parse_toml, read_text

Protocol = Literal["local", "received", "shared", "global"]
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A table of the experiment file. Unknown keys are refused, defaults are visible."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True, allow_inf_nan=False)


class MethodSection(Section):
    """`name`, and any option of that method."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "fedgh"


class DataSection(Section):
    """Which data, how much of it, and how each client's part is split."""

    name: str = "digits"
    root: str | None = None
    label: str | None = Field(None, description="the column of a table to predict")
    groups: str | None = Field(None, description="the column of a table that says who produced a row")
    image_size: int | None = Field(None, ge=1, description="resize pictures that come in many sizes")
    normalise: Literal["own", "half", "mean-image", "unit", "none"] = Field(
        "own",
        description="how images become numbers: as usual for the data set, or as one of the papers does",
    )
    limit: int = Field(0, ge=0, description="class-balanced sample of this many rows; 0 takes all")
    split: str = Field("75:25", description="train:test or train:val:test of each client")
    pool: Literal["auto", "merged", "train"] = Field(
        "auto", description="what is dealt to clients: all rows, or the training part (test part shared)"
    )
    shared_test: float = Field(
        0.2, gt=0, lt=1, description="held out for the shared protocol where the publisher has no test part"
    )
    public: float | str = Field(
        "auto",
        description="public data: a fraction held out, another set's name, or auto (0.1 if the method needs it)",
    )
    augment: tuple[str, ...] = ()


class PartitionSection(Section):
    """How rows are dealt to clients."""

    rule: str = Field(
        "dirichlet:0.5", description="iid, dirichlet:A, pathological:K, contiguous, natural, file:P"
    )
    clients: int = Field(10, ge=1)


class ModelsSection(Section):
    """Which networks the clients bring."""

    names: tuple[str, ...] = Field(
        ("auto",), description="groups or models; auto: a group that suits the data and the method's needs"
    )
    feature_dim: int | None = Field(None, ge=1)
    projection: Literal["linear", "mlp", "pool"] = Field(
        "linear", description="how features come to feature_dim: one learned layer, two, or by averaging"
    )
    shared: str | None = Field(None, description="shared small model; the smallest of the group unless named")
    same_init: bool = Field(False, description="clients of one architecture start from the same weights")
    precision: Literal["float32", "float64"] = "float32"


class TrainingSection(Section):
    """Local training, the same for every method of a comparison."""

    epochs: int = Field(5, ge=0)
    batch_size: int = Field(16, ge=0, description="0 means all samples in one batch")
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: float = Field(0.1, gt=0, le=1e6)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0, le=1e6)
    betas: tuple[Share, Share] = (0.9, 0.999)
    clip_norm: float | None = Field(None, gt=0)
    lr_decay: float = Field(1.0, gt=0, le=10, description="factor per round")
    drop_last: bool = False
    keep_optimizer: bool = Field(False, description="optimiser state survives from round to round")


class ScheduleSection(Section):
    """Who works when. `auto` is the method's own mode; a round is a cohort's worth of ended jobs."""

    rounds: int = Field(20, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    mode: Literal["auto", "sync", "async"] = "auto"
    buffer: int = Field(0, ge=0, description="answers per server step; 0: the cohort (sync) or 1 (async)")
    concurrency: int = Field(
        0, ge=0, description="clients at work at once; 0: the cohort (sync) or 1 (async)"
    )
    min_clients: int = Field(1, ge=0)
    deadline: float = Field(
        0.0, ge=0, description="virtual seconds a synchronous round waits; 0: for everybody"
    )
    over_select: float = Field(1.0, ge=1, le=1e6, description="ask this many times the cohort, drop the late")
    staleness_power: float = Field(0.0, ge=0, description="a stale answer weighs (1 + staleness)^-power")
    robust: Literal["mean", "median", "trimmed-mean", "norm-clip"] = Field(
        "mean", description="how the server takes averages; all but the mean withstand a poisoned answer"
    )
    trim: float = Field(0.1, ge=0, lt=0.5, description="share that the trimmed mean leaves out at either end")
    max_payload_mb: float = Field(1024.0, gt=0, le=1e9, description="a larger answer is refused")
    on_failure: Literal["stop", "continue"] = "stop"


class DevicesSection(Section):
    """What clients run on, for the virtual clock and for models that have to fit."""

    fleet: str = Field(
        "", description="uniform, phones, silos, long-tail, or a .toml or .csv table; empty: no clock"
    )
    assign: Literal["cycle", "memory"] = Field(
        "cycle",
        description="who gets which model: client i model i mod X, or the largest that fits the device",
    )


class FaultsSection(Section):
    """Faults on purpose, as rates per training job."""

    dropout: float = Field(0.0, ge=0, le=1, description="the client does not take part")
    crash: float = Field(0.0, ge=0, le=1, description="the client trains, and dies before it answers")
    corrupt: float = Field(0.0, ge=0, le=1, description="the answer is nonsense")
    slow: float = Field(0.0, ge=0, le=1, description="the job takes slow_factor times as long")
    slow_factor: float = Field(10.0, ge=1)

    @model_validator(mode="after")
    def _one_fate(self) -> Self:
        """A job has one fate: the chances of the three exclude each other."""
        total = self.dropout + self.crash + self.corrupt
        if total > 1 + 1e-9:
            raise ValueError(f"dropout + crash + corrupt is {total:g}; together they may not be more than 1")
        return self


class PrivacySection(Section):
    """Clipping and noise for what clients send; the guarantee and its limits are in docs/privacy.md."""

    clip: float = Field(0.0, ge=0, description="length that an answer's real numbers are clipped to; 0: off")
    noise_multiplier: float = Field(
        0.0, ge=0, description="standard deviation of the noise, in units of clip"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the δ at which ε is reported")
    reproducible: bool = Field(True, description="noise from the seed (experiments), or truly secret noise")


class EvaluateSection(Section):
    """One protocol for all methods of a comparison."""

    protocol: Protocol = "local"
    also: tuple[Protocol, ...] = ()
    every: int = Field(1, ge=1)
    clients: Literal["all", "one-per-architecture"] = "all"


class EngineSection(Section):
    """Where clients work. Results do not depend on it."""

    name: Literal["auto", "serial", "pool", "flower"] = Field(
        "auto", description="auto: the pool, or serial on an accelerator"
    )
    workers: int = Field(0, ge=0, le=4096, description="0: one per core")
    memory: float = Field(
        0.0, ge=0, le=1e9, description="gigabytes that clients may hold; 0: half of what is free"
    )
    nodes: int = Field(0, ge=0, description="flower: machines with data of their own; 0: data are dealt")
    classes: int = Field(0, ge=0, description="flower: classes that the nodes' labels have together")
    wait: float = Field(300.0, gt=0, le=1e9, description="flower: seconds to wait for the nodes")
    server: str = Field("", description="flower: address of the server; empty: all on this machine")
    ca: str = Field("", description="flower: certificate of the server's authority; empty: no TLS")
    simulation: bool = Field(False, description="flower: clients in Ray's workers, one server, no nodes")
    device: str = "cpu"
    vectorize: Literal["off", "on", "auto"] = Field(
        "off", description="train clients of one architecture stacked (serial engine); auto measures once"
    )
    channels_last: tuple[str, ...] = Field(
        (), description="architectures whose images lie channels last in memory; all, or auto to measure once"
    )
    checkpoint_every: int = Field(1, ge=0, description="rounds between checkpoints; 0: none")

    @field_validator("channels_last", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return [word.strip() for word in value.split(",")] if isinstance(value, str) else value


class Experiment(Section):
    """Method, data, partition, models, training, schedule, evaluation, engine and seed."""

    seed: int = Field(0, ge=0)
    method: MethodSection = MethodSection()
    data: DataSection = DataSection()
    partition: PartitionSection = PartitionSection()
    models: ModelsSection = ModelsSection()
    training: TrainingSection = TrainingSection()
    schedule: ScheduleSection = ScheduleSection()
    devices: DevicesSection = DevicesSection()
    faults: FaultsSection = FaultsSection()
    privacy: PrivacySection = PrivacySection()
    evaluate: EvaluateSection = EvaluateSection()
    engine: EngineSection = EngineSection()
    objects: tuple[str, ...] | None = Field(
        None, description="parts that were Python objects, which a file cannot hold"
    )

    def build_method(self) -> Method[Any, Any, Any]:
        """The method with its options checked."""
        from potluck.methods import method_class

        return make_method(method_class(self.method.name), self.method.model_extra or {})

    def resolved(self) -> Experiment:
        """The same experiment with every option of its method spelled out."""
        return self.with_method(self.build_method(), self.method.name)

    def with_method(self, method: Method[Any, Any, Any], name: str) -> Experiment:
        """The same experiment for a method object, recorded under `name`."""
        return self.model_copy(update={"method": MethodSection(name=name, **options_of(method))})

    def with_objects(self, **parts: Any) -> Experiment:
        """The same experiment, noting which parts are Python objects; one noted before must be given again."""
        given = tuple(name for name, value in parts.items() if value is not None)
        for name in self.objects or ():
            if name not in given:
                raise PotluckError(
                    f"This experiment was made with Python objects ({name}), which its file cannot hold; "
                    f"go on from Python: potluck.run(..., {name}=..., out=..., resume=True)."
                )
        return self.model_copy(update={"objects": given or None})

    def to_toml(self) -> str:
        """The file that gives this experiment again; what is unset is left out."""
        try:
            return tomli_w.dumps(_without_none(self.model_dump()))
        except TypeError:
            raise PotluckError(
                f"The experiment cannot be written down: {_odd(self.model_dump())}; options are numbers, text, lists."
            ) from None


def options_of(method: Method[Any, Any, Any]) -> dict[str, Any]:
    """A method's hyper-parameters by name; those left unset (None) are not named."""
    return _without_none(asdict(method)) if hasattr(method, "__dataclass_fields__") else {}  # type: ignore[call-overload]


def make_method(cls: type[Method[Any, Any, Any]], options: Mapping[str, Any]) -> Method[Any, Any, Any]:
    """A method from its options; an unknown or unfit one is named with its remedy."""
    known = [field.name for field in fields(cls)] if hasattr(cls, "__dataclass_fields__") else []  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            raise unknown(f"option of method {cls.name!r}", key, known or ["(it has none)"])
    try:
        method: Method[Any, Any, Any] = TypeAdapter(cls).validate_python(dict(options))
    except ValidationError as error:
        raise _one_sentence(error, "method.") from None
    return method


def method_options(cls: type[Method[Any, Any, Any]]) -> list[tuple[str, str, Any]]:
    """(name, type, default) of each option of a method."""
    if not hasattr(cls, "__dataclass_fields__"):
        return []
    return [
        (field.name, str(field.type), None if field.default is MISSING else field.default)
        for field in fields(cls)  # type: ignore[arg-type]
    ]


def parse_experiment(values: Mapping[str, Any]) -> Experiment:
    """An experiment from nested values; the first thing wrong becomes one sentence."""
    try:
        return Experiment.model_validate(values)
    except ValidationError as error:
        raise _one_sentence(error) from None


def read_experiment(path: Path) -> dict[str, Any]:
    """The nested values of an experiment file."""
    try:
        return parse_toml(read_text(path))
    except FileNotFoundError:
        raise PotluckError(f"There is no experiment file {str(path)!r}; check the path.") from None
    except OSError as error:
        raise PotluckError(f"Experiment file {str(path)!r} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise PotluckError(f"Experiment file {str(path)!r} is not valid TOML: {error}.") from None


def apply_setting(values: dict[str, Any], text: str) -> None:
    """Put `a.b=value` into nested values; the value is read as TOML, or else as plain text."""
    key, equals, raw = text.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise PotluckError(f"--set {text!r} is not understood; write --set section.key=value.")
    put(values, path, _value(raw.strip()))


def put(values: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Put a value into nested values, below sections that are made where they are missing."""
    *sections, name = path
    table = values
    for number, part in enumerate(sections):
        inner = table.get(part, {})
        if not isinstance(inner, Mapping):
            where = ".".join(path[: number + 1])
            raise PotluckError(
                f"{where} = {inner!r} is a value where a section is needed; write [{where}] with {name} = … in it."
            )
        table[part] = dict(inner)
        table = table[part]
    table[name] = value


def _value(raw: str) -> Any:
    try:
        return parse_toml(f"value = {raw}")["value"]
    except ValueError:
        return raw


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list | tuple):
        return [_without_none(entry) for entry in value]
    return value


def _odd(values: Mapping[str, Any], prefix: str = "") -> str:
    """The first value that TOML has no form for, with its name."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if found := _odd(value, f"{prefix}{key}."):
                return found
        elif not isinstance(value, str | bool | int | float | list | tuple | None):
            return f"{prefix}{key} is a {type(value).__name__}"
    return ""


def _one_sentence(error: ValidationError, prefix: str = "") -> PotluckError:
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    where = prefix + ".".join(path)
    if first["type"] == "extra_forbidden":
        section: Any = Experiment
        for part in path[:-1]:
            section = section.model_fields[part].annotation
        return unknown("setting", where, [".".join([*path[:-1], name]) for name in section.model_fields])
    if first["type"] == "value_error":
        return PotluckError(f"{where}: {first['ctx']['error']}.")
    if first["type"] in ("model_type", "model_attributes_type"):
        return PotluckError(
            f"{where} = {first['input']!r} is a value where a section is needed; write [{where}]."
        )
    message = first["msg"][:1].lower() + first["msg"][1:]
    return PotluckError(f"{where} = {first['input']!r} is not valid: {message}.")
