"""Which question a result answers, and which code it came from, as short digests."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
from pathlib import Path
from typing import Any

import potluck
from potluck.experiment import Experiment
from potluck.experiment.differences import question
from potluck.methods import METHODS

ROOT = Path(potluck.__file__).parent
SHARED = ("core", "kit", "loop", "models", "data", "federation")
"""The rooms that every method's result depends on."""


def experiment_digest(experiment: Experiment) -> str:
    """The same for experiments that ask the same, whichever engine they run on.

    What is as usual does not count, so that a setting added later changes no digest; a default that changes is a change
    of the code, which `code_digest` sees.
    """
    usual = _values(Experiment.model_validate({"method": {"name": experiment.method.name}}).resolved())
    asked = {name: value for name, value in _values(experiment).items() if usual.get(name) != value}
    return _short(json.dumps({**asked, "method.name": experiment.method.name}, sort_keys=True))


def _values(experiment: Experiment) -> dict[str, Any]:
    return question(experiment.model_dump(mode="json", exclude_none=True))


@functools.cache
def code_digest(method: str) -> str:
    """Changes when the method's file, or what all methods share, computes something else; not with words alone."""
    module = METHODS[method][0] if method in METHODS else method
    own = ROOT / "methods" / f"{module}.py"
    return _short(_meaning(own) + _shared())


@functools.cache
def _shared() -> str:
    return "".join(_meaning(path) for room in SHARED for path in sorted((ROOT / room).rglob("*.py")))


@functools.cache
def _meaning(path: Path) -> str:
    """The file's syntax tree without docstrings and positions."""
    if not path.exists():
        return ""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body: Any = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree, annotate_fields=False)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
