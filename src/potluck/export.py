"""Models out of a finished run: one client's predictor as safetensors and a small JSON, and back as a module."""

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
from potluck.assembly import make_evaluation, make_schedule
from potluck.codec import encoded_size
from potluck.core.client import Client
from potluck.core.composite import Composite
from potluck.core.errors import PotluckError
from potluck.core.loop import Loop
from potluck.core.method import Method, Predictor
from potluck.core.norm import static_norms, with_statistics
from potluck.core.random import seeded
from potluck.core.task import Task
from potluck.core.worker import Worker
from potluck.engines.serial import SerialEngine
from potluck.experiment import Experiment, parse_experiment, read_experiment
from potluck.federation import Federation
from potluck.limits import parse_json, read_text
from potluck.models import build_model
from potluck.models.groups import smallest
from potluck.population import build_federation, experiment_data
from potluck.runs import folder
from potluck.runs.checkpoint import last_checkpoint
from potluck.runs.fingerprint import fingerprint

WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FORMAT = 1


def export_client(run: str | Path, client: int, out: str | Path, *, onnx: bool = False) -> Path:
    """Write what was tested of a client at the end of a run: `model.safetensors` and `model.json` in `out`."""
    run, out = Path(run), Path(out)
    source = _open(run)
    if not 0 <= client < len(source.federation.participants):
        last = len(source.federation.participants) - 1
        raise PotluckError(f"--client {client} is not in {str(run)!r}; it has clients 0 to {last}.")
    model = as_module(source.predictor(client), source.experiment.method.name)
    description = {
        "format": FORMAT,
        "potluck": __version__,
        "method": source.experiment.method.name,
        "client": source.federation.participants[client].name,
        "protocol": source.experiment.evaluate.protocol,
        "input_shape": list(source.federation.task.input_shape),
        "num_classes": source.federation.task.num_classes,
        "vocabulary": source.vocabulary,
        "precision": str(source.federation.task.dtype).removeprefix("torch."),
        "model": source.describe(model),
    }
    state = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in model.state_dict().items()}
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.write_atomic(out / DESCRIPTION, json.dumps(description, indent=2) + "\n")
        safetensors.torch.save_file(state, out / WEIGHTS)
    except (OSError, safetensors.SafetensorError) as error:
        raise PotluckError(
            f"--out {str(out)!r} cannot be written ({error}); choose another folder."
        ) from None
    if onnx:
        write_onnx(model, source.federation.example(), out / "model.onnx")
    return out


def load_model(path: str | Path) -> nn.Module:
    """The exported model, in eval mode: a plain module from inputs to class scores. Nothing stored is executed."""
    place = Path(path)
    try:
        description = parse_json(read_text(place / DESCRIPTION))
        state = safetensors.torch.load_file(place / WEIGHTS)
        if description["format"] != FORMAT:
            raise ValueError(f"its format is {description['format']}, this version reads {FORMAT}")
        # No memory is taken for what the description asks for before the weights are seen to be of that size.
        with torch.device("meta"):
            model = _build(description["model"], description)
            model = model.to(getattr(torch, description["precision"]))
        _fill(model, state)
    except (FileNotFoundError, NotADirectoryError):
        raise PotluckError(
            f"{str(place)!r} holds no exported model ({WEIGHTS}, {DESCRIPTION}); check the path."
        ) from None
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        ArithmeticError,
        AttributeError,
        RuntimeError,
        safetensors.SafetensorError,
    ) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise PotluckError(
            f"The exported model in {str(place)!r} cannot be read ({reason}); export it again."
        ) from None
    return model.eval()


