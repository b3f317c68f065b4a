"""Calibrate the rules of `potluck worth-it` on stored rows, score them on other tasks, and show how well they do."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from generate.benchmark.figures import COLOURS, new_figure, save
from generate.calibration import FACTS
from generate.text import table
from potluck.analysis.worth_it import (
    SHARE,
    Case,
    ClientFacts,
    Rule,
    RuleScore,
    fit_rule,
    rules_text,
    score_rule,
    split_tasks,
)
from potluck.suites.safeguard import stored_outcomes
from potluck.suites.store import Results
from potluck.suites.suite import find_suite

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "src" / "potluck" / "analysis" / "worth_it.json"
CANDIDATES = {"before": ("samples", "counts"), "early": ("samples", "local", "early")}
"""What may be known: before training, and after the first rounds; the first of each is the plain rule."""
Calibration = dict[str, list[tuple[Rule, RuleScore, list[Case]]]]


def before_cases(root: Path = ROOT) -> Iterator[Case]:
    """Yield every client, method and seed of `results/worth-it.csv`."""
    with (root / "results" / "worth-it.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            numbers = [int(row[name]) for name in ("samples", "classes", "of_classes", "largest")]
            for method in row.keys() - set(FACTS):
                if row[method]:
                    yield Case(row["task"], ClientFacts(*numbers), float(row[method]))


WITHDRAWN = "5c3338755837"
"""The last commit that had the rows of the earlier suite `cpu`."""


def source_sentence(root: Path = ROOT) -> str:
    """Say which rows the rule from before training was calibrated on, and whether their suite is still the present one."""
    with (root / "results" / "worth-it.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    methods = {name for name in rows[0] if name not in FACTS}
    tasks, seeds = {row["task"] for row in rows}, {row["seed"] for row in rows}
    text = (
        f"The rows behind the rules from before training (`results/worth-it.csv`) are gains of {len(methods)} methods in "
        f"{len(seeds)} seeds of {len(tasks)} tasks of "
    )
    if tasks <= {task.name for task in find_suite("cpu").tasks}:
        return f"{text}the suite `cpu`."
    return (
        f"{text}an earlier suite `cpu` (its rows are at commit {WITHDRAWN}), which has been withdrawn because methods were not "
        "tuned alike; they stay until the present suite has rows of two tasks."
    )


def early_cases(root: Path = ROOT) -> Iterator[Case]:
    """Yield every client of the suite `safeguard` without attackers, with what its first evaluation said."""
    results = Results.read(root / "results", "safeguard")
    for row in results.rows:
        if row.task.startswith("attacked"):
            continue
        for outcome in stored_outcomes(results.details[row.experiment]):
            facts = ClientFacts(
                outcome.train,
                outcome.classes,
                0,
                outcome.largest_class,
                outcome.validation,
                outcome.early_alone / outcome.validation,
                outcome.early_gained,
                outcome.early_lost,
            )
            yield Case(row.task, facts, (outcome.gained - outcome.lost) / outcome.test)


def calibrate(root: Path = ROOT) -> Calibration:
    """Fit all candidates on half of the tasks, and score them on the others."""
    calibration: Calibration = {}
    for when, cases in (("before", before_cases(root)), ("early", early_cases(root))):
        fitted, held_out = split_tasks(
            sorted(cases, key=lambda case: (case.task, str(case.facts), case.gain))
        )
        rules = [fit_rule(name, fitted) for name in CANDIDATES[when]] if held_out else []
        calibration[when] = [(rule, score_rule(rule, held_out), held_out) for rule in rules]
    return calibration


def chosen(candidates: Sequence[tuple[Rule, RuleScore, list[Case]]]) -> tuple[Rule, RuleScore]:
    """Return the rule of the largest rank correlation on other tasks; the plain one unless another is above it."""
    plain = candidates[0]
    best = max(candidates, key=lambda entry: round(entry[1].rank_correlation, 3))
    return best[:2] if best[1].rank_correlation > plain[1].rank_correlation + 0.02 else plain[:2]


def shipped_text(calibration: Calibration) -> str:
    """Return the file of the rules that come with Potluck; none for `early` where the plain rule is as good."""
    rules = {when: chosen(candidates) for when, candidates in calibration.items() if candidates}
    return rules_text(
        {
            when: rule
            for when, rule in rules.items()
            if when == "before" or rule[0].name != CANDIDATES[when][0]
        }
    )


def block(calibration: Calibration) -> str:
    """Return the tables and what they show."""
    parts = [
        source_sentence(),
        "![Expected and actual gains on tasks that no rule was calibrated on](figures/worth-it.svg)",
    ]
    for when, title in (
        ("before", "Before training"),
        ("early", "After the first round with the federation"),
    ):
        if calibration[when]:
            parts.append(_table(title, calibration[when]))
            parts.append(_sentence(when, calibration[when]))
    return "\n\n".join(parts)


def _table(title: str, candidates: Sequence[tuple[Rule, RuleScore, list[Case]]]) -> str:
    head = ("rule", "rank correlation", f"gains within the {SHARE:.0%} interval", "width, points",
            "calls “do not join”", "right", "expected losses", "right")  # fmt: skip
    rows = [
        (
            rule.name,
            f"{score.rank_correlation:+.2f}",
            f"{score.coverage:.0%}",
            f"{100 * (rule.above - rule.below):.0f}",
            score.calls,
            _share(score.right_calls, score.calls),
            score.leaning,
            _share(score.right_leaning, score.leaning),
        )
        for rule, score, _ in candidates
    ]
    tasks = sorted({case.task for case in candidates[0][2]})
    cases, losses = candidates[0][1].cases, candidates[0][1].losses
    note = (
        f"{title}: {cases:,} results of clients on {', '.join(tasks)}, of which {losses:.0%} are below alone."
    )
    return f"{note}\n\n{table(head, rows, range(1, len(head)))}"


def _share(part: int, total: int) -> str:
    return f"{part / total:.0%}" if total else "–"


def _sentence(when: str, candidates: Sequence[tuple[Rule, RuleScore, list[Case]]]) -> str:
    rule, score = chosen(candidates)
    plain = candidates[0][1].rank_correlation
    best = max(entry[1].rank_correlation for entry in candidates[1:])
    moment = "before training" if when == "before" else "early in training"
    if rule.name == candidates[0][0].name and when == "early":
        return (
            f"Nothing predicts better early in training than sample count alone (rank correlation {plain:+.2f}, best of "
            f"the others {best:+.2f}), so `potluck worth-it` shows the early difference and goes by the rule from before "
            "training. These are few rows: one task to calibrate on and one to score on say little."
        )
    if rule.name == candidates[0][0].name:
        text = f"Nothing predicts better {moment} than sample count alone, so `potluck worth-it` uses that"
        worth = ", and it says next to nothing" if abs(score.rank_correlation) < 0.1 else ""
        return f"{text}{worth}: rank correlation {plain:+.2f}, best of the others {best:+.2f}."
    return (
        f"`potluck worth-it` uses `{rule.name}` {moment}: rank correlation {score.rank_correlation:+.2f} against "
        f"{plain:+.2f} of sample count alone."
    )


def draw(calibration: Calibration, path: Path) -> None:
    """Draw actual against expected gains of the chosen rules in ten groups of equal size, with quartiles."""
    shown = [(when, candidates) for when, candidates in calibration.items() if candidates]
    figure = new_figure(4.0 * len(shown), 3.4)
    panels = np.atleast_1d(figure.subplots(1, len(shown)))
    for axes, (when, candidates) in zip(panels, shown, strict=True):
        for colour, (rule, score, cases) in zip(COLOURS, candidates, strict=False):
            expected = np.array([100 * rule.predict(case.facts).gain for case in cases])
            gains = np.array([100 * case.gain for case in cases])
            groups = np.array_split(np.argsort(expected, kind="stable"), 10)
            middle = [float(np.mean(expected[group])) for group in groups]
            actual = [float(np.mean(gains[group])) for group in groups]
            ends = np.array([np.quantile(gains[group], (0.25, 0.75)) for group in groups]).T
            axes.vlines(middle, *ends, color=colour, alpha=0.4)
            label = f"{rule.name} ({score.rank_correlation:+.2f})"
            axes.plot(middle, actual, "o", color=colour, markersize=4, label=label)
        axes.axline((0, 0), slope=1, color="#333333", linewidth=0.8, linestyle="--")
        axes.set_title("before training" if when == "before" else "after the first round", fontsize=9)
        axes.set_xlabel("expected gain, points")
        axes.grid(alpha=0.25)
        axes.legend(fontsize=7, frameon=False)
    panels[0].set_ylabel("actual gain over alone, points")
    save(figure, path)
