"""Export a trained predictor with its input transform, and load it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
from potluck.core.method import Predictor
from potluck.core.model import ClientModel, with_batch_norm_statistics
from potluck.core.samples import Transform
from potluck.data.dataset import Cast, MeanImage, Normalise
from potluck.experiment import read_experiment
from potluck.federation.features import RowNumbers
from potluck.federation.federation import Federation
from potluck.kit import CombinedModel
from potluck.models import build_model
from potluck.models.inputs import InputFacts
from potluck.runs.export_description import (
    ModelDescriber,
    class_name,
    describe_input,
    names_pretrained,
    plain_model,
)
from potluck.runs.folder import EXPERIMENT, write_atomic
from potluck.runs.plan import Parts
from potluck.runs.restore import RestoredRun, restore_run
from potluck.runs.run import Run


def read_input(facts: dict[str, Any], dtype: torch.dtype) -> Transform:
    """Build the normalisation of a description, with results of one type."""
    if "mean_row" in facts:
        return MeanImage(torch.tensor(facts["mean_row"], dtype=torch.float32), float(facts["scale"]), dtype)
    if "mean" in facts:
        return Normalise(tuple(facts["mean"]), tuple(facts["std"]), float(facts["scale"]), dtype)
    return Cast(dtype)


class FromRaw(nn.Module):
    """A model preceded by its normalisation: raw rows, such as bytes of images, to class scores."""

    def __init__(self, model: nn.Module, transform: Transform, class_names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.transform, self.class_names = model, transform, class_names

    def forward(self, rows: Tensor) -> Tensor:
        """Return class scores of rows as the data set holds them."""
        scores: Tensor = self.model(self.transform(rows))
        return scores

    def predict(self, rows: Tensor) -> list[str]:
        """Return the name of the class with the largest score, for each row."""
        with torch.no_grad():
            classes = self(rows).argmax(dim=1).tolist()
        return [self.class_names[index] if self.class_names else str(index) for index in classes]


WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 2
_WRONG = (OSError, ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RuntimeError)
_UNREADABLE = (*_WRONG, safetensors.SafetensorError)
"""Errors from reading a damaged export."""


def export_client(
    run: str | Path | Run,
    client: int,
    out: str | Path,
    *,
    onnx: bool = False,
    federation: Federation | None = None,
) -> Path:
    """Export the predictor of a client that was evaluated at the end of a run: `model.safetensors`, `model.json`.

    A run with your own Python objects needs them again, since its folder does not hold them: pass the `Run` that
    `potluck.run` returned, or the `federation`.
    """
    parts = Parts(federation=federation)
    if isinstance(run, Run):
        parts = run.parts or parts
        run = run.path
    run, out = Path(run), Path(out)
    check_objects(run, parts)
    restored = restore_run(run, parts)
    members, experiment = restored.plan.federation, restored.plan.experiment
    if not 0 <= client < len(members.members):
        last = len(members.members) - 1
        raise PotluckError(f"--client {client} is not in {str(run)!r}; it has clients 0 to {last}.")
    weight = restored.federated_weight(client) if experiment.safeguard else None
    return write_model(restored, client, restored.predictor(client), out, weight=weight, onnx=onnx)


def write_model(
    restored: RestoredRun,
    client: int,
    predictor: Predictor,
    out: Path,
    *,
    weight: float | None = None,
    onnx: bool = False,
) -> Path:
    """Write a client's predictor and its description; `weight`: the share of the federated model in it."""
    model = plain_model(as_module(predictor, restored.plan.experiment.method.name))
    description = _description(restored, client, model)
    if weight is not None:
        description["federated_weight"] = weight
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
        write_onnx(model, _example(restored.plan.federation), out / "model.onnx")
    return out


def _example(federation: Federation) -> Tensor:
    """Return one input of the exported model."""
    if not isinstance(federation.members[0].train.transform, RowNumbers):
        return federation.example()
    task = federation.task
    dtype = task.dtype if federation.vocabulary is None else torch.int64
    return torch.zeros(1, *task.input_shape, dtype=dtype)


def _description(restored: RestoredRun, client: int, model: nn.Module) -> dict[str, Any]:
    """Describe an exported model for readers and for `load_model`."""
    members, experiment = restored.plan.federation, restored.plan.experiment
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
        "model": ModelDescriber(experiment, restored.plan.method, members, vocabulary).describe(model),
    }


