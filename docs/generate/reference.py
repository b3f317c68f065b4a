"""Write the reference from the code: every setting, command, method, model and public name."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import typing
from collections.abc import Iterator
from typing import Any

from generate.text import cell, code, format_default, table

API = {
    "potluck": "What a script needs: `import potluck`.",
    "potluck.kit": "What method files share: averages, class rows, distances, slices.",
    "potluck.testing": "A conformance check for methods of your own.",
    "potluck.analysis": "Tables, tests and curves out of runs.",
    "potluck.report": "Reports and figures out of runs.",
    "potluck.data": "Data sets and how they are dealt.",
    "potluck.models": "The zoo, and networks of your own.",
}
"""The packages whose names are public, and what each is for."""


def pages() -> dict[str, str]:
    """Every page of the reference, by its path."""
    return {
        "reference/settings.md": settings(),
        "reference/commands.md": commands(),
        "reference/methods.md": methods(),
        "reference/models.md": models(),
        **{f"reference/api/{name}.md": api(name, about) for name, about in API.items()},
    }


def settings() -> str:
    """Every setting: name, type, default, meaning, and whether results depend on it."""
    from potluck.core.settings import settings_of
    from potluck.experiment import Experiment
    from potluck.experiment.describe import describe_type

    parts = [
        "# Settings",
        "An experiment file has a section for each heading; `--set SECTION.NAME=VALUE` says the same on the command line, and "
        "`potluck settings` prints this page. A setting without **results** changes where and how fast things are "
        "computed, never what. The settings of a method are on its [own page](methods.md), in section `[method]`.",
    ]
    top = []
    for name, field in Experiment.model_fields.items():
        kind = field.annotation
        if dataclasses.is_dataclass(kind):
            rows = [_setting_row(name, each, kind) for each in settings_of(kind)]
            parts += [f"## [{name}]", first_line(kind), table(SETTING_HEAD, rows)]
        elif name == "method":
            top.append(
                (
                    "`method.name`",
                    "text",
                    format_default(field.default.name),
                    "which [method](methods.md)",
                    "yes",
                )
            )
        elif name != "objects":
            top.append(
                (code(name), describe_type(kind), format_default(field.default), field.description, "yes")
            )
    parts[2:2] = ["## At the top", table(SETTING_HEAD, top)]
    return "\n\n".join(parts) + "\n"


SETTING_HEAD = ("setting", "type", "default", "meaning", "results")


def _setting_row(section: str, each: Any, kind: type[Any]) -> tuple[str, ...]:
    name = f"`{section}.{each.name}`"
    return name, typed(kind, each), format_default(each.default), each.meaning, "yes" if each.results else ""


def typed(section: type[Any], each: Any) -> str:
    """A setting's type in words, with its limits."""
    from potluck.experiment.describe import describe_limits, describe_type

    metadata = next(field.metadata for field in dataclasses.fields(section) if field.name == each.name)
    words = describe_type(typing.get_type_hints(section)[each.name], code)
    return ", ".join([words, *describe_limits(metadata)])


