"""Split any `nn.Module` into features and head, and cut it into stages."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from potluck.core.errors import PotluckError
from potluck.core.model import ClientModel
from potluck.models.project import projection_layer


class _Tracer(fx.Tracer):
    """Looks only inside the modules that contain a cut point; everything else stays a black box.

    So control flow inside a block does no harm: only the code between cut points must be traceable.
    """

    def __init__(self, cuts: Sequence[str]) -> None:
        super().__init__()
        self.cuts = cuts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Return whether a module is kept whole."""
        return not any(cut.startswith(module_qualified_name + ".") for cut in self.cuts)


def cut_module(module: nn.Module, cuts: Sequence[str]) -> tuple[list[nn.Module], nn.Module]:
    """Return the stages that end at the outputs of the named layers, and what follows the last of them."""
    names = [name for name, _ in module.named_modules() if name]
    for cut in cuts:
        if cut not in names:
            raise PotluckError(
                f"stages names {cut!r}, which is not a layer of {type(module).__name__}; "
                f"choose one of: {', '.join(names)}."
            )
    graph = _trace(module, cuts)
    ends = [_node_of(graph, cut) for cut in cuts]
    parts = _assign_parts(graph, ends)
    pieces: list[nn.Module] = []
    for number in range(len(ends) + 1):
        nodes = [node for node in graph.nodes if parts.get(node) == number]
        entry = (
            next(node for node in graph.nodes if node.op == "placeholder")
            if number == 0
            else ends[number - 1]
        )
        pieces.append(_piece(module, nodes, entry, cuts[number - 1] if number else ""))
    return pieces[:-1], pieces[-1]


def _trace(module: nn.Module, cuts: Sequence[str]) -> fx.Graph:
    """Return the graph of calls between the modules of interest, the same in training and in testing."""
    was_training = module.training
    signature = inspect.signature(module.forward).parameters.values()
    defaults = {p.name: p.default for p in signature if p.default is not p.empty}
    try:
        graphs = [_Tracer(cuts).trace(module.train(mode), defaults) for mode in (True, False)]
    except Exception as error:
        raise PotluckError(
            f"{type(module).__name__} cannot be cut at {', '.join(map(repr, cuts))}: its forward depends on "
            f"the values it computes ({type(error).__name__}); cut it by hand as a ClientModel with stages."
        ) from error
    finally:
        module.train(was_training)
    if str(graphs[0]) != str(graphs[1]):
        raise PotluckError(
            f"{type(module).__name__} cannot be cut: its forward looks at self.training; "
            f"use layers such as nn.Dropout instead of functions."
        )
    return graphs[0]


def _node_of(graph: fx.Graph, cut: str) -> fx.Node:
    nodes: list[fx.Node] = [node for node in graph.nodes if node.op == "call_module" and node.target == cut]
    if len(nodes) != 1:
        raise PotluckError(
            f"stages names {cut!r}, which runs {len(nodes)} times in a pass; cut at a layer that runs once."
        )
    return nodes[0]


