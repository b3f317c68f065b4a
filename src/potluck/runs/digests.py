"""Digests of a run's files, so that a change made afterwards does not go unnoticed.

`digests.json` has those of a finished run, every checkpoint those of a run that may go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, parse_toml, read_text
from potluck.experiment.differences import question
from potluck.runs.folder import DIGESTS, EXPERIMENT, METRICS, SUMMARY


@dataclass
class Growing:
    """The digest of a file that is only ever added to: each byte is read once."""

    path: Path
    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256, repr=False)

    def now(self) -> tuple[int, str]:
        """How many bytes it has, and their digest."""
        with open(self.path, "rb") as file:
            file.seek(self.size)
            while piece := file.read(1 << 20):
                self._digest.update(piece)
                self.size += len(piece)
        return self.size, str(self._digest.hexdigest())


def of_file(path: Path, size: int | None = None) -> str:
    """The digest of a file's first bytes, or of all."""
    digest, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with open(path, "rb") as file:
        while piece := file.read(min(left, 1 << 20)):
            digest.update(piece)
            left -= len(piece)
    return digest.hexdigest()


def of_experiment(run: Path) -> str:
    """The digest of what a run asks; where it runs, how long, and how the file is written are no part of it.

    A run may be made longer; that it did not become shorter is checked when it is asked for again. A folder without an
    experiment, of a loop that was put together by hand, has nothing that could be changed.
    """
    return of_question(read_text(run / EXPERIMENT)) if (run / EXPERIMENT).exists() else ""


def of_question(text: str) -> str:
    """The digest of what the text of an experiment asks."""
    asked = question(parse_toml(text))
    asked.pop("schedule.rounds", None)
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def of_run(run: Path) -> dict[str, str]:
    """The digests of a finished run."""
    return {**{name: of_file(run / name) for name in (*METRICS, SUMMARY)}, EXPERIMENT: of_experiment(run)}


def check_finished(run: Path) -> None:
    """Refuse a finished run of which a file is not what it was; one without digests is taken as it is."""
    if not (run / DIGESTS).is_file() or not (run / SUMMARY).is_file():
        return
    try:
        known = parse_json(read_text(run / DIGESTS))
    except (OSError, ValueError):
        known = None
    for name in (*METRICS, SUMMARY, EXPERIMENT):
        if not isinstance(known, dict) or _found(run, name) != known.get(name):
            raise PotluckError(
                f"{str(run / name)!r} was changed after the run ended: restore it or repeat the run; if the change "
                f"is meant, delete {DIGESTS} there."
            )


def check_experiment(run: Path, known: Mapping[str, str]) -> None:
    """Refuse to go on with a run whose experiment was changed after it began."""
    if EXPERIMENT in known and _found(run, EXPERIMENT) != known[EXPERIMENT]:
        raise PotluckError(
            f"{str(run / EXPERIMENT)!r} was changed after the run began: restore it, or start a new run with --out; "
            "where a run works may be changed by options such as --engine and --workers."
        )


def _found(run: Path, name: str) -> str | None:
    try:
        return of_experiment(run) if name == EXPERIMENT else of_file(run / name)
    except (OSError, ValueError):
        return None
