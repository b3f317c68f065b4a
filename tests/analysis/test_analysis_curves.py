"""Smoothing, bands over seeds, loss increase and client curves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import potluck
from potluck.analysis.curves import band, client_curve, client_mean_curve, loss_increase, smooth
from potluck.core.errors import PotluckError
from potluck.runs.read import read_run
from potluck.runs.run import Curve, Run

Maker = Callable[..., Run]


def test_smoothing_by_hand_keeps_both_ends() -> None:
    assert smooth([0, 3, 6, 0], 3).tolist() == [0, 3, 3, 0]
    assert smooth([0, 3, 6, 0], 1).tolist() == [0, 3, 6, 0]
    assert smooth([5.0], 9).tolist() == [5.0]
    assert smooth([], 3).tolist() == []


def test_smoothing_does_not_shift_a_straight_line() -> None:
    np.testing.assert_allclose(smooth(np.arange(10), 5), np.arange(10))


def test_even_window_has_no_middle() -> None:
    with pytest.raises(PotluckError, match="smooth=4"):
        smooth([1, 2, 3], 4)


def test_band_is_mean_and_sample_deviation_over_seeds(run_of: Maker) -> None:
    a, b = run_of(seed=0), run_of(seed=1)
    result = band([a, b])
    both = np.stack([a.curve().y, b.curve().y])
    np.testing.assert_allclose(result.mean, both.mean(axis=0))
    np.testing.assert_allclose(result.std, np.abs(both[0] - both[1]) / np.sqrt(2))
    assert result.runs == 2


def test_band_of_one_run_has_no_width(run_of: Maker) -> None:
    assert band([run_of()]).std.tolist() == [0] * 20


def test_band_keeps_rounds_every_run_measured(run_of: Maker) -> None:
    result = band([run_of(seed=0, evaluate_every=2), run_of(seed=1, evaluate_every=3)])
    assert result.round.tolist() == [6, 12, 18]


def test_band_against_time_lies_at_the_mean_time(run_of: Maker) -> None:
    a, b = run_of(seed=0), run_of(seed=1)
    expected = (a.curve("accuracy", "seconds").x + b.curve("accuracy", "seconds").x) / 2
    np.testing.assert_allclose(band([a, b], x="seconds").x, expected)


def test_band_of_an_unmeasured_metric_is_empty(run_of: Maker) -> None:
    assert len(band([run_of()], "accuracy_global").mean) == 0


def test_loss_increase_by_hand() -> None:
    rounds = np.arange(1.0, 6.0)
    curve = loss_increase(Curve(rounds, rounds, np.asarray([3.0, 1.0, 2.0, 0.5, 0.75])))
    assert curve.y.tolist() == [-2.0, 1.0, -0.5, 0.25]
    assert curve.round.tolist() == [2, 3, 4, 5]
    assert len(loss_increase(Curve(rounds[:1], rounds[:1], rounds[:1]))) == 0


def test_final_evaluation_is_not_part_of_the_last_rounds_mean(tmp_path: Path) -> None:
    schedule = {"participation": 0.5}
    run = potluck.run(
        "standalone", data="digits", clients=4, rounds=2, schedule=schedule, out=tmp_path / "run"
    )
    curve = client_mean_curve(read_run(run.path))
    assert curve.y.tolist() == pytest.approx([row["accuracy"] for row in run.rounds])


def test_client_curves_and_weighted_means(run_of: Maker) -> None:
    run = run_of(clients=2, rounds=3)
    first, second = client_curve(run, 0), client_curve(run, 1)
    assert first.round.tolist() == [1, 2, 3]
    np.testing.assert_allclose(client_mean_curve(run).y, (first.y + second.y) / 2)
    micro = (50 * first.y + 51 * second.y) / 101  # the made-up clients test 50 and 51 samples
    np.testing.assert_allclose(client_mean_curve(run, weight="samples").y, micro)
