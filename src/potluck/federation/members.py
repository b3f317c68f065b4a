"""A federation of the user's own clients: model instances, tensors, nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.core.training import Training
from potluck.data.classes import list_names
from potluck.data.memory import Rows, as_samples
from potluck.data.targets import check_label_numbers
from potluck.federation.devices import Device, fleet
from potluck.federation.federation import DataFacts, Federation, Member, assemble
from potluck.models import network_name


def federate(
    members: Sequence[Member],
    *,
    training: Training | None = None,
    num_classes: int | None = None,
    shared_model: nn.Module | None = None,
    shared_test: Rows | None = None,
    public: Rows | None = None,
    dtype: torch.dtype | None = None,
    devices: str | Sequence[Device] = (),
    seed: int = 0,
) -> Federation:
    """Return a federation from your own list of clients. Weights start exactly as given; your modules stay as they are.

    A model that is no `ClientModel` is split at its last linear layer; `potluck.split(model, head="fc")` names another.
    Clients whose models have the same class and the same tensor shapes count as one architecture. The precision is that
    of the models. Class names and what raw inputs are come from members whose samples are `Data`, where these agree.
    `devices` give the virtual clock something to count: a fleet's name, or one `Device` per client.
    """
    if not members:
        raise PotluckError("A federation needs at least one client; the list is empty.")
    labels = [
        samples.labels for member in members for samples in (member.train, member.validation, member.test)
    ]
    facts = common_facts(members)
    classes = num_classes or max(
        facts.num_classes, 1 + max(int(label.max()) for label in labels if len(label))
    )
    check_label_numbers(
        torch.cat(labels),
        "the members",
        named=bool(num_classes or facts.num_classes),
        remedy="pass num_classes=",
    )
    if shared_test is None:
        _warn_of_no_tests(members)
    clients, precision = _described(members)
    small = None if shared_model is None else Member(shared_model, clients[0].train, name="shared model")
    return assemble(
        clients,
        replace(facts, num_classes=classes),
        training=training or Training(),
        seed=seed,
        builders={client.architecture: client.build for client in reversed(clients)},
        shared_builder=None if small is None else small.build,
        shared_test=None if shared_test is None else as_samples(shared_test),
        public=None if public is None else as_samples(public),
        dtype=dtype or precision,
        devices=_devices(devices, len(members), seed),
    )


def _warn_of_no_tests(members: Sequence[Member]) -> None:
    """Warn where no client has test samples, so that no accuracy is measured."""
    if not any(len(member.test) for member in members):
        warnings.warn(
            "No client has test samples, so accuracies are not measured; pass potluck.Member(..., test=(x, y)) or "
            "shared_test=.",
            stacklevel=3,
        )


def common_facts(members: Sequence[Member]) -> DataFacts:
    """Return what all members whose samples are `Data` say of them; `num_classes` is 0 where there is none."""
    shape = tuple(members[0].train.take(slice(0, 1))[0].shape[1:])
    stated = [member.facts for member in members if member.facts is not None]
    names = list(dict.fromkeys(facts.class_names for facts in stated if facts.class_names))
    if len(names) > 1:
        raise PotluckError(
            f"The members' data name their classes differently ({list_names(names[0])}; {list_names(names[1])}); bring "
            "all to one list: potluck.load_data(..., class_names=[...])."
        )
    return DataFacts(
        num_classes=max((facts.num_classes for facts in stated), default=0),
        input_shape=shape,
        vocabulary=max((facts.vocabulary or 0 for facts in stated), default=0) or None,
        class_names=names[0] if names else (),
        raw=stated[0].raw if stated and all(facts.raw == stated[0].raw for facts in stated) else None,
    )


def _described(members: Sequence[Member]) -> tuple[list[Member], torch.dtype]:
    """Return copies of the clients with names and architectures, and the first one's precision."""
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
    facts, seen, precision = dict[int, _ModelFacts](), dict[str, list[object]](), None
    for client in clients:
        place = id(client.model)
        # One network given to many is looked at once. A maker is asked for each: it may draw from torch's own stream.
        if place not in facts or not isinstance(client.model, nn.Module):
            facts[place] = _model_facts(client.build())
        precision = precision or facts[place].dtype
        client.architecture = _architecture_name(client.architecture or facts[place].name, facts[place], seen)
    return clients, precision or torch.float32


def _devices(given: str | Sequence[Device], clients: int, seed: int) -> Sequence[Device]:
    if isinstance(given, str):
        return fleet(given, clients, seed) if given else ()
    if given and len(given) != clients:
        raise PotluckError(f"devices lists {len(given)} devices for {clients} clients; give one per client.")
    return given


@dataclass(frozen=True)
class _ModelFacts:
    """What tells one kind of network from another; the network itself need not stay."""

    name: str
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    dtype: torch.dtype | None


def _model_facts(model: ClientModel) -> _ModelFacts:
    shapes = tuple((key, tuple(tensor.shape)) for key, tensor in model.state_dict().items())
    return _ModelFacts(
        network_name(model), shapes, next((parameter.dtype for parameter in model.parameters()), None)
    )


def _architecture_name(base: str, look: _ModelFacts, seen: dict[str, list[object]]) -> str:
    """Return the class's name; a number is added where one class comes in several shapes."""
    variants = seen.setdefault(base, [])
    if look.shapes not in variants:
        variants.append(look.shapes)
    position = variants.index(look.shapes)
    return base if position == 0 else f"{base}-{position + 1}"
