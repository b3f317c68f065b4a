"""The speed benchmark measures what it says and writes a table and a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import run_suite
from benchmarks.results import Row, Spread, markdown, ratio, time_alternately
from benchmarks.training import LocalPair
from potluck.core.errors import PotluckError


def test_actions_take_turns_and_the_first_pass_does_not_count() -> None:
    calls: list[str] = []
    ticks = iter(range(1000))
    seconds = time_alternately(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 2, clock=lambda: float(next(ticks))
    )
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_ratios_are_taken_trial_by_trial() -> None:
    assert ratio([2.0, 30.0, 4.0], [1.0, 10.0, 1.0]) == Spread(3.0, 2.5, 3.5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_a_row_says_whether_its_goal_is_met() -> None:
    slow = Row("pool", "cnn", Spread(1.5, 1.4, 1.6), "×", 1.7, at_least=True)
    light = Row("share", "codec", Spread(2.0, 1.0, 3.0), "%", 5.0)
    plain = Row("growth", "10 clients", Spread(0.25, 0.2, 0.3), "s")
    assert (slow.met, light.met, plain.met) == (False, True, None)
    assert markdown([slow, light, plain]).splitlines()[2:] == [
        "| pool | cnn | 1.50 × | 1.40 × … 1.60 × | ≥ 1.70 × | missed |",
        "| share | codec | 2.0 % | 1.0 % … 3.0 % | ≤ 5.0 % | met |",
        "| growth | 10 clients | 0.25 s | 0.2 s … 0.3 s |  |  |",
    ]


def test_the_bare_loop_does_the_very_same_steps() -> None:
    pair = LocalPair("lenet", 4, steps=3)
    pair.ours()
    pair.ours()
    with pytest.raises(AssertionError):
        pair.check()
    pair.bare()
    pair.bare()
    pair.check()


def test_a_quick_run_measures_every_part_and_writes_it_down(tmp_path: Path) -> None:
    lines: list[str] = []
    rows = run_suite(tmp_path, quick=True, show=lines.append)
    assert {row.part for row in rows} == {
        "serial ÷ bare loop",
        "share of a step",
        "share of a plain step",
        "plain ÷ our step",
        "method ÷ its bare loop",
        "measures of a test",
        "serial ÷ pool of 2",
        "serial ÷ vectorized",
        "pool of 2 ÷ the same with stacks",
        "50 clients × 50 images, 250 steps",
        "plain ÷ channels last",
        "dealing to 100 clients",
        "a short run",
        "features of frozen networks, stored",
        "pixels ÷ ready numbers",
        "share of a round",
        "growth, cohort of 10",
        "growth, cohort of 100, small-mlp on 8×8",
        "memory",
    }
    assert all(row.value.median > 0 for row in rows)
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [entry["what"] for entry in written["rows"]] == [row.what for row in rows]
    assert (tmp_path / "bench.md").read_text().count("\n| ") == len(rows) + 1
    assert len(lines) == len(rows) + 2


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(PotluckError, match="Unknown part of the benchmark 'grwth'. Did you mean 'growth'"):
        run_suite(parts=["grwth"])
