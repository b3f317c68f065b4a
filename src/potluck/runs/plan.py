"""The plan of a run: everything that is decided before training, in one immutable object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

from potluck.attacks import Attackers
from potluck.core.method import Method
from potluck.core.task import ClientInfo
from potluck.data import Data, Partition
from potluck.experiment import Experiment
from potluck.federation.federation import Federation
from potluck.federation.population import ModelSource, build_federation
from potluck.models import network_name
from potluck.worker.cache import LoadState
from potluck.worker.worker import Worker


@dataclass(frozen=True)
class Parts:
    """Parts of an experiment that the user gives as Python objects; None: the experiment's settings name the part."""

    method: Method[Any, Any, Any] | None = None
    data: Data | None = None
    partition: Partition | None = None
    models: Sequence[ModelSource] | None = None
    federation: Federation | None = None
    state: Any = None
    """The initial state of the server, of the same form as the result of the method's `init_server`."""
    nodes: Federation | None = None
    """The federation of Flower nodes that bring their own data and models."""

    def given(self) -> list[str]:
        """List the parts that are objects and that a file cannot hold; a method is recorded by its name."""
        names = ("data", "partition", "models", "federation", "state", "nodes")
        return [name for name in names if getattr(self, name) is not None]

    def facts(self) -> dict[str, dict[str, Any]]:
        """Return the settings that each object determines, by part and dotted name."""
        facts: dict[str, dict[str, Any]] = {name: {} for name in self.given()}
        if self.data is not None:
            facts["data"] = {"data.name": self.data.name}
        if self.partition is not None:
            facts["partition"] = {"partition.rule": type(self.partition).__name__}
        if self.models is not None:
            facts["models"] = {"models.names": tuple(_model_name(model) for model in self.models)}
        if self.federation is not None:
            facts["federation"] = _population_facts(self.federation)
        if self.nodes is not None:
            facts["nodes"] = _population_facts(self.nodes)
        if self.method is not None:
            settings: dict[str, Any] = asdict(self.method) if is_dataclass(self.method) else {}
            facts["method"] = {f"method.{name}": value for name, value in settings.items()}
        return facts


def _population_facts(federation: Federation) -> dict[str, Any]:
    """Return the settings that a federation determines."""
    task = federation.task
    return {
        "seed": task.seed,
        "data.name": federation.label,
        "partition.rule": "own",
        "partition.clients": len(federation.members),
        "models.names": tuple(task.architectures),
        "models.precision": str(task.dtype).removeprefix("torch."),
        "engine.device": str(task.device),
        **({"devices.fleet": "own"} if federation.devices else {}),
        **{f"training.{name}": value for name, value in vars(federation.training).items()},
    }


def _model_name(model: ModelSource) -> str:
    return model if isinstance(model, str) else network_name(model)


@dataclass(frozen=True)
class RunPlan:
    """A resolved run: the experiment as it will be recorded, its method, its federation and who is special in it."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    newcomers: Mapping[int, ClientInfo] = field(default_factory=dict)
    """Clients that do not train; they join after the last round."""
    attackers: Attackers | None = None
    parts: Parts = Parts()

    @property
    def absent(self) -> set[int]:
        """The clients that do not train."""
        return {*self.newcomers, *self.experiment.schedule.exclude}

    def blueprint(self, saved: LoadState | None = None) -> RunBlueprint | None:
        """Return what another process needs to build the run's clients; None if the clients are on nodes.

        The state of the server stays with the server.
        """
        if "nodes" in (self.experiment.objects or ()):
            return None
        parts = replace(self.parts, method=None, state=None)
        return RunBlueprint(self.experiment, self.method, parts, saved, self.attackers)


@dataclass(frozen=True)
class RunBlueprint:
    """What a worker process builds a run's clients from: the experiment, the objects, and saved client states."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    parts: Parts
    saved: LoadState | None = None
    attackers: Attackers | None = None

    def worker(self, device: str) -> Worker:
        """Build a worker with its clients on this device; loading and partitioning data again gives the same result."""
        experiment, parts = self.experiment.with_settings({"engine.device": device}), self.parts
        federation = parts.federation or build_federation(
            experiment, self.method, data=parts.data, models=parts.models, partition=parts.partition
        )
        federation = federation.with_channels_last(experiment.engine.channels_last)
        privacy = experiment.privacy if experiment.uses("privacy") else None
        safeguard = experiment.safeguard if experiment.uses("safeguard") else None
        return Worker(self.method, federation.client, self.saved, privacy, self.attackers, safeguard)