def _assign_parts(graph: fx.Graph, ends: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Return which stage each operation belongs to: the first whose end needs it."""
    parts: dict[fx.Node, int] = {}
    output = next(node for node in graph.nodes if node.op == "output")
    for number, end in enumerate([*ends, output]):
        waiting = [end]
        while waiting:
            node = waiting.pop()
            if node not in parts:
                parts[node] = number
                waiting += node.all_input_nodes
    return parts


def _piece(module: nn.Module, nodes: Sequence[fx.Node], entry: fx.Node, cut: str) -> nn.Module:
    """Return a module that runs `nodes` on the value of `entry`."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    if entry.op != "placeholder":
        values[entry] = graph.placeholder("x")
    last = values.get(entry)
    for node in nodes:
        for needed in node.all_input_nodes:
            if needed not in values:
                raise PotluckError(
                    f"{type(module).__name__} cannot be cut at {cut!r}: {node.name!r} also needs "
                    f"{needed.name!r} from before the cut; choose a cut point that everything passes through."
                )
        if node.op == "output":
            graph.output(torch.fx.node.map_arg(node.args[0], values.__getitem__))
            return fx.GraphModule(module, graph)
        last = values[node] = graph.node_copy(node, values.__getitem__)
    graph.output(last)
    return fx.GraphModule(module, graph)


class SplitModel(ClientModel):
    """A user's network seen as features and head.

    `body` is the network with its head taken out, in one piece or, when cut points were named, as a
    list of stages and the rest that follows them. `cut` holds the class of that
    network and the arguments of `split`.
    """

    cut: dict[str, Any]

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
    def top_modules(self) -> tuple[str, ...]:
        """The projection to the common feature size, and the head."""
        return ("projection", "head")

    @property
    def stages(self) -> tuple[nn.Module, ...]:
        """The parts between the named cut points."""
        return tuple(self.body)

    def pool(self, x: Tensor) -> Tensor:
        """Return what follows the last cut, flattened and projected."""
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
    """Return a copy of `model` cut into features and head.

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
    arguments = {"head": head, "feature_dim": feature_dim, "stages": list(stages), "projection": projection}
    cut = {"network": type(model).__name__, **arguments}
    parted = SplitModel(*parts, nn.Identity(), top, size)
    parted.cut = cut
    if example is not None:
        _compare(model, parted, head, example)
    if feature_dim is None or feature_dim == size:
        return parted
    like = _first_linear(top, head).weight
    layer = projection_layer(projection, size, feature_dim).to(like.device, like.dtype)
    parted = SplitModel(*parts, layer, _new_input(top, head, feature_dim), feature_dim)
    parted.cut = cut
    return parted


def network_name(model: object) -> str:
    """Return the name of a network's class, of the one that was split where it was; a factory's own name."""
    if isinstance(model, SplitModel):
        return str(model.cut["network"])
    name = str(getattr(model, "__name__", None) or getattr(model, "name", None) or type(model).__name__)
    return name if name.isidentifier() else "Network"


def original_names(module: nn.Module) -> dict[str, str]:
    """Map each tensor's name in a module's state to its name in the network that was split, where one was.

    Other tensors keep their names. A projection, which the network did not have, is called `projection`.
    """
    names = {key: key for key in module.state_dict()}
    for place, part in module.named_modules():
        if isinstance(part, SplitModel):
            prefix = f"{place}." if place else ""
            names |= {
                prefix + key: prefix + _original_name(key, part.cut["head"]) for key in part.state_dict()
            }
    return names if len(set(names.values())) == len(names) else {key: key for key in names}


def _original_name(key: str, head: str) -> str:
    first, _, rest = key.partition(".")
    if first == "head":
        return f"{head}.{rest}"
    return {"rest": rest, "body": rest.partition(".")[2]}.get(first, key)


def check_split(model: nn.Module, x: Tensor, head: str | None = None) -> None:
    """Raise unless head(features(x)) equals model(x) in eval mode: `head` must be the last operation."""
    split(model, head, example=x)


def check_last(model: SplitModel, x: Tensor) -> None:
    """Raise unless the head of a network that was split in two is its last operation; others are not checked."""
    if model.stages or not isinstance(model.projection, nn.Identity):
        return
    head, network = model.cut["head"], copy.deepcopy(model.rest)
    _replace(network, head, model.head)
    _same_scores(_scores(network(x)), _scores(model.head(model.features(x))), head, model.cut["network"])


def _compare(model: nn.Module, parts: ClientModel, head: str, x: Tensor) -> None:
    original = copy.deepcopy(model).eval()
    parts = copy.deepcopy(parts).eval()
    name = type(model).__name__
    expected = _scores(_run(original, x, f"{name} cannot run on the example; pass a batch of its inputs"))
    remedy = f"{name} cannot run with its head {head!r} taken out; name the layer that gives the class scores"
    _same_scores(expected, _scores(_run(parts, x, remedy)), head, name)


def _same_scores(expected: Tensor, actual: Tensor, head: str, name: str) -> None:
    if expected.shape != actual.shape or not torch.allclose(expected, actual, rtol=1e-4, atol=1e-5):
        raise PotluckError(
            f"head {head!r} is not the last operation of {name}: applying it to the features "
            f"does not give the model's output; move what follows it (such as softmax) out of the model."
        )


def _run(module: nn.Module, x: Tensor, complaint: str) -> object:
    """Return what a module gives without gradients; when it fails, the complaint with torch's own reason."""
    try:
        with torch.no_grad():
            return module(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise PotluckError(f"{complaint} ({reason}).") from error


def _scores(output: object) -> Tensor:
    """Return the tensor in what a model returns; libraries wrap it in an object or a dict with `logits`."""
    if isinstance(output, Tensor):
        return output
    scores = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    if scores is None and isinstance(output, tuple | list) and output:
        scores = output[0]
    if isinstance(scores, Tensor):
        return scores
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
    layers = _linears(layer)
    if not layers:
        raise PotluckError(
            f"head {head!r} is a {type(layer).__name__} without a linear layer, so its input size is "
            f"unknown; "
            f"name a head that is or holds nn.Linear."
        )
    return layers[0][1]


def _new_input(layer: nn.Module, head: str, size: int) -> nn.Module:
    """Return the head with its first linear layer rebuilt for another input size."""
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
