"""Differences over seeds, verdicts, power: values computed by hand or taken from tables of Student's t."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from potluck.suites.statistics import (
    AHEAD,
    BEHIND,
    EQUAL,
    UNDECIDED,
    accuracy_step,
    compare_methods,
    detectable_gain,
    failed_floor,
    longest_training,
    paired_difference,
    seeds_needed,
    share_below,
    share_ended_below,
    summarise_task,
    t_test_power,
    task_power,
    with_least_spread,
)
from potluck.suites.store import Results
from tests.support.suites import add_rows, make_row


def test_interval_over_three_seeds_by_hand():
    """Differences 1, 2 and 3 points: mean 2, standard deviation 1, standard error 1/√3, t(0.975; 2) = 4.3027."""
    difference = paired_difference({0: 0.51, 1: 0.62, 2: 0.73, 3: 0.9}, {0: 0.5, 1: 0.6, 2: 0.7})
    assert difference is not None
    assert (difference.seeds, difference.mean, difference.std) == (
        3,
        pytest.approx(0.02),
        pytest.approx(0.01),
    )
    reach = 4.30265 * 0.01 / math.sqrt(3)
    assert (difference.low, difference.high) == (
        pytest.approx(0.02 - reach, abs=1e-6),
        pytest.approx(0.02 + reach, abs=1e-6),
    )
    # t = 2√3 = 3.4641 with two degrees of freedom: p = 1 - t / √(t² + 2)
    assert difference.p == pytest.approx(1 - 3.4641016 / math.sqrt(14))


def test_level_needs_both_one_sided_tests():
    """Half a point up and down over 4 seeds: one point is 2√3 standard errors from the mean of 0.

    With three degrees of freedom P(T < t) = 1/2 + (x / (1 + x²) + atan x) / π at x = t / √3 = 2.
    """
    values = {0: 0.005, 1: -0.005, 2: 0.005, 3: -0.005}
    difference = paired_difference(values, dict.fromkeys(values, 0.0))
    assert difference is not None
    assert difference.std == pytest.approx(0.005 * math.sqrt(4 / 3))
    assert difference.p == pytest.approx(1.0)
    assert difference.p_level == pytest.approx(0.5 - (2 / 5 + math.atan(2)) / math.pi)


def test_one_seed_has_no_interval_and_no_seed_no_difference():
    difference = paired_difference({0: 0.6}, {0: 0.5, 1: 0.5})
    assert difference is not None
    assert (difference.p, difference.p_level, math.isnan(difference.low)) == (None, None, True)
    assert paired_difference({0: 0.6}, {1: 0.5}) is None


def gains(folder: Path, values: dict[str, list[float]]) -> Results:
    results = Results(folder, "made")
    alone = [0.5, 0.55, 0.6, 0.52, 0.58]
    add_rows(results, "one", "standalone", alone)
    for method, points in values.items():
        add_rows(results, "one", method, [base + gain for base, gain in zip(alone, points, strict=True)])
    return results


def test_verdicts_follow_the_tests(tmp_path: Path):
    results = gains(
        tmp_path,
        {
            "good": [0.05, 0.052, 0.048, 0.051, 0.049],
            "bad": [-0.05, -0.052, -0.048, -0.051, -0.049],
            "same": [0.001, -0.001, 0.0005, -0.0005, 0.0],
            "wild": [0.2, -0.1, 0.15, -0.12, 0.05],
        },
    )
    summaries = {line.method: line for line in summarise_task(results, "one")}
    verdicts = {name: line.verdict for name, line in summaries.items()}
    assert verdicts == {"standalone": "", "good": AHEAD, "bad": BEHIND, "same": EQUAL, "wild": UNDECIDED}
    assert next(iter(summaries)) == "standalone"
    # Holm: good and bad share the smallest p of four tests.
    assert summaries["good"].gain is not None
    assert summaries["good"].corrected == pytest.approx(4 * summaries["good"].gain.p)


def test_baselines_stand_first_and_take_no_part_in_corrections(tmp_path: Path):
    results = gains(
        tmp_path, {"good": [0.05, 0.052, 0.048, 0.051, 0.049], "ridge": [0.01, 0.02, 0.01, 0.02, 0.01]}
    )
    summaries = summarise_task(results, "one")
    assert [line.method for line in summaries] == ["standalone", "ridge", "good"]
    assert summaries[1].verdict == ""
    assert summaries[2].corrected == pytest.approx(summaries[2].gain.p)


def test_standalone_must_reach_ridge_regression(tmp_path: Path):
    results = gains(
        tmp_path, {"ridge": [0.02] * 5, "majority": [-0.2] * 5, "logistic": [0.001, -0.02, 0, 0, 0]}
    )
    failed = failed_floor(results, "one")
    assert list(failed) == ["ridge"]
    assert failed["ridge"].mean == pytest.approx(-0.02)
    results = gains(tmp_path, {"ridge": [0.002, 0.003, 0.002, 0.003, 0.002]})
    assert list(failed_floor(results, "one")) == ["ridge"]  # less than a point, but surely below
    results = gains(tmp_path, {"ridge": [0.03, -0.02, 0.02, -0.02, 0.01]})
    assert failed_floor(results, "one") == {}


def test_share_of_clients_below_themselves_alone(tmp_path: Path):
    results = Results(tmp_path, "made")
    add_rows(results, "one", "standalone", [0.5, 0.5], clients=[[0.5, 0.6, 0.7], [0.4, 0.4, 0.4]])
    add_rows(results, "one", "fedgh", [0.5, 0.5], clients=[[0.4, 0.6, 0.8], [0.3, 0.3, 0.5]])
    fedgh_rows, alone = (
        [row for row in results.rows if row.method == name] for name in ("fedgh", "standalone")
    )
    assert share_below(results, fedgh_rows, alone) == pytest.approx(3 / 6)
    assert share_below(results, fedgh_rows, []) is None


def test_power_of_the_t_test_matches_tables():
    """Cohen's tables: 34 pairs find an effect of half a standard deviation with 80 % at 0.05, two-sided."""
    assert t_test_power(0.5 * math.sqrt(34), 34, 0.05) == pytest.approx(0.808, abs=0.002)
    assert t_test_power(0.0, 10, 0.05) == pytest.approx(0.05, abs=1e-6)
    assert seeds_needed(std=0.02, gain=0.01) == 34
    assert detectable_gain(0.02, 34, 0.05) < 0.01 < detectable_gain(0.02, 33, 0.05)
    assert detectable_gain(0.0, 5, 0.05) == 0.0


