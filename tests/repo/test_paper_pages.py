"""Pages of papers and claims match stored results, and verdicts follow from their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from generate import claims, papers
from generate.agreement import agreement, chance_range, compare_columns, kendall, spearman
from generate.curves import running_mean
from generate.evidence import CONTRADICTED, JUDGES, NOT_RUN, SUPPORTED, UNDECIDED, compare
from generate.scores import (
    MIN_MARGIN,
    UNKNOWN_MARGIN,
    Score,
    Spread,
    margins,
    samples_tested,
    training_spread,
)
from generate.verdicts import judge_test, read_conditions
from potluck.methods import METHODS
from potluck.recipes.recipe import find_recipe, recipe_names
from potluck.recipes.reproduce import plan
from potluck.recipes.store import StoredCell, add_cells, read_cells, stored_table
from potluck.suites.store import Results, Row

ROOT = Path(__file__).parents[2]
DUE = "run make pages, or PYTHONPATH=src:docs python -m generate"


def test_the_tables_are_those_of_the_stored_cells():
    page = (ROOT / "docs/reproduce.md").read_text()
    assert papers.update_page(page) == page, DUE


def test_the_claims_are_judged_by_the_stored_results():
    assert (ROOT / "docs/claims.md").read_text() == claims.page(), DUE


def test_front_page_summarises_the_stored_results():
    page = (ROOT / "README.md").read_text()
    assert papers.update_readme(page) == page, DUE


def test_the_front_page_says_how_much_of_a_table_was_run(tmp_path: Path):
    assert "0 are counted at the paper's size. " in papers.reproduction_status(tmp_path)
    add_cells(
        tmp_path / "full.csv", [full_cell("FedGH", "c10", 50, rounds=100), full_cell("rate 1", "c10", 50)]
    )
    status = papers.reproduction_status(tmp_path)
    assert (
        "1 attempted there in part: `fedgh-ablation`, 2 of 5 rows and 1 of 2 columns for 100 of 500 rounds"
        in status
    )


def test_no_stored_cell_is_of_other_settings_than_its_recipe_has_now():
    for file, scale in ((papers.CELLS, "small"), (papers.FULL, "full")):
        cells = read_cells(file)
        assert cells
        for name in {stored_cell.recipe for stored_cell in cells}:
            check_stored(name, scale, [stored_cell for stored_cell in cells if stored_cell.recipe == name])


def check_stored(name: str, scale: Any, own_cells: list[StoredCell]) -> None:
    recipe = find_recipe(name)
    table = stored_table(recipe, scale, own_cells)
    shown = {(row, column, seed) for (row, _, seed), each in table.values.items() for column in each}
    assert shown == {(stored_cell.row, stored_cell.column, stored_cell.seed) for stored_cell in own_cells}
    assert all(
        stored_cell.paper == recipe.printed(stored_cell.row, stored_cell.column) for stored_cell in own_cells
    )


@pytest.mark.parametrize("claim", claims.read_claims(), ids=lambda claim: f"{claim.paper}: {claim.says[:40]}")
def test_a_claim_can_be_judged_and_a_verdict_against_it_has_a_reason(claim: claims.Claim):
    judgement = claims.judge_claim(claim)
    assert judgement.verdict
    assert claim.why or judgement.verdict in (SUPPORTED, UNDECIDED, NOT_RUN)
    if claim.test is None:
        return
    for test in (claim.test, *claim.because):
        assert sum(name in test for name in (*JUDGES, "better")) == 1
        there = find_recipe(test["recipe"]).rows if "recipe" in test else METHODS
        assert contenders(test) <= set(there), f"{contenders(test) - set(there)} are not there"
        columns = find_recipe(test["recipe"]).columns if "recipe" in test else ()
        assert "recipe" not in test or set(test.get("columns", ())) <= set(columns)


def contenders(test: Mapping[str, Any]) -> set[str]:
    """Everybody whom a test names; the values of an option that trials are told apart by are not among them."""
    words = {"ahead", "behind", "part", "soonest", "equals", "ends", "steady", "better", "than", "beside"}
    contender = {test[name] for name in words if name in test}
    lists = ("keeps", "falls", "shows", "spread", "of", "without", "rows", "failed")
    many = {name for key in lists if isinstance(test.get(key), list) for name in test[key]}
    return contender | many


def cell(row: str, column: str, here: float, seconds: float = 1.0) -> StoredCell:
    recipe = find_recipe("fedgh-ablation")
    from potluck.suites.provenance import experiment_digest

    key = (row, recipe.columns[column].setting, 0)
    experiment = plan(recipe, "small").work[key]
    return StoredCell(
        recipe="fedgh-ablation", scale="small", row=row, column=column, seed=0, paper=recipe.printed(row, column),
        here=here, method="fedgh", experiment=experiment_digest(experiment), commit="c", versions="v", machine="m",
        date="d", command="potluck", core_seconds=seconds,
    )  # fmt: skip


def full_cell(
    row: str, column: str, here: float, *, rounds: int = 500, seed: int = 0, seconds: float = 1.0
) -> StoredCell:
    """A cell of the full scale with so many of the paper's 500 rounds."""
    from dataclasses import replace

    from potluck.suites.provenance import experiment_digest

    recipe = find_recipe("fedgh-ablation")
    key = (row, recipe.columns[column].setting, seed)
    experiment = (
        plan(recipe, "full", seeds=[seed])
        .work[key]
        .with_settings({"schedule.rounds": rounds, "training.amp": "off"})
    )
    return replace(
        cell(row, column, here, seconds), scale="full", seed=seed, experiment=experiment_digest(experiment), precision="float32",
        rounds=rounds, paper_rounds=500, data="cifar10 sha256:0",
    )  # fmt: skip


