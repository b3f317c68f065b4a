"""Which parts of a client's model are trained (`training.train`); all others are frozen.

A frozen parameter has no gradient, is in no optimiser, is not sent and not saved: all parties have it from the
start. A frozen module runs in eval mode, so dropout and batch statistics in it do not change its outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel

FORMS = ("all", "head", "last:N", "lora:RANK")
"""The forms of a rule, for messages. `potluck.models.lora` applies the last one, `train_only` the others."""

GROUP_MARK = "#"
"""Separates a model's name from its rule, where one model is trained in several ways."""


@dataclass(frozen=True)
class TrainRule:
    """One entry of `training.train`: its form, and the number behind the colon."""

    form: str = "all"
    number: int = 0

    def __str__(self) -> str:
        return f"{self.form}:{self.number}" if self.number else self.form


ALL = TrainRule()


def parse_rule(text: str) -> TrainRule:
    """Read one entry of `training.train`."""
    form, colon, number = text.strip().partition(":")
    if form in ("all", "head") and not colon:
        return TrainRule(form)
    if form in ("last", "lora") and number.isdecimal() and int(number):
        return TrainRule(form, int(number))
    raise PotluckError(
        f"training.train = {text!r} is not a rule; choose {', '.join(FORMS[:-1])} or {FORMS[-1]} (N and RANK from 1)."
    )


def parse_rules(text: str) -> list[TrainRule]:
    """Read `training.train`: one rule for all models, or one per model, separated by commas."""
    return [parse_rule(part) for part in text.split(",")]


def rules_by_name(text: str, names: Sequence[str]) -> dict[str, TrainRule]:
    """Assign the rules of `training.train` to different models, in order."""
    rules = parse_rules(text)
    if len(rules) == 1:
        return dict.fromkeys(names, rules[0])
    if len(rules) != len(names):
        raise PotluckError(
            f"training.train = {text!r} has {len(rules)} rules for {len(names)} models ({', '.join(names)}); give one "
            "rule, or one per model."
        )
    return dict(zip(names, rules, strict=True))


def pair_models(names: Sequence[str], text: str) -> list[tuple[str, TrainRule]]:
    """Pair each entry of `models.names` with its rule; a single model is repeated for several rules."""
    rules = parse_rules(text)
    if len(rules) > 1 and len(set(names)) == 1:
        names = [names[0]] * len(rules)
    if len(rules) not in (1, len(names)):
        rules_by_name(text, names)  # raises
    return list(zip(names, rules if len(rules) > 1 else rules * len(names), strict=True))


def architecture_name(name: str, rule: TrainRule, pairs: Sequence[tuple[str, TrainRule]]) -> str:
    """Return a model's name, followed by its rule where the same model is trained in several ways."""
    several = len({other for model, other in pairs if model == name}) > 1
    return f"{name}{GROUP_MARK}{rule}" if several else name


def model_name(architecture: str) -> str:
    """Return the name of the model behind an architecture's name."""
    name, mark, rule = architecture.rpartition(GROUP_MARK)
    try:
        parse_rule(rule)
    except PotluckError:
        return architecture
    return name if mark else architecture


# -- one model ------------------------------------------------------------------------------------------------


def train_only(model: ClientModel, rule: TrainRule) -> None:
    """Freeze everything that `rule` does not train.

    `head` trains the head and the projection to a common feature size; `last:N` also the N last layers of the
    extractor that have a weight matrix or kernel, with the normalisation layers that follow the first of them.
    """
    if rule.form == "all":
        return
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if name.partition(".")[0] not in model.top_modules
    ]
    weighted = [
        place
        for place, (_, module) in enumerate(layers)
        if any(parameter.dim() > 1 for parameter in module.parameters(recurse=False))
    ]
    start = len(layers)
    if rule.form == "last":
        if rule.number > len(weighted):
            raise PotluckError(
                f"training.train = 'last:{rule.number}' needs {rule.number} layers before the head, and "
                f"{type(model).__name__} has {len(weighted)}; choose a smaller number, or 'all'."
            )
        start = weighted[-rule.number]
    for _, module in layers[:start]:
        for parameter in module.parameters(recurse=False):
            parameter.requires_grad_(False)
    model.frozen = _frozen_roots([name for name, _ in layers], start)
    model.train(model.training)


def _frozen_roots(names: Sequence[str], start: int) -> tuple[str, ...]:
    """Return the outermost modules all of whose layers lie before place `start`."""
    trained = names[start:]
    roots: list[str] = []
    for name in names[:start]:
        inside = any(name.startswith(f"{root}.") for root in roots)
        if name and not inside and not any(other.startswith(f"{name}.") for other in trained):
            roots.append(name)
    return tuple(roots)


def share_frozen(model: ClientModel, common: ClientModel) -> None:
    """Give a model the frozen tensors that another one of its architecture has, in the same memory."""
    tensors = {**dict(common.named_parameters()), **dict(common.named_buffers())}
    frozen = frozen_tensors(model)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if name in frozen and name in tensors:
            tensor.data = tensors[name].data


def trained_parameters(module: nn.Module) -> Iterator[nn.Parameter]:
    """Yield a module's parameters, for a client model with frozen ones only those that are trained."""
    frozen = bool(getattr(module, "frozen", ()))
    return (parameter for parameter in module.parameters() if parameter.requires_grad or not frozen)


def frozen_tensors(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the entries of a model's state that are frozen, by name."""
    trained = model.trained_state() if isinstance(model, ClientModel) else model.state_dict()
    return {name: tensor for name, tensor in model.state_dict().items() if name not in trained}