def test_power_of_a_task_uses_the_median_spread(tmp_path: Path):
    spread = [0.02, -0.02, 0.02, -0.02, 0.0]
    results = gains(tmp_path, {"a": [0.0] * 5, "b": spread, "c": [3 * gain for gain in spread]})
    power = task_power(summarise_task(results, "one"))
    assert power is not None
    assert (power.seeds, power.methods, power.std) == (5, 3, pytest.approx(0.02))
    assert power.gain == pytest.approx(detectable_gain(0.02, 5, 0.05))
    assert power.corrected_gain > power.gain
    assert task_power([]) is None


def test_training_length_is_of_the_costliest_method(tmp_path: Path):
    results = Results(tmp_path, "made")
    for method, samples in (("standalone", 300.0), ("fedmd", 250.0), ("pooled", 900.0), ("fedgh", 50.0)):
        results.rows.append(make_row("one", method, 0, 0.5, samples_per_job=samples / 10, rounds=10))
    assert longest_training(summarise_task(results, "one")) == (300.0, 250.0)


def test_methods_are_compared_seed_by_seed(tmp_path: Path):
    results = gains(tmp_path, {"fedmd": [0.03, 0.05, 0.04, 0.03, 0.05], "standalone-public": [0.06] * 5})
    comparison = compare_methods(results, "one", "fedmd", "standalone-public")
    assert comparison is not None
    assert comparison.mean == pytest.approx(-0.02)
    assert compare_methods(results, "one", "fedmd", "fedgh") is None


def test_equal_differences_of_seeds_are_no_certainty():
    """A spread of one point over three seeds reaches 4.3027 / √3 = 2.484 points; a larger spread stays as it is."""
    equal = paired_difference({0: 0.7, 1: 0.7, 2: 0.7}, {0: 0.8, 1: 0.8, 2: 0.8})
    assert equal is not None
    floored = with_least_spread(equal, 0.01)
    assert floored.low == pytest.approx(-0.1 - 0.02484, abs=1e-5)
    assert floored.high == pytest.approx(-0.1 + 0.02484, abs=1e-5)
    assert floored.mean == equal.mean
    wide = paired_difference({0: 0.7, 1: 0.9}, {0: 0.8, 1: 0.8})
    assert wide is not None
    assert with_least_spread(wide, 0.01) == wide
    difference = paired_difference({0: 0.7}, {0: 0.8})
    assert difference is not None
    assert with_least_spread(difference, 0.01) is difference


def test_clients_that_end_below_themselves_are_counted_where_both_were_tested(tmp_path: Path):
    """Seed 0: one of two below. Seed 1 has another number of clients, seed 2 no run alone."""
    results = Results(tmp_path, "made")
    add_rows(results, "one", "standalone", [0.5, 0.5], [[0.5, 0.6], [0.5]])
    add_rows(results, "one", "fedgh", [0.5, 0.5, 0.5], [[0.4, 0.6], [0.1, 0.1], [0.0, 0.0]])
    alone, own = results.rows[:2], results.rows[2:]
    assert share_ended_below(results, own, alone) == 0.5
    assert share_ended_below(results, own[1:], alone) is None


def test_one_sample_moves_the_mean_of_clients_by_a_step():
    """Clients with 4 and 10 test samples: a quarter or a tenth, of which half reaches the mean: 0.0875 on average."""
    assert accuracy_step([[0.5, 0.5], [0.75, 0.1]]) == pytest.approx((1 / 4 + 1 / 10) / 2 / 2)
    assert accuracy_step([[0.25, 0.25], [0.75, 0.75]]) == pytest.approx(
        0.25
    )  # the same four samples for both
    assert accuracy_step([]) == 0.0