ROWS = ["FedGH", "header never trained", "rate 0.001", "rate 0.1", "rate 1"]


@pytest.mark.parametrize(
    ("test", "values", "verdict"),
    [
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 80], SUPPORTED),
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 95], CONTRADICTED),
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 88.5], UNDECIDED),
        ({"ahead": "FedGH", "by": 10}, [90, 80, 80, 80, 88.5], CONTRADICTED),  # so large a lead is excluded
        ({"ahead": "FedGH", "without": ["rate 1"]}, [90, 80, 80, 80, 95], SUPPORTED),
        ({"behind": "FedGH"}, [70, 80, 80, 80, 95], SUPPORTED),
        ({"ahead": "FedGH", "of": ["rate 1"]}, [90, 99, 99, 99, 80], SUPPORTED),
        ({"spread": ROWS[2:], "within": 4}, [0, 50, 80, 81, 82], SUPPORTED),  # chance reaches 3.5 points
        ({"spread": ROWS[2:], "within": 2}, [0, 50, 80, 81, 82], UNDECIDED),
        ({"spread": ROWS[2:], "within": 2}, [0, 50, 80, 81, 83], UNDECIDED),
        ({"spread": ROWS[2:], "within": 2}, [0, 50, 80, 81, 84], CONTRADICTED),
        ({"part": "FedGH", "of": ["rate 1"], "below": 0.5}, [30, 80, 80, 80, 90], SUPPORTED),
        ({"part": "FedGH", "of": ["rate 1"], "below": 0.5}, [60, 80, 80, 80, 90], CONTRADICTED),
        ({"equals": "FedGH", "within": 0.01}, [97.6, 0, 0, 0, 0], SUPPORTED),
        ({"equals": "FedGH", "within": 0.01}, [90, 0, 0, 0, 0], CONTRADICTED),
        ({"soonest": "FedGH"}, [2, 3, 4, 5, 6], SUPPORTED),
        ({"soonest": "FedGH"}, [2, 3, 1, 5, 6], CONTRADICTED),
        ({"soonest": "FedGH"}, [21, 30, 20, 50, 60], UNDECIDED),
        ({"shows": ["FedGH"]}, [2, 3, 1, 5, 6], SUPPORTED),
    ],
)
def test_verdicts_follow_from_numbers(tmp_path: Path, test: dict, values: list[float], verdict: str):
    add_cells(
        tmp_path / "papers.csv", [cell(row, "c10", value) for row, value in zip(ROWS, values, strict=True)]
    )
    test = {"recipe": "fedgh-ablation", "columns": ["c10"], **test}
    assert compare(test, tmp_path).verdict == verdict


