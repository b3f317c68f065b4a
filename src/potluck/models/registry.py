"""Every architecture by name, named groups of them, and how a name becomes a network.

A name is `FAMILY-MEMBER`, optionally followed by `@RATE` (the width of a nested family) and by `+SIZE`
(features pooled to a common size): `cnn-1`, `slim-cnn@0.5`, `resnet50+512`. Networks of libraries and files have a
prefix and no suffix: `timm:resnet18` (see `potluck.models.pretrained`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from potluck.core.errors import PotluckError, unknown
from potluck.core.model import ClientModel, set_channels_last, without_initialization
from potluck.models import (
    cnn,
    fedavgcnn,
    fedhe,
    googlenet,
    har,
    mlp,
    mobilenet,
    nested,
    pretrained,
    resnet,
    small,
    text,
    vit,
)
from potluck.models.entry import EXAMPLE_SHAPES, InputSpec, Kind, ModelEntry
from potluck.models.inputs import PLAIN_INPUTS, InputFacts
from potluck.models.pretrained import PREFIXES, external_entry
from potluck.models.project import Projected, projection_layer

ENTRIES: dict[str, ModelEntry] = {}
for _family in (
    small,
    cnn,
    fedhe,
    fedavgcnn,
    resnet,
    nested,
    mobilenet,
    googlenet,
    vit,
    mlp,
    har,
    text,
    pretrained,
):
    ENTRIES.update(_family.MODELS)

RATES = ("1", "0.5", "0.25", "0.125", "0.0625")


@dataclass(frozen=True)
class ModelName:
    """A name taken apart."""

    base: str
    rate: float | None
    pooled_size: int | None

    @property
    def entry(self) -> ModelEntry:
        """What the family says about the architecture."""
        return external_entry(self.base) if self.base.startswith(PREFIXES) else ENTRIES[self.base]


def model_names() -> list[str]:
    """Return every architecture of the zoo, nested families at their usual widths; no networks of other packages."""
    names: list[str] = []
    for name, entry in ENTRIES.items():
        if name in pretrained.MODELS:
            continue
        names += [f"{name}@{rate}" for rate in RATES] if entry.rated else [name]
    return names


def parse_name(name: str) -> ModelName | None:
    """Return the parts of a name, or nothing when no such architecture exists."""
    if name.startswith(PREFIXES):
        return ModelName(name, None, None)
    rest, plus, size = name.partition("+")
    base, at, rate = rest.partition("@")
    if base not in ENTRIES or (plus and not (size.isdecimal() and int(size) > 0)):
        return None
    if at and not (ENTRIES[base].rated and _is_rate(rate)):
        return None
    return ModelName(base, float(rate) if at else None, int(size) if plus else None)


def _is_rate(text: str) -> bool:
    """Return whether a text is a width rate, a number above 0 and at most 1."""
    try:
        return 0 < float(text) <= 1
    except ValueError:
        return False


def require_name(name: str) -> ModelName:
    """Return the parts of a name; the error for an unknown one offers the nearest that exists."""
    parsed = parse_name(name)
    if parsed is None:
        raise unknown("model", name, [*model_names(), *pretrained.MODELS])
    return parsed


def model_summary(name: str) -> str:
    """Return the architecture in one line."""
    parsed = require_name(name)
    text = parsed.entry.summary
    if parsed.rate is not None:
        text += f", at {parsed.rate:g} of the full width"
    if parsed.pooled_size is not None:
        text += f", features pooled to {parsed.pooled_size}"
    return text


def example_shape(name: str) -> tuple[int, ...]:
    """Return an input shape that suits an architecture: a CIFAR image, a sensor window, a short text, a table row."""
    return EXAMPLE_SHAPES[require_name(name).entry.kind]


def build_model(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    feature_dim: int | None = None,
    *,
    projection: str = "linear",
    vocabulary: int | None = None,
    inputs: InputFacts = PLAIN_INPUTS,
    pretrained: bool | str | None = None,
    backbone: Callable[[InputSpec], ClientModel] | None = None,
) -> ClientModel:
    """Return a freshly initialised network for inputs of one shape.

    The weights come from torch's default generator, so wrap the call in `potluck.core.random.seeded` to
    fix them. `feature_dim` adds a projection where the architecture's own feature size differs. Text models
    need `vocabulary`, the number of different words including the padding. Pretrained networks also take `inputs`,
    what the inputs mean, and `pretrained` (as `models.pretrained`). `backbone` builds the network instead of the
    architecture's own builder.
    """
    parsed = require_name(name)
    if num_classes < 1:
        raise PotluckError(f"num_classes is {num_classes}; model {name!r} needs at least one class.")
    request = InputSpec(tuple(input_shape), num_classes, vocabulary or 0, inputs, pretrained)
    if backbone is None:
        _check_input(name, parsed.entry, request)
    try:
        return _build(parsed, request, feature_dim, projection, backbone)
    except (RuntimeError, TypeError, MemoryError) as error:
        if not any(words in str(error) for words in _TOO_LARGE) and not isinstance(error, MemoryError):
            raise
        raise PotluckError(
            f"Model {name!r} with {num_classes} classes, inputs of shape {tuple(input_shape)} and these features does "
            "not fit into memory; choose smaller sizes."
        ) from None


_FORMS: dict[Kind, tuple[str, ...]] = {
    "image": ("channels", "height", "width"),
    "series": ("channels", "steps"),
    "text": ("length",),
}


def _check_input(name: str, entry: ModelEntry, request: InputSpec) -> None:
    """Refuse an input the network cannot take, naming model, shape and remedy."""
    shape = request.shape
    form = _FORMS.get(entry.kind, shape)
    if len(shape) != len(form) or min(shape, default=0) < 1:
        raise PotluckError(
            f"Model {name!r} takes {entry.kind} input of shape ({', '.join(map(str, form))}), not {shape}; "
            f"choose a model for this data or reshape it."
        )
    sides = shape[1:] if entry.kind in ("image", "series") else shape
    if sides and min(sides) < entry.min_side:
        need = "×".join([str(entry.min_side)] * len(sides))
        smaller = "a model of the group 'small5'" if entry.kind == "image" else "another model"
        raise PotluckError(
            f"Model {name!r} needs inputs of at least {need}, but input_shape is {shape}; "
            f"choose {smaller} or larger inputs."
        )
    if any(side % entry.multiple for side in sides):
        raise PotluckError(
            f"Model {name!r} cuts its input into patches of {entry.multiple}×{entry.multiple}, which do "
            f"not fit input_shape {shape}; choose another model or resize the inputs."
        )
    if entry.kind == "text" and request.vocabulary < 2:
        raise PotluckError(
            f"Model {name!r} reads word numbers and needs vocabulary=N, the number of different words "
            f"including 0 for padding."
        )


_TOO_LARGE = ("allocate memory", "calculation overflowed", "Overflow when unpacking")
"""How torch says that a size is beyond any memory."""


def _build(
    parsed: ModelName,
    request: InputSpec,
    feature_dim: int | None,
    projection: str,
    backbone: Callable[[InputSpec], ClientModel] | None,
) -> ClientModel:
    entry, num_classes = parsed.entry, request.classes
    if backbone is not None:
        model = backbone(request)
    else:
        model = entry.build(request) if parsed.rate is None else entry.build(request, parsed.rate)
    if parsed.pooled_size is not None and parsed.pooled_size != model.feature_dim:
        model = _project(model, "pool", parsed.pooled_size, num_classes, entry.pooled_head)
    if feature_dim is not None and feature_dim != model.feature_dim:
        model = _project(model, projection, feature_dim, num_classes, nn.Linear)
    if entry.channels_last:
        set_channels_last(model)
    return model


def _project(
    model: ClientModel, kind: str, size: int, classes: int, head: Callable[[int, int], nn.Module]
) -> ClientModel:
    layer = projection_layer(kind, model.feature_dim, size)
    return Projected(model, layer, head(size, classes), size)


# -- groups, and which client gets which -----------------------------------------------------------------------


_DEEP = ("resnet50+512", "resnet101+512", "resnet152+512")
_HTFE8 = ("fedavg-cnn-4", "googlenet+512", "mobilenet-v2+512", "resnet18", "resnet34", *_DEEP)

groups: dict[str, tuple[str, ...]] = {
    "cnn5": ("cnn-1", "cnn-2", "cnn-3", "cnn-4", "cnn-5"),
    "small5": ("small-mlp", "small-cnn", "small-wide", "small-res", "small-sep"),
    "fedhe10": tuple(f"fedhe-{number}" for number in range(10)),
    "resnet5": ("resnet10", "resnet14", "resnet18", "resnet22", "resnet26"),
    "nested5": tuple(f"mini-resnet-{number}" for number in range(1, 6)),
    "width5": tuple(f"slim-cnn@{rate}" for rate in RATES),
    "mlp3": ("mlp-1", "mlp-2", "mlp-3"),
    "har3": ("har-cnn", "har-wide", "har-lstm"),
    "text3": ("text-bag", "text-lstm", "text-transformer"),
    # FedL2G's groups: all features are pooled to 512, where they are not 512 already.
    "htfe2": ("fedavg-cnn-4", "resnet18"),
    "htfe3": ("resnet10", "resnet18", "resnet34"),
    "htfe4": ("fedavg-cnn-4", "googlenet+512", "mobilenet-v2+512", "resnet18"),
    "htfe8": _HTFE8,
    "htfe9": ("resnet4+512", "resnet6+512", "resnet8+512", "resnet10", "resnet18", "resnet34", *_DEEP),
    "htm10": (*_HTFE8, "vit-b-16+512", "vit-b-32+512"),
}


def resolve_models(models: str | Sequence[str]) -> list[str]:
    """Return the architecture names meant by a group, a comma list, or a list of either."""
    parts = models.split(",") if isinstance(models, str) else models
    names: list[str] = []
    for part in (part.strip() for part in parts):
        if part in groups:
            names += groups[part]
        elif parse_name(part):
            names.append(part)
        else:
            raise unknown("model", part, [*model_names(), *pretrained.MODELS, *groups])
    if not names:
        raise PotluckError("models is an empty list; name at least one model or group, such as 'small5'.")
    return names


def assign(models: Sequence[str], clients: int) -> list[str]:
    """Return the papers' rule: client i of `clients` gets model i mod X of the X given."""
    return [models[client % len(models)] for client in range(clients)]


def count_parameters(model: nn.Module) -> int:
    """Return how many numbers a network learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def smallest(
    names: Sequence[str], input_shape: tuple[int, ...], num_classes: int, *, vocabulary: int | None = None
) -> str:
    """Return the architecture with the fewest parameters; of equals, the first named. Nothing is drawn at random."""

    def size(name: str) -> int:
        with without_initialization():
            return count_parameters(build_model(name, input_shape, num_classes, vocabulary=vocabulary))

    return min(names, key=size)
