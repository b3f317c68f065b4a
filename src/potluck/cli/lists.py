"""`potluck methods | models | datasets | settings`: list what is available."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

FILE = Path(__file__).with_name("catalogue.json")


def catalogue() -> dict[str, dict[str, str]]:
    """Return names and one-line descriptions of methods, models, groups and data sets."""
    from potluck.methods import SUMMARIES

    return {"methods": SUMMARIES, **json.loads(FILE.read_text(encoding="utf-8"))}


def build_catalogue() -> dict[str, dict[str, str]]:
    """Build the catalogue from the code."""
    from potluck.data import list_data
    from potluck.methods import METHODS, method_class
    from potluck.models import groups, model_names, model_summary
    from potluck.models.pretrained import MODELS

    return {
        "methods": {name: method_class(name).summary for name in METHODS},
        "models": {name: model_summary(name) for name in (*model_names(), *MODELS)},
        "groups": {name: ", ".join(members) for name, members in groups.items()},
        "datasets": {source.name: source.about for source in list_data()},
    }


Name = Annotated[str | None, typer.Argument(help="show this entry in full")]


def methods(
    name: Name = None,
    that_fit: Annotated[
        Path | None,
        typer.Option(
            "--that-fit",
            metavar="FILE.toml",
            help="list the methods that this federation can run, and why it cannot run the others",
        ),
    ] = None,
) -> None:
    """List the methods; show the settings, needs and payloads of one; or list those that a federation can run."""
    if that_fit is not None:
        _show_fitting(name, that_fit)
    elif name is not None:
        _show_method(name)
    else:
        _show("methods", 12)


def _show(kind: str, width: int) -> None:
    for name, about in catalogue()[kind].items():
        typer.echo(f"{name:{width}}  {about}")


def _show_fitting(name: str | None, file: Path) -> None:
    from potluck.core.errors import PotluckError
    from potluck.experiment import parse_experiment, read_experiment
    from potluck.runs.compatibility import compatible_methods

    if name is not None:
        raise PotluckError(f"--that-fit checks all methods; leave {name!r} out.")
    result = compatible_methods(parse_experiment(read_experiment(file)))
    typer.echo(f"{result.federation}\n\nCan run:")
    for each, remark in result.compatible.items():
        typer.echo(f"  {each:12}  {catalogue()['methods'][each]}{f' ({remark})' if remark else ''}")
    typer.echo("\nCannot:" if result.incompatible else "\nIt can run all methods.")
    for each, reason in result.incompatible.items():
        typer.echo(f"  {each:12}  {reason}")


def _show_method(name: str) -> None:
    from potluck.core.method import payload_types
    from potluck.core.payload import field_kinds
    from potluck.experiment.describe import describe_settings
    from potluck.experiment.experiment import make_method
    from potluck.methods import method_class

    cls = method_class(name)
    method = make_method(cls, {})
    typer.echo(f"{name}: {cls.summary}\n")
    typer.echo(f"{(cls.__doc__ or '').strip()}\n")
    typer.echo(f"Needs: {', '.join(sorted(method.requires()))}")
    typer.echo(f"Own mode: {'asynchronous' if cls.supports.schedule == 'async' else 'synchronous'}\n")
    typer.echo("Payloads:")
    for arrow, payload in zip(("down", "up"), payload_types(method), strict=True):
        fields = ", ".join(field_kinds(payload)) or "nothing"
        typer.echo(f"  {arrow:4}  {payload.__name__} ({fields}): {_first_line(payload.__doc__)}")
    typer.echo("\nSettings (--set method.NAME=VALUE):")
    settings = describe_settings(name)
    for each in settings:
        short = each.name.removeprefix("method.")
        typer.echo(f"  {short:20} {each.default!r:12} {each.kind}\n      {each.meaning}")
    if not settings:
        typer.echo("  none")


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0] if text else ""


def models(
    name: Name = None,
    shape: Annotated[
        str | None,
        typer.Option("--shape", help="input shape, such as 3x32x32; default: one that fits the model"),
    ] = None,
    classes: Annotated[int, typer.Option("--classes", help="number of classes")] = 10,
    vocabulary: Annotated[
        int, typer.Option("--vocabulary", help="size of the vocabulary, for text models")
    ] = 10000,
) -> None:
    """List models and groups, or show the layers, size, FLOPs and speed of one model."""
    if name is not None:
        _show_model(name, shape, classes, vocabulary)
        return
    _show("models", 20)
    typer.echo("\nGroups:")
    _show("groups", 20)


def _show_model(name: str, shape: str | None, classes: int, vocabulary: int) -> None:
    from potluck.core.random import one_thread
    from potluck.models import describe, example_shape, measure_speed, resolve_models

    for each in resolve_models(name):
        sizes = _sizes(shape) if shape else example_shape(each)
        typer.echo(str(describe(each, sizes, classes, vocabulary=vocabulary)))
        with one_thread():
            speed = measure_speed(each, sizes, classes, vocabulary=vocabulary)
        typer.echo(f"Training speed on this machine, one thread: {speed:,.0f} samples per second\n")


def _sizes(text: str) -> tuple[int, ...]:
    from potluck.core.errors import PotluckError

    try:
        return tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        raise PotluckError(f"--shape {text!r} is not valid; write sizes such as 3x32x32.") from None


def datasets() -> None:
    """List the data sets."""
    _show("datasets", 16)


def settings(
    section: Annotated[
        str,
        typer.Argument(
            metavar="[SECTION]",
            help="a section, a setting such as training.lr, or a method",
            show_default=False,
        ),
    ] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="print the JSON schema of experiment files, for editors")
    ] = False,
) -> None:
    """Print the settings of experiment files and --set: all, a section, or one setting."""
    import json

    from potluck.core.errors import PotluckError
    from potluck.experiment.describe import describe_settings, sections
    from potluck.experiment.describe import schema as file_schema

    if schema and section:
        raise PotluckError(f"--schema describes whole files; leave {section!r} out.")
    if schema:
        typer.echo(json.dumps(file_schema(), indent=2, ensure_ascii=False))
        return
    about, before = sections(), ""
    for each in describe_settings(section):
        name = each.name.partition(".")[0]
        if name in about and name != before:
            typer.echo(f"\n[{name}]  {about[name]}" if before else f"[{name}]  {about[name]}")
        before = name
        note = "" if each.results else "; results do not depend on it"
        typer.echo(f"  {each.name} = {_shown(each.default)}   ({each.kind})\n      {each.meaning}{note}")


def _shown(default: Any) -> str:
    """Format a default as in an experiment file."""
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(_shown(entry) for entry in default)}]"
    return f'"{default}"' if isinstance(default, str) else str(default)


if __name__ == "__main__":
    kinds = {kind: names for kind, names in build_catalogue().items() if kind != "methods"}
    FILE.write_text(json.dumps(kinds, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
