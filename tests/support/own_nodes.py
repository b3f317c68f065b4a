"""Three nodes with their own data and models in folders, and the same clients in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from potluck.experiment import Experiment, parse_experiment
from potluck.federation.federation import DataFacts, Federation, assemble
from potluck.flower.node.config import TEMPLATE, read_node
from potluck.flower.node.federation import node_federation
from potluck.flower.node.registration import Registration

OWN = '''
import torch
from torch import nn
import potluck

class Wards(potluck.ClientModel):
    """A network that only this hospital has."""
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(4, {width}), nn.Linear({width}, 6)
        self.head = nn.Linear(6, 3)
        self.feature_dim = 6

    def features(self, x):
        return torch.tanh(self.two(torch.relu(self.one(x))))

def rows():
    generator = torch.Generator().manual_seed({seed})
    y = torch.arange(24) % 3
    return torch.randn(24, 4, generator=generator) + y[:, None], y
'''


def write_node(folder: Path, name: str, model: str, seed: int) -> Path:
    """A node whose data function, and model if it is its own, lie beside its file."""
    folder.mkdir(parents=True)
    module = f"of_{name.replace('-', '_')}"
    (folder / f"{module}.py").write_text(OWN.format(width=5 + seed, seed=seed))
    path = folder / "node.toml"
    model = model.format(module=module)
    path.write_text(TEMPLATE.format(name=name, model=model, source=f"{module}:rows"))
    return path


def three_nodes(folder: Path) -> list[Path]:
    """Two of the zoo's classes and one of a user's own file."""
    return several_nodes(folder, 3)


def several_nodes(folder: Path, count: int) -> list[Path]:
    """So many nodes with the models of three in turn."""
    models = ["mlp-1+6", "mlp-3+6", "{module}:Wards"]
    return [write_node(folder / f"n{i}", f"node-{i}", models[i % 3], seed=i) for i in range(count)]


WITHHOLDING = """
import random, time
import flwr.supercore.inflatable.inflatable_utils as utils
push, calls = utils.push_objects, []

def push_or_withhold(*arguments, **named):
    calls.append(1)
    if len(calls) > 1 and random.random() < {share}:  # the first is the registration
        time.sleep({seconds})
    return push(*arguments, **named)

utils.push_objects = push_or_withhold
"""


def write_withholding(folder: Path, *, share: float = 1.0, seconds: float = 1e6) -> str:
    """Write code for a hostile node: it announces its answers and sends a share of them late. Gives a PYTHONPATH."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITHHOLDING.format(share=share, seconds=seconds))
    return str(folder)


def experiment(method: str = "fedgh", **more: Any) -> Experiment:
    values: dict[str, Any] = {
        "method": {"name": method},
        "training": {"epochs": 1, "batch_size": 8},
        "schedule": {"rounds": 2},
        "engine": {"name": "flower", "nodes": 3, "classes": 3},
    }
    return parse_experiment({**values, **more})


def combined_federation(settings: Experiment, paths: list[Path]) -> Federation:
    """The same clients in one process, as the serial engine would have them."""
    parts = [node_federation(settings, read_node(path)) for path in paths]
    builders = {part.members[0].architecture: part.members[0].build for part in parts}
    task = parts[0].task
    return assemble(
        [part.members[0] for part in parts],
        DataFacts(num_classes=3, input_shape=task.input_shape),
        training=settings.training,
        seed=settings.seed,
        builders=builders,
    )


def serial_values(settings: Experiment) -> dict[str, Any]:
    """What the experiment asks on the serial engine, where the population is an object."""
    values = settings.model_dump(exclude_none=True)
    return {name: values[name] for name in ("method", "training", "schedule")} | {
        "engine": {"name": "serial"}
    }


def node_registrations(settings: Experiment, paths: list[Path]) -> list[Registration]:
    registrations = []
    for path in paths:
        task = node_federation(settings, read_node(path)).task
        info = task.clients[0]
        registrations.append(Registration.of(info, task.architectures[info.architecture], task.input_shape))
    return registrations
