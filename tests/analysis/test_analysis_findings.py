"""Check the sentences that summarise a comparison."""

from __future__ import annotations

from pathlib import Path

import pytest

from potluck.analysis.comparison import compare
from potluck.analysis.findings import findings
from potluck.runs.read import read_run
from support.synthetic_runs import make_run


def sentences(folder: Path, clients: int = 20, **levels: float) -> list[str]:
    """Return the sentences on synthetic methods that end near these accuracies."""
    runs = [
        make_run(
            folder,
            method=name,
            level=level,
            speed=2,
            clients=clients,
            floats_up=0 if name == "standalone" else 1000,
        )
        for name, level in levels.items()
    ]
    return findings(compare(map(read_run, runs)))


def exact(folder: Path, **clients: list[float]) -> list[str]:
    """Return the sentences on methods whose clients end at exactly these accuracies."""
    runs = []
    for name, values in clients.items():
        facts = {"client_accuracy": values, "final_accuracy": sum(values) / len(values)}
        runs.append(make_run(folder, method=name, clients=len(values), summary=facts))
    return findings(compare(map(read_run, runs)))


def test_a_clear_win_and_a_clear_loss(tmp_path: Path):
    first, second, third = sentences(tmp_path, a=0.9, standalone=0.6, b=0.3)
    assert first.startswith("a ends highest, at ")
    assert (
        "points above standalone (Wilcoxon signed-rank over clients, 20 pairs, p <0.0001, corrected" in first
    )
    assert second.startswith("Significantly above standalone: a (+")
    assert "; significantly below standalone: b (−" in second
    assert third.startswith("a sent ")


def test_a_difference_that_may_be_chance_is_called_so(tmp_path: Path):
    # Six pairs of which one goes the other way, as far as the others together: by hand, ranks 1 to 5 against 6.
    base = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5]
    better = [0.51, 0.52, 0.53, 0.54, 0.55, 0.43]
    (first, *_) = exact(tmp_path, standalone=base, a=better)
    assert first == (
        "a ends highest, at 51.33 %, 1.33 points above standalone, which may be chance (Wilcoxon signed-rank over "
        "clients, 6 pairs, p = 0.4375)."
    )


def test_holms_correction_is_applied_to_many(tmp_path: Path):
    # Alone, six unanimous pairs give p = 2 / 2**6 = 0.03125; with four methods the least counts four times.
    base, above = [0.5] * 6, [0.51, 0.52, 0.53, 0.54, 0.55, 0.56]
    alone = exact(tmp_path / "two", standalone=base, a=above)
    assert "p = 0.0312)" in alone[0]
    assert "may be chance" not in alone[0]
    among = exact(tmp_path / "five", standalone=base, a=above, b=base, c=base, d=base)
    assert "may be chance" in among[0]
    assert "p = 0.1250, corrected by Holm" in among[0]


def test_untestable_comparison_is_reported(tmp_path: Path):
    first, second, _ = exact(tmp_path, standalone=[0.5, 0.5], a=[0.6, 0.6], b=[0.4, 0.7])
    assert "untested, so that may be chance (only 2 of 2 pairs differ, 6 are needed)" in first
    assert second == "2 of 2 methods lie above standalone; none could be tested."


def test_ties_are_named(tmp_path: Path):
    (first, *_) = exact(tmp_path, standalone=[0.5] * 3, a=[0.6] * 3, b=[0.6] * 3)
    assert first == "a and b end highest, equal at 60.00 %."
    (all_equal, *_) = exact(tmp_path / "x", a=[0.6] * 3, b=[0.6] * 3)
    assert all_equal == "All 2 methods end at 60.00 %."


@pytest.mark.parametrize(
    ("cheap", "says"), [(10, "needs"), (9000, "no other within 1 point of it sent less")]
)
def test_methods_close_to_the_best_with_less_traffic_are_named(tmp_path: Path, cheap: int, says: str):
    facts = {"client_accuracy": [0.8, 0.8], "final_accuracy": 0.8}
    near = {"client_accuracy": [0.795, 0.795], "final_accuracy": 0.795}
    runs = [
        make_run(tmp_path, method="best", clients=2, floats_up=5000, floats_down=0, summary=facts),
        make_run(tmp_path, method="near", clients=2, floats_up=cheap, floats_down=0, summary=near),
    ]
    last = findings(compare(map(read_run, runs)))[-1]
    assert last.startswith("best sent ")
    assert says in last


def test_one_method_alone(tmp_path: Path):
    (only,) = sentences(tmp_path, clients=5, fedgh=0.8)
    assert only.startswith("fedgh ended at ")
    assert "after 20 rounds, the mean of 5 clients, " in only


def test_before_the_first_evaluation(tmp_path: Path):
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "rounds.jsonl").write_text('{"step": 1, "round": 1, "accuracy": null}\n')
    assert findings(compare([read_run(tmp_path / "early")])) == ["No client has been tested yet."]


def test_runs_that_have_not_ended_are_no_results(tmp_path: Path):
    runs = [make_run(tmp_path, method="a"), make_run(tmp_path, method="b", finished=False)]
    assert findings(compare(map(read_run, runs)))[0] == "Unfinished: b; the results are preliminary."
