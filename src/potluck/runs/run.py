"""What a run left on disk, as one value with the questions one asks of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import unknown
from potluck.runs.selection import best_row
from potluck.runs.values import ClientResult, Curve, FailedJob, Numbers, number_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["AXES", "ClientResult", "Curve", "FailedJob", "Numbers", "Record", "Run", "number_of"]

Record = Mapping[str, Any]

# What a curve may be drawn against, and the field of rounds.jsonl it is made of.
AXES = ("rounds", "bytes", "floats", "seconds", "virtual_seconds")


@dataclass(frozen=True, repr=False)
class Run:
    """A run, finished, unfinished or killed: what its folder holds, with the questions one asks of it."""

    path: Path
    experiment: Record
    rounds: tuple[Record, ...]
    clients: tuple[Record, ...]
    summary: Record
    was_finished: bool = False
    """Whether there was nothing left to do when the run was asked for."""
    parts: Any = field(default=None, repr=False, compare=False)
    """The Python objects that the run was made with, where it was made in this process."""

    def __repr__(self) -> str:
        accuracy = self.final_accuracy
        text = f"{accuracy:.1%}" if math.isfinite(accuracy) else "untested"
        return f"Run({self.method} on {self.dataset}: {text}, {str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """True when the run wrote its summary, its last act."""
        return bool(self.summary)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @cached_property
    def method(self) -> str:
        """The method's name, from the summary or else from the experiment."""
        return self._named("method", "method") or self.name

    @cached_property
    def dataset(self) -> str:
        """The data set's name, or an empty text where the run does not say."""
        return self._named("dataset", "data")

    @cached_property
    def seed(self) -> int:
        """The seed of the run; 0 where the run does not say."""
        return int(self.summary.get("seed", self.experiment.get("seed", 0)))

    @property
    def command(self) -> str:
        """The command that repeats the run, or an empty text for a run that has not ended."""
        return str(self.summary.get("command") or "")

    def predict(self, client: int, x: Tensor, *, federation: Any = None) -> Tensor:
        """What the last evaluation tested of a client, on inputs as its model takes them: class scores, one row each.

        The models come from the last checkpoint. A run of a `federation` of your own that was made in another process
        needs it again.
        """
        from potluck.runs.ended import bring_back
        from potluck.runs.resolve import Parts

        parts = self.parts or Parts(federation=federation)
        return bring_back(self.path, parts).scores(client, x)

    def curve(self, key: str = "accuracy", x: str = "rounds") -> Curve:
        """The metric `key` of `rounds.jsonl` against `x`, without the steps where it was not measured.

        Where one round has several server steps (an asynchronous run), the curve against rounds keeps the
        last value of each round.
        """
        y = self._column(key)
        known = np.isfinite(y) & np.isfinite(self.axis(x))
        number = self.axis("rounds")
        if x == "rounds":
            known &= _last_of_each(number, known)
        return Curve(number[known], self.axis(x)[known], y[known])

    def axis(self, x: str) -> Numbers:
        """Where each server step lies on the axis `x`: its round, or all traffic or time spent by its end."""
        if x not in AXES:
            raise unknown("axis", x, AXES)
        if x == "rounds":
            return self._column("round")
        if x == "virtual_seconds":  # the clock's reading, not a duration; without a fleet it stands at zero
            clock = self._column(x)
            return clock if np.nansum(clock) > 0 else np.full(len(clock), math.nan)
        if x == "seconds":
            return np.cumsum(np.nan_to_num(self._column(x)))
        both = np.nan_to_num(self._column(f"{x}_up")) + np.nan_to_num(self._column(f"{x}_down"))
        return np.cumsum(both)

    def has(self, key: str) -> bool:
        """Whether the metric `key` was measured at least once."""
        return len(self.curve(key)) > 0

    def total(self, key: str) -> float:
        """The sum over the whole run of a count or time of each step (`bytes_up`, `seconds`, …)."""
        return float(np.nansum(self._column(key)))

    @cached_property
    def jobs(self) -> Numbers:
        """How many training jobs had been answered up to and with each server step."""
        return np.cumsum([float(len(record.get("participants") or ())) for record in self.rounds])

    def per_client_round(self, key: str) -> float:
        """`floats_up` (or `floats_down`, `bytes_up`, `bytes_down`) per answered training job."""
        stated = self.summary.get(f"{key}_per_client_round")
        if stated is not None:
            return float(stated)
        jobs = float(self.jobs[-1]) if len(self.jobs) else 0.0
        return self.total(key) / jobs if jobs else 0.0

    @property
    def num_rounds(self) -> int:
        """How many rounds were done."""
        number = self.axis("rounds")
        return int(np.nanmax(number)) if len(number) else 0

    def stated(self, key: str) -> float:
        """A number of the summary; nan for a run that has not ended, or does not say."""
        return number_of(self.summary.get(key))

    def newcomers(self, key: str) -> float:
        """A mean over the clients that joined at the end: `accuracy`, `alone`, `gain`; nan where nobody did."""
        found = self.summary.get("newcomers")
        return number_of(found.get(key)) if isinstance(found, Mapping) else math.nan

    @property
    def selected_by(self) -> str:
        """What the best round is best on: `validation` or `test` samples; or it is simply the `last`."""
        evaluate = self.experiment.get("evaluate")
        asked = evaluate.get("select") if isinstance(evaluate, Mapping) else None
        return str(self.summary.get("selected_by") or asked or "test")

    @property
    def best_accuracy(self) -> float:
        """The test accuracy of the best round, as `selected_by` says (nan before the first evaluation)."""
        stated = number_of(self.summary.get("best_accuracy"))
        if math.isfinite(stated):
            return stated
        best = best_row(self.rounds, self.selected_by)
        return number_of(best.get("accuracy")) if best else math.nan

    @property
    def best_round(self) -> int | None:
        """The best round; of equal ones the first."""
        stated = self.summary.get("best_round")
        if stated is not None:
            return int(stated)
        best = best_row(self.rounds, self.selected_by)
        return int(best["round"]) if best else None

    @property
    def last_accuracy(self) -> float:
        """The accuracy of the last evaluated round (nan before the first evaluation)."""
        curve = self.curve()
        return float(curve.y[-1]) if len(curve) else math.nan

    @property
    def final_accuracy(self) -> float:
        """The mean over all clients after the last round, or over their latest tests so far."""
        stated = number_of(self.summary.get("final_accuracy"))
        if math.isfinite(stated):
            return stated
        latest = [client.accuracy for client in self.client_results]
        return float(np.mean(latest)) if latest else self.last_accuracy

    @cached_property
    def client_results(self) -> tuple[ClientResult, ...]:
        """One result for each client that was tested, in the order of client indexes."""
        latest = self._latest_evaluations()
        stated = self.summary.get("client_accuracy") or ()
        values = dict(enumerate(stated)) or {index: row.get("accuracy") for index, row in latest.items()}
        return tuple(
            self._client_result(index, number_of(value), latest.get(index, {}))
            for index, value in sorted(values.items())
            if math.isfinite(number_of(value))
        )

    @cached_property
    def client_accuracy(self) -> dict[int, float]:
        """Final accuracy by client index."""
        return {client.index: client.accuracy for client in self.client_results}

    @cached_property
    def class_counts(self) -> NDArray[np.int64] | None:
        """Training samples of each client (row) and class (column), where the run recorded them."""
        counts = self.summary.get("class_counts")
        if not counts or len({len(row) for row in counts}) != 1:
            return None
        return np.asarray(counts, dtype=np.int64)

    @cached_property
    def failures(self) -> tuple[FailedJob, ...]:
        """Every job that failed, in the order of server steps."""
        return tuple(
            FailedJob(
                round=int(record["round"]),
                client=int(failure.get("client", -1)),
                kind=str(failure.get("kind") or failure.get("reason") or "unknown"),
                reason=str(failure.get("reason") or "unknown"),
            )
            for record in self.rounds
            for failure in record.get("failures") or ()
        )

    @cached_property
    def staleness(self) -> NDArray[np.int64]:
        """For every answer, how many server steps had passed since its client started."""
        return np.asarray(
            [int(s) for record in self.rounds for s in record.get("staleness") or ()], dtype=np.int64
        )

    @cached_property
    def protocol(self) -> str | None:
        """The evaluation protocol `accuracy` is of; None where clients were not logged."""
        evaluate = self.experiment.get("evaluate")
        stated = evaluate.get("protocol") if isinstance(evaluate, Mapping) else None
        known = [row["protocol"] for row in self.clients if row.get("protocol")]
        if stated is not None and (stated in known or not known):
            return str(stated)
        return str(known[0]) if known else None

    def client_rows(self) -> list[Record]:
        """The rows of `clients.jsonl` that are of the run's own evaluation protocol."""
        return [row for row in self.clients if row.get("protocol") in (None, self.protocol)]

    def _named(self, summary_key: str, experiment_key: str) -> str:
        stated = self.summary.get(summary_key) or self.experiment.get(experiment_key) or ""
        if isinstance(stated, Mapping):
            stated = stated.get("name", "")
        return str(stated)

    @cached_property
    def notes(self) -> list[str]:
        """What the method recorded of itself (`me.note`): each is a metric, `notes.alpha`."""
        return sorted({name for record in self.rounds for name in record.get("notes") or {}})

    @cached_property
    def client_notes(self) -> list[str]:
        """Those of which the run has every client's own, not the mean alone."""
        return sorted({name for record in self.rounds for name in record.get("client_notes") or {}})

    def _column(self, key: str) -> Numbers:
        inner = key.removeprefix("notes.")
        records = self.rounds if inner == key else [record.get("notes") or {} for record in self.rounds]
        return np.asarray([number_of(record.get(inner)) for record in records], dtype=np.float64)

    def _latest_evaluations(self) -> dict[int, Record]:
        latest: dict[int, Record] = {}
        for row in self.client_rows():
            index = int(row["client"])
            if row.get("final") or not latest.get(index, {}).get("final"):
                latest[index] = row
        return latest

    def _client_result(self, index: int, accuracy: float, row: Record) -> ClientResult:
        train = row.get("train_samples")
        if train is None and self.class_counts is not None and index < len(self.class_counts):
            train = self.class_counts[index].sum()
        tested = row.get("samples")
        return ClientResult(
            index=index,
            name=str(row.get("name") or _item(self.summary.get("client_names"), index) or f"client {index}"),
            architecture=str(
                row.get("architecture") or _item(self.summary.get("client_architectures"), index) or ""
            ),
            accuracy=accuracy,
            train_samples=None if train is None else int(train),
            test_samples=None if tested is None else int(tested),
        )


def _item(values: object, index: int) -> object:
    return values[index] if isinstance(values, list) and index < len(values) else None


def _last_of_each(number: Numbers, known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Marks the last known entry of each round number."""
    last = {value: position for position, value in enumerate(number) if known[position]}
    mask = np.zeros(len(number), dtype=np.bool_)
    mask[list(last.values())] = True
    return mask
