"""Write the generated parts of a method's page, from the code and the benchmark's results.

`make pages` rewrites the blocks of every page between their comments, and the pictures.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from generate import figures, followed
from generate.payloads import messages
from generate.protections import secure_sums
from generate.reference import typed
from generate.text import code, find_block, format_default, replace_block, table

if TYPE_CHECKING:
    from potluck.suites.suite import Suite

ROOT = Path(__file__).parents[2]
HEADINGS = (
    "Idea",
    "What travels",
    "Needs",
    "Equations and code",
    "Options",
    "What is tested",
    "Differences from the paper",
    "Command",
    "Measured",
    "References",
)
"""Every page has these, in this order."""


def update_page(name: str, page: str) -> str:
    """A method's page with its blocks as the code and the results have them now."""
    page = replace_block(page, "travels", travels(name))
    page = replace_block(page, "needs", needs(name))
    page = replace_block(page, "options", options(name, origins(page)))
    page = replace_block(page, "measured", measured(name))
    if name in followed.BASELINES:
        page = replace_block(page, "recipes", followed.recipes(name))
    if name in figures.SHOWN:
        page = replace_block(page, "figures", figures.block(name))
    return replace_block(page, "ablations", ablations(name)) if name in ablated() else page


def travels(name: str) -> str:
    """The picture, and the two messages in words."""
    down, up = messages(name)
    return f"![What travels](../figures/methods/{name}.svg)\n\n* down: {down.words}\n* up: {up.words}"


def needs(name: str) -> str:
    """What the method asks of a federation with default options."""
    from potluck.experiment.experiment import make_method
    from potluck.methods import method_class

    cls = method_class(name)
    requirements = ", ".join(sorted(make_method(cls, {}).requires()))
    mode = (
        "one server step per answer (asynchronous)"
        if cls.supports.schedule == "async"
        else "whole rounds (synchronous)"
    )
    robust = cls.supports.robust or "nothing"
    lines = [
        f"of models and task: {requirements}",
        f"its own mode: {mode}",
        f"`schedule.robust` acts on: {robust}",
    ]
    if name != "standalone":
        lines.append(f"`privacy.secure_sums`: {secure_sums(make_method(cls, {}))}")
    return "\n".join(f"* {line}" for line in lines)


def update_robust_table(page: str) -> str:
    """The security page with what `schedule.robust` acts on, method by method."""
    from potluck.methods import METHODS, method_class

    rows = [(name, method_class(name).supports.robust or "nothing") for name in METHODS]
    return replace_block(page, "robust", table(("method", "what the rule acts on"), rows))


def options(name: str, origins: Mapping[str, str]) -> str:
    """The table of settings; the last column, where a default comes from, is the page's own."""
    from potluck.core.settings import settings_of
    from potluck.methods import method_class

    cls = method_class(name)
    rows = [
        (
            code(each.name),
            typed(cls, each),
            format_default(each.default),
            each.meaning,
            origins.get(each.name, ""),
        )
        for each in settings_of(cls)
    ]
    return table(("option", "type", "default", "meaning", "where it comes from"), rows) if rows else "None."


def origins(page: str) -> dict[str, str]:
    """What the page says of each option's origin."""
    results = {}
    for line in (find_block(page, "options") or "").splitlines():
        cells = [cell.strip() for cell in line.replace("\\|", "\0").strip().strip("|").split("|")]
        if len(cells) == 5 and cells[0].startswith("`"):
            results[cells[0].strip("`")] = cells[4].replace("\0", "|")
    return results


MEASURED = {"cpu": "benchmark.md", "pretrained": "pretrained-results.md"}
"""The suites whose rows stand on methods' pages, and the pages that say how to read them."""


def measured(name: str) -> str:
    """The method on every task of the suites that it has done, beside standalone training."""
    from potluck.suites.suite import find_suite

    suites = [
        suite for suite in map(find_suite, MEASURED) if any(name in task.methods for task in suite.tasks)
    ]
    parts = [text for suite in suites if (text := _measured_in(suite, name))]
    if parts:
        return "\n\n".join(parts)
    if not suites:
        return "No benchmark suite has it."
    commands = " or ".join(f"`potluck benchmark {suite.name} --methods {name} --resume`" for suite in suites)
    return f"Not measured yet; run {commands}."


def _measured_in(suite: Suite, name: str) -> str:
    """The method's rows of one suite; empty where there are none."""
    from generate.benchmark.formatting import format_difference
    from generate.benchmark.tasks import measured_tasks
    from potluck.suites.statistics import REFERENCE
    from potluck.suites.store import Results

    results = Results.read(ROOT / "results", suite.name)
    rows = [
        (
            task.title,
            f"{100 * line.accuracy:.1f} ± {100 * line.std:.1f}",
            format_difference(line.gain),
            line.verdict,
            len(line.rows),
            round(line.floats),
        )
        for task, lines in measured_tasks(suite, results)
        for line in lines
        if line.method == name
    ]
    if not rows:
        return ""
    against = (
        "" if name == REFERENCE else " Gain is over standalone training, in points, with its 95 % interval."
    )
    return (
        f"Accuracy in per cent on clients' own test samples, from `results/{suite.name}.csv`; `potluck benchmark {suite.name}` made it."
        f"{against} How to read it: [{suite.name}](../{MEASURED[suite.name]}).\n\n"
        + table(
            ("task", "accuracy", "gain [95 %]", "verdict", "seeds", "numbers per client and round"),
            rows,
            numbers=(1, 2, 4, 5),
        )
    )


def ablated() -> list[str]:
    """The methods whose options are varied one at a time."""
    from generate.benchmark.ablations import methods
    from potluck.suites.suite import find_suite

    return methods(find_suite("ablations"))


def ablations(name: str) -> str:
    """The method's options, one at a time, with what validation and test samples say of each."""
    from generate.benchmark.ablations import setting_of
    from generate.benchmark.ablations import table as rows
    from potluck.suites.store import Results
    from potluck.suites.suite import find_suite

    suite = find_suite("ablations")
    return (
        f"Options, one at a time, on {setting_of(suite)}, from `results/{suite.name}.csv`; `potluck benchmark {suite.name}` made it. "
        f"How to read it: [options, one at a time](../ablations.md).\n\n"
        + rows(suite, Results.read(ROOT / "results", suite.name), name)
    )
