"""Read run folders, for tables, figures and reports.

Only four files are read (`experiment.toml`, `rounds.jsonl`, `clients.jsonl`, `summary.json`); a running or killed run
is read up to its last record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, parse_toml, read_text
from potluck.runs.digests import check_finished
from potluck.runs.folder import read_lines
from potluck.runs.run import Run, as_number


def is_run(folder: Path) -> bool:
    """Tell whether a folder was written by `potluck run`."""
    return (folder / "rounds.jsonl").is_file() or (folder / "summary.json").is_file()


def find_runs(places: Iterable[str | Path]) -> list[Path]:
    """Return the run folders among these places and below them, by name; other files are ignored.

    So `runs/*` may match tables and reports, too, and `runs` stands for all runs in it.
    """
    paths = [Path(place) for place in places]
    folders: dict[Path, None] = {}
    for place in paths:
        if not place.exists():
            raise PotluckError(f"No run folder at {str(place)!r}: pass the folder that `potluck run` wrote.")
        folders |= dict.fromkeys(_below(place))
    if not folders:
        named = ", ".join(repr(str(place)) for place in paths)
        raise PotluckError(
            f"There is no run in {named} (no folder with rounds.jsonl or summary.json): "
            "pass a folder that `potluck run` wrote, or one that contains such folders."
        )
    return list(folders)


def _below(place: Path) -> Iterator[Path]:
    if is_run(place):
        yield place
    elif place.is_dir():
        for entry in sorted(place.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _below(entry)


def read_runs(*places: str | Path) -> list[Run]:
    """Read every run among these folders and below them, by name."""
    return [read_run(path) for path in find_runs(places)]


def read_run(path: str | Path, *, was_finished: bool = False) -> Run:
    """Read the run folder at `path`; a folder without `rounds.jsonl` or `summary.json` is not a run."""
    folder = Path(path)
    if not folder.is_dir():
        raise PotluckError(f"No run folder at {str(folder)!r}: pass the folder that `potluck run` wrote.")
    rounds_file, summary_file = folder / "rounds.jsonl", folder / "summary.json"
    if not is_run(folder):
        raise PotluckError(
            f"{str(folder)!r} is not a run folder (it has neither rounds.jsonl nor summary.json): "
            f"pass the folder that `potluck run` wrote."
        )
    summary = _read_object(
        summary_file, parse_json, f"delete it and write it again with: potluck resume {folder}"
    )
    check_finished(folder)
    by_step = {record.get("step", number): record for number, record in enumerate(read_lines(rounds_file), 1)}
    return Run(
        path=folder,
        experiment=_read_object(folder / "experiment.toml", parse_toml, "restore the file or repeat the run"),
        rounds=tuple(record for record in by_step.values() if math.isfinite(as_number(record.get("round")))),
        clients=tuple(
            row for row in read_lines(folder / "clients.jsonl") if isinstance(row.get("client"), int)
        ),
        summary=summary,
        was_finished=was_finished,
    )


def _read_object(file: Path, parse: Callable[[str], Any], remedy: str) -> dict[str, Any]:
    """Read the object of a JSON or TOML file; empty if there is no file."""
    if not file.is_file():
        return {}
    try:
        value = parse(read_text(file))
    except (OSError, ValueError):
        raise PotluckError(f"{str(file)!r} cannot be parsed: {remedy}.") from None
    return value if isinstance(value, dict) else {}
