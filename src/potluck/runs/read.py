"""Read a run folder back: what every table, figure and report starts from.

Only the four plain files are looked at (`experiment.toml`, `rounds.jsonl`, `clients.jsonl`, `summary.json`),
and a run that is still going, or was killed midway, reads as far as it got.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.limits import parse_json, parse_toml, read_text
from potluck.runs.run_data import AXES, ClientResult, Curve, FailedJob, RunData, number_of

__all__ = ["AXES", "ClientResult", "Curve", "FailedJob", "RunData", "read_run"]


def read_run(path: str | Path) -> RunData:
    """Read the run folder at `path`; a folder without `rounds.jsonl` or `summary.json` is not a run."""
    folder = Path(path)
    if not folder.is_dir():
        raise PotluckError(f"No run folder at {str(folder)!r}: pass the folder that `potluck run` wrote.")
    rounds_file, summary_file = folder / "rounds.jsonl", folder / "summary.json"
    if not rounds_file.is_file() and not summary_file.is_file():
        raise PotluckError(
            f"{str(folder)!r} is not a run folder (it has neither rounds.jsonl nor summary.json): "
            f"pass the folder that `potluck run` wrote."
        )
    by_step = {
        record.get("step", number): record for number, record in enumerate(_read_lines(rounds_file), 1)
    }
    return RunData(
        path=folder,
        experiment=_read_object(folder / "experiment.toml", parse_toml),
        rounds=tuple(record for record in by_step.values() if math.isfinite(number_of(record.get("round")))),
        clients=tuple(
            row for row in _read_lines(folder / "clients.jsonl") if isinstance(row.get("client"), int)
        ),
        summary=_read_object(summary_file, parse_json),
    )


def _read_lines(file: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; only a last line torn by a kill may be bad, and is left out."""
    if not file.is_file():
        return []
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    objects: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            value = parse_json(line) if line.strip() else None
        except ValueError:
            if number == len(lines):
                break
            raise PotluckError(
                f"{str(file)!r} line {number} is not JSON: restore the file or repeat the run."
            ) from None
        if isinstance(value, dict):
            objects.append(value)
    return objects


def _read_object(file: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    """The one object of a JSON or TOML file; empty where there is no file."""
    if not file.is_file():
        return {}
    try:
        value = parse(read_text(file))
    except ValueError:
        raise PotluckError(f"{str(file)!r} cannot be parsed: restore the file or repeat the run.") from None
    return value if isinstance(value, dict) else {}
