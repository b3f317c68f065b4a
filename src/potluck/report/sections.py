"""The parts of the report that are words and tables: they read without any script. All text is escaped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from potluck.analysis import text
from potluck.analysis.accounting import ledger_cells, ledger_row
from potluck.analysis.comparison import Comparison
from potluck.analysis.groups import differing_settings, settings_of
from potluck.report.markup import plain_table, scrolled, swatch
from potluck.runs.run import Run


def headline(comparison: Comparison) -> tuple[str, str]:
    """The page's title and the line below it, as plain text."""
    runs = [run for group in comparison.groups for run in group.runs]
    data = ", ".join(dict.fromkeys(run.dataset for run in runs if run.dataset))
    methods = [row.label for row in comparison.rows]
    named = " vs ".join(methods) if len(methods) <= 3 else f"{len(methods)} methods"
    title = f"{named} on {data}" if data else named
    clients = sorted({int(run.summary.get("clients") or len(run.client_results)) for run in runs})
    rounds = sorted({run.num_rounds for run in runs})
    facts = [
        _plural(len(runs), "run"),
        f"{_span(clients)} clients",
        f"{_span(rounds)} rounds",
        *dict.fromkeys(str(run.summary["partition"]) for run in runs if run.summary.get("partition")),
    ]
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        facts.append(f"{unfinished} of them unfinished" if len(runs) > 1 else "unfinished")
    return title, " · ".join(facts)


def ledger_section(comparison: Comparison) -> str:
    """The traffic ledger as a table."""
    headings, cells = ledger_cells([ledger_row(group) for group in comparison.groups])
    return scrolled(plain_table(headings, cells), "Traffic ledger")


def settings_section(comparison: Comparison) -> str:
    """What the methods have in common, where they differ, and each one's whole experiment to unfold."""
    runs = [group.runs[0] for group in comparison.groups]
    differing = differing_settings(runs)
    common = {key: value for key, value in settings_of(runs[0]).items() if key not in differing}
    parts = []
    if differing:
        lines = [[key, *(_setting(value) for value in values)] for key, values in differing.items()]
        headings = ["differs", *(group.label for group in comparison.groups)]
        parts.append(scrolled(plain_table(headings, lines), "Settings in which the methods differ"))
    if common:
        items = (
            f"<div><dt>{escape(key)}</dt><dd>{escape(_setting(value))}</dd></div>"
            for key, value in common.items()
        )
        heading = "<h3>The same for all</h3>" if len(runs) > 1 else ""
        parts.append(f'{heading}<dl class="settings">{"".join(items)}</dl>')
    for run in runs:
        file = run.path / "experiment.toml"
        if file.is_file():
            source = escape(file.read_text(encoding="utf-8", errors="replace"))
            parts.append(
                f"<details><summary>{escape(run.name)}/experiment.toml</summary><pre>{source}</pre></details>"
            )
    return "".join(parts) or "<p>The runs recorded no settings.</p>"


def commands_section(comparison: Comparison) -> str:
    """The commands that repeat the runs, each once with the methods it runs, and a button that copies them."""
    by_commands: dict[str, list[str]] = {}
    for group in comparison.groups:
        commands = "\n".join(dict.fromkeys(repeat_command(run) for run in group.runs))
        by_commands.setdefault(commands, []).append(group.label)
    parts = []
    for commands, labels in by_commands.items():
        whose = "all methods" if len(labels) == len(comparison.groups) > 1 else ", ".join(labels)
        heading = "" if len(by_commands) == 1 else f"<h3>{escape(whose)}</h3>"
        parts.append(
            f'{heading}<div class="command"><pre tabindex="0"><code>{escape(commands)}</code></pre>'
            f'<button type="button" class="copy" aria-label="Copy the commands of {escape(whose)}">'
            f"Copy</button></div>"
        )
    return "".join(parts)


def repeat_command(run: Run) -> str:
    """The recorded command; a run that has not ended is repeated from its resolved experiment."""
    return run.command or f"potluck run {run.path / 'experiment.toml'}"


def toggles(comparison: Comparison) -> str:
    """One button per method that shows or hides it in every chart."""
    return "".join(
        f'<button type="button" class="toggle" data-group="{position}" aria-pressed="true">'
        f"{swatch(position)}<span>{escape(row.label)}</span></button>"
        for position, row in enumerate(comparison.rows)
    )


def _setting(value: object) -> str:
    if value is None or value == "" or value == []:
        return text.MISSING
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]}–{values[-1]}"