def commands() -> str:
    """Every command with its arguments and flags."""
    import typer.main

    from potluck.cli import app

    parts = [
        "# Commands",
        "`potluck COMMAND --help` says the same. Every command exits with 2 and one sentence at a mistake.",
    ]
    for path, command in _walk(typer.main.get_command(app), "potluck"):
        parts += [f"## {path}", inspect.cleandoc(command.help or "")]
        arguments = [parameter for parameter in command.params if _is_argument(parameter)]
        words = " ".join(_argument(parameter) for parameter in arguments)
        parts.append(
            f"```text\n{path}{' ' + words if words else ''}{' [OPTIONS]' if len(arguments) < len(command.params) else ''}\n```"
        )
        rows = [
            _parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)
        ]
        if rows:
            parts.append(table(("argument or flag", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def _walk(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command below one, with the words that call it; groups are passed through."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, each in inner.items():
        yield from _walk(each, f"{path} {name}")


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()) + (
        "..." if parameter.nargs == -1 and "..." not in (parameter.metavar or "") else ""
    )
    return name if parameter.required else f"[{name}]"


def _parameter(parameter: Any) -> tuple[str, str, str]:
    if _is_argument(parameter):
        flag = code(parameter.metavar or parameter.name.upper())
    else:
        flag = ", ".join(code(name) for name in [*parameter.opts, *parameter.secondary_opts])
        flag += "" if getattr(parameter, "is_flag", False) else " …"
    default = parameter.default() if callable(parameter.default) else parameter.default
    default_text = "" if default in (None, (), [], False) else format_default(default)
    return flag, "needed" if parameter.required else default_text, getattr(parameter, "help", None) or ""


def _is_argument(parameter: Any) -> bool:
    """Whether a parameter is told by its place, not by a flag."""
    return "Argument" in type(parameter).__name__


def methods() -> str:
    """Every method in a line; its page has the rest."""
    from potluck.core.settings import settings_of
    from potluck.methods import METHODS, method_class

    rows = []
    for name in METHODS:
        cls = method_class(name)
        options = ", ".join(code(each.name) for each in settings_of(cls)) or "none"
        rows.append((f"[{name}](../methods/{name}.md)", cls.summary, options))
    return (
        "# Methods\n\n`potluck methods NAME` shows one in full. [Which method?](../which-method.md) chooses by what your clients can do.\n\n"
        + table(("method", "what it does", "options (`--set method.NAME=VALUE`)"), rows)
        + "\n"
    )


def models() -> str:
    """Every network with its size, and every group."""
    import torch

    from potluck.models import (
        build_model,
        count_parameters,
        example_shape,
        groups,
        model_names,
        model_summary,
    )

    rows = []
    for name in model_names():
        shape = (1, 8, 8) if name.startswith(("small", "mini", "slim")) else example_shape(name)
        with torch.device("meta"):
            model = build_model(name, shape, 10, vocabulary=10000)
        sizes = "×".join(map(str, shape))
        rows.append((code(name), model_summary(name), sizes, count_parameters(model), model.feature_dim))
    members = [(code(group), ", ".join(code(name) for name in names)) for group, names in groups.items()]
    return (
        "\n\n".join(
            [
                "# Models",
                "Every architecture with the number of its parameters for 10 classes (text models: 10,000 words), and how many features enter its head. "
                "[What the papers print beside it](../models.md); `potluck models NAME` adds layers, FLOPs and speed.",
                table(("model", "what it is", "input", "parameters", "features"), rows, numbers=(3, 4)),
                "## Groups",
                "A group's members are dealt to clients in turn.",
                table(("group", "members"), members),
            ]
        )
        + "\n"
    )


def api(package: str, about: str) -> str:
    """A package's public names, each with its signature and docstring; those of an earlier package as links to it."""
    earlier = {
        home(package_name, *entry)
        for package_name in list(API)[: list(API).index(package)]
        for entry in public(package_name)
    }
    parts, links = [f"# {package}", about], []
    for name, thing in public(package):
        place = home(package, name, thing)
        if place in earlier:
            links.append(f"[`{name}`][{place}]")
        else:
            parts.append(f"::: {place}\n    options:\n      heading: {name}\n      toc_label: {name}")
    if links:
        parts.insert(2, f"Importable from here as well: {', '.join(links)}.")
    return "\n\n".join(parts) + "\n"


def home(package: str, name: str, thing: Any) -> str:
    """Where a public thing is written."""
    return f"{thing.__module__}.{thing.__qualname__}" if is_code(thing) else f"{package}.{name}"


def public(package: str) -> list[tuple[str, Any]]:
    """The names that a package promises, with what they stand for; modules have a page of their own."""
    module = importlib.import_module(package)
    objects = [(name, getattr(module, name)) for name in sorted(module.__all__, key=str.lower)]
    return [(name, thing) for name, thing in objects if not inspect.ismodule(thing)]


def is_code(thing: Any) -> bool:
    """Whether a thing is a function or a class, which know where they are written."""
    return inspect.isfunction(thing) or inspect.isclass(thing)


def undocumented() -> list[str]:
    """Public functions, classes and their public members that say nothing of themselves."""
    return [
        f"{package}.{missing}"
        for package in API
        for name, thing in public(package)
        if is_code(thing)
        for missing in _silent(name, thing)
    ]


def _silent(name: str, thing: Any) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    if not text or text.startswith(f"{getattr(thing, '__name__', name)}("):  # a dataclass's made-up docstring
        yield name
    if inspect.isclass(thing):
        for key, value in vars(thing).items():
            inner = getattr(value, "__func__", value.fget if isinstance(value, property) else value)
            if (
                not key.startswith("_")
                and inspect.isfunction(inner)
                and not inspect.getdoc(getattr(thing, key))
            ):
                yield f"{name}.{key}"


def first_line(thing: Any) -> str:
    """The first sentence of a docstring."""
    return cell((inspect.getdoc(thing) or "").split("\n\n")[0])
