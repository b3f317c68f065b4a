"""Who attacks: drawn from the seed, known to the worker that plays them and to the loop that counts without them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import torch

from potluck.core.client import Client
from potluck.core.errors import PotluckError
from potluck.core.payload import Payload
from potluck.core.random import generator
from potluck.core.samples import Samples
from potluck.core.task import Task
from potluck.loop.attack.answers import corrupted
from potluck.loop.attack.samples import poisoned, wished
from potluck.loop.attack.settings import Attack


@dataclass(frozen=True)
class Attackers:
    """The attack and the clients that make it; nobody unless told."""

    attack: Attack = field(default_factory=Attack)
    clients: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.clients)

    def __contains__(self, client: int) -> bool:
        return client in self.clients

    def enlisted(self, me: Client) -> Client:
        """A new client, with the samples of an attacker if it is one."""
        if me.info.index in self and self.attack.aims and len(me.train):
            me.train = poisoned(self.attack, me)
        return me

    def corrupted(self, me: Client, message: Payload, answer: Payload) -> Payload:
        """What leaves a client: the answer itself unless it is an attacker's."""
        return corrupted(self.attack, me, message, answer) if me.info.index in self else answer

    def wished(self, samples: Samples | None, task: Task) -> Samples | None:
        """Test samples as the attacker wants them to be taken; None where it wants nothing in particular."""
        if not self or not self.attack.aims or samples is None or not len(samples):
            return None
        return wished(self.attack, samples, task)


def draw(attack: Attack, task: Task, absent: Collection[int] = ()) -> Attackers:
    """A share of the clients that have training samples and take part, at least one, drawn from the seed."""
    if not attack:
        return Attackers()
    able = [info.index for info in task.clients if info.samples > 0 and info.index not in absent]
    count = max(1, int(attack.share * len(able) + 1e-9))
    if count >= len(able):
        raise PotluckError(
            f"attack.share = {attack.share:g} makes {count} of {len(able)} clients malicious and leaves nobody honest; "
            "use more clients or a smaller share."
        )
    order = torch.randperm(len(able), generator=generator(task.seed, "attackers"))
    return Attackers(attack, frozenset(able[position] for position in order[:count].tolist()))
