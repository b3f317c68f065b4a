"""A finished or unfinished run, as read from its folder: curves, client results, models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from potluck.core.errors import unknown

if TYPE_CHECKING:
    from torch import Tensor


Record = Mapping[str, Any]
"""One line of `rounds.jsonl` or `clients.jsonl`, or an object of another file."""


def best_row(rounds: Sequence[Record], selected_by: str) -> Record | None:
    """Return the first evaluated round that is best on validation or test samples, or the last evaluated one.

    None before the first evaluation, or if validation samples select and none were evaluated.
    """
    evaluated = [row for row in rounds if row.get("accuracy") is not None]
    if selected_by == "last":
        return evaluated[-1] if evaluated else None
    key = "accuracy_validation" if selected_by == "validation" else "accuracy"
    measured = [row for row in evaluated if row.get(key) is not None]
    return max(measured, key=lambda row: float(row[key]), default=None)


FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Curve:
    """Measured values of one metric: `y[i]` belongs to round `round[i]` and to `x[i]` on the axis."""

    round: FloatArray
    x: FloatArray
    y: FloatArray

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class ClientResult:
    """The final result of one client on its own test samples."""

    index: int
    name: str
    architecture: str
    accuracy: float
    train_samples: int | None
    test_samples: int | None


@dataclass(frozen=True)
class FailedJob:
    """A job without a usable answer: its round and client, the kind of failure and the reason."""

    round: int
    client: int
    kind: str
    reason: str


def as_number(value: object) -> float:
    """Return a number as a float; nan for anything else (null, missing, a text)."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


__all__ = ["AXES", "ClientResult", "Curve", "FailedJob", "FloatArray", "Record", "Run", "as_number"]

AXES = ("rounds", "samples", "bytes", "floats", "seconds", "virtual_seconds")
"""What a curve may be drawn against."""


