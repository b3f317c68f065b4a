"""The papers' tables and claims: pages say what the stored results say, and a verdict follows from its numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from generate import claims, papers
from generate.evidence import FAILS, HOLDS, JUDGES, NOT_RUN, UNTOLD, finding
from potluck.methods import METHODS
from potluck.recipes.recipe import find_recipe
from potluck.recipes.store import StoredCell, add_cells, read_cells, stored_table

ROOT = Path(__file__).parents[2]
DUE = "run make pages, or PYTHONPATH=src:docs python -m generate"


def test_the_tables_are_those_of_the_stored_cells():
    page = (ROOT / "docs/reproduce.md").read_text()
    assert papers.renewed(page) == page, DUE


def test_the_claims_are_judged_by_the_stored_results():
    assert (ROOT / "docs/claims.md").read_text() == claims.page(), DUE


def test_no_stored_cell_is_of_other_settings_than_its_recipe_has_now():
    cells = read_cells(papers.CELLS)
    assert cells
    for name in {one.recipe for one in cells}:
        recipe = find_recipe(name)
        mine = [one for one in cells if one.recipe == name]
        table = stored_table(recipe, "small", mine)
        shown = {(row, column, seed) for (row, _, seed), each in table.values.items() for column in each}
        assert shown == {(one.row, one.column, one.seed) for one in mine}
        assert all(one.paper == recipe.printed(one.row, one.column) for one in mine)


@pytest.mark.parametrize("claim", claims.ledger(), ids=lambda claim: f"{claim.paper}: {claim.says[:40]}")
def test_a_claim_can_be_judged_and_a_verdict_against_it_has_a_reason(claim: claims.Claim):
    found = claims.judged(claim)
    assert found.verdict
    assert claim.why or found.verdict in (HOLDS, UNTOLD, NOT_RUN)
    if claim.test is None:
        return
    assert sum(name in claim.test for name in JUDGES) == 1
    named = {claim.test[name] for name in JUDGES if isinstance(claim.test.get(name), str)}
    rivals = claim.test.get("of", [])
    named |= {*claim.test.get("without", []), *(rivals if rivals != "others" else [])}
    there = find_recipe(claim.test["recipe"]).rows if "recipe" in claim.test else METHODS
    assert named <= set(there), f"{named - set(there)} are not there"


def cell(row: str, column: str, here: float, seconds: float = 1.0) -> StoredCell:
    recipe = find_recipe("fedgh-ablation")
    from potluck.benchmark.digests import experiment_digest
    from potluck.recipes.reproduce import plan

    key = (row, recipe.columns[column].setting, 0)
    experiment = plan(recipe, "small").work[key]
    return StoredCell(
        recipe="fedgh-ablation", scale="small", row=row, column=column, seed=0, paper=recipe.printed(row, column),
        here=here, method="fedgh", experiment=experiment_digest(experiment), commit="c", versions="v", machine="m",
        date="d", command="potluck", core_seconds=seconds,
    )  # fmt: skip


ROWS = ["FedGH", "header never trained", "rate 0.001", "rate 0.1", "rate 1"]


@pytest.mark.parametrize(
    ("test", "values", "verdict"),
    [
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 80], HOLDS),
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 95], FAILS),
        ({"ahead": "FedGH"}, [90, 80, 80, 80, 88.5], UNTOLD),
        ({"ahead": "FedGH", "without": ["rate 1"]}, [90, 80, 80, 80, 95], HOLDS),
        ({"behind": "FedGH"}, [70, 80, 80, 80, 95], HOLDS),
        ({"ahead": "FedGH", "of": ["rate 1"]}, [90, 99, 99, 99, 80], HOLDS),
        ({"spread": ROWS[2:], "within": 2}, [0, 50, 80, 81, 82], HOLDS),
        ({"spread": ROWS[2:], "within": 2}, [0, 50, 80, 81, 83], FAILS),
        ({"part": "FedGH", "of": ["rate 1"], "below": 0.5}, [30, 80, 80, 80, 90], HOLDS),
        ({"part": "FedGH", "of": ["rate 1"], "below": 0.5}, [60, 80, 80, 80, 90], FAILS),
        ({"equals": "FedGH", "within": 0.01}, [97.6, 0, 0, 0, 0], HOLDS),
        ({"equals": "FedGH", "within": 0.01}, [90, 0, 0, 0, 0], FAILS),
        ({"soonest": "FedGH"}, [2, 3, 4, 5, 6], HOLDS),
        ({"soonest": "FedGH"}, [2, 3, 1, 5, 6], FAILS),
    ],
)
def test_verdicts_follow_from_numbers(tmp_path: Path, test: dict, values: list[float], verdict: str):
    add_cells(
        tmp_path / "papers.csv", [cell(row, "c10", value) for row, value in zip(ROWS, values, strict=True)]
    )
    test = {"recipe": "fedgh-ablation", "columns": ["c10"], **test}
    assert finding(test, tmp_path).verdict == verdict


def test_one_row_is_followed_over_columns(tmp_path: Path):
    cells = [cell(row, "c10", 50 + 5 * place) for place, row in enumerate(ROWS)]
    cells += [cell(row, "c100", 51) for row in ROWS]
    add_cells(tmp_path / "papers.csv", cells)
    test = {"recipe": "fedgh-ablation", "within": 2}
    assert finding({**test, "steady": "FedGH"}, tmp_path).verdict == HOLDS
    assert finding({**test, "steady": "rate 1"}, tmp_path).verdict == FAILS
    above = {"recipe": "fedgh-ablation", "above": ["CIFAR-10 acc", "CIFAR-100 acc"]}
    assert finding({**above, "rows": ["rate 1", "rate 0.1"]}, tmp_path).verdict == HOLDS
    assert finding({**above, "rows": ["FedGH"]}, tmp_path).verdict == UNTOLD


def test_half_a_column_tells_nothing(tmp_path: Path):
    add_cells(tmp_path / "papers.csv", [cell("FedGH", "c10", 90), cell("rate 1", "c10", 50)])
    test = {"recipe": "fedgh-ablation", "columns": ["c10"], "ahead": "FedGH", "of": ["rate 1"]}
    assert finding(test, tmp_path).verdict == NOT_RUN


def test_a_cell_of_other_settings_is_left_out(tmp_path: Path):
    from dataclasses import replace

    fresh, old = cell("FedGH", "c10", 90), replace(cell("rate 1", "c10", 50), experiment="0" * 16)
    add_cells(tmp_path / "papers.csv", [fresh, old])
    table = stored_table(find_recipe("fedgh-ablation"), "small", read_cells(tmp_path / "papers.csv"))
    assert table.cell("FedGH", "c10").values == (90.0,)
    assert table.cell("rate 1", "c10").values == ()
