"""The methods by name; each is one file that reads like its paper's pseudo-code."""

from __future__ import annotations

import importlib
from typing import Any

from potluck.core import Method, PotluckError, unknown

METHODS: dict[str, tuple[str, str]] = {
    "standalone": ("standalone", "Standalone"),
    "fedavg": ("fedavg", "FedAvg"),
    "fedprox": ("fedprox", "FedProx"),
    "scaffold": ("scaffold", "Scaffold"),
    "fednova": ("fednova", "FedNova"),
    "moon": ("moon", "Moon"),
    "fedin": ("fedin", "FedIN"),
    "heterofl": ("heterofl", "HeteroFL"),
    "fedrolex": ("fedrolex", "FedRolex"),
    "inclusivefl": ("inclusivefl", "InclusiveFL"),
    "fedgh": ("fedgh", "FedGH"),
    "lg-fedavg": ("lg_fedavg", "LGFedAvg"),
    "fd": ("fd", "FD"),
    "fedproto": ("fedproto", "FedProto"),
    "fedtgp": ("fedtgp", "FedTGP"),
    "fedhe": ("fedhe", "FedHe"),
    "fedl2g-l": ("fedl2g", "FedL2GLogits"),
    "fedl2g-f": ("fedl2g", "FedL2GFeatures"),
    "fedgen": ("fedgen", "FedGen"),
    "pfedafm": ("pfedafm", "PFedAFM"),
    "fml": ("fml", "FML"),
    "fedkd": ("fedkd", "FedKD"),
    "fedmd": ("fedmd", "FedMD"),
    "fedapen": ("fedapen", "FedAPEN"),
    "fedmrl": ("fedmrl", "FedMRL"),
}


_CLASSES = {cls: module for module, cls in METHODS.values()}
__all__ = ["METHODS", "method_class", *_CLASSES]


def __getattr__(name: str) -> Any:
    """`from potluck.methods import FedGH`: a class is loaded when it is asked for."""
    if name not in _CLASSES:
        raise AttributeError(f"module 'potluck.methods' has no attribute {name!r}")
    return getattr(importlib.import_module(f"potluck.methods.{_CLASSES[name]}"), name)


def method_class(name: str) -> type[Method[Any, Any, Any]]:
    """The class of a built-in method, or of a user's own named as `module:Class`."""
    if ":" in name:
        return _own_class(name)
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    module, cls = METHODS[name]
    found: type[Method[Any, Any, Any]] = getattr(importlib.import_module(f"potluck.methods.{module}"), cls)
    return found


def _own_class(name: str) -> type[Method[Any, Any, Any]]:
    module, _, cls = name.partition(":")
    if not module or not cls or module.startswith("."):
        raise PotluckError(f"method.name {name!r} is not understood; write module:Class.")
    try:
        found = getattr(importlib.import_module(module), cls)
    except (ImportError, AttributeError) as error:
        raise PotluckError(
            f"method.name {name!r} could not be imported ({error}); write module:Class."
        ) from None
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise PotluckError(f"method.name {name!r} is not a subclass of potluck.Method.")
    return found
