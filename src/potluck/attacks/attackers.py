"""The malicious clients, drawn from the seed; the worker simulates them and evaluation separates them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from potluck.attacks.answers import corrupt
from potluck.attacks.samples import poison_samples, targeted_samples
from potluck.attacks.settings import Attack
from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.core.task import Task


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
