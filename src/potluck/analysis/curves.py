"""Compute curves: smoothing, a band over seeds, the loss increase, and curves of single clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from potluck.core.errors import PotluckError
from potluck.runs.run import Curve, FloatArray, Run, as_number


@dataclass(frozen=True)
class Band:
    """Mean and standard deviation over seeds, at the rounds that all runs measured; a single run has std 0."""

    round: FloatArray
    x: FloatArray
    mean: FloatArray
    std: FloatArray
    runs: int


def smooth(y: ArrayLike, window: int) -> FloatArray:
    """Smooth with a centred moving average over `window` values (an odd number; 1 has no effect).

    Near the ends the window shrinks on both sides equally, so that the smoothed curve does not lag.
    """
    values = np.asarray(y, dtype=np.float64)
    if window < 1 or window % 2 == 0:
        raise PotluckError(f"smooth={window} is not a positive odd number; write 3 or 5.")
    sums = np.concatenate([[0.0], np.cumsum(values)])
    position = np.arange(len(values))
    half = np.minimum(np.minimum(position, len(values) - 1 - position), min(window // 2, len(values)))
    return np.asarray((sums[position + half + 1] - sums[position - half]) / (2 * half + 1))


def band(runs: Sequence[Run], key: str = "accuracy", x: str = "rounds") -> Band:
    """Return the metric's mean and spread over runs that differ in seed.

    Runs are aligned by round: against bytes or time, a point lies at the mean of their cumulative costs.
    """
    return band_of_curves([run.curve(key, x) for run in runs])


def loss_increase_band(runs: Sequence[Run], x: str = "rounds") -> Band:
    """Return mean and spread of the loss increase over runs that differ in seed."""
    return band_of_curves([loss_increase(run.curve(training_metric(run), x)) for run in runs])


def band_of_curves(curves: Sequence[Curve]) -> Band:
    """Return mean and spread of curves at the rounds that all of them have; empty curves are left out."""
    curves = [curve for curve in curves if len(curve)]
    if not curves:
        empty = np.empty(0)
        return Band(empty, empty, empty, empty, 0)
    curves = [_one_per_round(curve) for curve in curves]
    common = curves[0].round
    for curve in curves[1:]:
        common = np.intersect1d(common, curve.round)
    at = [np.isin(curve.round, common) for curve in curves]
    y = np.stack([curve.y[keep] for curve, keep in zip(curves, at, strict=True)])
    x = np.stack([curve.x[keep] for curve, keep in zip(curves, at, strict=True)])
    std = y.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(len(common))
    return Band(common, x.mean(axis=0), y.mean(axis=0), std, len(curves))


def training_metric(run: Run) -> str:
    """Return the field of a run's training cross-entropy; of its whole objective where that is all there is."""
    return "train_ce" if run.has("train_ce") else "train_loss"


def loss_increase(loss: Curve) -> Curve:
    """Return the loss above its best earlier value: L_t − min_{s<t} L_s, from the second measurement on.

    Negative while training improves; positive values are progress that was lost again.
    """
    if len(loss) < 2:
        return Curve(loss.round[:0], loss.x[:0], loss.y[:0])
    best_before = np.minimum.accumulate(loss.y)[:-1]
    return Curve(loss.round[1:], loss.x[1:], loss.y[1:] - best_before)


def client_curve(run: Run, client: int, key: str = "accuracy") -> Curve:
    """Return one client's metric over the rounds in which it was evaluated."""
    rows = [row for row in run.client_rows() if row["client"] == client]
    by_round = {as_number(row.get("round")): as_number(row.get(key)) for row in rows}
    return _curve({number: value for number, value in by_round.items() if math.isfinite(value)})


def note_curves(run: Run, name: str) -> dict[int, Curve]:
    """Return every client's note of a name (`me.note`) over the rounds in which it took part."""
    notes: dict[int, dict[float, float]] = {}
    for record in run.rounds:
        values = (record.get("client_notes") or {}).get(name) or ()
        for client, value in zip(record.get("participants") or (), values, strict=False):
            if math.isfinite(as_number(value)):
                notes.setdefault(int(client), {})[as_number(record.get("round"))] = as_number(value)
    return {client: _curve(by_round) for client, by_round in sorted(notes.items())}


def client_mean_curve(run: Run, key: str = "accuracy", weight: str | None = None) -> Curve:
    """Return the clients' mean of a metric over rounds, weighted by a field of the client.

    `weight="samples"` gives the accuracy over all test samples together (micro accuracy);
    `weight="train_samples"` the objective of federated training.
    """
    totals: dict[float, tuple[float, float]] = {}
    rows = run.client_rows()
    measured = {row.get("round") for row in rows if not row.get("final")}
    for row in rows:
        if row.get("final") and row.get("round") in measured:
            continue  # the final test of all clients repeats the last round
        value = as_number(row.get(key))
        share = 1.0 if weight is None else as_number(row.get(weight))
        if math.isfinite(value) and math.isfinite(share):
            total, count = totals.get(as_number(row.get("round")), (0.0, 0.0))
            totals[as_number(row.get("round"))] = (total + share * value, count + share)
    return _curve({number: total / count for number, (total, count) in sorted(totals.items()) if count})


def _curve(by_round: dict[float, float]) -> Curve:
    rounds = np.asarray(list(by_round), dtype=np.float64)
    return Curve(rounds, rounds, np.asarray(list(by_round.values()), dtype=np.float64))


def _one_per_round(curve: Curve) -> Curve:
    last = sorted({number: position for position, number in enumerate(curve.round)}.values())
    return Curve(curve.round[last], curve.x[last], curve.y[last])
