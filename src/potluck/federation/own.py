"""A federation of the user's own clients: model instances, tensors, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.samples import Samples
from potluck.core.training import Training
from potluck.federation.devices import Device, fleet
from potluck.federation.federation import Federation, Member, Pair, assemble, samples_of


def federate(
    members: Sequence[Member],
    *,
    training: Training | None = None,
    num_classes: int | None = None,
    shared_model: nn.Module | None = None,
    shared_test: Pair | Samples | None = None,
    public: Pair | Samples | None = None,
    dtype: torch.dtype | None = None,
    devices: str | Sequence[Device] = (),
    seed: int = 0,
) -> Federation:
    """A federation from your own list of clients. Weights start exactly as given; your modules stay as they are.

    A model that is no `ClientModel` must be split first: `potluck.split(model, head="fc")`. Clients whose models
    have the same class and the same tensor shapes count as one architecture. The precision is that of the models.
    `devices` give the virtual clock something to count: a fleet's name, or one `Device` per client.
    """
    if not members:
        raise PotluckError("A federation needs at least one client; the list is empty.")
    clients, models = _described(members)
    small = None if shared_model is None else Member(shared_model, clients[0].train, name="shared model")
    labels = [
        samples.labels for member in members for samples in (member.train, member.validation, member.test)
    ]
    return assemble(
        clients,
        num_classes=num_classes or 1 + max(int(label.max()) for label in labels if len(label)),
        input_shape=tuple(members[0].train.take(slice(0, 1))[0].shape[1:]),
        training=training or Training(),
        seed=seed,
        builders={one.architecture: one.build for one in reversed(clients)},
        shared_builder=None if small is None else small.build,
        shared_test=None if shared_test is None else samples_of(shared_test),
        public=None if public is None else samples_of(public),
        dtype=dtype or next(models[0].parameters()).dtype,
        devices=_devices(devices, len(members), seed),
    )


def _described(members: Sequence[Member]) -> tuple[list[Member], list[ClientModel]]:
    """The clients with names and kinds of models, and a model of each; what was given stays as it is."""
    clients = [
        Member(
            member.model,
            member.train,
            member.test,
            member.name or f"client-{index}",
            validation=member.validation,
            architecture=member.architecture,
            device=member.device,
        )
        for index, member in enumerate(members)
    ]
    models = [client.build() for client in clients]
    for client, kind in zip(clients, _architecture_names(clients, models), strict=True):
        client.architecture = kind
    return clients, models


def _devices(given: str | Sequence[Device], clients: int, seed: int) -> Sequence[Device]:
    if isinstance(given, str):
        return fleet(given, clients, seed) if given else ()
    if given and len(given) != clients:
        raise PotluckError(f"devices lists {len(given)} devices for {clients} clients; give one per client.")
    return given


def _architecture_names(members: Sequence[Member], models: Sequence[ClientModel]) -> list[str]:
    """The class's name; a number is added where one class comes in several shapes."""
    seen: dict[str, list[object]] = {}
    names = []
    for member, model in zip(members, models, strict=True):
        shapes = tuple((key, tuple(tensor.shape)) for key, tensor in model.state_dict().items())
        base = member.architecture or str(getattr(model, "name", None) or type(model).__name__)
        variants = seen.setdefault(base, [])
        if shapes not in variants:
            variants.append(shapes)
        position = variants.index(shapes)
        names.append(base if position == 0 else f"{base}-{position + 1}")
    return names
