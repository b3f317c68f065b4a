"""Try a node before anyone connects: load its data, build its model, train one step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.model import batch_norm_in_eval_mode
from potluck.core.needs import check_needs
from potluck.core.random import one_thread
from potluck.data import Data
from potluck.data.classes import list_names
from potluck.experiment import Experiment
from potluck.federation.population import initial_model_builder, model_builder
from potluck.flower.node.audit import AuditLog
from potluck.flower.node.config import NodeFile, jobs_to_keep, read_node
from potluck.flower.node.federation import node_federation
from potluck.flower.node.guard import check_budget, check_row_budget


def check_node(path: Path, experiment: Experiment) -> list[str]:
    """Return what was tried and found good, line by line; the first thing that is not raises a sentence."""
    node = read_node(path)
    node.policy.check(experiment)
    declared = bool(experiment.engine.classes or experiment.data.class_names)
    data = node.load_data()
    outputs = None if declared else own_outputs(node, experiment, data)
    if not declared:
        experiment = with_local_classes(experiment, data, outputs or data.num_classes)
    federation = node_federation(experiment, node)
    task, member = federation.task, federation.members[0]
    between = f", {len(member.validation)} validation" if len(member.validation) else ""
    rows = f"{len(member.train)} training{between} and {len(member.test)} test rows"
    lines = [f"data: {rows} of shape {task.input_shape}", classes_line(node, data, declared=declared)]
    if not len(member.train):
        raise PotluckError(f"Node {node.name!r} has no training rows; check data.source and data.split.")
    architecture = task.architectures[member.architecture]
    count = sum(architecture.initial[name].numel() for name in architecture.parameters)
    lines.append(f"model: {member.architecture}, {count:,} parameters, {architecture.feature_dim} features")
    if outputs is not None:
        lines.append(
            f"{outputs} outputs: the federation must have {outputs} classes, checked at the start of a run"
        )
    method = experiment.build_method()
    check_needs(method, task)
    check_row_budget(node.policy, experiment, method, len(member.train))
    lines.append(f"method: {experiment.method.name} finds what it needs of a single node")
    lines.append(f"one training step: loss {_one_step(federation.client(0)):.3f}")
    lines += allowance(node, experiment, len(member.train))
    folder = node.state_folder()
    _try_folder(folder)
    lines.append(f"state: {folder} can be written")
    sent = {
        "name": node.name,
        "samples": len(member.train),
        "model": member.architecture,
        "device": member.device,
    }
    lines.append(f"the server will know: {json.dumps(sent)} and the shapes of the model's tensors")
    return lines


def own_outputs(node: NodeFile, experiment: Experiment, data: Data) -> int | None:
    """Return how many class scores the node's own network gives; None for a network of the zoo, which is built to fit.

    The node may lack classes that others have, so its network may have more outputs than it has classes.
    """
    source = node.model_source()
    if isinstance(source, str):
        return None
    dtype = getattr(torch, experiment.models.precision)
    data = data.to_dtype(dtype)
    build = initial_model_builder(
        model_builder(source, node.model, experiment, data), experiment, node.model, node.name
    )
    model = build().to(dtype).eval()
    try:
        with torch.no_grad(), batch_norm_in_eval_mode(model):
            scores = model(data.view(np.arange(1)).take(slice(0, 1))[0])
    except (RuntimeError, ValueError, IndexError):
        return None  # node_federation says in a sentence that the network does not take these rows
    outputs = scores.shape[1] if scores.dim() == 2 else data.num_classes
    if outputs < data.num_classes:
        raise PotluckError(
            f"Model {node.model!r} gives {outputs} class scores and this node has {data.num_classes} classes; give its "
            "last layer one output for each class of the federation, as data.class_names of the experiment lists them."
        )
    return int(outputs)


def with_local_classes(experiment: Experiment, data: Data, classes: int) -> Experiment:
    """Return the experiment as if the classes of all nodes were this node's, and others up to so many."""
    if not data.class_names:
        return experiment.with_settings({"engine.classes": classes})
    placeholders = [f"class {place} of another node" for place in range(len(data.class_names), classes)]
    return experiment.with_settings({"data.class_names": (*data.class_names, *placeholders)})


def classes_line(node: NodeFile, data: Data, *, declared: bool) -> str:
    """Say which classes the node has, and who learns their names."""
    if not data.class_names:
        return f"classes: labels 0 to {data.num_classes - 1}, without names"
    if declared:
        sentence = "numbered as the experiment says"
    elif node.policy.class_names:
        sentence = "the server unites these names with those of the other nodes"
    else:
        sentence = "policy.class_names = false: the experiment must list them in data.class_names"
    return f"classes: {list_names(data.class_names)}; {sentence}"


def allowance(node: NodeFile, experiment: Experiment, rows: int) -> list[str]:
    """Return what the node's policy allows this experiment, in its own numbers."""
    policy, schedule, privacy = node.policy, experiment.schedule, experiment.privacy
    trained = experiment.training.epochs * rows
    lines = [
        f"policy: {experiment.method.name} is allowed; {experiment.training.epochs} of {policy.epochs} epochs and "
        f"{trained} of {policy.samples} samples per job",
        f"policy: at most {policy.jobs} answers and {policy.hours:g} hours for a run (this one has {schedule.rounds} "
        f"rounds), {max(node.keep, jobs_to_keep(experiment))} jobs kept",
        f"policy: scores {'travel' if policy.scores and privacy.scores else 'stay here'}; classes below "
        f"{policy.smallest_class} rows are not described",
    ]
    if trained > policy.samples:
        raise PotluckError(
            f"This node refuses the run: {experiment.training.epochs} epochs of {rows} rows are above its "
            f"policy.samples = {policy.samples}."
        )
    if policy.epsilon:
        check_budget(policy, AuditLog(node.audit_log()).last(), privacy)
        lines.append(f"policy: ε may reach {policy.epsilon:g}, and one more answer stays below")
    return lines


def _one_step(me: Client) -> float:
    me.training = replace(me.training, batch_size=min(me.batch_size(), 32))
    with one_thread(), me.training_mode(me.model):
        x, y = next(me.batches(1))
        scores = me.model(x)
        if scores.shape != (len(y), me.task.num_classes):
            raise PotluckError(
                f"The model gives scores of shape {tuple(scores.shape)} for {len(y)} rows and "
                f"{me.task.num_classes} classes; its last layer must have one output per class."
            )
        loss = nn.functional.cross_entropy(scores, y)
        me.step(me.optimizer(me.model), loss)
    if not torch.isfinite(loss):
        raise PotluckError(
            "One training step gave a loss that is not finite; lower training.lr or scale the data."
        )
    return float(loss.detach())


def _try_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe = folder / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise PotluckError(
            f"state = {str(folder)!r} cannot be written ({error.strerror}); choose another."
        ) from None
