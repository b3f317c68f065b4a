"""Write the report's sections of text and tables; all text is escaped."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from potluck.analysis import formatting
from potluck.analysis.columns import available_columns, best_rows
from potluck.analysis.comparison import Comparison, ComparisonRow
from potluck.analysis.cost import traffic_cells, traffic_row
from potluck.analysis.findings import findings
from potluck.analysis.groups import Group, differing_settings, settings_of
from potluck.analysis.tables import legend
from potluck.core.errors import PotluckError
from potluck.report.style import method_style
from potluck.runs.run import Run

# The charts' markers, drawn around the middle (13, 5) of a swatch.
_SYMBOLS = {
    "circle": "M9.3 5a3.7 3.7 0 1 0 7.4 0a3.7 3.7 0 1 0 -7.4 0",
    "square": "M9.7 1.7h6.6v6.6h-6.6z",
    "diamond": "M13 .6l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
    "triangle-up": "M13 .8l4.3 7.6h-8.6z",
    "triangle-down": "M13 9.2l4.3 -7.6h-8.6z",
    "x": "M11 1l2 2l2 -2l2 2l-2 2l2 2l-2 2l-2 -2l-2 2l-2 -2l2 -2l-2 -2z",
    "star": "M13 .2l1.3 3.1l3.4 .3l-2.6 2.2l.8 3.3l-2.9 -1.8l-2.9 1.8l.8 -3.3l-2.6 -2.2l3.4 -.3z",
}


def swatch(place: int, group: Group) -> str:
    """Draw a short line in the style of a method; `place` is its row in the comparison."""
    style = method_style(group.position)
    dashes = {"solid": "", "dash": "7 3", "dot": "2 3", "dashdot": "7 3 2 3"}[style.dash]
    return (
        f'<svg class="swatch" data-group="{place}" width="26" height="10" aria-hidden="true">'
        f'<line x1="1" y1="5" x2="25" y2="5" stroke-dasharray="{dashes}"/>'
        f'<path d="{_SYMBOLS[style.symbol]}"/></svg>'
    )


def scroll_region(inner: str, name: str) -> str:
    """Wrap a wide table so that it scrolls on its own, by touch and keyboard."""
    label = escape(name, quote=True)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{inner}</div>'


def embedded_image(data: bytes, kind: str, caption: str) -> str:
    """Write a figure with the picture (`png`, `svg+xml`) as a data address."""
    text, image = escape(caption, quote=True), base64.b64encode(data).decode()
    return (
        f'<figure><img class="drawn" alt="{text}" src="data:image/{kind};base64,{image}">'
        f"<figcaption>{text}</figcaption></figure>"
    )


def plain_table(headings: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    """Write a table of texts whose first column names the row."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


Card = tuple[str, str, str]
_LONG = 16  # characters from which a card's value is set smaller
_MAX_NAMED = 3  # methods that a card names


def cards(comparison: Comparison) -> str:
    """Write the key numbers as cards."""
    rows = comparison.rows
    entries = _single_run_cards(rows[0]) if len(rows) == 1 else _comparison_cards(comparison)
    items = (
        f'<div class="card"><dt>{escape(name)}</dt>'
        f'<dd class="{"long" if len(value) > _LONG else "short"}">{escape(value)}</dd>'
        f'<dd class="detail">{escape(detail)}</dd></div>'
        for name, value, detail in entries
    )
    return f'<dl class="cards">{"".join(items)}</dl>' if entries else ""


def _single_run_cards(row: ComparisonRow) -> list[Card]:
    return [
        (
            "Final accuracy",
            f"{formatting.percent(row.accuracy)} %",
            f"± {formatting.percent(row.accuracy_std)} over {row.spread_over}",
        ),
        ("Best round", f"{formatting.percent(row.best)} %", f"round {formatting.count(row.best_round)}"),
        (
            "Worst 10 % of clients",
            f"{formatting.percent(row.worst)} %",
            f"gap best to worst {formatting.percent(row.client_gap)}",
        ),
        ("Traffic", formatting.bytes_with_unit(row.bytes_total), "all clients, both directions"),
        ("Time", formatting.duration(row.seconds), "wall clock"),
    ]


