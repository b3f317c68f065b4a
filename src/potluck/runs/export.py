"""Models out of a finished run: one client's predictor as safetensors and a small JSON, and back as a module."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from potluck import __version__
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.core.method import Method, Predictor
from potluck.core.model import static_norms, with_statistics
from potluck.experiment import Experiment, read_experiment
from potluck.federation.federation import Federation
from potluck.federation.population import shared_choice
from potluck.kit import Composed
from potluck.models import build_model
from potluck.runs.ended import Ended, bring_back
from potluck.runs.folder import EXPERIMENT, write_atomic
from potluck.runs.inputs import FromRaw, describe_input, read_input
from potluck.runs.resolve import Parts
from potluck.runs.run import Run

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 2
_WRONG = (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError)
_UNREADABLE = (*_WRONG, safetensors.SafetensorError)
"""What reading a damaged export may raise."""


def export_client(
    run: str | Path | Run,
    client: int,
    out: str | Path,
    *,
    onnx: bool = False,
    federation: Federation | None = None,
) -> Path:
    """Write what was tested of a client at the end of a run: `model.safetensors` and `model.json` in `out`.

    A run with Python objects of your own needs them again, for its folder does not hold them: give the `Run` that
    `potluck.run` returned, or the `federation`.
    """
    parts = Parts(federation=federation)
    if isinstance(run, Run):
        parts = run.parts or parts
        run = run.path
    run, out = Path(run), Path(out)
    _check_objects(run, parts)
    ended = bring_back(run, parts)
    members, experiment = ended.resolved.federation, ended.resolved.experiment
    if not 0 <= client < len(members.members):
        last = len(members.members) - 1
        raise PotluckError(f"--client {client} is not in {str(run)!r}; it has clients 0 to {last}.")
    model = as_module(ended.predictor(client), experiment.method.name)
    description = _description(ended, client, model)
    state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        safetensors.torch.save_file(state, out / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise PotluckError(
            f"--out {str(out)!r} cannot be written ({error}); choose another folder."
        ) from None
    if onnx:
        write_onnx(model, members.example(), out / "model.onnx")
    return out


def _description(ended: Ended, client: int, model: nn.Module) -> dict[str, Any]:
    """What a reader, and `load_model`, must know of an exported model."""
    members, experiment = ended.resolved.federation, ended.resolved.experiment
    task, vocabulary = members.task, members.vocabulary
    return {
        "format": FORMAT,
        "potluck": __version__,
        "method": experiment.method.name,
        "client": task.clients[client].name,
        "protocol": experiment.evaluate.protocol,
        "input_shape": list(task.input_shape),
        "num_classes": task.num_classes,
        "class_names": list(members.class_names),
        "input": describe_input(members.members[client].train.transform),
        "vocabulary": vocabulary,
        "precision": str(task.dtype).removeprefix("torch."),
        "model": _Describer(experiment, ended.resolved.method, members, vocabulary).describe(model),
    }


def _check_objects(run: Path, parts: Parts) -> None:
    file = run / EXPERIMENT
    objects = read_experiment(file).get("objects", ()) if file.exists() else ()
    if missing := [name for name in objects if name not in (*parts.given(), "nodes", "state")]:
        again = ", ".join(f"{name}=..." for name in missing)
        raise PotluckError(
            f"The run in {str(run)!r} had Python objects ({', '.join(missing)}), which its folder does not hold; "
            f"export it from Python: run = potluck.run(..., {again}, out={str(run)!r}, resume=True), then "
            "potluck.export_client(run, 0, 'my-model')."
        )


def load_model(
    path: str | Path,
    *,
    raw: bool = False,
    models: Mapping[str, Callable[[], nn.Module]] | None = None,
    predictors: Sequence[type[Composed]] = (),
) -> nn.Module:
    """The exported model, in eval mode: a plain module from inputs to class scores. Nothing stored is executed.

    With `raw` it takes rows as the data set holds them (bytes of pictures, say), does the run's normalisation, knows
    its `class_names` and has `predict(rows)`, which gives these names. Else it takes what the run's models took.

    Networks and predictors of your own are code, which no file holds: give `models` what makes each architecture by
    its name, and `predictors` the classes that a method of your own predicts with.
    """
    place = Path(path)
    try:
        description = parse_json(read_text(place / DESCRIPTION))
        state = safetensors.torch.load_file(place / WEIGHTS)
        if description["format"] != FORMAT:
            raise ValueError(f"its format is {description['format']}, this version reads {FORMAT}")
        # No memory is taken for what the description asks for before the weights are seen to be of that size.
        with torch.device("meta"):
            maker = _Maker(description, dict(models or {}), {_class_name(one): one for one in predictors})
            model = maker.build(description["model"]).to(getattr(torch, description["precision"]))
        _fill(model, state)
        if raw:
            model = _with_normalisation(model, description)
    except (FileNotFoundError, NotADirectoryError):
        raise PotluckError(
            f"{str(place)!r} holds no exported model ({WEIGHTS}, {DESCRIPTION}); check the path."
        ) from None
    except _UNREADABLE as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PotluckError(
            f"The exported model in {str(place)!r} cannot be read ({reason}); export it again."
        ) from None
    return model.eval()


def _with_normalisation(model: nn.Module, description: dict[str, Any]) -> FromRaw:
    facts = description.get("input")
    if not isinstance(facts, dict):
        raise PotluckError(
            "The exported model does not say how raw rows become inputs; leave raw=True out and prepare them yourself."
        )
    transform = read_input(facts, getattr(torch, description["precision"]))
    return FromRaw(model, transform, tuple(map(str, description.get("class_names", ()))))


def _fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a model without memory its weights, which must be the very ones it needs."""
    wanted = model.state_dict()
    for name in sorted(wanted.keys() ^ state.keys()):
        raise ValueError(f"its weights {'lack' if name in wanted else 'have an unknown'} {name!r}")
    for name, tensor in wanted.items():
        if tensor.shape != state[name].shape:
            raise ValueError(f"{name!r} should be {tuple(tensor.shape)} and is {tuple(state[name].shape)}")
    # Copies, laid out as the network wants them: what was read may still be a window on the file.
    own = {name: torch.empty_like(tensor, device="cpu").copy_(state[name]) for name, tensor in wanted.items()}
    model.load_state_dict(own, assign=True)