def test_one_row_is_followed_over_columns(tmp_path: Path):
    cells = [cell(row, "c10", 50 + 5 * place) for place, row in enumerate(ROWS)]
    cells += [cell(row, "c100", 51) for row in ROWS]
    add_cells(tmp_path / "papers.csv", cells)
    test = {"recipe": "fedgh-ablation", "within": 5}  # chance reaches 4.5 points
    assert compare({**test, "steady": "FedGH"}, tmp_path).verdict == SUPPORTED
    assert compare({**test, "steady": "rate 1"}, tmp_path).verdict == CONTRADICTED
    above = {"recipe": "fedgh-ablation", "above": ["CIFAR-10 acc", "CIFAR-100 acc"]}
    assert compare({**above, "rows": ["rate 1", "rate 0.1"]}, tmp_path).verdict == SUPPORTED
    assert compare({**above, "rows": ["FedGH"]}, tmp_path).verdict == UNDECIDED


def test_chance_reaches_as_far_as_seeds_and_test_samples_let_it():
    half = Score({0: 50.0}, tested=1000)
    assert margins([(half, half)]) == pytest.approx(
        [195.9964 * (2 * 0.25 / 1000) ** 0.5]
    )  # 1.96 standard errors
    assert margins([(Score({0: 50.0}), half)]) == [UNKNOWN_MARGIN]
    assert margins([(Score({0: 100.0}, 1000), Score({0: 100.0}, 1000))]) == [MIN_MARGIN]
    wide = (Score({0: 80, 1: 82, 2: 84}), Score({0: 78, 1: 79, 2: 80}))  # differences of 2, 3 and 4
    assert margins([wide]) == pytest.approx(
        [4.3027 * (1 / 3) ** 0.5], rel=1e-4
    )  # t of two degrees of freedom
    same = (Score({0: 80, 1: 70, 2: 60}), Score({0: 80, 1: 70, 2: 60}))
    assert margins([wide, same]) == pytest.approx([2.7764 * (0.5 / 3) ** 0.5] * 2, rel=1e-4)
    assert margins([same]) == [MIN_MARGIN]


@pytest.mark.parametrize(
    ("recipe", "setting", "samples"),
    [("fedgh-table3", "cifar10", 1000), ("fedgh-table1", "c10-n50", 333), ("fedin-table3", "iid", 500)],
)
def test_samples_tested_are_those_of_one_round(recipe: str, setting: str, samples: int):
    """A quarter of 4,000; those of a third of the clients; the sixth of 3,000 that CIFAR-10 has to test with."""
    work = plan(find_recipe(recipe), "small").work
    assert {samples_tested(experiment) for (_, where, _), experiment in work.items() if where == setting} == {
        samples
    }


