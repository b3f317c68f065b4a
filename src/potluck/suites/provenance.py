"""Where stored results come from: the digest of an experiment, the commit that made a row, and later confirmations."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

import potluck
from potluck.core.errors import PotluckError
from potluck.experiment import Experiment
from potluck.experiment.differences import result_settings, settings_digest
from potluck.runs.writer import processor_name, provenance

if TYPE_CHECKING:
    from potluck.suites.store import Row

UNKNOWN = "unknown"
"""Stands for the commit of a row that was made outside a repository or from changed source."""


def experiment_digest(experiment: Experiment) -> str:
    """Return a digest of the settings that decide results; the engine does not count.

    Settings at their defaults do not count either, so that a setting that is added later changes no digest.
    """
    defaults = _values(
        Experiment.model_validate({"method": {"name": experiment.method.name}}).with_method_defaults()
    )
    changed = {name: value for name, value in _values(experiment).items() if defaults.get(name) != value}
    return settings_digest({**changed, "method.name": experiment.method.name})[:16]


def _values(experiment: Experiment) -> dict[str, Any]:
    return result_settings(experiment.model_dump(mode="json", exclude_none=True))


def row_origin() -> dict[str, str]:
    """Return commit, versions, machine and date of a result that is made now."""
    return {
        "commit": source_commit(),
        "versions": f"potluck {potluck.__version__}, torch {torch.__version__}, python {platform.python_version()}",
        "machine": f"{platform.system()} {platform.machine()}, {torch.get_num_threads()} thread",
        "date": datetime.now(UTC).date().isoformat(),
    }


def source_commit() -> str:
    """Return the commit of the source with a + where it was changed; empty outside a repository."""
    return str(provenance().get("commit", ""))


def check_commit(commit: str, purpose: str, remedy: str = "") -> None:
    """Raise unless results come from a clean commit. `purpose` says what stores the commit."""
    if not commit:
        raise PotluckError(f"{purpose}, and this source is in no git repository; run from a clone{remedy}.")
    if "+" in commit:
        raise PotluckError(
            f"{purpose}, and the source has changes that are in none ({commit}); "
            f"commit the changes or run from a clean clone{remedy}."
        )


def made_at(row: Row) -> str:
    """Return the clean commit that made a row, or `unknown`."""
    return row.commit if row.commit and "+" not in row.commit else UNKNOWN


@dataclass(frozen=True)
class Confirmation:
    """A stored row that was run again: when, where, at which commit, and whether all its numbers were the same."""

    experiment: str
    task: str
    method: str
    seed: int
    made: str
    commit: str
    outcome: str
    versions: str
    machine: str
    date: str


SAME, DIFFERENT = "same", "different"


def confirmation(row: Row, *, same: bool) -> Confirmation:
    """Return the record of a row that was run again now."""
    origin = row_origin() | {"machine": processor_name()}
    outcome = SAME if same else DIFFERENT
    return Confirmation(row.experiment, row.task, row.method, row.seed, row.commit, outcome=outcome, **origin)


def latest_confirmations(rows: Sequence[Row], records: Sequence[Confirmation]) -> dict[str, Confirmation]:
    """Return the last record of each row by its experiment; records of rows that were measured again do not count."""
    commits = {row.experiment: row.commit for row in rows}
    return {record.experiment: record for record in records if commits.get(record.experiment) == record.made}


def provenance_text(rows: Sequence[Row], records: Sequence[Confirmation]) -> str:
    """Return a sentence: which commits made the rows, and how many of them were confirmed at which commit."""
    run_counts = Counter(made_at(row) for row in rows)
    commits = [commit for commit in sorted(run_counts) if commit != UNKNOWN]
    parts = [f"made at {', '.join(commits)}"] if commits else []
    if UNKNOWN in run_counts:
        parts.append(f"{run_counts[UNKNOWN]} of {len(rows)} rows at an unknown commit")
    last = latest_confirmations(rows, records).values()
    for outcome, text in ((SAME, "confirmed"), (DIFFERENT, "not confirmed: other numbers")):
        counts = Counter(confirmation.commit for confirmation in last if confirmation.outcome == outcome)
        parts += [
            f"{count} of {len(rows)} rows {text} at {commit}" for commit, count in sorted(counts.items())
        ]
    if not last:
        parts.append(f"0 of {len(rows)} rows confirmed")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}."
