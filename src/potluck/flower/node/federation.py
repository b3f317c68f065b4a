"""A federation of nodes that bring their own data and models: the node's part of it, and the server's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from potluck.core import tree
from potluck.core.errors import PotluckError
from potluck.core.method import Method
from potluck.core.needs import Need, check_needs
from potluck.core.payload import Tensors
from potluck.core.random import seeded
from potluck.core.samples import Samples
from potluck.core.schema import check_finite
from potluck.core.task import Architecture, ClientInfo, Context, Task
from potluck.data import Data, load_data, split_in_three
from potluck.data.augment import augmentation
from potluck.data.classes import names_are_numbers, with_class_names
from potluck.experiment import Experiment
from potluck.federation.federation import Builder, DataFacts, Federation, Member, assemble
from potluck.federation.population import initial_model_builder, model_builder, resolve_device
from potluck.flower.node.config import NodeFile
from potluck.flower.node.registration import Registration
from potluck.models import build_model


def node_federation(experiment: Experiment, node: NodeFile) -> Federation:
    """Return the federation as one node sees it: itself. Its model starts from the run's seed and the node's name."""
    dtype = getattr(torch, experiment.models.precision)
    device = resolve_device(node.device)
    data = with_agreed_classes(node.load_data(), experiment, node).to_dtype(dtype).to_device(device)
    train, validation, test = (
        data.view(rows)
        for rows in split_in_three(
            np.arange(len(data)),
            node.data.split,
            seed=experiment.seed,
            client=node.name,
            test_apart=data.test is not None,
        )
    )
    train = without_small_classes(train, node.policy.smallest_class)
    build = model_builder(node.model_source(), node.model, experiment, data)
    start = initial_model_builder(build, experiment, node.model, node.name)
    augment = experiment.data.augment
    return assemble(
        [
            Member(
                start,
                train,
                test if data.test is None else data.test,
                node.name,
                validation=validation,
                architecture=node.model,
                device=node.device_class,
            )
        ],
        DataFacts.of(data),
        training=experiment.training,
        seed=experiment.seed,
        builders={node.model: build},
        shared_builder=_shared(experiment, data.input_shape),
        public=_public(experiment, node.data.root),  # a path from the server is never opened
        augment=augmentation(augment) if augment else None,
        dtype=dtype,
        device=device,
    )


def server_federation(
    experiment: Experiment,
    method: Method[Any, Any, Any],
    registrations: Sequence[Registration],
    initial_weights: Callable[[int], Tensors],
) -> Federation:
    """Return the federation as the server sees it, from registrations; ask for first weights only where used."""
    task = server_task(experiment, registrations, public_data(experiment, method))
    check_needs(method, task)
    if uses_initial_weights(method, task, experiment.schedule.rounds):
        task = replace(
            task,
            architectures={
                name: replace(architecture, initial=_initial_weights(task, architecture, initial_weights))
                for name, architecture in task.architectures.items()
            },
        )
    return Federation(task, _elsewhere(task), label="own nodes", class_names=experiment.data.class_names)


def server_task(
    experiment: Experiment, registrations: Sequence[Registration], public: Samples | None
) -> Task:
    """Return what the server knows of these nodes together; first weights are not among it."""
    shapes = {tuple(registration.input_shape): registration.name for registration in reversed(registrations)}
    if len(shapes) > 1:
        listed = ", ".join(f"{shape} of {name!r}" for shape, name in sorted(shapes.items()))
        raise PotluckError(f"The nodes' rows have different shapes ({listed}); agree on one.")
    names = _architecture_names(registrations)
    return Task(
        agreed_classes(experiment),
        tuple(registrations[0].input_shape),
        tuple(
            ClientInfo(
                index,
                registration.name,
                registration.samples,
                names[index],
                registration.device,
                registration.validation,
            )
            for index, registration in enumerate(registrations)
        ),
        {name: _architecture(registrations[names.index(name)], name) for name in dict.fromkeys(names)},
        seed=experiment.seed,
        shared_builder=_shared(experiment, tuple(registrations[0].input_shape)),
        public=public,
        dtype=getattr(torch, experiment.models.precision),
        training=experiment.training,
    )


def public_data(experiment: Experiment, method: Method[Any, Any, Any]) -> Samples | None:
    """Return the public data of the server, where the method needs some."""
    return _public(experiment, experiment.data.root) if Need.PUBLIC_DATA in method.requires() else None


def agreed_classes(experiment: Experiment) -> int:
    """Return how many classes there are, which no node can know from its own rows."""
    classes, names = experiment.engine.classes, experiment.data.class_names
    if names and classes not in (0, len(names)):
        raise PotluckError(
            f"engine.classes = {classes} contradicts data.class_names, which lists {len(names)}; leave "
            "engine.classes out."
        )
    if not classes and not names:
        raise PotluckError(
            "engine.classes is not set; say how many classes the nodes' labels have together, or list their names in "
            "data.class_names."
        )
    return classes or len(names)


def with_agreed_classes(data: Data, experiment: Experiment, node: NodeFile) -> Data:
    """Return the node's data with the classes numbered as on every other node."""
    classes, name = agreed_classes(experiment), node.name
    if experiment.data.class_names:
        hidden = not node.policy.class_names
        return with_class_names(data, experiment.data.class_names, f"Node {name!r}", private=hidden)
    if not names_are_numbers(data):
        raise PotluckError(
            f"Node {name!r} has classes with names, and the experiment does not say which number each name has; list "
            "them in data.class_names, or leave engine.classes out, so that the server unites the nodes' names."
        )
    if data.num_classes > classes:
        raise PotluckError(
            f"Node {name!r} has label {data.num_classes - 1} but engine.classes = {classes}; raise engine.classes."
        )
    return replace(data, num_classes=classes)


