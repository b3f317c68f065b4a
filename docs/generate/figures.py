"""Draw the papers' figures of the method pages from stored points: `python -m generate.figures FOLDER …` stores them.

A folder is what `potluck reproduce NAME --out FOLDER` left; its points go to `results/figures/NAME.csv`, and what made
them to `results/figures/NAME.json`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from potluck.core.files import parse_json, read_text
from potluck.runs.folder import write_atomic

ROOT = Path(__file__).parents[2]
STORED = ROOT / "results" / "figures"
DRAWN = ROOT / "docs" / "figures" / "papers"

SHOWN = {
    "fedgh": ("fedgh-fig2",),
    "fedhe": ("fedhe-fig6",),
    "pfedafm": ("pfedafm-fig8",),
    "fedin": ("fedin-fig8",),
    "fedl2g-l": ("fedl2g-fig6",),
    "fedl2g-f": ("fedl2g-fig6",),
}
"""The figures of each method's page."""


def store(folder: Path) -> str:
    """Keep the points of a reproduction and what made them; returns the recipe's name."""
    content = parse_json(read_text(folder / "reproduction.json"))
    summary = parse_json(read_text(next(iter(sorted(folder.glob("*/*/summary.json"))))))
    made = summary["made"]
    facts = {
        "command": _without_places(summary["command"]),
        "scale": content["scale"],
        "seeds": content["seeds"],
        "differences": content["differences"],
        "commit": made["commit"],
        "versions": ", ".join(f"{name} {made[name]}" for name in ("potluck", "torch", "python")),
        "machine": made["machine"],
        "date": made["started"][:10],
    }
    name = str(content["recipe"])
    STORED.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(folder / "figure.csv", STORED / f"{name}.csv")
    write_atomic(STORED / f"{name}.json", json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    return name


def _without_places(command: str) -> str:
    """A command without what does not change results: the folder, and whether it goes on there."""
    words = shlex.split(command)
    while "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(word for word in words if word not in ("--resume", "-q"))


def block(method: str) -> str:
    """The figures of a method's page, each with the command that made its data and what differs from the paper."""
    return "\n\n".join(part for name in SHOWN[method] for part in _parts(name))


def _parts(name: str) -> list[str]:
    from potluck.recipes.recipe import find_recipe

    if not (STORED / f"{name}.csv").exists():
        return [f"Nothing is stored of `{name}` yet."]
    recipe, facts = find_recipe(name), parse_json(read_text(STORED / f"{name}.json"))
    seeds = ", ".join(map(str, facts["seeds"]))
    return [
        f"![{recipe.title}](../figures/papers/{name}.svg)",
        f"{recipe.title}, at the **{facts['scale']}** scale, seed {seeds}: compare shapes, not numbers. "
        f"Made by `{facts['command']}` (commit {facts['commit']}, {facts['date']}) and drawn from `results/figures/{name}.csv`.",
        f"Not as in the paper (paper → here): {_differences(facts['differences'])}.",
    ]


def _differences(differences: dict[str, Any]) -> str:
    sentences = [
        f"{setting} " + ", ".join(f"{pair['paper']} → {pair['here']}" for pair in pairs)
        for setting, pairs in differences.items()
    ]
    return "; ".join(sentences) or "nothing"


def write_figures() -> None:
    """Draw every stored figure that a page shows."""
    from potluck.recipes.draw import draw_points
    from potluck.recipes.points import read_points
    from potluck.recipes.recipe import find_recipe
    from potluck.report.style import print_style, save

    for name in sorted({name for names in SHOWN.values() for name in names}):
        if (STORED / f"{name}.csv").exists():
            with print_style():
                save(
                    draw_points(find_recipe(name), read_points(STORED / f"{name}.csv")), DRAWN / f"{name}.svg"
                )


if __name__ == "__main__":
    for each in sys.argv[1:]:
        print(store(Path(each)))