def _comparison_cards(comparison: Comparison) -> list[Card]:
    def accuracy(row: ComparisonRow) -> str:
        return f"{formatting.percent_spread(row.accuracy, row.accuracy_std)} % over {row.spread_over}"

    def rounds(row: ComparisonRow) -> float:
        return row.to_target.rounds if row.to_target else math.nan

    rows, percent = comparison.rows, lambda row: f"{formatting.percent(row.worst)} %"
    goal = formatting.percent(comparison.target or 0, 0)
    candidates = [
        _card("Highest final accuracy", rows, lambda row: row.accuracy, accuracy),
        _card("Best for the worst 10 %", rows, lambda row: row.worst, percent),
        # A method that sends nothing takes no part in this comparison.
        _card(
            "Least traffic",
            rows,
            lambda row: math.nan if row.sends_nothing else -row.bytes_total,
            lambda row: formatting.bytes_with_unit(row.bytes_total),
        ),
        _card(
            f"Fewest rounds to {goal} %",
            rows,
            lambda row: -rounds(row),
            lambda row: f"{formatting.count(rounds(row))} rounds",
        ),
    ]
    return [card for card in candidates if card]


def _card(
    name: str,
    rows: Sequence[ComparisonRow],
    value: Callable[[ComparisonRow], float],
    detail: Callable[[ComparisonRow], str],
) -> Card | None:
    """Name the methods with the highest value; None where all tie or fewer than two have a value."""
    comparable = [row for row in rows if not row.incomparable and math.isfinite(value(row))]
    if len(comparable) < 2:
        return None
    best = max(value(row) for row in comparable)
    first = [row for row in comparable if math.isclose(value(row), best, rel_tol=1e-6, abs_tol=1e-9)]
    if len(first) == len(comparable):
        return None
    labels = [row.label for row in first[:_MAX_NAMED]]
    more = f" and {len(first) - _MAX_NAMED} more" if len(first) > _MAX_NAMED else ""
    tie = f"tie of {len(first)}, " if len(first) > 1 else ""
    return name, ", ".join(labels) + more, tie + detail(first[0])


def findings_section(comparison: Comparison) -> str:
    """Write the findings as paragraphs."""
    return "".join(f'<p class="finding">{escape(sentence)}</p>' for sentence in findings(comparison))


def comparison_table(comparison: Comparison) -> str:
    """Write all methods with all columns, the best value of a column in bold; the page's script sorts and filters."""
    columns = available_columns(comparison)
    bests = [best_rows(comparison, column) for _, column, _ in columns]
    head = "".join(
        f'<th scope="col" data-column="{name}" data-rank="{column.rank}" data-usual="{json.dumps(default)}"'
        f"{'' if default else ' hidden'}>{_two_lines(column.title)}</th>"
        for name, column, default in columns
    )
    lines = []
    for position, (row, group) in enumerate(zip(comparison.rows, comparison.groups, strict=True)):
        cells = "".join(
            f'<td data-column="{name}" data-value="{_value(column.value(row)) if column.value else ""}"'
            f"{'' if default else ' hidden'}>{_marked(column.cell(row), position in best)}</td>"
            for (name, column, default), best in zip(columns, bests, strict=True)
        )
        label = f'<th scope="row">{swatch(position, group)}<span>{escape(row.display_label)}</span></th>'
        lines.append(f'<tr data-group="{position}">{label}{cells}</tr>')
    heading = f'<thead><tr><th scope="col" data-column="method">method</th>{head}</tr></thead>'
    table = f'<table id="methods-table">{heading}<tbody>{"".join(lines)}</tbody></table>'
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in legend(comparison))
    warnings = "".join(f'<p class="note">{escape(sentence)}</p>' for sentence in comparison.notes)
    return (
        scroll_region(table, "Comparison of the methods") + f'<div class="fine">{sentences}{warnings}</div>'
    )