def check_objects(run: Path, parts: Parts) -> None:
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
    predictors: Sequence[type[CombinedModel]] = (),
) -> nn.Module:
    """Load an exported model, in eval mode: a module from inputs to class scores. No stored code is executed.

    With `raw`, it takes rows as the data set holds them (such as bytes of images) and applies the run's normalisation;
    it has `class_names`, and `predict(rows)` returns these names. Otherwise it takes the inputs of the run's models.

    Your own networks and predictors are code, which the files do not hold: pass factories of architectures by name as
    `models`, and the predictor classes of your own method as `predictors`.
    """
    place = Path(path)
    try:
        description = parse_json(read_text(place / DESCRIPTION))
        state = safetensors.torch.load_file(place / WEIGHTS)
        if description["format"] != FORMAT:
            raise ValueError(f"its format is {description['format']}, this version reads {FORMAT}")
        # No memory is allocated for the described model before the weights are checked to have that size.
        with torch.device("meta"):
            maker = _Maker(description, dict(models or {}), {class_name(cls): cls for cls in predictors})
            model = maker.build(description["model"]).to(getattr(torch, description["precision"]))
        _fill(model, state)
        if raw:
            model = _with_normalisation(model, description)
    except (FileNotFoundError, NotADirectoryError):
        raise PotluckError(
            f"{str(place)!r} has no exported model ({WEIGHTS}, {DESCRIPTION}); check the path."
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
            "The exported model does not describe the normalisation of raw rows; leave raw=True out and prepare inputs "
            "yourself."
        )
    transform = read_input(facts, getattr(torch, description["precision"]))
    return FromRaw(model, transform, tuple(map(str, description.get("class_names", ()))))


def _fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Set the weights of a model without memory; names and shapes must match."""
    expected = model.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        raise ValueError(f"its weights {'lack' if name in expected else 'have an unknown'} {name!r}")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            raise ValueError(f"{name!r} should be {tuple(tensor.shape)} and is {tuple(state[name].shape)}")
    # Copies in the network's memory layout: tensors that were read may be views of the file.
    own = {
        name: torch.empty_like(tensor, device="cpu").copy_(state[name]) for name, tensor in expected.items()
    }
    model.load_state_dict(own, assign=True)


@dataclass(frozen=True)
class _Maker:
    """Builds modules without weights from a description."""

    facts: dict[str, Any]
    models: dict[str, Callable[[], nn.Module]]
    predictors: dict[str, type[CombinedModel]] = field(default_factory=dict)

    def build(self, node: dict[str, Any]) -> nn.Module:
        """Build the module of one node of the description."""
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
                    f"The exported model is {node['own']!r}, your own network; "
                    f"pass load_model(..., models={{{node['own']!r}: its factory}})."
                )
            model = self.models[node["own"]]()
        else:
            model = self._from_zoo(node)
        return with_batch_norm_statistics(model, ()) if node["statistics"] else model

    def _from_zoo(self, node: dict[str, Any]) -> ClientModel:
        if node["zoo"].startswith("file:"):  # it names code, which a description must not choose
            raise ValueError("it names a file of code as a model of the zoo")
        facts: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in node["inputs"].items()
        }
        # Libraries' networks have tensors that are in no state, so these are built with memory.
        with torch.device("cpu") if names_pretrained(node["zoo"]) else nullcontext():
            return build_model(
                node["zoo"],
                tuple(self.facts["input_shape"]),
                self.facts["num_classes"],
                node["feature_dim"],
                projection=node["projection"],
                vocabulary=self.facts["vocabulary"],
                inputs=InputFacts(**facts),
                pretrained=False,
            )

    def _predictor(self, name: str) -> type[CombinedModel]:
        """Return a predictor class of Potluck, or one that was passed; other names in a file are not imported."""
        if name in self.predictors:
            return self.predictors[name]
        module, _, cls = name.partition(":")
        if not module.startswith(("potluck.methods.", "potluck.kit.")):
            raise PotluckError(
                f"The exported model predicts with {name!r}, your own class; "
                f"pass load_model(..., predictors=[{cls}])."
            )
        predictor = getattr(import_module(module), cls)
        if not (isinstance(predictor, type) and issubclass(predictor, CombinedModel)):
            raise ValueError(f"{name!r} is not a predictor")
        return predictor


def as_module(predictor: Predictor, method: str) -> nn.Module:
    """Check that a predictor is a module, which can be exported."""
    if not isinstance(predictor, nn.Module):
        raise PotluckError(
            f"The predictor of {method} is a function, not a module, and cannot be exported; "
            "let its predict() return a torch module."
        )
    return predictor


def write_onnx(model: nn.Module, example: Tensor, file: Path) -> None:
    """Write a model as ONNX, for any batch size."""
    if find_spec("onnx") is None or find_spec("onnxscript") is None:
        raise PotluckError("ONNX needs two packages; run: pip install 'potluck[onnx]'.")
    two = torch.cat([example, example])  # a batch size of one would become a constant
    batch = torch.export.Dim("batch")
    torch.onnx.export(
        model.eval(), (two,), str(file), dynamo=True, dynamic_shapes=({0: batch},), verbose=False
    )
