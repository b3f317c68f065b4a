"""Papers that select their best round on test samples are reproduced so, and the table says it."""

from __future__ import annotations

import pytest

from potluck.recipes.recipe import find_recipe, recipe_names
from potluck.recipes.reproduce import plan
from potluck.recipes.tables import scale_lines, to_markdown


@pytest.mark.parametrize("name", recipe_names())
def test_the_papers_pick_on_test_at_every_scale(name: str):
    recipe = find_recipe(name)
    for scale in ("smoke", "small", "paper"):
        table = plan(recipe, scale)
        assert {experiment.evaluate.select for experiment in table.work.values()} == {"test"}
    picked = "picked on the test samples themselves, as in the paper" in to_markdown(table)
    assert picked == (
        not recipe.counted and any(column.measure == "best" for column in recipe.columns.values())
    )


def test_selection_rule_is_stated_only_where_best_rounds_are_shown():
    recipe = find_recipe("fedgh-table1")

    def on_validation(values):
        return {**values, "evaluate": {**values["evaluate"], "select": "validation"}}

    table = plan(recipe, "smoke", change=on_validation)
    assert "Best rounds are picked on validation samples." in scale_lines(table)
    assert table.differs["evaluate.select"] == [("test", "validation")]
    rounds = plan(find_recipe("fedin-table3"), "smoke", columns=["rounds"])
    assert not any("picked" in line for line in scale_lines(rounds))