def methods_section(comparison: Comparison) -> str:
    """Write one line about each method of this installation, folded."""
    lines = {row.method: line for row in comparison.rows if (line := _summary(row))}
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(line)}</dd></div>" for name, line in lines.items()
    )
    return (
        f'<details><summary>The methods in a line each</summary><dl class="lines">{items}</dl></details>'
        if items
        else ""
    )


def provenance_section(comparison: Comparison) -> str:
    """Write when, where and with which versions the runs were made; each fact once."""
    facts: dict[str, dict[str, None]] = {}
    for group in comparison.groups:
        for run in group.runs:
            provenance = run.summary.get("made")
            for key, value in (provenance if isinstance(provenance, dict) else {}).items():
                facts.setdefault(str(key), {})[str(value)] = None
    if not facts:
        return ""
    parts = [f"{key} {_few(sorted(values))}" for key, values in facts.items()]
    return f'<p class="fine made">Made: {escape("; ".join(parts))}.</p>'


def _few(values: list[str]) -> str:
    return ", ".join(values) if len(values) <= 2 else f"{values[0]} to {values[-1]}"


def _summary(row: ComparisonRow) -> str:
    from potluck.methods import METHODS, method_class

    try:
        return method_class(row.method).summary if row.method in METHODS else ""
    except PotluckError:
        return ""


def _marked(cell: str, best: bool) -> str:
    return f"<strong>{escape(cell)}</strong>" if best else escape(cell)


def _value(number: float) -> str:
    return f"{number:.9g}" if math.isfinite(number) else ""


def _two_lines(title: str) -> str:
    first, _, rest = title.partition(" ")
    return f"{escape(first)}<br>{escape(rest)}" if rest else escape(first)


def headline(comparison: Comparison) -> tuple[str, str]:
    """Return the page's title and subtitle as plain text."""
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


def traffic_section(comparison: Comparison) -> str:
    """Write the traffic of each method as a table."""
    headings, cells = traffic_cells([traffic_row(group) for group in comparison.groups])
    return scroll_region(plain_table(headings, cells), "Traffic of the methods")


def settings_section(comparison: Comparison) -> str:
    """Write the settings that differ, those in common, and each method's experiment file, folded."""
    runs = [group.runs[0] for group in comparison.groups]
    differing = differing_settings(runs)
    common = {key: value for key, value in settings_of(runs[0]).items() if key not in differing}
    parts = []
    if differing:
        lines = [[key, *(_setting(value) for value in values)] for key, values in differing.items()]
        headings = ["differs", *(group.label for group in comparison.groups)]
        parts.append(scroll_region(plain_table(headings, lines), "Settings in which the methods differ"))
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
    """Write the commands that repeat the runs, each once, with a button that copies them."""
    by_commands: dict[str, list[str]] = {}
    for group in comparison.groups:
        commands = "\n".join(dict.fromkeys(repeat_command(run) for run in group.runs))
        by_commands.setdefault(commands, []).append(group.label)
    parts = []
    for commands, labels in by_commands.items():
        methods = "all methods" if len(labels) == len(comparison.groups) > 1 else ", ".join(labels)
        heading = "" if len(by_commands) == 1 else f"<h3>{escape(methods)}</h3>"
        parts.append(
            f'{heading}<div class="command"><pre tabindex="0"><code>{escape(commands)}</code></pre>'
            f'<button type="button" class="copy" aria-label="Copy the commands of {escape(methods)}">'
            f"Copy</button></div>"
        )
    return "".join(parts)


def repeat_command(run: Run) -> str:
    """Return the recorded command; an unfinished run is repeated from its resolved experiment."""
    return run.command or f"potluck run {run.path / 'experiment.toml'}"


def toggles(comparison: Comparison) -> str:
    """Write one button per method that shows or hides it in every chart."""
    return "".join(
        f'<button type="button" class="toggle" data-group="{position}" aria-pressed="true">'
        f"{swatch(position, group)}<span>{escape(group.label)}</span></button>"
        for position, group in enumerate(comparison.groups)
    )


def _setting(value: object) -> str:
    if value is None or value == "" or value == []:
        return formatting.MISSING
    if isinstance(value, list):
        return ", ".join(map(_setting, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if values[0] == values[-1] else f"{values[0]}–{values[-1]}"
