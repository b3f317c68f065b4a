"""What an attack did: how good honest clients still are, and how often the attacker got what it wanted."""

from __future__ import annotations

from collections.abc import Sequence

from potluck.loop.attack.attackers import Attackers
from potluck.loop.records import ClientScore, Scores
from potluck.loop.schedule import Protocol
from potluck.loop.score import summarise


def outcome(attackers: Attackers, scores: Scores, protocol: Protocol) -> dict[str, float]:
    """`honest_accuracy`, the mean over honest clients (or the server's model), and `attack_success`.

    Success is the share of test samples that are taken for the class that the attacker wants: with the trigger, or with
    flipped labels. An attack without such an aim succeeds wherever an honest client is wrong.
    """
    honest = summarise(one.score for one in _of(attackers, scores.test, protocol))
    if not attackers or honest.accuracy is None:
        return {}
    found = {"honest_accuracy": honest.accuracy}
    if not attackers.attack.aims:
        return {**found, "attack_success": 1 - honest.accuracy}
    success = summarise(one.score for one in _of(attackers, scores.attacked, protocol)).accuracy
    return found if success is None else {**found, "attack_success": success}


def _of(attackers: Attackers, scores: Sequence[ClientScore], protocol: Protocol) -> list[ClientScore]:
    return [
        one
        for one in scores
        if one.protocol == protocol and (one.client is None or one.client.index not in attackers)
    ]