def _fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Give a model without memory its weights, which must be the very ones it needs."""
    wanted = model.state_dict()
    for name in sorted(wanted.keys() ^ state.keys()):
        raise ValueError(f"its weights {'lack' if name in wanted else 'have an unknown'} {name!r}")
    for name, tensor in wanted.items():
        if tensor.shape != state[name].shape:
            raise ValueError(f"{name!r} should be {tuple(tensor.shape)} and is {tuple(state[name].shape)}")
    # Copies: what was read may still be a window on the file.
    own = {name: state[name].to(tensor.dtype, copy=True) for name, tensor in wanted.items()}
    model.load_state_dict(own, assign=True)


def _build(node: dict[str, Any], facts: dict[str, Any]) -> nn.Module:
    """A module without its weights from what the description says of it."""
    if "linear" in node:
        return nn.Linear(*node["linear"])
    if "kind" in node:
        models = {name: _build(part, facts) for name, part in node["models"].items()}
        empty = {
            name: torch.zeros(entry["shape"], dtype=getattr(torch, entry["dtype"]))
            for name, entry in node["tensors"].items()
        }
        return Composite(node["kind"], models, empty)
    model = build_model(
        node["zoo"],
        tuple(facts["input_shape"]),
        facts["num_classes"],
        node["feature_dim"],
        projection=node["projection"],
        vocabulary=facts["vocabulary"],
    )
    return with_statistics(model, ()) if node["statistics"] else model


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
class _Source:
    """A run as it stood at its end."""

    experiment: Experiment
    method: Method[Any, Any, Any]
    federation: Federation
    loop: Loop
    worker: Worker
    vocabulary: int | None
    small: str | None

    def predictor(self, client: int) -> Predictor:
        """What the last evaluation tested, made the same way."""
        context, info = self.loop.context(), self.federation.task.clients[client]
        message = None
        if self.loop.evaluation.protocol != "local":
            message = self.loop._broadcast(info, context)
        me: Client = self.worker.client(client)
        number = self.loop.progress.numbers.get(client, 0)
        with seeded(me.task.seed, "torch", info.name, "evaluate", number):
            me.begin("evaluate", number, context.round, context.rounds)
            me.model.eval()
            return self.method.predict(me, message)

    def describe(self, module: nn.Module) -> dict[str, Any]:
        """How to build a module like this one again."""
        if isinstance(module, Composite):
            return {
                "kind": module.kind,
                "models": {name: self.describe(part) for name, part in module.models.items()},
                "tensors": {
                    name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
                    for name in module.names
                    for tensor in [module.get_buffer(f"own_{name}")]
                },
            }
        if type(module) is nn.Linear:
            return {"linear": [module.in_features, module.out_features, module.bias is not None]}
        settings, name = self.experiment.models, self._name(module, self.federation.task)
        plain = build_model(
            name,
            self.federation.task.input_shape,
            self.federation.task.num_classes,
            settings.feature_dim,
            projection=settings.projection,
            vocabulary=self.vocabulary,
        )
        return {
            "zoo": name,
            "feature_dim": settings.feature_dim,
            "projection": settings.projection,
            # Norms without statistics of their own were given some for testing (HeteroFL, FedRolex).
            "statistics": bool(static_norms(plain)) and not static_norms(module),
        }

    def _name(self, module: nn.Module, task: Task) -> str:
        """The architecture by its parameters' names and shapes."""
        found = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
        for name, architecture in task.architectures.items():
            if found == {key: tuple(architecture.initial[key].shape) for key in architecture.parameters}:
                return name
        if self.small is None:
            raise PotluckError(
                "The model to export is none of the run's own; export works with models by name."
            )
        return self.small


def _open(run: Path) -> _Source:
    """Rebuild a run from its own file and its last checkpoint."""
    experiment = parse_experiment(read_experiment(run / folder.EXPERIMENT)).with_objects()
    checkpoint = last_checkpoint(run)
    if checkpoint is None:
        raise PotluckError(
            f"{str(run)!r} has no checkpoint, so its clients' models are gone; "
            "repeat the run with --checkpoint-every 1."
        )
    method, data = experiment.build_method(), experiment_data(experiment)
    federation = build_federation(experiment, method, data=data)
    checkpoint.check_population(fingerprint(federation))
    worker = Worker(method, federation.client, encoded_size, checkpoint.client)
    loop = Loop(
        method,
        federation.task,
        SerialEngine(worker),
        make_schedule(experiment, method, federation),
        make_evaluation(experiment, federation),
    )
    checkpoint.restore(loop)
    small = experiment.models.shared or smallest(
        list(federation.task.architectures), data.input_shape, data.num_classes, vocabulary=data.vocabulary
    )
    return _Source(experiment, method, federation, loop, worker, data.vocabulary, small)
