"""Attacks on answers: well-formed answers with false content."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from potluck.attacks.settings import Attack, Kind
from potluck.core.client import Client
from potluck.core.payload import Payload, Tensors, field_kinds
from potluck.core.random import generator
from potluck.core.schema import Counts, Integers, Labels, Shape
from potluck.privacy.messages import float_tensors, reference_tensors, with_tensors


def corrupt(attack: Attack, me: Client, message: Payload, answer: Payload) -> Payload:
    """Return the answer as the attacker sends it; one of honest training where the attack was on samples."""
    sent = float_tensors(answer)
    if attack.kind in ("logit-shuffle", "prototype-swap"):
        return with_tensors(answer, _mixed(attack, me, sent, attacked_fields(attack.kind, type(answer))))
    if attack.kind in ("sign-flip", "scale", "noise", "little-is-enough"):
        base, rng = reference_tensors(sent, message), me.rng("attack")
        return with_tensors(answer, {name: _moved(attack, sent[name], base[name], rng) for name in sent})
    return answer


def _moved(attack: Attack, sent: Tensor, base: Tensor, rng: torch.Generator) -> Tensor:
    """Return a tensor of the answer, moved from where honest training put it."""
    change, effective_strength = sent - base, attack.effective_strength
    if attack.kind == "sign-flip":
        return base - effective_strength * change
    if attack.kind == "scale":
        return base + effective_strength * change
    if attack.kind == "noise":
        noise = torch.randn(sent.shape, generator=rng, dtype=torch.float64).to(sent)
        return sent + effective_strength * change.square().mean().sqrt() * noise if sent.numel() else sent
    # Baruch et al. 2019 hide inside the spread over clients; one attacker alone uses that of its own values.
    spread = change.std(correction=0) if change.numel() else 0.0
    return sent - effective_strength * spread * change.sign()


def _mixed(attack: Attack, me: Client, sent: Mapping[str, Tensor], names: list[str]) -> Tensors:
    """Classes in the place of others: columns of logits, or the vectors of the classes that a client holds."""
    mixed: Tensors = {}
    for name in (name for name in names if name in sent):
        rows = sent[name]
        if attack.kind == "logit-shuffle":
            other = rows[:, next_class(me.task.seed, rows.shape[1]).to(rows.device)]
        else:
            other = rows.roll(1, 0)
        mixed[name] = rows + attack.effective_strength * (other - rows)
    return mixed


def next_class(seed: int, classes: int) -> Tensor:
    """For every class another one, the same for all attackers: the next in an order drawn from the seed."""
    order = torch.randperm(classes, generator=generator(seed, "attack", "classes"))
    following = torch.empty_like(order)
    following[order] = order.roll(-1)
    return following


def attacked_fields(kind: Kind, answer: type[Payload]) -> list[str]:
    """Return the fields of an answer that an attack acts on, by their declarations."""
    kinds = field_kinds(answer)
    real = {
        name: [rule.sizes for rule in field_type.rules if isinstance(rule, Shape)]
        for name, field_type in kinds.items()
        if field_type.base is dict
        or (
            field_type.base is Tensor
            and not any(isinstance(rule, Labels | Counts | Integers) for rule in field_type.rules)
        )
    }
    if kind == "logit-shuffle":
        return [
            name for name, shapes in real.items() if any(len(s) == 2 and s[1] == "classes" for s in shapes)
        ]
    if kind == "prototype-swap":
        rows = {
            rule.rows
            for field_type in kinds.values()
            for rule in field_type.rules
            if isinstance(rule, Labels)
        }
        return [name for name, shapes in real.items() if any(len(s) == 2 and s[0] in rows for s in shapes)]
    return list(real)
