"""Export a trained predictor with all that a prediction needs; `exported.py` loads it again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from potluck import __version__
from potluck.core.errors import PotluckError
from potluck.core.method import Method, Predictor
from potluck.data.raw import describe_raw
from potluck.experiment import Experiment, read_experiment
from potluck.federation.features import RowNumbers
from potluck.federation.federation import Federation
from potluck.models import original_names
from potluck.runs.export_description import ModelDescriber, describe_input, plain_model
from potluck.runs.exported import DESCRIPTION, FORMAT, WEIGHTS
from potluck.runs.folder import EXPERIMENT, write_atomic
from potluck.runs.plan import Parts
from potluck.runs.restore import RestoredRun, restore_run
from potluck.runs.run import Run


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
    last = len(restored.plan.federation.members) - 1
    if not 0 <= client <= last:
        raise PotluckError(f"--client {client} is not in {str(run)!r}; it has clients 0 to {last}.")
    return export_restored(restored, client, out, onnx=onnx)


def export_restored(restored: RestoredRun, client: int, out: Path, *, onnx: bool = False) -> Path:
    """Export the predictor of a client of a run that was restored from its checkpoint."""
    members, experiment = restored.plan.federation, restored.plan.experiment
    facts: dict[str, Any] = {
        "client": members.task.clients[client].name,
        "protocol": experiment.evaluate.protocol,
    }
    if experiment.safeguard:
        facts["federated_weight"] = restored.federated_weight(client)
    return write_model(
        ModelSource(experiment, restored.plan.method, members, client),
        restored.predictor(client),
        out,
        facts,
        onnx=onnx,
    )


@dataclass(frozen=True)
class ModelSource:
    """What a model that is exported comes from: a client of a federation, trained by a method of an experiment."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    client: int


def write_model(
    source: ModelSource, predictor: Predictor, out: Path, facts: dict[str, Any], *, onnx: bool = False
) -> Path:
    """Write a predictor to a folder, with all that a prediction needs; `facts` are added to its description."""
    model = plain_model(as_module(predictor, source.experiment.method.name))
    description = {**_description(source, model), **facts}
    names = original_names(model)
    state = {
        names[key]: tensor.detach().cpu().clone().contiguous() for key, tensor in model.state_dict().items()
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_atomic(out / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        safetensors.torch.save_file(state, out / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise PotluckError(
            f"--out {str(out)!r} cannot be written ({error}); choose another folder."
        ) from None
    if onnx:
        write_onnx(model, _example(source.federation), out / "model.onnx")
    return out


def _example(federation: Federation) -> Tensor:
    """Return one input of the exported model."""
    if not isinstance(federation.members[0].train.transform, RowNumbers):
        return federation.example()
    task = federation.task
    dtype = task.dtype if federation.vocabulary is None else torch.int64
    return torch.zeros(1, *task.input_shape, dtype=dtype)


def _description(source: ModelSource, model: nn.Module) -> dict[str, Any]:
    """Describe an exported model for readers and for `load_model`."""
    members, experiment = source.federation, source.experiment
    task = members.task
    own = task.clients[source.client].architecture
    describer = ModelDescriber(experiment, source.method, members, members.vocabulary, own)
    return {
        "format": FORMAT,
        "potluck": __version__,
        "method": experiment.method.name,
        "input_shape": list(task.input_shape),
        "num_classes": task.num_classes,
        "class_names": list(members.class_names),
        "raw": describe_raw(members.raw),
        "input": describe_input(members.members[source.client].train.transform),
        "vocabulary": members.vocabulary,
        "precision": str(task.dtype).removeprefix("torch."),
        "model": describer.describe(model),
    }


def check_objects(run: Path, parts: Parts) -> None:
    """Raise if a run used Python objects that its folder does not hold."""
    file = run / EXPERIMENT
    objects = read_experiment(file).get("objects", ()) if file.exists() else ()
    if missing := [name for name in objects if name not in (*parts.given(), "nodes", "state")]:
        arguments = ", ".join(f"{name}=..." for name in missing)
        raise PotluckError(
            f"The run in {str(run)!r} had Python objects ({', '.join(missing)}), which its folder does not hold; "
            f"export it from Python: run = potluck.run(..., {arguments}, out={str(run)!r}, resume=True), then "
            "potluck.export_client(run, 0, 'my-model')."
        )


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
