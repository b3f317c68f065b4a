"""Write the page of attacks: accuracy of honest clients by attack, rule and method, and a rule's cost without attack."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from generate.benchmark.figures import new_figure, save
from generate.benchmark.formatting import (
    NO_BELOW,
    count_seeds,
    format_mean_std,
    provenance_sentence,
    wrap_text,
)
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite, Task

NO_ATTACK = "nobody"
"""Name of the case without attackers in suites and stored rows."""
Grid = dict[tuple[str, str], Task]
"""Tasks by attack and rule."""
Seeds = dict[int, tuple[float, float]]
"""Honest accuracy and the attack's success, by seed."""


def page(suite: Suite, results: Results) -> str:
    """Return the page: for each data set a table per method, and its picture."""
    reading = (
        "Accuracy of honest clients after the last round, in per cent; attackers do not count, and "
        "under “no attack” the same clients are left out as under attack, so that columns "
        "compare. For `backdoor` the second number is its success: how many pictures of other classes honest clients "
        "take for class 0 once they bear the trigger. What each attack does is in [security](security.md). "
        f"{NO_BELOW}"
    )
    parts = [
        "# Attacks and rules, measured",
        wrap_text(_weak(suite, results)),
        wrap_text(reading),
    ]
    for title, grid in _titles(suite).items():
        methods = [method for method in _methods(grid) if _measured(results, grid, method)]
        if methods:
            parts.append(f"## {title[0].upper()}{title[1:]}\n\n{_seeds(results, grid)}")
            parts += [f"### {method}\n\n{_table(results, grid, method)}" for method in methods]
            if NO_ATTACK in _axis(grid, 0):
                parts.append(f"![Honest accuracy by attack and rule](figures/{_file(title)})")
    parts.append(f"## Provenance\n\n{wrap_text(provenance_sentence(suite, results))}")
    return "\n\n".join(parts) + "\n"


def _weak(suite: Suite, results: Results) -> str:
    """How little the rows can carry: seeds, rounds, and in how many cases the best rule is another for another seed."""
    rounds = sorted({int(task.experiment["schedule"]["rounds"]) for task in suite.tasks})
    clients = sorted({int(task.experiment["partition"]["clients"]) for task in suite.tasks})
    text = (
        f"**Weak evidence.** {count_seeds(results.rows).capitalize()}, federations of {', '.join(map(str, clients))} "
        f"clients, {', '.join(map(str, rounds))} rounds, nothing tuned."
    )
    differ, cases = unsteady_cases(suite, results)
    if cases:
        text += (
            f" In {differ} of {cases} cases (an attack on a method on a data set) the rule with the highest honest "
            "accuracy is not the same for all seeds"
        )
        text += ", so no rule is recommended and none is called better than another here." if differ else "."
    return f"{text} What the tables do show are effects of tens of points, such as plain means under `sign-flip`."


def unsteady_cases(suite: Suite, results: Results) -> tuple[int, int]:
    """In how many cases the best rule differs between seeds, of all that have two rules and seeds or more."""
    differ = cases = 0
    for grid in _titles(suite).values():
        for method in _methods(grid):
            for attack in set(_axis(grid, 0)) - {NO_ATTACK}:
                by_rule = {rule: _honest(results, grid, method, attack, rule) for rule in _axis(grid, 1)}
                known_rules = {rule: values for rule, values in by_rule.items() if values}
                seeds = set.intersection(*map(set, known_rules.values())) if known_rules else set()
                if len(known_rules) > 1 and len(seeds) > 1:
                    best = {max(known_rules, key=lambda rule: known_rules[rule][seed][0]) for seed in seeds}
                    differ, cases = differ + (len(best) > 1), cases + 1
    return differ, cases


def _seeds(results: Results, grid: Grid) -> str:
    """How many runs a number is the mean of, and what that is worth."""
    names = {task.name for task in grid.values()}
    rows = [row for row in results.rows if row.task in names]
    seeds = sorted({row.seed for row in rows})
    if len(seeds) == 1:
        return f"One run for each number (seed {seeds[0]}): differences of a few points are chance, those of tens are not."
    text = f"Means over the seeds {', '.join(map(str, seeds))} and their standard deviation."
    single = sum(count == 1 for count in Counter((row.task, row.method) for row in rows).values())
    cells = "one cell has" if single == 1 else f"{single} cells have"
    return f"{text} Without ±, {cells} one run, where a few points are chance." if single else text


