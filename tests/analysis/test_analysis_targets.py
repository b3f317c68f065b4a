"""Costs to a target accuracy, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from potluck.analysis.cost import cost_to_target, speed_up
from potluck.core.errors import PotluckError
from potluck.runs.read import read_run
from potluck.runs.run import Run


def run_with(path: Path, accuracies: list[float | None], **summary: Any) -> Run:
    path.mkdir(exist_ok=True)
    records = [
        {
            "step": n,
            "round": n,
            "accuracy": accuracy,
            "floats_up": 1,
            "floats_down": 2,
            "bytes_up": 100,
            "bytes_down": 300,
            "seconds": 2.0,
            "virtual_seconds": 10.0 * n,
            "participants": [0, 1, 2],
        }
        for n, accuracy in enumerate(accuracies, 1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (path / "summary.json").write_text(json.dumps({"method": "m", **summary}))
    return read_run(path)


def test_cost_counts_everything_up_to_the_first_evaluation_that_reaches_it(tmp_path: Path) -> None:
    run = run_with(tmp_path, [0.2, None, 0.5, 0.4, 0.9], flops_per_client_round=5.0)
    cost = cost_to_target(run, 0.5)
    assert (cost.rounds, cost.bytes, cost.floats) == (3, 1200, 9)
    assert (cost.seconds, cost.virtual_seconds) == (6.0, 30.0)
    assert cost.flops == 45.0  # 5 per job, 3 jobs a round, 3 rounds


def test_a_target_never_reached_costs_nothing_known(tmp_path: Path) -> None:
    cost = cost_to_target(run_with(tmp_path, [0.2, 0.3]), 0.5)
    assert not cost.reached
    assert math.isnan(cost.bytes)


def test_flops_are_unknown_where_the_run_did_not_count_them(tmp_path: Path) -> None:
    assert math.isnan(cost_to_target(run_with(tmp_path, [0.9]), 0.5).flops)


def test_speed_up_is_the_papers_quotient(tmp_path: Path) -> None:
    """FedIN needs 20 rounds where FedAvg needs 47: its table says 2.4×."""
    slow = cost_to_target(run_with(tmp_path / "a", [0.1] * 46 + [0.86]), 0.85)
    fast = cost_to_target(run_with(tmp_path / "b", [0.1] * 19 + [0.85]), 0.85)
    assert speed_up(fast, slow) == pytest.approx(2.35)
    assert speed_up(slow, slow) == 1
    assert speed_up(fast, slow, by="bytes") == pytest.approx(2.35)
    with pytest.raises(PotluckError, match="Unknown cost 'energy'"):
        speed_up(fast, slow, by="energy")


@pytest.mark.parametrize("target", [80, 0, -0.1])
def test_a_target_in_percent_is_refused(tmp_path: Path, target: float) -> None:
    with pytest.raises(PotluckError, match=r"write 0\.8 for 80 %"):
        cost_to_target(run_with(tmp_path, [0.5]), target)
