"""Describe the modules of a run as JSON, so that an exported model can be built again without their code."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.model import ClientModel, norms_without_statistics
from potluck.core.samples import Transform
from potluck.core.task import Architecture
from potluck.core.trained import model_name
from potluck.data.dataset import Cast, MeanImage, Normalise
from potluck.data.raw import TextInput
from potluck.experiment import Experiment
from potluck.federation.features import RowNumbers, is_numbered, with_networks
from potluck.federation.federation import Federation
from potluck.federation.population import shared_model_choice
from potluck.kit import CombinedModel
from potluck.models import SplitModel, build_model, merge_adapters
from potluck.models.inputs import InputFacts
from potluck.models.lora import has_adapters
from potluck.models.pretrained import PretrainedModel, is_pretrained
from potluck.models.project import Projected
from potluck.models.registry import parse_name


def describe_input(transform: Transform | None) -> dict[str, Any] | None:
    """Describe a normalisation as JSON; None for a user's own function."""
    if transform is None:
        return {"as_is": True}
    if isinstance(transform, Normalise):
        return {"mean": list(transform.mean), "std": list(transform.std), "scale": transform.scale}
    if isinstance(transform, MeanImage):
        return {"mean_row": transform.mean.cpu().tolist(), "scale": transform.scale}
    if isinstance(transform, Cast):
        return describe_input(transform.first)
    if isinstance(transform, RowNumbers):
        return describe_input(transform.before)
    return None


def class_name(kind: type[Any]) -> str:
    """Return a class as `module:name`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def plain_model(model: nn.Module) -> nn.Module:
    """Return the module with adapters merged into weights, and with networks instead of tables of their features."""
    if isinstance(model, CombinedModel):
        for name, part in model.models.items():
            model.models[name] = plain_model(part)
    if isinstance(model, ClientModel):
        model = with_networks(model)
        return merge_adapters(model) if has_adapters(model) else model
    return model


@dataclass(frozen=True)
class ModelDescriber:
    """Describes how to build the modules of a client of a run, whose architecture is `own` where several would fit."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    vocabulary: int | None
    own: str

    def describe(self, module: nn.Module) -> dict[str, Any]:
        """Describe how to build this module."""
        if isinstance(module, CombinedModel):
            return {
                "predictor": class_name(type(module)),
                "models": {name: self.describe(part) for name, part in module.models.items()},
                "tensors": {
                    name: {
                        "shape": list(module.tensor(name).shape),
                        "dtype": str(module.tensor(name).dtype).removeprefix("torch."),
                    }
                    for name in module.names
                },
            }
        if type(module) is nn.Linear:
            return {"linear": [module.in_features, module.out_features, module.bias is not None]}
        name, feature_dim = self._name(module)
        fresh = self._build(name, feature_dim)
        # Norms without statistics were given some for evaluation (HeteroFL, FedRolex).
        measured = bool(norms_without_statistics(fresh)) and not norms_without_statistics(module)
        top = {"feature_dim": feature_dim, "projection": self.experiment.models.projection}
        if self._is_own(name):
            network = _own_network(module) if is_file(name) else module
            cut = network.cut if isinstance(network, SplitModel) else None
            node = {"own": model_name(name), "split": cut, "statistics": measured}
            return {**node, **top} if is_file(name) else node
        return {
            "zoo": model_name(name),
            **top,
            "inputs": asdict(self._inputs()) if names_pretrained(name) else {},
            "statistics": measured,
        }

    def _is_own(self, name: str) -> bool:
        """Tell whether an architecture is the user's own, whose code no file holds."""
        if is_file(name) or "federation" in (self.experiment.objects or ()):
            return True
        return parse_name(model_name(name)) is None

    def _inputs(self) -> InputFacts:
        """Return what pretrained networks were told of their inputs."""
        facts = describe_input(self.federation.members[0].train.transform) or {}
        raw, size = self.federation.raw, self.experiment.models.image_size
        words = raw.words if isinstance(raw, TextInput) else ()
        return InputFacts(tuple(facts.get("mean", (0.0,))), tuple(facts.get("std", (1.0,))), words, size)

    def _build(self, name: str, feature_dim: int | None) -> nn.Module:
        task = self.federation.task
        if self._is_own(name):
            build = task.architectures[name].build if name in task.architectures else task.shared_builder
            if build is not None:
                return plain_model(build())
        return build_model(
            model_name(name),
            task.input_shape,
            task.num_classes,
            feature_dim,
            projection=self.experiment.models.projection,
            vocabulary=self.vocabulary,
            inputs=self._inputs(),
            pretrained=False,
        )

    def _name(self, module: nn.Module) -> tuple[str, int | None]:
        """Return the architecture with these parameters, or the shared small model, and its feature size."""
        task = self.federation.task
        shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        stored = is_numbered(self.federation)
        for name in sorted(task.architectures, key=lambda name: name != self.own):
            if shapes == _parameter_shapes(task.architectures[name], stored):
                return name, self.experiment.models.feature_dim
        shared = shared_model_choice(
            self.experiment,
            self.method,
            list(task.architectures),
            task.input_shape,
            task.num_classes,
            self.vocabulary,
        )
        if "federation" in (self.experiment.objects or ()) or shared is None:
            raise PotluckError(
                "The model to export is not a client's; your own shared model cannot be exported."
            )
        return shared


def names_pretrained(name: str) -> bool:
    """Return whether an architecture's name is that of a pretrained network."""
    parsed = parse_name(model_name(name))
    return parsed is not None and is_pretrained(parsed.base)


def is_file(name: str) -> bool:
    """Return whether a name is that of a network of a user's own file of weights."""
    return name.startswith("file:")


def _own_network(module: nn.Module) -> nn.Module:
    """Return the user's network in a model of `file:`: without the new head, projection and input conversion."""
    model = module.base if isinstance(module, Projected) else module
    return model.base if isinstance(model, PretrainedModel) else model


def _parameter_shapes(architecture: Architecture, stored: bool) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all parameters, frozen ones among them, without adapters.

    With `stored`, clients read stored features, and their models lack the parameters of the networks.
    """
    if architecture.build is None or not (architecture.partly_frozen or stored):
        return {key: tuple(architecture.initial[key].shape) for key in architecture.parameters}
    plain = plain_model(architecture.build())
    return {key: tuple(parameter.shape) for key, parameter in plain.named_parameters()}
