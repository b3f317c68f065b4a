"""A federation of the user's own clients: model instances, tensors, nothing else."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.samples import Samples
from potluck.core.training import Training
from potluck.federation import Builder, Federation, Participant, assemble

Pair = tuple[Tensor, Tensor]


@dataclass
class Member:
    """One client of the user's own: a model instance with its weights as they are, and its tensors."""

    model: nn.Module
    train: Pair
    test: Pair | None = None
    name: str | None = None


def federate(
    members: Sequence[Member],
    *,
    training: Training | None = None,
    num_classes: int | None = None,
    shared_model: nn.Module | None = None,
    shared_test: Pair | None = None,
    public: Pair | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> Federation:
    """A federation from your own list of clients. Weights start exactly as given; your modules stay as they are.

    A model that is no `ClientModel` must be split first: `potluck.split(model, head="fc")`. Clients whose models
    have the same class and the same tensor shapes count as one architecture. The precision is that of the models.
    """
    if not members:
        raise PotluckError("A federation needs at least one client; the list is empty.")
    models = [as_client_model(member.model, index) for index, member in enumerate(members)]
    names = _architecture_names(models)
    participants = [
        Participant(
            member.name or f"client-{index}",
            names[index],
            copier(models[index]),
            Samples(*member.train),
            Samples(*(member.test or _empty(member.train))),
        )
        for index, member in enumerate(members)
    ]
    builders = {one.architecture: one.build for one in reversed(participants)}
    labels = [member.train[1] for member in members] + [member.test[1] for member in members if member.test]
    small = None if shared_model is None else as_client_model(shared_model, "shared model")
    return assemble(
        participants,
        num_classes=num_classes or 1 + max(int(label.max()) for label in labels if len(label)),
        input_shape=tuple(members[0].train[0].shape[1:]),
        training=training or Training(),
        seed=seed,
        builders=builders,
        shared_builder=None if small is None else copier(small),
        shared_test=None if shared_test is None else Samples(*shared_test),
        public=None if public is None else Samples(*public),
        dtype=dtype or next(models[0].parameters()).dtype,
    )


def as_client_model(model: nn.Module, who: object) -> ClientModel:
    """The module itself, or a sentence on how to split it."""
    if not isinstance(model, ClientModel):
        raise PotluckError(
            f"The model of client {who} is a {type(model).__name__}, which has no features and head; "
            'pass potluck.split(model, head="NAME OF ITS LAST LAYER").'
        )
    return model


def copier(model: ClientModel) -> Builder:
    """A builder that gives copies of one instance, weights as they are."""
    return lambda: copy.deepcopy(model)


def _empty(pair: Pair) -> Pair:
    return pair[0][:0], pair[1][:0]


def _architecture_names(models: Sequence[ClientModel]) -> list[str]:
    """The class's name; a number is added where one class comes in several shapes."""
    seen: dict[str, list[object]] = {}
    names = []
    for model in models:
        shapes = tuple((key, tuple(tensor.shape)) for key, tensor in model.state_dict().items())
        base = str(getattr(model, "name", None) or type(model).__name__)
        variants = seen.setdefault(base, [])
        if shapes not in variants:
            variants.append(shapes)
        position = variants.index(shapes)
        names.append(base if position == 0 else f"{base}-{position + 1}")
    return names