def suite_row(task: str, method: str, seed: int, accuracy: float, **more: Any) -> Row:
    values = {field.name: 0.0 if field.type.startswith("float") else "" for field in fields(Row)}
    values_given = {
        "task": task,
        "method": method,
        "seed": seed,
        "accuracy": accuracy,
        "samples_per_job": 10.0,
    }
    return Row(**{**values, **values_given, "experiment": f"{task}-{method}-{seed}", **more})


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Two tasks, two methods, three seeds; the first method is ten points ahead in one task and level in the other."""
    results = Results(tmp_path, "cpu")
    for seed in range(3):
        for task, method, accuracy in (
            ("easy", "fedgh", 0.8), ("easy", "fedproto", 0.7), ("hard", "fedgh", 0.5), ("hard", "fedproto", 0.5),
        ):  # fmt: skip
            row = suite_row(task, method, seed, accuracy + 0.01 * seed)
            results.rows.append(row)
            slow = 4 if method == "fedgh" else 2
            results.details[row.experiment] = {
                "curve": [[1, 0.1], [slow, accuracy + 0.01 * seed], [8, accuracy + 0.01 * seed]],
                "clients": [accuracy, 0.3],
                "notes": {"alpha": [[1, 1.0], [2, 0.9]]},
            }
    results.write()
    return tmp_path


@pytest.mark.parametrize(
    ("test", "verdict"),
    [
        ({"ahead": "fedgh", "of": ["fedproto"]}, SUPPORTED),  # in one of two places, behind in none
        ({"ahead": "fedproto", "of": ["fedgh"]}, CONTRADICTED),
        ({"ahead": "fedgh", "of": ["fedproto"], "tasks": ["hard"]}, UNDECIDED),
        ({"falls": ["fedgh", "fedproto"], "pairs": [["easy", "hard"]]}, SUPPORTED),
        ({"keeps": ["fedgh"], "pairs": [["hard", "easy"]]}, CONTRADICTED),
        ({"keeps": ["fedgh"], "pairs": [["hard", "easy"]], "within": 40}, SUPPORTED),
        ({"ends": "fedgh", "value": "note:alpha", "near": {"easy": 0.85}, "within": 0.1}, SUPPORTED),
        ({"ends": "fedgh", "value": "note:alpha", "near": {"easy": 0.5}, "within": 0.1}, CONTRADICTED),
        ({"soonest": "fedproto", "of": ["fedgh"], "value": "rounds"}, SUPPORTED),
        ({"soonest": "fedgh", "of": ["fedproto"], "value": "work"}, CONTRADICTED),
        ({"better": "fedgh", "than": "fedproto", "least": 0.9}, CONTRADICTED),
        ({"better": "fedgh", "than": "fedproto", "least": 0.5, "tasks": ["easy"]}, SUPPORTED),
        ({"ahead": "fedgh", "of": ["fedmd"]}, NOT_RUN),
    ],
)
def test_verdicts_follow_from_the_rows_of_a_suite(suite: Path, test: dict, verdict: str):
    assert compare({"suite": "cpu", **test}, suite).verdict == verdict


def test_a_verdict_says_how_many_seeds_it_has(suite: Path, tmp_path: Path):
    test = {"suite": "cpu", "ahead": "fedgh", "of": ["fedproto"]}
    assert compare(test, suite).seeds == 3
    add_cells(tmp_path / "papers.csv", [cell(row, "c10", 50) for row in ROWS])
    comparison = compare({"recipe": "fedgh-ablation", "columns": ["c10"], "ahead": "FedGH"}, tmp_path)
    assert comparison.seeds == 1
    claim = claims.Claim("FedGH", "5", "It is so.", test=test)
    assert claims.claim_cells(claim, compare(test, suite))[2] == "**supported**, 3 seeds"


def test_a_reason_is_supported_by_rows_where_there_are_some(suite: Path):
    test = {"suite": "cpu", "ahead": "fedproto", "of": ["fedgh"]}
    claim = claims.Claim("FedGH", "5", "It is so.", "Because.", test, because=[{**test, "tasks": ["hard"]}])
    details = claims._details(1, claim, compare(test, suite), suite)
    assert "Because. (Beside it: lead of fedproto in points: hard +0.0 ± 1.0 (fedgh).)" in details
    without = claims.Claim("FedGH", "5", "It is so.", "Because.", test, because=[{**test, "tasks": ["none"]}])
    assert "Beside" not in claims._details(1, without, compare(test, suite), suite)


def test_incomplete_columns_decide_no_claim(tmp_path: Path):
    add_cells(tmp_path / "papers.csv", [cell("FedGH", "c10", 90), cell("rate 1", "c10", 50)])
    test = {"recipe": "fedgh-ablation", "columns": ["c10"], "ahead": "FedGH"}
    assert compare(test, tmp_path).verdict == NOT_RUN
    assert compare({**test, "of": ["rate 1"]}, tmp_path).verdict == SUPPORTED
    assert compare({**test, "partial": True}, tmp_path).verdict == SUPPORTED
    rows_left = ["header never trained", "rate 0.001", "rate 0.1"]
    assert compare({**test, "failed": rows_left}, tmp_path).verdict == SUPPORTED  # nothing more will come


def test_a_cell_of_other_settings_is_left_out(tmp_path: Path):
    from dataclasses import replace

    fresh, old = cell("FedGH", "c10", 90), replace(cell("rate 1", "c10", 50), experiment="0" * 16)
    add_cells(tmp_path / "papers.csv", [fresh, old])
    table = stored_table(find_recipe("fedgh-ablation"), "small", read_cells(tmp_path / "papers.csv"))
    assert table.cell("FedGH", "c10").values == (90.0,)
    assert table.cell("rate 1", "c10").values == ()


def test_small_scale_decides_counts_alone(suite: Path, tmp_path: Path):
    ahead = {"suite": "cpu", "ahead": "fedgh", "of": ["fedproto"]}
    assert (compare(ahead, suite).verdict, judge_test(ahead, suite).verdict) == (SUPPORTED, UNDECIDED)
    behind = {"suite": "cpu", "ahead": "fedproto", "of": ["fedgh"]}
    assert (compare(behind, suite).verdict, judge_test(behind, suite).verdict) == (CONTRADICTED, UNDECIDED)
    count = {"suite": "cpu", "value": "samples", "part": "fedgh", "of": ["fedproto"], "below": 0.5}
    assert judge_test(count, suite).verdict == UNDECIDED  # counted, on networks that are not the paper's
    assert judge_test({**count, "below": 1.5}, suite).verdict == SUPPORTED


def test_rows_of_the_full_scale_go_before_those_of_the_small_one(tmp_path: Path):

    small = [cell(row, "c10", value) for row, value in zip(ROWS, (90, 80, 80, 80, 80), strict=True)]
    add_cells(tmp_path / "papers.csv", small)
    test = {"recipe": "fedgh-ablation", "columns": ["c10"], "ahead": "FedGH"}
    assert judge_test(test, tmp_path).verdict == UNDECIDED
    values = zip(ROWS, (10, 80, 80, 80, 80), strict=True)
    add_cells(tmp_path / "full.csv", [full_cell(row, "c10", here) for row, here in values])
    judgement = judge_test(test, tmp_path)
    assert judgement.verdict == CONTRADICTED
    assert judgement.figure.startswith("at full size, ")


def full_file(
    folder: Path, values: Mapping[str, float], notes: Mapping[str, float] = {}, **more: Any
) -> Path:
    """A file of the full scale with one column, and a note of the header's movement for some rows."""
    cells = [full_cell(row, "c10", here, **more) for row, here in values.items()]
    curves = {
        cell.experiment: {"curve": [[1, 0.5]], "notes": {"movement": [[1, notes[cell.row]]]}}
        for cell in cells
        if cell.row in notes
    }
    add_cells(folder / "full.csv", cells, curves)
    return folder


