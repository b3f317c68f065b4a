"""The malicious clients, drawn from the seed; the worker simulates them and evaluation separates them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from potluck.attacks.answers import corrupt
from potluck.attacks.settings import Attack
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.core.task import Task

TARGET = 0
"""The class that a picture with the trigger shall be taken for."""


@dataclass(frozen=True)
class Attackers:
    """The attack and the malicious clients; none by default."""

    attack: Attack = field(default_factory=Attack)
    clients: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.clients)

    def __contains__(self, client: int) -> bool:
        return client in self.clients

    def poison_client(self, me: Client) -> Client:
        """Poison a new client's training samples if it is malicious and the attack is on samples."""
        if me.info.index in self and self.attack.is_targeted and len(me.train):
            me.train = poison_samples(self.attack, me)
        return me

    def corrupt(self, me: Client, message: Payload, answer: Payload) -> Payload:
        """Return the answer that a client sends: changed if it is malicious."""
        return corrupt(self.attack, me, message, answer) if me.info.index in self else answer

    def targeted_samples(self, samples: Samples | None, task: Task) -> Samples | None:
        """Return test samples with the labels that the attacker aims at; None for an attack without a target."""
        if not self or not self.attack.is_targeted or samples is None or not len(samples):
            return None
        return targeted_samples(self.attack, samples, task)


def draw_attackers(attack: Attack, task: Task, absent: Collection[int] = ()) -> Attackers:
    """Return a share of the clients that have training samples and take part, at least one, drawn from the seed."""
    if not attack:
        return Attackers()
    eligible = [info.index for info in task.clients if info.samples > 0 and info.index not in absent]
    count = max(1, int(attack.share * len(eligible) + 1e-9))
    if count >= len(eligible):
        raise PotluckError(
            f"attack.share = {attack.share:g} makes {count} of {len(eligible)} clients malicious and leaves no client "
            "honest; use more clients or a smaller share."
        )
    order = torch.randperm(len(eligible), generator=generator(task.seed, "attackers"))
    return Attackers(attack, frozenset(eligible[position] for position in order[:count].tolist()))


# -- attacks on samples ---------------------------------------------------------------------------------------


def poison_samples(attack: Attack, me: Client) -> Samples:
    """Return the attacker's training samples: a share of them with wrong labels, or with the trigger and its class."""
    count = len(me.train)
    chosen = torch.zeros(count, dtype=torch.bool)
    order = torch.randperm(count, generator=generator(me.task.seed, "attack", me.info.name, "samples"))
    chosen[order[: max(1, round(attack.effective_strength * count))]] = True
    if attack.kind == "label-flip":
        labels = me.train.labels
        flipped = flip_labels(labels, me.task.num_classes)
        return me.train.with_targets(torch.where(chosen.to(labels.device), flipped, labels))
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
    not_target = y != TARGET
    return Samples(add_trigger(x)[not_target], torch.full_like(y[not_target], TARGET))


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