def _titles(suite: Suite) -> dict[str, Grid]:
    """Tasks of one title (without their place on the axes) are one table."""
    grids: dict[str, Grid] = {}
    for task in suite.tasks:
        title = task.title.partition(", attack ")[0]
        grids.setdefault(title, {})[task.axes["attack"], task.axes["rule"]] = task
    return grids


def _methods(grid: Grid) -> list[str]:
    return list(dict.fromkeys(method for task in grid.values() for method in task.methods))


def _axis(grid: Grid, place: int) -> list[str]:
    return list(dict.fromkeys(key[place] for key in grid))


def _rows(results: Results, task: Task | None, method: str) -> list[Row]:
    if task is None:
        return []
    return [row for row in results.rows if row.task == task.name and row.method == method]


def _measured(results: Results, grid: Grid, method: str) -> bool:
    return any(_rows(results, task, method) for task in grid.values())


def _attackers(results: Results, grid: Grid, method: str) -> dict[int, set[int]]:
    """Who attacks in the runs of each seed: the same clients in all of a table's attacks of one share."""
    attackers: dict[int, set[int]] = {}
    for task in grid.values():
        for row in _rows(results, task, method):
            attack = results.details.get(row.experiment, {}).get("attack")
            attackers.setdefault(row.seed, set()).update(attack["clients"] if attack else ())
    return attackers


def _honest(results: Results, grid: Grid, method: str, attack: str, rule: str) -> Seeds:
    """Honest accuracy and the attack's success, by seed."""
    values, liars = Seeds(), _attackers(results, grid, method)
    for row in _rows(results, grid.get((attack, rule)), method):
        details = results.details.get(row.experiment, {})
        attack_details = details.get("attack")
        if attack_details:
            values[row.seed] = attack_details["honest_accuracy"], attack_details["success"]
        elif details.get("clients"):
            honest = [
                client for index, client in enumerate(details["clients"]) if index not in liars[row.seed]
            ]
            values[row.seed] = float(np.mean(honest)), float("nan")
    return values


def _mean(values: Seeds, place: int = 0) -> float:
    return 100 * float(np.mean([value[place] for value in values.values()])) if values else float("nan")


def _table(results: Results, grid: Grid, method: str) -> str:
    attacks = [
        attack
        for attack in _axis(grid, 0)
        if any(_honest(results, grid, method, attack, r) for r in _axis(grid, 1))
    ]
    lines = [f"| rule | {' | '.join(map(_title, attacks))} |", f"|---|{'---:|' * len(attacks)}"]
    for rule in _axis(grid, 1):
        cells = [_cell(_honest(results, grid, method, attack, rule), attack) for attack in attacks]
        if any(cells):
            lines.append(f"| `{rule}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _title(attack: str) -> str:
    return "no attack" if attack == NO_ATTACK else attack


def _cell(values: Seeds, attack: str) -> str:
    if not values:
        return ""
    shown = format_mean_std([honest for honest, _ in values.values()])
    return f"{shown} / {_mean(values, 1):.1f}" if attack == "backdoor" else shown


def _file(title: str) -> str:
    return f"attacks-{title.partition(',')[0].lower()}.svg"


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """For each data set one panel per method: rules × attacks, darker where honest clients are worse."""
    for title, grid in _titles(suite).items():
        methods = [method for method in _methods(grid) if _measured(results, grid, method)]
        if not methods or NO_ATTACK not in _axis(grid, 0):
            continue
        figure = new_figure(3.0 * len(methods), 3.0)
        panels = np.atleast_1d(figure.subplots(1, len(methods), sharey=True))
        for axes, method in zip(panels, methods, strict=True):
            _panel(axes, results, grid, method)
        save(figure, folder / _file(title))


def _panel(axes: Any, results: Results, grid: Grid, method: str) -> None:
    attacks, rules = _axis(grid, 0), _axis(grid, 1)
    table = np.array([[_mean(_honest(results, grid, method, a, r)) for a in attacks] for r in rules])
    axes.imshow(table, vmin=0, vmax=100, cmap="viridis", aspect="auto")
    axes.set_title(method, fontsize=8)
    axes.set_xticks(range(len(attacks)), list(map(_title, attacks)), rotation=60, ha="right", fontsize=6)
    axes.set_yticks(range(len(rules)), rules, fontsize=6)
    for place, value in np.ndenumerate(table):
        if not np.isnan(value):
            colour = "white" if value < 60 else "black"
            axes.text(place[1], place[0], f"{value:.0f}", ha="center", va="center", fontsize=6, color=colour)