AHEAD = {"recipe": "fedgh-ablation", "columns": ["c10"], "ahead": "FedGH"}
ALL = dict(zip(ROWS, (90.0, 80.0, 80.0, 80.0, 80.0), strict=True))


@pytest.mark.parametrize(
    ("rounds", "verdict", "sentence"),
    [(500, SUPPORTED, "500 of 500"), (100, SUPPORTED, "100 of 500"), (99, UNDECIDED, "99 of 500 rounds")],
)
def test_a_fifth_of_the_rounds_decides_and_less_does_not(
    tmp_path: Path, rounds: int, verdict: str, sentence: str
):
    judgement = judge_test(AHEAD, full_file(tmp_path, ALL, rounds=rounds))
    assert judgement.verdict == verdict
    assert sentence in judgement.details
    short = {**AHEAD, "least_share": 0.01}
    assert judge_test(short, tmp_path).verdict == SUPPORTED


def test_a_missing_rival_prevents_support_and_not_contradiction(tmp_path: Path):
    judgement = judge_test(AHEAD, full_file(tmp_path, {"FedGH": 90.0, "rate 1": 80.0}))
    assert (judgement.verdict, "not run: header never trained" in judgement.details) == (UNDECIDED, True)
    full_file(tmp_path, {"rate 1": 99.0})
    assert judge_test(AHEAD, tmp_path).verdict == CONTRADICTED


@pytest.mark.parametrize(("moved", "verdict"), [(0.5, SUPPORTED), (0.0, UNDECIDED)])
def test_a_mechanism_that_did_nothing_decides_nothing(tmp_path: Path, moved: float, verdict: str):
    notes = dict.fromkeys(ROWS, 0.5) | {"FedGH": moved}
    of = {**AHEAD, "of": ["rate 1"]}
    judgement = judge_test(of, full_file(tmp_path, ALL, notes))
    assert judgement.verdict == verdict
    assert "FedGH movement" in judgement.details
    assert ("did nothing (FedGH)" in judgement.details) == (moved == 0)
    conditions = read_conditions(of, tmp_path)
    assert (conditions.cells, conditions.missing, conditions.share) == (2, (), 1.0)


def test_seeds_say_how_far_training_reaches_where_there_is_one_seed(tmp_path: Path):
    """Differences of 8 and 12 on two seeds in five pairs: deviation √8, 4 degrees of freedom."""
    assert training_spread(tmp_path) == Spread()
    for seed, lead in ((0, 8.0), (1, 12.0)):
        full_file(tmp_path, {"FedGH": 90.0, **dict.fromkeys(ROWS[1:], 90.0 - lead)}, seed=seed)
    spread = training_spread(tmp_path)
    assert (spread.deviation, spread.freedom) == (pytest.approx(8**0.5), 4)
    alone = Score({0: 90.0}, 10_000, spread)
    assert margins([(alone, Score({0: 80.0}, 10_000))]) == pytest.approx([2.7764 * 8**0.5], rel=1e-4)


