"""Attacks on an attacker's own samples, and what it wants of other clients' models."""

from __future__ import annotations

import torch
from torch import Tensor

from potluck.attacks.settings import Attack
from potluck.core.client import Client
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.core.task import Task

TARGET = 0
"""The class that a picture with the trigger shall be taken for."""


def poison_samples(attack: Attack, me: Client) -> Samples:
    """Return the attacker's training samples: a share of them with wrong labels, or with the trigger and its class."""
    count = len(me.train)
    chosen = torch.zeros(count, dtype=torch.bool)
    order = torch.randperm(count, generator=generator(me.task.seed, "attack", me.info.name, "samples"))
    chosen[order[: max(1, round(attack.effective_strength * count))]] = True
    if attack.kind == "label-flip":
        labels = me.train.labels
        wrong = flip_labels(labels, me.task.num_classes)
        return me.train.with_targets(torch.where(chosen.to(labels.device), wrong, labels))
    x, y = me.train.take(slice(None))
    chosen = chosen.to(y.device)
    with_trigger = torch.where(chosen.view(-1, *[1] * (x.dim() - 1)), add_trigger(x), x)
    return Samples(with_trigger, torch.where(chosen, torch.full_like(y, TARGET), y))


def targeted_samples(attack: Attack, samples: Samples, task: Task) -> Samples:
    """Return an honest client's test samples with the labels that the attacker wants to see; maybe none of them."""
    labels = samples.labels
    if attack.kind == "label-flip":
        rows = torch.nonzero(flip_labels(labels, task.num_classes) != labels).flatten()
        chosen = samples.select(rows.cpu())
        return chosen.with_targets(flip_labels(chosen.labels, task.num_classes))
    x, y = samples.take(slice(None))
    others = y != TARGET
    return Samples(add_trigger(x)[others], torch.full_like(y[others], TARGET))


def flip_labels(labels: Tensor, classes: int) -> Tensor:
    """Return the wrong label of each class: counted from the other end."""
    return classes - 1 - labels


def add_trigger(x: Tensor) -> Tensor:
    """Pictures with the trigger: a quarter of a side, at most four pixels, of the brightest value in a corner."""
    if not len(x):
        return x
    x = x.clone()
    height, width = (min(4, max(1, size // 4)) for size in x.shape[-2:])
    x[..., -height:, -width:] = x.max()
    return x
