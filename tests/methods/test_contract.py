"""The method contract: imports of a file, declarations of a class, errors for missing ones."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import potluck
import potluck.method
from potluck.core.supports import Supports, holds, settings_for
from potluck.method import Client, ClientInfo, Context, Method, Payload, PotluckError, Update, kit, setting
from potluck.methods import METHODS, SUMMARIES, method_class
from potluck.methods.fedproto import FedProto
from potluck.testing import MethodError, check_method

FILES = sorted(Path(kit.__file__).parents[1].joinpath("methods").glob("[!_]*.py"))


def imported(file: Path) -> list[ast.ImportFrom]:
    """The imports of potluck in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("potluck")
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_method_file_imports_one_module_and_leaves_robustness_and_staleness_to_the_kit(file: Path):
    modules = [str(node.module) for node in imported(file)]
    bases = [module for module in modules if module.startswith("potluck.methods.")]  # the class it extends
    assert [module for module in modules if module not in bases] in (["potluck.method"], [])
    assert len(bases) <= 1
    text = file.read_text(encoding="utf-8")
    for word in (".fresh", "screen_rows", "screen_models", "round_share(", "ctx.averaging", ".guard"):
        assert word not in text, f"{file.name} has {word}, which belongs to the kit"


def test_the_median_method_file_imports_few_names_and_fedgh_fits_a_page():
    counts = [sum(len(node.names) for node in imported(file)) for file in FILES]
    assert statistics.median(counts) <= 13
    assert statistics.median(len(imported(file)) for file in FILES) == 1
    (fedgh,) = (file for file in FILES if file.stem == "fedgh")
    assert len(fedgh.read_text(encoding="utf-8").splitlines()) <= 112


def test_package_exports_the_names_of_a_method_file():
    assert set(potluck.method.__all__) <= set(potluck.__all__)
    assert all(getattr(potluck, name) is getattr(potluck.method, name) for name in potluck.method.__all__)


def test_a_method_declares_four_class_variables():
    declared = {name for name, kind in Method.__annotations__.items() if "ClassVar" in str(kind)}
    assert declared == {"name", "summary", "needs", "supports"}


def test_the_registry_is_read_from_the_files():
    assert {"standalone", "fedgh", "fedl2g-l", "fedl2g-f"} <= set(METHODS)
    for name, (module, cls) in METHODS.items():
        found_class = method_class(name)
        assert (found_class.__module__, found_class.__name__) == (f"potluck.methods.{module}", cls)
        assert (found_class.name, found_class.summary) == (name, SUMMARIES[name])


def test_conditions_name_the_settings_that_meet_them():
    condition = FedProto.supports.row_privacy
    assert holds(condition, FedProto())
    assert not holds(condition, FedProto(collect="training"))
    assert not holds(condition, FedProto(aggregate="weighted"))
    assert settings_for(condition) == "method.collect = 'after' and method.aggregate = 'mean'"
    assert settings_for(FedProto.supports.max_share) == "method.aggregate = 'weighted' or 'literal'"
    assert not holds(Supports().row_privacy, FedProto())
    assert settings_for(True) == ""


# -- a missing declaration is one sentence ------------------------------------------------------------------


@dataclass(frozen=True)
class Number(Payload):
    value: Tensor


class Plain:
    """A class that forgot to be a payload."""


class Undecorated(Payload):
    value: Tensor


class Echo:
    """The four functions of a method that returns what it received."""

    def init_server(self, ctx: Context) -> Tensor:
        return torch.zeros((), dtype=ctx.task.dtype)

    def broadcast(self, state: Tensor, client: ClientInfo, ctx: Context) -> Number:
        return Number(state)

    def client(self, me: Client, message: Number) -> Number:
        return Number(message.value.clone())

    def server(self, state: Tensor, updates: Sequence[Update[Number]], ctx: Context) -> Tensor:
        return state


def test_a_method_without_types_names_the_form():
    with pytest.raises(PotluckError, match=r"Untyped does not name its types; write class Untyped\(Method\["):
        type("Untyped", (Echo, Method), {})


def test_a_payload_that_is_none_names_the_base_class():
    with pytest.raises(
        PotluckError, match=r"Sends sends Plain, which is no payload; write class Plain\(Payload\)"
    ):

        class Sends(Echo, Method[Tensor, Plain, Number]):  # type: ignore[type-var]
            """Sends what is no payload."""


def test_a_payload_without_the_decorator_names_it():
    with pytest.raises(
        PotluckError, match=r"Undecorated, which is not a dataclass; put @dataclass\(frozen=True\)"
    ):

        class Sends(Echo, Method[Tensor, Undecorated, Number]):
            """Sends a payload without the decorator."""


class Undeclared(Echo, Method[Tensor, Number, Number]):
    """Has a setting but not the decorator."""

    strength: float = setting(1.0, "a strength")


@pytest.mark.parametrize("settings", [{}, {"strength": 0.5}])
def test_a_method_with_settings_without_the_decorator_names_it(settings: dict[str, Any]):
    with pytest.raises(
        PotluckError, match="Undeclared has settings but is not a dataclass; put @dataclass above"
    ):
        Undeclared(**settings)


@dataclass
class Single(Echo, Method[Tensor, Number, Number]):
    """Makes its state in torch's default precision."""

    name: ClassVar[str] = "single"

    def init_server(self, ctx: Context) -> Tensor:
        return torch.zeros(())


def test_method_with_fixed_precision_is_reported():
    with pytest.raises(MethodError, match=r"Single: a round fails in float64: .*dtype=ctx\.task\.dtype"):
        check_method(Single())


class Correct(Single):
    """Makes its state in the task's precision."""

    def init_server(self, ctx: Context) -> Tensor:
        return torch.zeros((), dtype=ctx.task.dtype)


def test_a_method_of_both_precisions_passes():
    check_method(Correct())