def test_the_best_of_seven_rivals_takes_a_larger_lead():
    """Bonferroni: 0.05 is shared by seven comparisons, z of 1 - 0.025/7 is 2.690."""
    half = Score({0: 50.0}, tested=1000)
    assert margins([(half, half)], rivals=7) == pytest.approx([269.0 * (2 * 0.25 / 1000) ** 0.5], rel=1e-3)


def test_a_line_of_the_ledger_is_short():
    """No cell over forty words; the rest is folded."""
    page = (ROOT / "docs/claims.md").read_text()
    cells = [cell for line in page.splitlines() if line.startswith("| ") for cell in line.split(" | ")]
    assert len(cells) > 500
    assert not [cell for cell in cells if len(cell.split()) > 40]


def test_orders_are_compared_by_rank():
    """One exchange of neighbours among four: d² = 2 gives 1 - 6·2/60; five pairs of six agree."""
    printed, here = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 15.0, 40.0]
    assert spearman(printed, here) == pytest.approx(0.8)
    assert kendall(printed, here) == pytest.approx(4 / 6)
    assert spearman(printed, printed[::-1]) == kendall(printed, printed[::-1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.75**0.5)  # a tie
    assert kendall([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 6**0.5)
    assert spearman([1, 2], [3, 3]) == kendall([1, 2], [3, 3]) == 0
    agreements = agreement(printed, here, 1)
    assert (agreements.own_rank, agreements.printed_rank, agreements.gap) == (2, 3, pytest.approx(18.75))
    assert (chance_range("spearman", 4), chance_range("kendall", 5)) == (1.0, pytest.approx(0.8))


def test_curves_are_smoothed_by_preceding_values():
    assert running_mean([1, 2, 3, 6], 2) == [1, 1.5, 2.5, 4.5]


def test_only_rows_with_the_rounds_of_the_own_method_are_compared():
    """A rival that is ahead after twice the rounds says nothing of the order."""
    printed = {"Ours": "60.0", "A": "50.0", "B": "55.0±1.0"}
    here = {"Ours": 40.0, "A": 30.0, "B": 45.0}
    recipe = SimpleNamespace(columns={"c": SimpleNamespace(measure="best")}, own_rows=("Ours",))
    table = SimpleNamespace(
        recipe=recipe,
        columns=("c",),
        rows=tuple(printed),
        cell=lambda row, _: SimpleNamespace(printed=printed[row], known=True, mean=here[row]),
    )
    equal = {(row, "c"): {100} for row in printed}
    assert compare_columns(table, equal)["c"].own_rank == 2
    assert "left out" not in str(compare_columns(table, equal)["c"])
    longer = compare_columns(table, equal | {("B", "c"): {200}})["c"]
    assert (longer.rows, longer.own_rank, longer.left_out) == (2, 1, ("B",))
    assert str(longer).endswith("rows of other rounds are left out: B")
    assert compare_columns(table, equal | {("Ours", "c"): {50}}) == {}


def test_rows_of_changed_sources_are_counted_in_one_sentence():
    clean = read_cells(papers.FULL)[0]
    assert papers.unclean_sentence([clean]) == ""
    unclean = replace(clean, recipe="fedin-table3", commit="abc+")
    text = papers.unclean_sentence([clean, unclean])
    assert text.startswith(
        "1 of the 2 rows (of `fedin-table3`) come from a source with changes that are in no commit"
    )
    assert text.endswith("ends with + (abc+).")
    half = papers.unclean_sentence([clean, replace(clean, commit="abc+")])
    assert half.startswith("1 of the 2 rows come from")  # no recipe is free of them
    assert papers.unclean_sentence(read_cells(papers.CELLS)) in papers.small_line()


def test_minutes_are_of_the_stored_runs_and_estimated_where_some_are_missing():
    """Runs of 60 and 180 s of processor time: two minutes on two cores; three runs like them take three."""
    assert papers.minutes([60.0, 180.0], 2) == "2.0"
    assert papers.minutes([60.0, 180.0], 3) == "about 3.0"
    assert papers.minutes([], 3) == "not measured"


def test_every_recipe_stands_in_the_table_of_durations():
    table = papers.durations()
    assert [name for name in recipe_names() if f"| `{name}` |" not in table] == []