def _class_name(kind: type[Any]) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True)
class _Maker:
    """Modules without their weights, from what a description says of them."""

    facts: dict[str, Any]
    models: dict[str, Callable[[], nn.Module]]
    predictors: dict[str, type[Composed]] = field(default_factory=dict)

    def build(self, node: dict[str, Any]) -> nn.Module:
        """The module of one node of the description."""
        if "linear" in node:
            return nn.Linear(*node["linear"])
        if "predictor" in node:
            parts = {name: self.build(part) for name, part in node["models"].items()}
            empty = {
                name: torch.zeros(entry["shape"], dtype=getattr(torch, entry["dtype"]))
                for name, entry in node["tensors"].items()
            }
            return self._predictor(node["predictor"])(parts, empty)
        if "own" in node:
            if node["own"] not in self.models:
                raise PotluckError(
                    f"The exported model is {node['own']!r}, a network of your own; "
                    f"pass load_model(..., models={{{node['own']!r}: what makes it}})."
                )
            model = self.models[node["own"]]()
        else:
            model = build_model(
                node["zoo"],
                tuple(self.facts["input_shape"]),
                self.facts["num_classes"],
                node["feature_dim"],
                projection=node["projection"],
                vocabulary=self.facts["vocabulary"],
            )
        return with_statistics(model, ()) if node["statistics"] else model

    def _predictor(self, name: str) -> type[Composed]:
        """One of ours, or one that was passed: a name in a file never imports anything else."""
        if name in self.predictors:
            return self.predictors[name]
        module, _, cls = name.partition(":")
        if not module.startswith(("potluck.methods.", "potluck.kit.")):
            raise PotluckError(
                f"The exported model predicts with {name!r}, a class of your own; "
                f"pass load_model(..., predictors=[{cls}])."
            )
        found = getattr(import_module(module), cls)
        if not (isinstance(found, type) and issubclass(found, Composed)):
            raise ValueError(f"{name!r} is no predictor")
        return found


def as_module(predictor: Predictor, method: str) -> nn.Module:
    """A predictor that is a module, or a sentence."""
    if not isinstance(predictor, nn.Module):
        raise PotluckError(
            f"What {method} tests is a function, not a module, so it cannot be exported; "
            "let its predict() return a torch module."
        )
    return predictor


def write_onnx(model: nn.Module, example: Tensor, file: Path) -> None:
    """The model as ONNX, for any batch size."""
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise PotluckError("ONNX needs two packages; run: pip install 'potluck[onnx]'.")
    two = torch.cat([example, example])  # a batch of one would be taken for a constant
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        model.eval(), (two,), str(file), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )


@dataclass(frozen=True)
class _Describer:
    """Says how to build modules of a run again."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    vocabulary: int | None

    def describe(self, module: nn.Module) -> dict[str, Any]:
        """How to build a module like this one again."""
        if isinstance(module, Composed):
            return {
                "predictor": _class_name(type(module)),
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
        plain = self._plain(name, feature_dim)
        # Norms without statistics of their own were given some for testing (HeteroFL, FedRolex).
        measured = bool(static_norms(plain)) and not static_norms(module)
        if self._is_own(name):
            return {"own": name, "statistics": measured}
        return {
            "zoo": name,
            "feature_dim": feature_dim,
            "projection": self.experiment.models.projection,
            "statistics": measured,
        }

    def _is_own(self, name: str) -> bool:
        return bool({"models", "federation"} & set(self.experiment.objects or ()))

    def _plain(self, name: str, feature_dim: int | None) -> nn.Module:
        build = self.federation.task.architectures[name].build if self._is_own(name) else None
        if build is not None:
            return build()
        task = self.federation.task
        return build_model(
            name,
            task.input_shape,
            task.num_classes,
            feature_dim,
            projection=self.experiment.models.projection,
            vocabulary=self.vocabulary,
        )

    def _name(self, module: nn.Module) -> tuple[str, int | None]:
        """The architecture by its parameters' names and shapes, else the shared small model; and its feature size."""
        task = self.federation.task
        found = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        for name, architecture in task.architectures.items():
            if found == {key: tuple(architecture.initial[key].shape) for key in architecture.parameters}:
                return name, self.experiment.models.feature_dim
        shared = shared_choice(
            self.experiment,
            self.method,
            list(task.architectures),
            task.input_shape,
            task.num_classes,
            self.vocabulary,
        )
        if self._is_own("") or shared is None:
            raise PotluckError(
                "The model to export is none of the clients' own; a shared model of your own cannot be exported."
            )
        return shared