def _shared(experiment: Experiment, input_shape: tuple[int, ...]) -> Builder | None:
    choice = experiment.models.shared
    if choice is None:
        return None
    classes, size = agreed_classes(experiment), experiment.models.feature_dim
    return lambda: build_model(choice, input_shape, classes, size)


def without_small_classes(rows: Samples, smallest: int) -> Samples:
    """Return the rows of classes that have enough of them: what was not trained on cannot be described."""
    counts = torch.bincount(rows.labels.long())
    if len(rows) == 0 or int(counts[counts > 0].min()) >= smallest:
        return rows
    return rows.select((counts[rows.labels.long()] >= smallest).nonzero().flatten())


def _public(experiment: Experiment, root: str | None) -> Samples | None:
    """Public data is a set that all parties can load by name; nothing is held out of private rows."""
    choice = experiment.data.public
    if not isinstance(choice, str) or choice == "auto":
        return None
    data = load_data(choice, root)
    return data.to_dtype(getattr(torch, experiment.models.precision)).train


def _architecture_names(registrations: Sequence[Registration]) -> list[str]:
    """Return the nodes' own names for their models; a number is added where one name stands for several models."""
    seen: dict[str, list[tuple[Any, ...]]] = {}
    names = []
    for registration in registrations:
        variants = seen.setdefault(registration.architecture, [])
        if registration.model() not in variants:
            variants.append(registration.model())
        position = variants.index(registration.model())
        names.append(
            registration.architecture if position == 0 else f"{registration.architecture}-{position + 1}"
        )
    return names


def _architecture(registration: Registration, name: str) -> Architecture:
    """Return what a node says of its model. Not-a-number stands for weights that no node has sent."""
    unknown: Tensors = {}
    for key, (dtype, *shape) in registration.tensors.items():
        kind = getattr(torch, dtype)
        value = (
            torch.full((), float("nan"), dtype=kind)
            if kind.is_floating_point
            else torch.zeros((), dtype=kind)
        )
        unknown[key] = value.expand(shape)
    return Architecture(
        name,
        registration.feature_dim,
        unknown,
        frozenset(registration.parameters),
        {key: tuple(shape) for key, shape in registration.head.items()},
        tuple(tuple(shape) for shape in registration.stage_shapes),
        registration.width_rate,
    )


def uses_initial_weights(method: Method[Any, Any, Any], task: Task, rounds: int) -> bool:
    """Return whether the server's first state is made from clients' first weights: then it holds what is not known."""
    with seeded(task.seed, "torch", "init_server"):
        state = method.init_server(Context(task, 1, rounds, task.seed))
    return any(bool(torch.isnan(tensor).any()) for tensor in tree.flatten(state).tensors.values())


def _initial_weights(task: Task, architecture: Architecture, ask: Callable[[int], Tensors]) -> Tensors:
    """Return what the first node of this kind of model sends that is not wrong; any of them has the same."""
    kin = [info.index for info in task.clients if info.architecture == architecture.name]
    for index in kin:
        try:
            return _checked(ask(index), architecture)
        except PotluckError:
            if index == kin[-1]:
                raise
    raise AssertionError("every architecture is somebody's")


def _checked(weights: Tensors, architecture: Architecture) -> Tensors:
    for name, placeholder in architecture.initial.items():
        tensor = weights.get(name)
        if tensor is None or tensor.shape != placeholder.shape or tensor.dtype != placeholder.dtype:
            raise PotluckError(
                f"The first weights of {architecture.name!r} do not have the shape of {name!r}."
            )
        check_finite(f"The first weights' {name}", tensor)
    return {name: weights[name] for name in architecture.initial}


def _elsewhere(task: Task) -> list[Member]:
    """Return clients of whom nothing but the name is here."""

    def build() -> Any:
        raise PotluckError("A node's model is not on the server.")

    nothing = Samples(torch.zeros(0, *task.input_shape), torch.zeros(0, dtype=torch.int64))
    return [Member(build, nothing, None, info.name, architecture=info.architecture) for info in task.clients]
