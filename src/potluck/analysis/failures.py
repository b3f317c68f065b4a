"""Say in a sentence each which answers of a run were rejected, which jobs failed, and whether training diverged."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from potluck.core.errors import plain
from potluck.runs.run import Run

DIVERGED = 1e4
"""A loss of this size is no longer one of training: guessing among a million classes has 14."""
_MAX_REASONS = 2


def outcome_notes(label: str, runs: Sequence[Run]) -> list[str]:
    """Return sentences on rejected answers, failed jobs and divergence; none where all went well."""
    sentences = [rejected_answers(runs), failed_jobs(runs), divergence(runs)]
    return [f"{label}: {sentence}." for sentence in sentences if sentence]


def rejected_answers(runs: Sequence[Run]) -> str:
    """Return `12 of 40 answers rejected: reason`; empty where none was."""
    failed = [failure for run in runs for failure in run.failures]
    invalid = [failure for failure in failed if failure.kind == "invalid"]
    if not invalid:
        return ""
    answers = int(sum(run.jobs[-1] for run in runs if len(run.jobs))) + len(invalid)
    reasons = Counter(_without_numbers(failure.reason) for failure in invalid).most_common()
    shown = "; ".join(
        f"{reason} ({count}×)" if len(reasons) > 1 else reason for reason, count in reasons[:_MAX_REASONS]
    )
    more = f"; and {len(reasons) - _MAX_REASONS} other reasons" if len(reasons) > _MAX_REASONS else ""
    return f"{len(invalid)} of {answers} answers rejected: {shown}{more}"


def failed_jobs(runs: Sequence[Run]) -> str:
    """Return `3 of 40 jobs without an answer: lost 2, late 1`; empty where all were answered."""
    failed = [failure for run in runs for failure in run.failures]
    silent = [failure for failure in failed if failure.kind != "invalid"]
    if not silent:
        return ""
    jobs = int(sum(run.jobs[-1] for run in runs if len(run.jobs))) + len(failed)
    kinds = Counter(plain(failure.kind, 60) for failure in silent).most_common()
    return f"{len(silent)} of {jobs} jobs without an answer: {', '.join(f'{kind} {count}' for kind, count in kinds)}"


def divergence(runs: Sequence[Run]) -> str:
    """Return where the loss became huge or no number first; empty where it did not."""
    for run in runs:
        for record in run.rounds:
            for name in ("train_loss", "loss"):
                value = record.get(name)
                if isinstance(value, int | float) and not abs(value) < DIVERGED:
                    size = f"{value:.0e}" if math.isfinite(value) else "no finite number"
                    of_seed = f" with seed {run.seed}" if len(runs) > 1 else ""
                    where = f"the loss was {size} in round {record['round']}"
                    return f"training diverged{of_seed}: {where}; lower training.lr"
    return ""


def _without_numbers(reason: str) -> str:
    """Return a reason so that those of different clients and values are counted together."""
    return plain(re.sub(r"client \d+", "a client", reason), 160).rstrip(".")
