"""Groups of runs, comparison rows, and the same table in four formats."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from potluck.analysis.columns import COLUMNS, best_rows, check_columns, selected_columns
from potluck.analysis.comparison import compare
from potluck.analysis.groups import differing_settings, group_runs
from potluck.analysis.tables import print_comparison, to_csv, to_latex, to_markdown
from potluck.core.errors import PotluckError
from potluck.runs.run import Run

Maker = Callable[..., Run]


def test_runs_that_differ_only_in_seed_are_one_group(run_of: Maker) -> None:
    runs = [run_of(method="b", seed=1), run_of(method="a", seed=0), run_of(method="b", seed=0)]
    groups = group_runs(runs)
    assert [(group.label, group.seeds) for group in groups] == [("b", (0, 1)), ("a", (0,))]


def test_runs_of_one_method_with_other_settings_are_distinguished(run_of: Maker) -> None:
    runs = [run_of(settings={"server_lr": 0.1}), run_of(settings={"server_lr": 1.0})]
    assert [group.label for group in group_runs(runs)] == ["fedgh (server_lr=0.1)", "fedgh (server_lr=1)"]
    assert differing_settings(runs) == {"server_lr": (0.1, 1.0)}


def test_labels_name_sections_and_spell_lists_out(run_of: Maker) -> None:
    runs = [run_of(settings={"models.names": ["a", "b"]}), run_of(settings={"models.names": ["c"]})]
    assert [group.label for group in group_runs(runs)] == ["fedgh (models=a b)", "fedgh (models=c)"]


def test_simulated_time_to_a_target_is_shown_where_there_was_a_clock(run_of: Maker) -> None:
    def titles(**options: Any) -> list[str]:
        return [column.title for column in selected_columns(compare([run_of(**options)], target=0.5))]

    assert "simulated s to 50%" in titles()
    assert "simulated s to 50%" not in titles(virtual=False)


def test_engine_does_not_make_another_question(run_of: Maker) -> None:
    runs = [
        run_of(seed=0, settings={"engine": {"name": "serial"}}),
        run_of(seed=1, settings={"engine": {"name": "pool"}}),
    ]
    assert len(group_runs(runs)) == 1


def test_a_repeated_run_is_not_another_seed(run_of: Maker) -> None:
    run, again = run_of(), run_of()
    assert len(group_runs([run, run])) == 1
    groups = group_runs([run, again])
    assert [len(group.runs) for group in groups] == [1, 1]
    assert groups[0].label != groups[1].label


def test_no_runs_is_a_sentence() -> None:
    with pytest.raises(PotluckError, match="at least one run folder"):
        group_runs([])


def test_one_seed_spreads_over_clients_and_several_over_seeds(run_of: Maker) -> None:
    single_seed = run_of(method="one", summary={"client_accuracy": [0.2, 0.4], "final_accuracy": 0.3})
    two = [run_of(method="two", seed=s, summary={"final_accuracy": a}) for s, a in ((0, 0.5), (1, 0.7))]
    first, second = compare([single_seed, *two]).rows
    assert (first.accuracy, first.spread_over) == (0.3, "clients")
    assert first.accuracy_std == pytest.approx(0.1)  # both clients lie 0.1 from their mean
    assert (second.accuracy, second.spread_over) == (pytest.approx(0.6), "seeds")
    assert second.accuracy_std == pytest.approx(0.1 * math.sqrt(2))  # sample deviation of 0.5 and 0.7


def test_worst_tenth_best_and_speed_up(run_of: Maker) -> None:
    slow = run_of(method="slow", speed=0.1, level=0.9, rounds=40)
    fast = run_of(method="fast", speed=0.4, level=0.9, rounds=40)
    rows = compare([slow, fast], target=0.6).rows
    accuracies = np.sort(list(fast.client_accuracy.values()))
    assert rows[1].worst == pytest.approx(accuracies[0])  # a tenth of ten clients is one
    assert rows[1].best == fast.best_accuracy
    assert rows[0].speed_up == 1
    assert rows[1].to_target is not None
    assert rows[0].to_target is not None
    assert rows[1].speed_up == pytest.approx(rows[0].to_target.rounds / rows[1].to_target.rounds)
    assert rows[1].speed_up > 2


def test_a_target_only_some_seeds_reach_is_said(run_of: Maker) -> None:
    runs = [run_of(seed=0, level=0.9), run_of(seed=1, level=0.3)]
    comparison = compare(runs, target=0.7)
    assert comparison.rows[0].reached == 1
    assert "(1/2)" in to_markdown(comparison)


def test_reference_comes_first_and_is_not_tested(run_of: Maker) -> None:
    runs = [run_of(method="a", level=0.5), run_of(method="b", level=0.9)]
    rows = compare(runs, reference="b").rows
    assert [row.method for row in rows] == ["b", "a"]
    assert rows[0].test is None
    assert rows[1].test is not None
    assert rows[1].test.p == pytest.approx(2 / 2**10)  # all ten clients worse: the smallest exact p
    with pytest.raises(PotluckError, match="reference method 'c'"):
        compare(runs, reference="c")


def test_unfair_comparisons_are_noted(run_of: Maker) -> None:
    runs = [run_of(method="a", rounds=20), run_of(method="b", rounds=10, seed=1, finished=False)]
    notes = " ".join(compare(runs).notes)
    assert "different numbers of rounds: 10, 20" in notes
    assert "not run with the same seeds" in notes
    assert "Unfinished" in notes
    unbalanced = run_of(method="c", summary={"class_counts": [[1, 2]] * 10})
    assert "since their clients hold other samples: c." in " ".join(compare([runs[0], unbalanced]).notes)


def test_a_method_that_brought_other_models_is_noted(run_of: Maker) -> None:
    runs = [
        run_of(method="a", level=0.5),
        run_of(method="b", level=0.9, architectures=("resnet10",)),
        run_of(method="c", level=0.6),
    ]
    comparison = compare(runs, target=0.4)
    note = (
        "† Not comparable with a, neither tested nor marked best, since their clients have other models: b."
    )
    assert note in comparison.notes
    assert [row.display_label for row in comparison.rows] == ["a", "c", "b †"]
    apart = comparison.rows[2]
    assert (apart.test.p, apart.test.note) == (None, "their clients have other models")
    assert math.isnan(apart.speed_up)
    assert comparison.rows[1].test.p is not None
    assert best_rows(comparison, COLUMNS["accuracy"]) == {1}  # b has more, of other models
    assert "| b † |" in to_markdown(comparison)
    assert "b $\\dagger$" in to_latex(comparison)


def test_unequal_work_is_noted(run_of: Maker) -> None:
    runs = [
        run_of(method="a", trained_samples=1000),
        run_of(method="b", trained_samples=48),
        run_of(method="c", trained_samples=950),
    ]
    assert compare(runs).notes == (
        "The methods did unequal work: a client's job trains on 48 samples with b and on 1,000 with a, "
        "repetitions counted.",
    )
    assert compare([runs[0], runs[2]]).notes == ()  # a few samples put aside are no other amount of work


def test_fair_comparison_has_no_notes(run_of: Maker) -> None:
    assert compare([run_of(method="a"), run_of(method="b")]).notes == ()


def test_unfinished_run_alone_still_has_a_row(run_of: Maker) -> None:
    row = compare([run_of(finished=False)], target=0.5).rows[0]
    assert row.run_count == 1
    assert 0.5 < row.accuracy < 0.9
    assert row.floats_up == 1010  # worked out from the rounds


def test_operations_of_a_round_are_a_column_where_they_were_counted(run_of: Maker) -> None:
    counted = run_of(method="a", summary={"flops_per_client_round": 30_836_736})
    unknown = run_of(method="b", summary={"flops_per_client_round": None})
    comparison = compare([counted, unknown])
    assert comparison.rows[0].flops == 30_836_736
    assert math.isnan(comparison.rows[1].flops)
    column = COLUMNS["flops"]
    assert [column.cell(row) for row in comparison.rows] == ["30.8", "–"]
    assert column in selected_columns(comparison)
    assert column not in selected_columns(compare([unknown]))
    first, second = csv.DictReader(io.StringIO(to_csv(comparison)))
    assert (float(first["flops_per_client_round"]), second["flops_per_client_round"]) == (30_836_736, "")


def test_running_runs_are_left_out_where_others_are_finished(run_of: Maker) -> None:
    runs = [run_of(seed=0, level=0.9), run_of(seed=1, level=0.3, finished=False)]
    comparison = compare(runs)
    assert comparison.rows[0].accuracy == runs[0].final_accuracy
    assert comparison.rows[0].spread_over == "clients"
    assert "| 1 of 2 |" in to_markdown(comparison)


def test_csv_has_plain_numbers(run_of: Maker) -> None:
    run = run_of(method="a,b", level=0.9)
    rows = list(csv.DictReader(io.StringIO(to_csv(compare([run, run_of(method="c")], target=0.5)))))
    assert rows[0]["method"] == "a,b"
    assert float(rows[0]["accuracy"]) == run.final_accuracy
    assert float(rows[0]["floats_down_per_client_round"]) == 5010
    assert rows[0]["p_value"] == ""
    assert 0 <= float(rows[1]["p_value"]) <= 1


def test_markdown_marks_the_best_and_escapes_labels(run_of: Maker) -> None:
    runs = [run_of(method="x|y<z", level=0.9), run_of(method="low", level=0.5)]
    lines = to_markdown(compare(runs)).splitlines()
    assert lines[2].startswith("| x\\|y&lt;z | **")
    assert "**" not in lines[3].split("|")[2]
    assert len({line.replace("\\|", "").count("|") for line in lines[:4]}) == 1


def test_latex_special_characters_are_escaped(run_of: Maker) -> None:
    latex = to_latex(compare([run_of(method="fed_avg & 50%")]))
    assert r"fed\_avg \& 50\%" in latex
    assert "±" not in latex
    assert latex.count(r"\\") == 2  # the heading and one row


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_is_cut_off_in_the_terminal(run_of: Maker, width: int) -> None:
    runs = [run_of(method="a", level=0.9), run_of(method="[b]", level=0.5)]
    comparison = compare(runs, target=0.4)
    console = Console(width=width, record=True, file=io.StringIO())
    print_comparison(comparison, console)
    shown = console.export_text()
    assert "…" not in shown
    assert "[b]" in shown  # a label is text, never markup
    assert f"{100 * runs[0].final_accuracy:.2f} ±" in shown
    assert max(map(len, shown.splitlines())) <= width


def test_columns_can_be_chosen(run_of: Maker) -> None:
    measured = {"final_macro_f1": 0.5, "final_calibration_error": 0.125, "final_loss": 1.25}
    runs = [
        run_of(method="a", summary=measured),
        run_of(method="b", summary={**measured, "final_loss": 0.75}),
    ]
    comparison = compare(runs, columns=("f1", "ece", "nll", "accuracy"))
    lines = to_markdown(comparison).splitlines()
    assert lines[0] == "| method | macro F1 | calibration error | log loss | accuracy |"
    assert lines[2].startswith("| a | 50.00 | 12.50 | 1.250 |")
    assert lines[3].startswith("| b | 50.00 | 12.50 | **0.750** |")
    assert "macro F1 & calibration error & log loss" in to_latex(comparison)
    (row, _) = csv.DictReader(io.StringIO(to_csv(comparison)))
    assert (row["macro_f1"], row["calibration_error"], row["loss"]) == ("0.5", "0.125", "1.25")


def test_a_column_that_there_is_not_is_refused() -> None:
    with pytest.raises(PotluckError, match="Unknown column 'f2'. Did you mean 'f1'?"):
        check_columns(["accuracy", "f2"], None)
    with pytest.raises(PotluckError, match="pass --target"):
        check_columns(["target"], None)
    check_columns(["target"], 0.5)
