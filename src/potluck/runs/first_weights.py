"""Keep the first weights of the user's own modules with a run, so that another process can continue and export it."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.task import Architecture
from potluck.federation.federation import Federation, Member
from potluck.runs.folder import FIRST_WEIGHTS, write_atomic
from potluck.runs.plan import Parts


def own_modules(parts: Parts) -> dict[str, nn.Module]:
    """Return the modules that a user gave as objects, by their place: in `models`, or among the clients."""
    if parts.models is not None:
        return {f"models/{i}": owner for i, owner in enumerate(parts.models) if isinstance(owner, nn.Module)}
    if parts.federation is not None and isinstance(parts.federation.members, list):
        members: Sequence[Member] = parts.federation.members
        return {
            f"clients/{i}": owner.model
            for i, owner in enumerate(members)
            if isinstance(owner.model, nn.Module)
        }
    return {}


def save_first_weights(run: Path, parts: Parts) -> None:
    """Write the weights of the user's own modules to a run's folder, unless it has them; a shared module once."""
    if (run / FIRST_WEIGHTS).exists():
        return
    places: dict[str, str] = {}
    stored: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for place, module in own_modules(parts).items():
        if id(module) not in stored:
            stored[id(module)] = place
            for name, tensor in module.state_dict().items():
                tensors[f"{place}/{name}"] = tensor.detach().cpu().clone().contiguous()
        places[place] = stored[id(module)]
    if places:
        write_atomic(run / FIRST_WEIGHTS, safetensors.torch.save(tensors, {"places": json.dumps(places)}))


def with_first_weights(run: Path, parts: Parts) -> Parts:
    """Return the parts with the weights that their modules had when the run began; as given where none are kept."""
    modules = own_modules(parts)
    if not modules or not (run / FIRST_WEIGHTS).is_file():
        return parts
    try:
        with safetensors.safe_open(run / FIRST_WEIGHTS, framework="pt") as file:
            places: dict[str, str] = json.loads(file.metadata()["places"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
    except (safetensors.SafetensorError, OSError, LookupError, TypeError, ValueError) as error:
        raise PotluckError(
            f"{str(run / FIRST_WEIGHTS)!r} cannot be read ({error}); restore the file, or start a new run."
        ) from None
    loaded = {
        place: _loaded(run, place, module, tensors, places.get(place)) for place, module in modules.items()
    }
    if parts.models is not None:
        models = [loaded.get(f"models/{i}", model) for i, model in enumerate(parts.models)]
        return replace(parts, models=models)
    assert parts.federation is not None
    return replace(parts, federation=_with_models(parts.federation, loaded))


def _loaded(
    run: Path, place: str, module: nn.Module, tensors: Mapping[str, Tensor], stored: str | None
) -> nn.Module:
    kind, _, number = place.partition("/")
    prefix = f"{stored}/"
    state = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
    own = module.state_dict()
    different = sorted(name for name in own.keys() | state.keys() if _shape(own, name) != _shape(state, name))
    if different:
        whose = f"client {number}" if kind == "clients" else f"number {number} of models"
        raise PotluckError(
            f"The model of {whose} ({type(module).__name__}) is not the one that the run in {str(run)!r} began with: "
            f"{different[0]!r} differs; pass the same models, or choose another folder."
        )
    loaded = copy.deepcopy(module)
    loaded.load_state_dict(state)
    return loaded


def _shape(state: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    return tuple(state[name].shape) if name in state else None


def _with_models(federation: Federation, modules: Mapping[str, nn.Module]) -> Federation:
    """Return a federation whose clients start from these modules, by `clients/NUMBER`."""
    members = []
    for index, member in enumerate(federation.members):
        member = copy.copy(member)
        member.model = modules.get(f"clients/{index}", member.model)
        members.append(member)
    architectures = dict(federation.task.architectures)
    for name, architecture in architectures.items():
        first = next(member for member in members if member.architecture == name)
        if isinstance(first.model, nn.Module) and isinstance(architecture.build, functools.partial):
            factory, *rest = architecture.build.func, *architecture.build.args[1:]
            architectures[name] = _with_initial(architecture, functools.partial(factory, first.build, *rest))
    return replace(federation, task=replace(federation.task, architectures=architectures), members=members)


def _with_initial(architecture: Architecture, build: Callable[[], ClientModel]) -> Architecture:
    """Return an architecture whose common first weights are those of a model, in its own precision and place."""
    state = build().trained_state()
    initial = {
        key: state[key].detach().to(tensor.device, tensor.dtype).clone()
        for key, tensor in architecture.initial.items()
    }
    return replace(architecture, initial=initial, build=build)
