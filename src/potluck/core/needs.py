"""What a method requires of the clients' models or of the task, checked before training with a remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from potluck.core.errors import PotluckError
from potluck.core.task import Architecture, Task

if TYPE_CHECKING:
    from potluck.core.method import Method


class Need(StrEnum):
    """A requirement of a method."""

    LOGITS = "logits"
    FEATURES = "features and head"
    EQUAL_FEATURES = "equal feature size"
    EQUAL_HEADS = "identical heads"
    LINEAR_HEADS = "linear heads"
    STAGES = "stages"
    SAME_ARCHITECTURE = "same architecture"
    NESTED_DEPTH = "nested depth"
    NESTED_WIDTH = "nested width"
    SHARED_MODEL = "shared small model"
    SHARED_FEATURES = "shared small model of the clients' feature size"
    SMALLER_FEATURES = "shared small model with no more features than a client's"
    PUBLIC_DATA = "public data"


def check_needs(method: Method[Any, Any, Any], task: Task) -> None:
    """Raise `PotluckError` for the first need that the clients' models or the task do not meet."""
    frozen = next((a.name for a in task.architectures.values() if a.partly_frozen), None)
    for need in sorted(method.requires()):
        if need in _TRAINED_EXTRACTOR and frozen is not None:
            raise PotluckError(
                f"{type(method).__name__} needs {need} and combines parts of the extractors, and that of model "
                f"{frozen!r} is frozen; set training.train = 'all', or choose another method."
            )
        if need in _CHECKS and (problem := _CHECKS[need](task)):
            raise PotluckError(f"{type(method).__name__} needs {need}: {problem}")


def _first_different(task: Task, facts: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """Return the first client that differs from the most common fact: (client, its fact, the common one)."""
    common = Counter(facts[info.architecture] for info in task.clients).most_common(1)[0][0]
    for info in task.first_client_of.values():
        if facts[info.architecture] != common:
            return f"client {info.index} {info.architecture!r}", facts[info.architecture], common
    return None


def _projection_hint(size: int) -> str:
    """Say how to project features to one size: models of the zoo, and a user's own."""
    return f"Set models.feature_dim={size} to project; a model of your own: potluck.split(…, feature_dim={size})."


def _equal_features(task: Task) -> str | None:
    different = _first_different(task, {name: a.feature_dim for name, a in task.architectures.items()})
    if different is None:
        return None
    client, size, common = different
    return f"{client} has {size}, others {common}. {_projection_hint(common)}"


def _equal_heads(task: Task) -> str | None:
    different = _first_different(
        task, {n: tuple(sorted(a.head.items())) for n, a in task.architectures.items()}
    )
    if different is None:
        return None
    head, common = (
        ", ".join(f"{name} {'×'.join(map(str, s))}" for name, s in heads) for heads in different[1:]
    )
    size = max(architecture.feature_dim for architecture in task.architectures.values())
    return f"{different[0]} has a head of {head}, others of {common}. {_projection_hint(size)}"


def _linear_heads(task: Task) -> str | None:
    for info in task.first_client_of.values():
        if not set(task.architectures[info.architecture].head) <= {"weight", "bias"}:
            return (
                f"client {info.index} {info.architecture!r} has a head of several layers. "
                "Split that model at its last linear layer."
            )
    return None


def _stages(task: Task) -> str | None:
    for info in task.first_client_of.values():
        if not task.architectures[info.architecture].stage_shapes:
            return (
                f"client {info.index} {info.architecture!r} has no stages. Use models with stages (nested5, "
                "resnet5), or name the cut points in potluck.split(model, stages=...)."
            )
    ends = {n: (a.stage_shapes[0], a.stage_shapes[-1]) for n, a in task.architectures.items()}
    different = _first_different(task, ends)
    if different is None:
        return None
    client, shapes, common = different
    return f"{client} exchanges features of shape {shapes}, others {common}. Choose models of one family."


def _same_architecture(task: Task) -> str | None:
    different = _first_different(task, {name: name for name in task.architectures})
    if different is None:
        return None
    return f"{different[0]} differs from the others' {different[2]!r}. Choose one model for all clients."


def _largest(task: Task) -> Architecture:
    def size(architecture: Architecture) -> tuple[int, int]:
        return len(architecture.initial), sum(tensor.numel() for tensor in architecture.initial.values())

    return max(task.architectures.values(), key=size)


def _nested_depth(task: Task) -> str | None:
    deepest = _largest(task)
    for info in task.first_client_of.values():
        for name, shape in task.architectures[info.architecture].shapes.items():
            if deepest.shapes.get(name) != shape:
                return (
                    f"client {info.index} {info.architecture!r} has {name!r}, which is no part of "
                    f"{deepest.name!r}. Choose a depth-nested family (nested5, resnet5)."
                )
    return None


def _nested_width(task: Task) -> str | None:
    widest = _largest(task)
    for info in task.first_client_of.values():
        shapes = task.architectures[info.architecture].shapes
        is_slice = shapes.keys() == widest.shapes.keys() and all(
            len(shape) == len(widest.shapes[name])
            and all(size <= full for size, full in zip(shape, widest.shapes[name], strict=True))
            for name, shape in shapes.items()
        )
        if not is_slice:
            return (
                f"client {info.index} {info.architecture!r} is no slice of {widest.name!r}. "
                "Choose a width-nested family (width5, or slim-cnn@1,slim-cnn@0.5)."
            )
    return None


def _shared_model(task: Task) -> str | None:
    return None if task.shared_builder else "the federation has none. Set models.shared=NAME."


def _shared_features(task: Task) -> str | None:
    return _compare_shared_size(task, lambda size, shared: size == shared)


def _smaller_features(task: Task) -> str | None:
    return _compare_shared_size(task, lambda size, shared: size >= shared)


def _compare_shared_size(task: Task, fits: Callable[[int, int], bool]) -> str | None:
    if task.shared_builder is None:
        return _shared_model(task)
    shared = task.shared_model().feature_dim
    for info in task.first_client_of.values():
        size = task.architectures[info.architecture].feature_dim
        if not fits(size, shared):
            return (
                f"client {info.index} {info.architecture!r} has {size} features, the shared model {shared}. "
                f"Set models.shared=NAME of a model with {size} features. {_projection_hint(size)}"
            )
    return None


def _public_data(task: Task) -> str | None:
    if task.public is not None:
        return None
    return "the federation has none. Set data.public=0.1 to hold some out."


_TRAINED_EXTRACTOR = frozenset({Need.STAGES, Need.NESTED_DEPTH, Need.NESTED_WIDTH})
"""Needs of methods that cut extractors into parts and combine those of different clients."""

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
