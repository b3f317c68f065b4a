"""Does a federation have what a method asks for? Said before training, in one sentence with the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.method import Method, Need
from potluck.core.task import Architecture, Task


def check_needs(method: Method[Any, Any, Any], task: Task) -> None:
    """Raise for the first need that the clients' models or the task do not meet."""
    for need in sorted(method.requires()):
        if need in _CHECKS and (problem := _CHECKS[need](task)):
            raise PotluckError(f"{type(method).__name__} needs {need}: {problem}")


def _odd_one(task: Task, facts: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first client whose architecture's fact is not the commonest one: (who, its fact, the others')."""
    usual = Counter(facts[info.architecture] for info in task.clients).most_common(1)[0][0]
    for info in task.clients:
        if facts[info.architecture] != usual:
            return f"client {info.index} {info.architecture!r}", facts[info.architecture], usual
    return None


def _project(size: int) -> str:
    """How features come to one size: for models of the zoo, and for a user's own."""
    return f"Pass models.feature_dim={size} to project; a model of your own: potluck.split(…, feature_dim={size})."


def _equal_features(task: Task) -> str | None:
    odd = _odd_one(task, {name: a.feature_dim for name, a in task.architectures.items()})
    if odd is None:
        return None
    return f"{odd[0]} gives {odd[1]}, others {odd[2]}. {_project(odd[2])}"


def _equal_heads(task: Task) -> str | None:
    odd = _odd_one(task, {name: tuple(sorted(a.head.items())) for name, a in task.architectures.items()})
    if odd is None:
        return None
    mine, usual = (", ".join(f"{name} {'×'.join(map(str, s))}" for name, s in heads) for heads in odd[1:])
    size = max(architecture.feature_dim for architecture in task.architectures.values())
    return f"{odd[0]} has a head of {mine}, others of {usual}. {_project(size)}"


def _linear_heads(task: Task) -> str | None:
    for info in task.clients:
        if not set(task.architectures[info.architecture].head) <= {"weight", "bias"}:
            return (
                f"client {info.index} {info.architecture!r} has a head of several layers. "
                "Split that model at its last linear layer."
            )
    return None


def _stages(task: Task) -> str | None:
    for info in task.clients:
        if not task.architectures[info.architecture].stage_shapes:
            return (
                f"client {info.index} {info.architecture!r} cannot be cut. Use models with stages (nested5, "
                "resnet5), or name the cut points in potluck.split(model, stages=...)."
            )
    odd = _odd_one(task, {n: (a.stage_shapes[0], a.stage_shapes[-1]) for n, a in task.architectures.items()})
    if odd is None:
        return None
    return f"{odd[0]} exchanges features of shape {odd[1]}, others {odd[2]}. Choose models of one family."


def _same_architecture(task: Task) -> str | None:
    odd = _odd_one(task, {name: name for name in task.architectures})
    if odd is None:
        return None
    return f"{odd[0]} differs from the others' {odd[2]!r}. Choose one model for all clients."


def _largest(task: Task) -> Architecture:
    def size(architecture: Architecture) -> tuple[int, int]:
        return len(architecture.initial), sum(tensor.numel() for tensor in architecture.initial.values())

    return max(task.architectures.values(), key=size)


def _nested_depth(task: Task) -> str | None:
    deepest = _largest(task)
    for info in task.clients:
        for name, shape in task.architectures[info.architecture].shapes.items():
            if deepest.shapes.get(name) != shape:
                return (
                    f"client {info.index} {info.architecture!r} has {name!r}, which is no part of "
                    f"{deepest.name!r}. Choose a depth-nested family (nested5, resnet5)."
                )
    return None


def _nested_width(task: Task) -> str | None:
    widest = _largest(task)
    for info in task.clients:
        shapes = task.architectures[info.architecture].shapes
        fits = shapes.keys() == widest.shapes.keys() and all(
            len(shape) == len(widest.shapes[name])
            and all(mine <= theirs for mine, theirs in zip(shape, widest.shapes[name], strict=True))
            for name, shape in shapes.items()
        )
        if not fits:
            return (
                f"client {info.index} {info.architecture!r} is no slice of {widest.name!r}. "
                "Choose a width-nested family (width5, or slim-cnn@1,slim-cnn@0.5)."
            )
    return None


def _shared_model(task: Task) -> str | None:
    return None if task.shared_builder else "the federation has none. Pass models.shared=NAME."


def _shared_features(task: Task) -> str | None:
    return _shared_size(task, lambda mine, shared: mine == shared)


def _smaller_features(task: Task) -> str | None:
    return _shared_size(task, lambda mine, shared: mine >= shared)


def _shared_size(task: Task, fits: Callable[[int, int], bool]) -> str | None:
    if task.shared_builder is None:
        return _shared_model(task)
    shared = task.shared_model().feature_dim
    for info in task.clients:
        mine = task.architectures[info.architecture].feature_dim
        if not fits(mine, shared):
            return (
                f"client {info.index} {info.architecture!r} gives {mine}, the shared model {shared}. "
                f"Pass models.shared=NAME of a model with {mine} features. {_project(mine)}"
            )
    return None


def _public_data(task: Task) -> str | None:
    return (
        None if task.public is not None else "the federation has none. Pass data.public=0.1 to hold some out."
    )


_CHECKS: dict[Need, Callable[[Task], str | None]] = {
    Need.EQUAL_FEATURES: _equal_features,
    Need.EQUAL_HEADS: _equal_heads,
    Need.LINEAR_HEADS: _linear_heads,
    Need.STAGES: _stages,
    Need.SAME_ARCHITECTURE: _same_architecture,
    Need.NESTED_DEPTH: _nested_depth,
    Need.NESTED_WIDTH: _nested_width,
    Need.SHARED_MODEL: _shared_model,
    Need.SHARED_FEATURES: _shared_features,
    Need.SMALLER_FEATURES: _smaller_features,
    Need.PUBLIC_DATA: _public_data,
}
