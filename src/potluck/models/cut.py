"""Cutting a network at named layers, so that its middle can be run alone."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import fx, nn

from potluck.core.errors import PotluckError


class _Tracer(fx.Tracer):
    """Looks only inside the modules that contain a cut point; everything else stays a black box.

    So control flow inside a block does no harm: only the code between cut points must be traceable.
    """

    def __init__(self, cuts: Sequence[str]) -> None:
        super().__init__()
        self.cuts = cuts

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether a module is kept whole."""
        return not any(cut.startswith(module_qualified_name + ".") for cut in self.cuts)


def cut_module(module: nn.Module, cuts: Sequence[str]) -> tuple[list[nn.Module], nn.Module]:
    """The stages that end at the outputs of the named layers, and what follows the last of them."""
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
    """The graph of calls between the modules of interest, the same in training and in testing."""
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
    found: list[fx.Node] = [node for node in graph.nodes if node.op == "call_module" and node.target == cut]
    if len(found) != 1:
        raise PotluckError(
            f"stages names {cut!r}, which runs {len(found)} times in a pass; cut at a layer that runs once."
        )
    return found[0]


def _assign_parts(graph: fx.Graph, ends: Sequence[fx.Node]) -> dict[fx.Node, int]:
    """Which stage each operation belongs to: the first whose end needs it."""
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
    """A module that runs `nodes` on the value of `entry`."""
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
