"""Any `nn.Module` as a client model: features, then the head named by the user."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.models.cut import cut_module
from potluck.models.project import projection_layer


class SplitModel(ClientModel):
    """A user's network seen as features and head.

    `body` is the network with its head taken out, in one piece or, when cut points were named, as a
    list of stages and the rest that follows them.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        rest: nn.Module,
        projection: nn.Module,
        head: nn.Module,
        feature_dim: int,
    ) -> None:
        super().__init__()
        self.body = nn.ModuleList(stages)
        self.rest = rest
        self.projection = projection
        self.head = head
        self.feature_dim = feature_dim

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The parts between the named cut points."""
        return tuple(self.body)

    def pool(self, x: Tensor) -> Tensor:
        """What follows the last cut, flattened and projected."""
        projected: Tensor = self.projection(torch.flatten(_scores(self.rest(x)), 1))
        return projected


def split(
    model: nn.Module,
    head: str | None = None,
    feature_dim: int | None = None,
    stages: Sequence[str] = (),
    *,
    projection: str = "linear",
    example: Tensor | None = None,
) -> ClientModel:
    """A copy of `model` cut into features and head.

    `head` is the dotted name of the layer that turns features into class scores (default: the last linear
    layer). `feature_dim` projects the features to a common size, by a learned layer or by averaging
    (`projection="pool"`); the head then gets a new first layer. `stages` names the layers whose outputs are
    cut points. With an `example` batch the cut is checked against the original.
    """
    layers = dict(model.named_modules())
    head = _last_linear(model) if head is None else head
    if head not in layers or not head:
        names = ", ".join(name for name in layers if name)
        raise PotluckError(f"head {head!r} is not a layer of {type(model).__name__}; choose one of: {names}.")
    body = copy.deepcopy(model)
    top: nn.Module = body.get_submodule(head)
    _replace(body, head, nn.Identity())
    parts = cut_module(body, stages) if stages else ([], body)
    size = _first_linear(top, head).in_features
    plain = SplitModel(*parts, nn.Identity(), top, size)
    if example is not None:
        _compare(model, plain, head, example)
    if feature_dim is None or feature_dim == size:
        return plain
    like = _first_linear(top, head).weight
    layer = projection_layer(projection, size, feature_dim).to(like.device, like.dtype)
    return SplitModel(*parts, layer, _new_input(top, head, feature_dim), feature_dim)


def check_split(model: nn.Module, x: Tensor, head: str | None = None) -> None:
    """Raise unless head(features(x)) equals model(x) in eval mode: `head` must be the last operation."""
    split(model, head, example=x)


def _compare(model: nn.Module, parts: ClientModel, head: str, x: Tensor) -> None:
    whole = copy.deepcopy(model).eval()
    parts = copy.deepcopy(parts).eval()
    name = type(model).__name__
    expected = _scores(_run(whole, x, f"{name} cannot run on the example; pass a batch of its inputs"))
    remedy = f"{name} cannot run with its head {head!r} taken out; name the layer that gives the class scores"
    found = _scores(_run(parts, x, remedy))
    if expected.shape != found.shape or not torch.allclose(expected, found, rtol=1e-4, atol=1e-5):
        raise PotluckError(
            f"head {head!r} is not the last operation of {name}: applying it to the features "
            f"does not give the model's output; move what follows it (such as softmax) out of the model."
        )


def _run(module: nn.Module, x: Tensor, complaint: str) -> object:
    """What a module gives without gradients; when it fails, the complaint with torch's own reason."""
    try:
        with torch.no_grad():
            return module(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PotluckError(f"{complaint} ({reason}).") from error


def _scores(output: object) -> Tensor:
    """The tensor in what a model returns; libraries wrap it in an object or a dict with `logits`."""
    if isinstance(output, Tensor):
        return output
    found = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if found is None and isinstance(output, tuple | list) and output:
        found = output[0]
    if isinstance(found, Tensor):
        return found
    raise PotluckError(
        f"The model returns {type(output).__name__}, in which no tensor of class scores was found; "
        f"wrap it in a module that returns one tensor."
    )


def _last_linear(model: nn.Module) -> str:
    names: list[str] = [
        name for name, layer in model.named_modules() if name and isinstance(layer, nn.Linear)
    ]
    if not names:
        raise PotluckError(f"{type(model).__name__} has no linear layer to take as head; pass head='NAME'.")
    return names[-1]


def _linears(head: nn.Module) -> list[tuple[str, nn.Linear]]:
    return [(name, layer) for name, layer in head.named_modules() if isinstance(layer, nn.Linear)]


def _first_linear(layer: nn.Module, head: str) -> nn.Linear:
    found = _linears(layer)
    if not found:
        raise PotluckError(
            f"head {head!r} is a {type(layer).__name__} without a linear layer, so its input size is "
            f"unknown; "
            f"name a head that is or holds nn.Linear."
        )
    return found[0][1]


def _new_input(layer: nn.Module, head: str, size: int) -> nn.Module:
    """The head with its first linear layer rebuilt for another input size."""
    path, old = _linears(layer)[0]
    new = nn.Linear(
        size, old.out_features, bias=old.bias is not None, device=old.weight.device, dtype=old.weight.dtype
    )
    if not path:
        return new
    _replace(layer, path, new)
    zeros = torch.zeros(2, size, device=new.weight.device, dtype=new.weight.dtype)
    complaint = (
        f"head {head!r} has layers of a fixed size before its linear layer; name '{head}.{path}' as head"
    )
    _run(copy.deepcopy(layer).eval(), zeros, complaint)
    return layer


def _replace(module: nn.Module, path: str, new: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, new)
