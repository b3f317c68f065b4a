"""The traffic ledger: what travelled, per client and round and in all, in numbers and in bytes.

`paper_*` columns are what the method's paper would have counted (some leave out a bias, a label or a count),
at four bytes a number as the papers do; they never change what was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from potluck.analysis import text
from potluck.analysis.groups import Group, group_runs
from potluck.runs.run import Run

if TYPE_CHECKING:
    from rich.table import Table

FLOAT_BYTES = 4


@dataclass(frozen=True)
class LedgerRow:
    """One method's traffic and time, means over its seeds. Up is from client to server."""

    label: str
    floats_up: float  # per client and round
    floats_down: float
    bytes_up: float  # per client and round, as written by the codec
    bytes_down: float
    total_bytes_up: float
    total_bytes_down: float
    seconds_per_round: float
    paper_up: float | None  # numbers per client and round
    paper_down: float | None
    paper_note: str

    @property
    def paper_bytes(self) -> float:
        """Both directions per client and round as the paper counts them; nan where it is not known."""
        if self.paper_up is None or self.paper_down is None:
            return math.nan
        return FLOAT_BYTES * (self.paper_up + self.paper_down)


def ledger(runs: Iterable[Run]) -> tuple[LedgerRow, ...]:
    """The ledger of runs, one row per method and setting."""
    return tuple(ledger_row(group) for group in group_runs(runs))


def ledger_row(group: Group) -> LedgerRow:
    """The ledger of one group of runs."""
    runs = group.counted
    paper: dict[str, Any] = next(
        (run.summary["paper_accounting"] for run in runs if run.summary.get("paper_accounting")), {}
    )
    return LedgerRow(
        label=group.label,
        floats_up=_mean([run.per_client_round("floats_up") for run in runs]),
        floats_down=_mean([run.per_client_round("floats_down") for run in runs]),
        bytes_up=_mean([run.per_client_round("bytes_up") for run in runs]),
        bytes_down=_mean([run.per_client_round("bytes_down") for run in runs]),
        total_bytes_up=_mean([run.total("bytes_up") for run in runs]),
        total_bytes_down=_mean([run.total("bytes_down") for run in runs]),
        seconds_per_round=_mean([run.total("seconds") / max(run.num_rounds, 1) for run in runs]),
        paper_up=paper.get("up"),
        paper_down=paper.get("down"),
        paper_note=str(paper.get("note", "")),
    )


def ledger_cells(rows: Sequence[LedgerRow]) -> tuple[list[str], list[list[str]]]:
    """The ledger as headings and cells; the paper's column only where a run has it."""
    with_paper = any(row.paper_up is not None for row in rows)
    headings = ["method", "floats up", "floats down", "KiB up", "KiB down", "total MiB up", "total MiB down"]
    headings += ["s per round"] + (["paper's KiB", "paper's count"] if with_paper else [])
    cells = [
        [
            row.label,
            text.count(row.floats_up),
            text.count(row.floats_down),
            text.kibibytes(row.bytes_up),
            text.kibibytes(row.bytes_down),
            text.mebibytes(row.total_bytes_up),
            text.mebibytes(row.total_bytes_down),
            text.seconds(row.seconds_per_round),
            *([text.kibibytes(row.paper_bytes), row.paper_note or text.MISSING] if with_paper else []),
        ]
        for row in rows
    ]
    return headings, cells


def ledger_table(rows: Sequence[LedgerRow]) -> Table:
    """The ledger for the terminal; floats and KiB are per client and round."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headings, cells = ledger_cells(rows)
    table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for position, heading in enumerate(headings):
        words = position == 0 or heading == "paper's count"
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    return table


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