@dataclass(frozen=True, repr=False)
class Run:
    """A run: finished, running or killed, with the content of its folder."""

    path: Path
    experiment: Record
    rounds: tuple[Record, ...]
    clients: tuple[Record, ...]
    summary: Record
    was_finished: bool = False
    """Whether the run had finished before it was requested."""
    parts: Any = field(default=None, repr=False, compare=False)
    """The Python objects of the run, if it was made in this process."""

    def __repr__(self) -> str:
        accuracy = self.final_accuracy
        text = f"{accuracy:.1%}" if math.isfinite(accuracy) else "untested"
        return f"Run({self.method} on {self.dataset}: {text}, {str(self.path)!r})"

    @property
    def finished(self) -> bool:
        """Whether the run has written its summary."""
        return bool(self.summary)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.name

    @cached_property
    def method(self) -> str:
        """The method's name."""
        return self._named("method", "method") or self.name

    @cached_property
    def dataset(self) -> str:
        """The data set's name; empty if it is not recorded."""
        return self._named("dataset", "data")

    @cached_property
    def seed(self) -> int:
        """The seed of the run; 0 if it is not recorded."""
        return int(self.summary.get("seed", self.experiment.get("seed", 0)))

    @property
    def command(self) -> str:
        """The command that repeats the run; empty for an unfinished run."""
        return str(self.summary.get("command") or "")

    def predict(self, client: int, x: Tensor, *, federation: Any = None) -> Tensor:
        """Return class scores (samples × classes) by the predictor of the last evaluation of a client.

        `x` has the form of the model's input. Models are read from the last checkpoint. A run with your own
        `federation` that was made in another process needs it again.
        """
        from potluck.runs.plan import Parts
        from potluck.runs.restore import restore_run

        parts = self.parts or Parts(federation=federation)
        return restore_run(self.path, parts).scores(client, x)

    def curve(self, key: str = "accuracy", x: str = "rounds") -> Curve:
        """Return the metric `key` of `rounds.jsonl` against `x`, at the steps where it was measured.

        If a round has several server steps (in an asynchronous run), the curve against rounds has the
        last value of each round.
        """
        y = self._column(key)
        measured = np.isfinite(y) & np.isfinite(self.axis(x))
        number = self.axis("rounds")
        if x == "rounds":
            measured &= _last_of_each(number, measured)
        return Curve(number[measured], self.axis(x)[measured], y[measured])

    def axis(self, x: str) -> FloatArray:
        """Return the position of each server step on the axis `x`: its round, or samples, traffic or time so far."""
        if x not in AXES:
            raise unknown("axis", x, AXES)
        if x == "rounds":
            return self._column("round")
        if x == "virtual_seconds":  # a time, not a duration; zero without devices
            clock = self._column(x)
            return clock if np.nansum(clock) > 0 else np.full(len(clock), math.nan)
        if x in ("seconds", "samples"):
            column = self._column("trained_samples" if x == "samples" else x)
            return np.cumsum(np.nan_to_num(column))
        traffic = np.nan_to_num(self._column(f"{x}_up")) + np.nan_to_num(self._column(f"{x}_down"))
        return np.cumsum(traffic)

    def has(self, key: str) -> bool:
        """Tell whether the metric `key` was measured at least once."""
        return len(self.curve(key)) > 0

    def total(self, key: str) -> float:
        """Return the sum over all steps of a count or time (`bytes_up`, `seconds`, …)."""
        return float(np.nansum(self._column(key)))

    @cached_property
    def jobs(self) -> FloatArray:
        """The number of answered training jobs up to each server step."""
        return np.cumsum([float(len(record.get("participants") or ())) for record in self.rounds])

    def per_client_round(self, key: str) -> float:
        """Return `floats_up` (or `floats_down`, `bytes_up`, `bytes_down`) per answered training job."""
        recorded = self.summary.get(f"{key}_per_client_round")
        if recorded is not None:
            return float(recorded)
        jobs = float(self.jobs[-1]) if len(self.jobs) else 0.0
        return self.total(key) / jobs if jobs else 0.0

    @property
    def num_rounds(self) -> int:
        """The number of rounds done."""
        number = self.axis("rounds")
        return int(np.nanmax(number)) if len(number) else 0

    def summary_number(self, key: str) -> float:
        """Return a number of the summary; nan if it is missing."""
        return as_number(self.summary.get(key))

    def newcomers(self, key: str) -> float:
        """Return a mean over newcomers: `accuracy`, `alone` or `gain`; nan if there were none."""
        means = self.summary.get("newcomers")
        return as_number(means.get(key)) if isinstance(means, Mapping) else math.nan

    @property
    def selected_by(self) -> str:
        """What the best round is selected by: `validation` or `test` samples, or `last`."""
        evaluate = self.experiment.get("evaluate")
        setting = evaluate.get("select") if isinstance(evaluate, Mapping) else None
        return str(self.summary.get("selected_by") or setting or "test")

    @property
    def best_accuracy(self) -> float:
        """The test accuracy of the best round, see `selected_by` (nan before the first evaluation)."""
        recorded = as_number(self.summary.get("best_accuracy"))
        if math.isfinite(recorded):
            return recorded
        best = best_row(self.rounds, self.selected_by)
        return as_number(best.get("accuracy")) if best else math.nan

    @property
    def best_round(self) -> int | None:
        """The number of the best round; of equal ones the first."""
        recorded = self.summary.get("best_round")
        if recorded is not None:
            return int(recorded)
        best = best_row(self.rounds, self.selected_by)
        return int(best["round"]) if best else None

    @property
    def last_accuracy(self) -> float:
        """The accuracy of the last evaluated round (nan before the first evaluation)."""
        curve = self.curve()
        return float(curve.y[-1]) if len(curve) else math.nan

    @property
    def final_accuracy(self) -> float:
        """The mean accuracy over all clients after the last round, or over their latest tests so far."""
        recorded = as_number(self.summary.get("final_accuracy"))
        if math.isfinite(recorded):
            return recorded
        latest = [client.accuracy for client in self.client_results]
        return float(np.mean(latest)) if latest else self.last_accuracy

    @cached_property
    def client_results(self) -> tuple[ClientResult, ...]:
        """The result of each client that was tested, in the order of client indexes."""
        latest = self._latest_evaluations()
        recorded = self.summary.get("client_accuracy") or ()
        values = dict(enumerate(recorded)) or {index: row.get("accuracy") for index, row in latest.items()}
        return tuple(
            self._client_result(index, as_number(value), latest.get(index, {}))
            for index, value in sorted(values.items())
            if math.isfinite(as_number(value))
        )

    @cached_property
    def client_accuracy(self) -> dict[int, float]:
        """Final accuracy by client index."""
        return {client.index: client.accuracy for client in self.client_results}

    @cached_property
    def class_counts(self) -> NDArray[np.int64] | None:
        """Training samples (clients × classes), if recorded."""
        counts = self.summary.get("class_counts")
        if not counts or len({len(row) for row in counts}) != 1:
            return None
        return np.asarray(counts, dtype=np.int64)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, where the run recorded them."""
        return tuple(map(str, self.summary.get("class_names") or ()))

    @cached_property
    def failures(self) -> tuple[FailedJob, ...]:
        """The failed jobs, in the order of server steps."""
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
        """The number of server steps between the start of each job and its answer."""
        return np.asarray(
            [int(s) for record in self.rounds for s in record.get("staleness") or ()], dtype=np.int64
        )

    @cached_property
    def protocol(self) -> str | None:
        """The evaluation protocol of `accuracy`; None if clients were not logged."""
        evaluate = self.experiment.get("evaluate")
        recorded = evaluate.get("protocol") if isinstance(evaluate, Mapping) else None
        logged = [row["protocol"] for row in self.clients if row.get("protocol")]
        if recorded is not None and (recorded in logged or not logged):
            return str(recorded)
        return str(logged[0]) if logged else None

    def client_rows(self) -> list[Record]:
        """Return the rows of `clients.jsonl` with the run's evaluation protocol."""
        return [row for row in self.clients if row.get("protocol") in (None, self.protocol)]

    def client_number(self, client: str) -> int:
        """Return the number of a client that is given by its name or its number."""
        recorded = self.summary.get("client_names")
        names = {str(row["name"]): int(row["client"]) for row in self.clients if row.get("name")}
        names |= {
            str(name): index for index, name in enumerate(recorded if isinstance(recorded, list) else ())
        }
        if client in names:
            return names[client]
        if client.isdecimal():
            return int(client)
        raise unknown("client", client, names)

    def _named(self, summary_key: str, experiment_key: str) -> str:
        recorded = self.summary.get(summary_key) or self.experiment.get(experiment_key) or ""
        if isinstance(recorded, Mapping):
            recorded = recorded.get("name", "")
        return str(recorded)

    @cached_property
    def notes(self) -> list[str]:
        """Names of the values that the method recorded (`me.note`); each is a metric, such as `notes.alpha`."""
        return sorted({name for record in self.rounds for name in record.get("notes") or {}})

    @cached_property
    def client_notes(self) -> list[str]:
        """Names of the notes that are recorded for every client, not only as a mean."""
        return sorted({name for record in self.rounds for name in record.get("client_notes") or {}})

    def _column(self, key: str) -> FloatArray:
        inner = key.removeprefix("notes.")
        records = self.rounds if inner == key else [record.get("notes") or {} for record in self.rounds]
        return np.asarray([as_number(record.get(inner)) for record in records], dtype=np.float64)

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


def _last_of_each(number: FloatArray, measured: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Mark the last measured entry of each round."""
    last = {value: position for position, value in enumerate(number) if measured[position]}
    mask = np.zeros(len(number), dtype=np.bool_)
    mask[list(last.values())] = True
    return mask
