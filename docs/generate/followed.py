"""Say on a baseline's page which implementation the papers' recipes follow, and with which options they run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from generate.text import code, table

if TYPE_CHECKING:
    from potluck.recipes.recipe import Recipe, Row

_UNSTATED = (
    "FedGH and pFedAFM do not state the settings of their baselines: their recipes run the method as this page "
    "describes it, with the options below."
)

FOLLOWED = {
    "fedgh": _UNSTATED,
    "pfedafm": _UNSTATED,
    "fedhe": "FedHe's recipes take batches, jobs and optimiser from its released code.",
    "fedin": "FedIN's own code is not published: the recipes follow its text, and where that is silent its authors' later code (InCo-Aggregation).",
    "fedl2g": "FedL2G's recipes run their baselines as its authors' library does (HtFLlib).",
}
"""What is followed in the recipes of each of the five papers."""

BASELINES = (
    *("fedavg", "fedprox", "scaffold", "fednova", "moon", "heterofl", "inclusivefl", "lg-fedavg", "fd"),
    *("fedproto", "fml", "fedkd", "fedmd", "fedapen", "standalone", "fedgh"),
)
"""The methods that the tables of the five papers compare with."""


def recipes(method: str) -> str:
    """Say which recipes run a method, after whom, and with which options and local training."""
    from potluck.recipes.recipe import find_recipe, recipe_names
    from potluck.recipes.scale import flat_text

    rows: dict[tuple[str, str], list[str]] = {}
    for name in recipe_names():
        recipe = find_recipe(name)
        if recipe.figure is not None or recipe.counted or name.partition("-")[0] == method:
            continue
        for row in recipe.rows.values():
            if row.method == method:
                more = ", ".join(
                    f"{key}={_value(value)}"
                    for key, value in {**flat_text(row.options), **_own_training(recipe, row)}.items()
                )
                family = name.partition("-")[0]
                rows.setdefault((family, more), []).append(name)
    numbers = dict.fromkeys(FOLLOWED[family] for family, _ in rows)
    lines = [
        (", ".join(code(name) for name in dict.fromkeys(names)), code(more) if more else "the defaults")
        for (_, more), names in rows.items()
    ]
    return "\n\n".join(
        [" ".join(numbers), table(("recipe", "options and own training settings there"), lines)]
    )


def _own_training(recipe: Recipe, row: Row) -> dict[str, str]:
    """Return the training settings of a row; also those that the whole table has where other rows change them."""
    from potluck.recipes.scale import flat_text

    changed = {key for each in recipe.rows.values() for key in each.settings.get("training", {})}
    common = {key: value for key, value in recipe.base.get("training", {}).items() if key in changed}
    values = {**common, **row.settings.get("training", {})}
    return {f"training.{key}": value for key, value in flat_text(values).items()}


def _value(text: str) -> str:
    return text.lower() if text in ("True", "False") else text
