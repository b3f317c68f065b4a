"""Write `docs/pretrained-results.md`: what federating gains on top of frozen pretrained networks, and per byte."""

from __future__ import annotations

from pathlib import Path

from generate.benchmark import tasks
from generate.benchmark.figures import gain_figure
from generate.benchmark.formatting import format_difference, wrap_text
from generate.text import table
from potluck.suites.statistics import MethodSummary, compare_methods
from potluck.suites.store import Results
from potluck.suites.suite import Suite

FIGURE = "pretrained-gains.svg"
ONE_MESSAGE = "fedcgs"
BYTES = 4


def page(suite: Suite, results: Results) -> str:
    """The whole page; the same text for the same results."""
    text = tasks.page(suite, results).replace(tasks.FIGURE, FIGURE)
    title, _, rest = text.partition("\n\n")
    assert title.startswith("# ")
    first, mark, more = rest.partition("\n## ")
    intro = wrap_text(
        "Every client trains on features of a frozen pretrained network ([how](pretrained.md)): the question is what "
        "learning together adds where training alone is good already."
    )
    return f"# Pretrained networks: does federating pay?\n\n{intro}\n\n{first}\n{_per_byte(suite, results)}{mark}{more}"


def _per_byte(suite: Suite, results: Results) -> str:
    """Accuracy beside all bytes that a client sends and receives, against one message per client."""
    parts = ["\n## Accuracy per byte\n"]
    for task, lines in tasks.measured_tasks(suite, results):
        methods = [line for line in lines if not line.is_baseline]
        rows = [
            (
                line.method,
                f"{100 * line.accuracy:.1f}",
                f"{_bytes(line) / 1000:,.1f}",
                _relation(results, task.name, line.method),
            )
            for line in sorted(methods, key=_bytes)
        ]
        header = (
            "method",
            "accuracy %",
            "kB per client, all rounds, both ways",
            "lead over FedCGS, points [95 %]",
        )
        parts.append(f"*{task.title}*\n\n{table(header, rows, numbers=(1, 2, 3))}\n")
    return "\n".join(parts)


def _bytes(line: MethodSummary) -> float:
    """Return the bytes of all rounds, at four bytes per number."""
    rounds = max(float(row.rounds or 0) for row in line.rows)
    return BYTES * line.floats * rounds


def _relation(results: Results, task: str, method: str) -> str:
    """Return the lead over one message with its interval, in points."""
    difference = compare_methods(results, task, method, ONE_MESSAGE)
    return "–" if method == ONE_MESSAGE else format_difference(difference)


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """Draw the forest plot."""
    measurements = tasks.measured_tasks(suite, results)
    if measurements:
        gain_figure({task.title: lines for task, lines in measurements}, tasks.NAMES, folder / FIGURE)
    tasks.draw_curves(results, measurements, folder)
