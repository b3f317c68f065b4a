"""Write the table of `docs/privacy.md` that says which protection fits which method, from the methods' declarations."""

from __future__ import annotations

from typing import Any

from generate.text import replace_block, table
from potluck.core.method import Method
from potluck.core.supports import holds, settings_for
from potluck.experiment.experiment import make_method
from potluck.methods import METHODS, method_class

NAME = "protections"


def update_page(page: str) -> str:
    """The page with its table as the code has it now."""
    return replace_block(page, NAME, body())


def body() -> str:
    """One line per method."""
    head = ("method", "plain", "secure sum", "row-level noise", "a node can demand")
    return table(head, [_row(name) for name in METHODS if name != "standalone"])


def _row(name: str) -> tuple[str, ...]:
    method = make_method(method_class(name), {})
    sums, rows = _sums(method), _rows(method)
    demands = ["secure_sums"] if not sums.startswith("no") else []
    return (f"[{name}](methods/{name}.md)", "yes", sums, rows, ", ".join([*demands, "clip, noise, epsilon"]))


def _sums(method: Method[Any, Any, Any]) -> str:
    sums = method.supports.sums
    if sums is None:
        return f"no: {method.supports.single_answers or 'its server reads single answers'}"
    groups = "one for each architecture" if sums.per == "architecture" else "one for all"
    return groups if holds(sums.when, method) else f"{groups}, with `{settings_for(sums.when)}`"


def _rows(method: Method[Any, Any, Any]) -> str:
    condition = method.supports.row_privacy
    if condition is False:
        return "no"
    return "yes" if holds(condition, method) else f"with `{settings_for(condition)}`"
