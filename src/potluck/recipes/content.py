"""The content of recipe files: merging, taking parts of another recipe, and what may be left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Values = dict[str, Any]


def merged(*layers: Mapping[str, Any]) -> Values:
    """Nested values, later layers on top of earlier ones."""
    result: Values = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            if isinstance(
                value, Mapping
            ):  # always a new table, so that a change never reaches the recipe itself
                value = merged(below if isinstance(below, Mapping) else {}, value)
            result[key] = value
    return result


_KEYS = ("recipe", "rows", "columns")


def inherit(content: Values, read: Callable[[str], Values]) -> Values:
    """Return a recipe's content with what it takes from the one that `like` names; `read` gets that one's content.

    `like` is a name, or a table of `recipe` with the `rows` and `columns` that are taken (else all). A recipe with
    settings of its own takes those of the other one only where `columns` names some. What it says itself comes on top;
    printed numbers come with their columns.
    """
    like = content.get("like")
    if like is None:
        return content
    chosen = {"recipe": like} if isinstance(like, str) else like
    if not isinstance(chosen, Mapping) or "recipe" not in chosen or not {*chosen} <= {*_KEYS}:
        raise ValueError(f"like = {like!r} is neither a recipe's name nor a table of {', '.join(_KEYS)}")
    parent = with_defaults(inherit(read(str(chosen["recipe"])), read))
    own = {key: value for key, value in content.items() if key != "like"}
    names = chosen.get("columns", () if "settings" in own else [*parent["columns"]])
    columns = _chosen("column", names, parent["columns"])
    printed = list(columns) if "columns" not in own else []
    rows = {
        label: _with_columns(row, list(parent["columns"]), printed)
        for label, row in _chosen("row", chosen.get("rows"), parent["rows"]).items()
    }
    settings = {column["setting"]: parent["settings"][column["setting"]] for column in columns.values()}
    inherited: Values = {
        key: parent[key] for key in ("paper", "base", "small", "full", "counted") if key in parent
    }
    inherited |= {"settings": settings, "rows": rows} | ({"columns": columns} if printed else {})
    note = f"Settings are those of `{chosen['recipe']}` where nothing else is said; its notes hold here."
    return {**merged(inherited, own), "notes": [note, *own.get("notes", ())]}


def with_defaults(content: Values) -> Values:
    """Return the content with a column per setting where it names none, and `?` where no number is printed."""
    settings, rows = content.get("settings"), content.get("rows")
    if not isinstance(settings, Mapping) or not isinstance(rows, Mapping):
        return content
    columns = content.get("columns", {name: {"setting": name, "measure": "best"} for name in settings})
    if not isinstance(columns, Mapping):
        return content
    filled = {
        label: {"paper": "? " * len(columns), **row} if isinstance(row, Mapping) else row
        for label, row in rows.items()
    }
    return {**content, "columns": columns, "rows": filled}


def _chosen(kind: str, names: Sequence[str] | None, choices: Mapping[str, Any]) -> dict[str, Any]:
    for name in names or ():
        if name not in choices:
            raise ValueError(f"like: there is no {kind} {name!r}, only {', '.join(choices)}")
    return {name: choices[name] for name in (choices if names is None else names)}


def _with_columns(row: Mapping[str, Any], columns: Sequence[str], chosen: Sequence[str]) -> Values:
    """A row with the printed numbers of the chosen columns alone."""
    words = row["paper"].split() if isinstance(row["paper"], str) else list(row["paper"])
    by_name = dict(zip(columns, words, strict=False))
    rest = {key: value for key, value in row.items() if key != "paper"}
    return {**rest, "paper": [by_name[name] for name in chosen]} if chosen else rest
