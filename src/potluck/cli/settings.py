"""`potluck settings`: every setting with its type, default and meaning, or a JSON schema for editors."""

from __future__ import annotations

from typing import Annotated, Any

import typer


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
    """Print what can be set in an experiment file or with --set: all of it, a section, or one setting."""
    import json

    from potluck.core.errors import PotluckError
    from potluck.experiment.described import described, sections
    from potluck.experiment.described import schema as of_files

    if schema and section:
        raise PotluckError(f"--schema is of whole files; leave {section!r} out.")
    if schema:
        typer.echo(json.dumps(of_files(), indent=2, ensure_ascii=False))
        return
    about, before = sections(), ""
    for each in described(section):
        name = each.name.partition(".")[0]
        if name in about and name != before:
            typer.echo(f"\n[{name}]  {about[name]}" if before else f"[{name}]  {about[name]}")
        before = name
        kept = "" if each.results else "; no result depends on it"
        typer.echo(f"  {each.name} = {_shown(each.default)}   ({each.kind})\n      {each.meaning}{kept}")


def _shown(default: Any) -> str:
    """A default as one would write it in a file."""
    if default is None:
        return "unset"
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, tuple):
        return f"[{', '.join(_shown(one) for one in default)}]"
    return f'"{default}"' if isinstance(default, str) else str(default)
