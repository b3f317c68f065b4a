"""Fairness and paired tests, with values worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from potluck.analysis.clients import fairness
from potluck.analysis.significance import paired_over_clients, paired_t, paired_test, wilcoxon
from potluck.core.errors import PotluckError
from potluck.runs.run import Run

Maker = Callable[..., Run]


def test_fairness_by_hand() -> None:
    spread = fairness([0.9, 0.1, 0.5, 0.5])
    assert spread.mean == pytest.approx(0.5)
    assert spread.std == pytest.approx(np.sqrt((0.16 + 0.16) / 4))
    assert spread.worst == pytest.approx(0.1)
    assert spread.gap == pytest.approx(0.8)


@pytest.mark.parametrize(("clients", "worst"), [(5, 1), (10, 1), (11, 2), (20, 2), (30, 3)])
def test_worst_tenth_is_rounded_up_to_whole_clients(clients: int, worst: int) -> None:
    values = np.arange(clients) / 100
    assert fairness(values).worst == pytest.approx(values[:worst].mean())


def test_fairness_without_clients_is_nan_and_bad_shares_raise() -> None:
    assert np.isnan(fairness([]).mean)
    with pytest.raises(PotluckError, match="share 10"):
        fairness([0.1], share=10)


def test_unanimous_signed_rank_has_the_smallest_exact_p() -> None:
    """Seven pairs, all up, all different: 2 of the 2**7 sign patterns are as extreme."""
    result = wilcoxon(np.arange(1, 8) / 10, np.zeros(7))
    assert result.p == pytest.approx(2 / 2**7)
    assert result.difference == pytest.approx(0.4)


def test_one_dissenting_small_pair_by_hand() -> None:
    """Rank 1 negative among 6: W = 1. Patterns with W ≤ 1: none or rank 1 alone, on two sides: 4/64."""
    result = wilcoxon([-0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.zeros(6))
    assert result.p == pytest.approx(4 / 64)


def test_equal_steps_are_ties_despite_rounding_noise() -> None:
    """0.3 − 0.2 and 0.2 − 0.1 differ in the last bit. All tied and up, still 2 of 2**6 patterns."""
    a, b = [0.3, 0.2, 0.7, 0.8, 0.9, 0.4], [0.2, 0.1, 0.6, 0.7, 0.8, 0.3]
    assert wilcoxon(a, b).p == pytest.approx(2 / 2**6)


def test_ties_with_one_dissent_by_hand() -> None:
    """Six equal steps, one down: 14 of 64 patterns have at most one or at least five signs alike."""
    assert wilcoxon([1, 1, 1, 1, 1, -1], np.zeros(6)).p == pytest.approx(14 / 64)


def test_too_few_telling_pairs_give_no_p() -> None:
    result = wilcoxon([0.5, 0.6, 0.7, 0.8, 0.9, 0.1], [0.1, 0.1, 0.1, 0.1, 0.1, 0.1])
    assert result.p is None
    assert result.note == "only 5 of 6 pairs differ, 6 are needed"


def test_equal_runs_do_not_differ() -> None:
    assert wilcoxon([0.5] * 8, [0.5] * 8).p == 1.0
    assert paired_t([0.5, 0.6], [0.5, 0.6]).p == 1.0


def test_paired_t_by_hand() -> None:
    """Differences 1, 2, 3: t = 2/(1/√3) = 3.4641 with 2 degrees of freedom; p = 1 − t/√(t²+2) = 0.0742."""
    result = paired_t([1.0, 2.0, 3.0], [0.0, 0.0, 0.0])
    t = 2 * np.sqrt(3)
    assert result.p == pytest.approx(1 - t / np.sqrt(t**2 + 2))
    assert result.note == "only 3 seeds"


def test_paired_t_says_when_there_is_no_spread_or_no_pair() -> None:
    assert paired_t([0.2, 0.3], [0.1, 0.2]).p is None
    assert "same for every seed" in paired_t([0.2, 0.3], [0.1, 0.2]).note
    assert "2 are needed" in paired_t([0.2], [0.1]).note


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(PotluckError, match="not 2 and 3"):
        paired_t([1, 2], [1, 2, 3])


def test_several_common_seeds_are_tested_over_seeds_one_over_clients(run_of: Maker) -> None:
    a = [run_of(method="a", seed=seed, level=0.6) for seed in (0, 1)]
    b = [run_of(method="b", seed=seed, level=0.8) for seed in (0, 1, 2)]
    assert paired_test(a, b).test == "paired t over seeds"
    assert paired_test(a, b).pairs == 2
    assert paired_test(a[:1], b).test == "Wilcoxon signed-rank over clients"
    assert paired_test(a[:1], b[2:]).note == "no common seed"


def test_different_clients_are_never_paired(run_of: Maker) -> None:
    a, b = run_of(method="a", clients=10), run_of(method="b", clients=8)
    assert paired_test([a], [b]).note == "the runs have different clients"
    with pytest.raises(PotluckError, match="different clients"):
        paired_over_clients(a, b)
