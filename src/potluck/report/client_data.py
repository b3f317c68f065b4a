"""Clients as the report's page draws them: who they are, how they ended, how they fared over rounds, class by class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from potluck.analysis.classes import calibration, confusion_matrix
from potluck.analysis.curves import note_curves
from potluck.core.errors import PotluckError
from potluck.runs.run import Run, number_of

MAX_CLIENTS = 200  # of the bubble chart, and of a heat map over rounds
MAX_CELLS = 60_000  # of all heat maps over rounds together; more cannot be told apart on a screen
MAX_LINES = 50  # clients whose notes are drawn
MAX_NOTES = 200  # points of such a line
MAX_CONFUSIONS = 20_000  # entries of single clients' confusion matrices, over all methods


class Rosters:
    """Numbers partitions (who holds which samples) and rosters (what their clients are called), and keeps each once.

    Methods that are compared mostly have the same clients; a thousand names need not be said 25 times.
    """

    def __init__(self) -> None:
        self.partitions: list[dict[str, Any]] = []
        self.found: list[dict[str, Any]] = []
        self._partition_numbers: dict[tuple[int, bytes | None], int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}

    def clients(self, run: Run) -> dict[str, Any]:
        """A run's clients: the number of their roster, and each one's final accuracy in its order."""
        results = run.client_results
        who = tuple((each.index, each.name, each.architecture, each.train_samples) for each in results)
        key = (self._partition(run), who)
        if key not in self._numbers:
            self._numbers[key] = len(self.found)
            names = ("index", "name", "architecture", "train")
            columns = (
                zip(names, zip(*who, strict=True), strict=True) if who else ((name, ()) for name in names)
            )
            self.found.append({"partition": key[0], **{name: list(values) for name, values in columns}})
        return {
            "roster": self._numbers[key],
            "seed": run.seed,
            "accuracy": [round(each.accuracy, 5) for each in results],
        }

    def _partition(self, run: Run) -> int:
        """The number of the run's partition; runs whose partition is unknown are told apart by seed only."""
        counts = run.class_counts
        key, unknown = (run.seed, None if counts is None else counts.tobytes()), (run.seed, None)
        if key not in self._partition_numbers:
            of_seed = [number for (seed, _), number in self._partition_numbers.items() if seed == run.seed]
            # A run that has not ended does not say; it is taken for what another of its seed has, or comes to have.
            taken = of_seed[:1] if counts is None or unknown in self._partition_numbers else []
            self._partition_numbers[key] = taken[0] if taken else len(set(self._partition_numbers.values()))
            if counts is not None:
                names = {client.index: client.name for client in run.client_results}
                shown = counts[:MAX_CLIENTS]
                self.partitions.append(
                    {
                        "label": f"{run.summary.get('partition') or 'partition'}, seed {run.seed}",
                        "counts": shown,
                        "names": [names.get(index, f"client {index}") for index in range(len(shown))],
                        "left_out": len(counts) - len(shown),
                    }
                )
        return self._partition_numbers[key]


def story(run: Run, cells: int) -> dict[str, Any] | None:
    """Clients (rows, in the order of their numbers) over evaluated rounds (columns): accuracies in whole per cent.

    At most `cells` of them: rounds are thinned, the first and the last always kept, and clients beyond a number
    left out. None before the first evaluation.
    """
    known = {
        (int(row["client"]), int(row["round"])): value
        for row in run.client_rows()
        if isinstance(row.get("round"), int) and (value := number_of(row.get("accuracy"))) == value
    }
    if not known:
        return None
    clients, rounds = sorted({one for one, _ in known}), sorted({number for _, number in known})
    shown = clients[: min(MAX_CLIENTS, max(10, cells // min(len(rounds), 20)))]
    places = np.unique(
        np.linspace(0, len(rounds) - 1, max(2, min(len(rounds), cells // len(shown)))).round().astype(int)
    )
    kept = [rounds[place] for place in places]
    values = [[_percent(known.get((one, number))) for number in kept] for one in shown]
    return {"clients": shown, "rounds": kept, "values": values, "left_out": len(clients) - len(shown)}


def noted(run: Run) -> dict[str, Any]:
    """What clients noted of themselves over rounds, by the note's name: the first clients, each with its own rounds."""
    found = {}
    for name in run.client_notes:
        curves = note_curves(run, name)
        lines = []
        for client, curve in list(curves.items())[:MAX_LINES]:
            keep = np.unique(np.linspace(0, len(curve) - 1, min(len(curve), MAX_NOTES)).round().astype(int))
            lines.append({"client": client, "rounds": curve.round[keep], "values": curve.y[keep]})
        found[name] = {"lines": lines, "left_out": len(curves) - len(lines)}
    return found


def classes(runs: Sequence[Run], room: int) -> tuple[dict[str, Any] | None, int]:
    """What the final tests were made of, over all runs, and client by client of the first while there is `room`.

    Gives what it found (None where no run says) and the room that is left.
    """
    counts: dict[tuple[int, int], int] = {}
    size, bins = 0, None
    for run in runs:
        try:
            matrix, found = confusion_matrix(run), calibration(run)
        except PotluckError:  # a run that has not ended, or whose nodes keep this to themselves
            continue
        size = max(size, len(matrix))
        for true, guess in np.argwhere(matrix).tolist():
            counts[true, guess] = counts.get((true, guess), 0) + int(matrix[true, guess])
        sums = np.nan_to_num(found.confidence) * found.counts
        mine = np.stack([found.counts, found.right, sums], axis=1)
        bins = mine if bins is None else bins + mine
    if bins is None:
        return None, room
    own = [row for row in runs[0].clients if row.get("final") and row.get("confusion")]
    entries = sum(len(row["confusion"]) for row in own)
    singles = {str(row["client"]): row["confusion"] for row in own} if entries <= room else {}
    confusion = [[*pair, count] for pair, count in sorted(counts.items())]
    told = {"size": size, "confusion": confusion, "bins": bins, "clients": singles}
    return told, room - (entries if singles else 0)


def _percent(value: float | None) -> int | None:
    return None if value is None else round(100 * value)
