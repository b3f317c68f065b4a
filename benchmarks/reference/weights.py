"""Local work of methods whose clients train the server's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.reference.hand import BIG, ReferenceClient, Upload, upload_fields
from potluck.core.model import ClientModel


def fedavg(me: ReferenceClient, message: Any) -> Upload:
    """Download, train, upload. InclusiveFL's clients do the same."""
    me.model.load_state_dict(message.tensors, strict=False)
    me.train(me.plain)
    return upload_fields("tensors", me.model)


def fedprox(me: ReferenceClient, message: Any) -> Upload:
    """The same with a pull towards what was downloaded."""
    me.model.load_state_dict(message.tensors, strict=False)
    pull = _pull(me.model)
    me.train(lambda x, y: me.plain(x, y) + 0.1 / 2 * pull())
    return upload_fields("tensors", me.model)


def fednova(me: ReferenceClient, message: Any) -> Upload:
    """The distance gone, divided by the steps."""
    me.model.load_state_dict(message.tensors, strict=False)
    steps = float(me.train(me.plain))
    with torch.no_grad():
        gone = {
            name: (message.tensors[name] - weight) / steps for name, weight in me.model.named_parameters()
        }
    return {**{f"direction.{name}": tensor for name, tensor in gone.items()}, "steps": steps}


def scaffold(me: ReferenceClient, message: Any) -> Upload:
    """Every gradient corrected by c - c_k; the mean of the uncorrected ones is the new c_k."""
    me.model.load_state_dict(message.weights, strict=False)
    weights = list(me.model.parameters())
    names = [name for name, _ in me.model.named_parameters()]
    control: dict[str, Tensor] = me.kept["control"]
    correction = [message.control[name] - control[name] for name in names]
    seen = [torch.zeros_like(weight) for weight in weights]

    def correct() -> None:
        for weight, total, more in zip(weights, seen, correction, strict=True):
            assert weight.grad is not None
            total += weight.grad
            weight.grad += more

    steps = me.train(me.plain, adjust=correct)
    with torch.no_grad():
        change = {name: weight - message.weights[name] for name, weight in zip(names, weights, strict=True)}
    new = {name: total / steps - control[name] for name, total in zip(names, seen, strict=True)}
    return {
        **{f"weights.{name}": tensor for name, tensor in change.items()},
        **{f"control.{name}": tensor for name, tensor in new.items()},
    }


def moon(me: ReferenceClient, message: Any) -> Upload:
    """Features near those of the model received, away from those of the last one."""
    me.model.load_state_dict(message.tensors, strict=False)
    received = copy.deepcopy(me.model).eval().requires_grad_(False)
    previous = copy.deepcopy(received)
    previous.load_state_dict(me.kept["previous"], strict=False)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        z = me.model.features(x)
        old, new = previous.features(x), received.features(x)
        apart = F.cosine_similarity(z, old, dim=1) - F.cosine_similarity(z, new, dim=1)
        return F.cross_entropy(me.model.head(z), y) + F.softplus(apart / 0.5).mean()

    me.train(loss)
    me.kept["previous"] = {name: tensor.detach().clone() for name, tensor in me.model.state_dict().items()}
    return upload_fields("tensors", me.model)


def fedin(me: ReferenceClient, message: Any) -> Upload:
    """FedProx, and at every step the middle's gradient towards others' features (eq. 14)."""
    me.model.load_state_dict(message.weights, strict=False)
    stem, middle = me.model.stages[0], nn.Sequential(*me.model.stages[1:])
    inner = list(middle.parameters())
    within = {id(weight) for weight in inner}
    outer = [weight for weight in me.model.parameters() if id(weight) not in within]
    pull, seen = _pull(me.model), list[Tensor]()

    def loss(x: Tensor, y: Tensor) -> Tensor:
        entering = stem(x)
        leaving = middle(entering)
        if len(x) == me.batch or not seen:
            seen[:] = entering.detach(), leaving.detach()
        return F.cross_entropy(me.model.head(me.model.pool(leaving)), y) + 0.1 / 2 * pull()

    def join() -> None:
        spare = {name: tensor.clone() for name, tensor in middle.named_buffers()}
        made = functional_call(middle, spare, (message.entering,))
        gradients = torch.autograd.grad(F.mse_loss(made, message.leaving), inner)
        for weight, gradient in zip(inner, gradients, strict=True):
            assert weight.grad is not None
            weight.grad = gradient + 0.5 * weight.grad
        for weight in outer:
            assert weight.grad is not None
            weight.grad *= 0.5

    me.train(loss, adjust=join)
    return {**upload_fields("weights", me.model), "entering": seen[0].clone(), "leaving": seen[1].clone()}


def heterofl(me: ReferenceClient, message: Any) -> Upload:
    """Masked cross-entropy, then the norms' statistics over all samples. FedRolex differs on the server alone."""
    me.model.load_state_dict(message.tensors, strict=False)
    present = torch.zeros(me.classes, dtype=torch.bool)
    classes = torch.unique(me.y)
    present[classes] = True
    me.train(lambda x, y: F.cross_entropy(me.model(x).masked_fill(~present, 0.0), y))
    sent = {**upload_fields("tensors", me.model), "classes": classes}
    return {**sent, **_statistics(me.model, me.x)}


def _statistics(model: ClientModel, x: Tensor) -> Upload:
    """Mean and variance of what enters each norm, averaged over large batches."""
    probe, norms = copy.deepcopy(model).eval(), {}
    for name, layer in probe.named_modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean, layer.running_var = (
                torch.zeros(layer.num_features),
                torch.ones(layer.num_features),
            )
            layer.num_batches_tracked = torch.zeros((), dtype=torch.int64)
            layer.track_running_stats, layer.momentum = True, None
            norms[name] = layer.train()
    with torch.no_grad():
        for part in torch.split(x, BIG):
            probe(part)
    statistics = {f"statistics.{name}.running_mean": layer.running_mean for name, layer in norms.items()}
    statistics |= {f"statistics.{name}.running_var": layer.running_var for name, layer in norms.items()}
    return {name: tensor for name, tensor in statistics.items() if tensor is not None}


def _pull(model: nn.Module) -> Callable[[], Tensor]:
    """The squared distance to the weights as they are now."""
    weights = list(model.parameters())
    start = [weight.detach().clone() for weight in weights]

    def distance() -> Tensor:
        pairs = zip(weights, start, strict=True)
        return torch.stack([(weight - old).square().sum() for weight, old in pairs]).sum()

    return distance
