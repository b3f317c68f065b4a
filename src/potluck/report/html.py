"""The report: one HTML file with everything in it, to open, mail or archive, with no network anywhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from pathlib import Path

from potluck.analysis.comparison import Comparison, compare
from potluck.core.errors import PotluckError
from potluck.report import overview, sections
from potluck.report.cards import cards
from potluck.report.data import report_data, to_json
from potluck.report.leaks import LINK as LEAKS_LINK
from potluck.report.leaks import leaks_section
from potluck.runs.read import read_run
from potluck.runs.run import Run

_SCRIPTS = (
    "base.js",
    "heat.js",
    "table.js",
    "curves.js",
    "clients.js",
    "costs.js",
    "classes.js",
    "failures.js",
    "page.js",
)
# Plotly's "basic" build (plotly.js-basic-dist-min 4.1.1, MIT): lines and bars are all that is drawn here, and the
# whole library would make every report four times as large.
_PLOTLY = "plotly-basic.min.js"


def write_report(
    runs: Iterable[Run | str | Path],
    path: str | Path,
    reference: str | None = None,
    target: float | None = None,
    networks: bool = False,
) -> Path:
    """Write the report of one or several runs to `path` and return it.

    `reference` names the method that others are compared with (the first run's, unless given). `target` is
    the accuracy whose cost is shown; without it, the highest multiple of 5 % that every method reached. With
    `networks` the page has CKA and t-SNE of the clients' networks, from the runs' last checkpoints.
    """
    found = [run if isinstance(run, Run) else read_run(run) for run in runs]
    file, page = Path(path), render(compare_for_page(found, reference, target), networks=networks)
    if not file.name:
        raise PotluckError(f"--out {str(path)!r} is a folder; name the HTML file to write.")
    unfinished = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(page, encoding="utf-8")
        os.replace(unfinished, file)
    except OSError as error:
        with suppress(OSError):  # half a page is no use to anybody
            unfinished.unlink(missing_ok=True)
        raise PotluckError(
            f"Cannot write the report to {str(file)!r}: {error.strerror}; the runs are whole: make room, or write "
            "it elsewhere with potluck report RUN --out FILE."
        ) from None
    return file


def compare_for_page(
    runs: Sequence[Run], reference: str | None = None, target: float | None = None
) -> Comparison:
    """The comparison that a page shows: with a target that every method reached, where none is given."""
    comparison = compare(runs, target, reference)
    if target is None and (reachable := common_target(comparison)):
        comparison = compare(runs, reachable, reference)
    return comparison


def render(comparison: Comparison, *, networks: bool = False) -> str:
    """The whole page as text."""
    seen = {}
    if networks:
        from potluck.report.networks import LINK, networks_section

        seen = {"networks": networks_section(comparison.groups), "networks_link": LINK}
    if leaks := leaks_section(comparison.groups):
        seen |= {"leaks": leaks, "leaks_link": LEAKS_LINK}
    return page(
        {**parts(comparison), **seen, "data": to_json(report_data(comparison))},
        brand="Potluck report",
        footer="This file needs no network.",
    )


def parts(comparison: Comparison) -> dict[str, str]:
    """The parts of the page that are words and tables, as HTML, by the name of their place."""
    title, subtitle = sections.headline(comparison)
    return {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "findings": overview.findings_section(comparison),
        "cards": cards(comparison),
        "table": overview.comparison_table(comparison),
        "methods": overview.methods_section(comparison),
        "made": overview.made_section(comparison),
        "toggles": sections.toggles(comparison),
        "ledger": sections.ledger_section(comparison),
        "settings": sections.settings_section(comparison),
        "commands": sections.commands_section(comparison),
    }


def page(
    filled: Mapping[str, str], scripts: Sequence[str] = (), live_file: str | None = None, **more: str
) -> str:
    """The page around its parts; `scripts` come before the one that starts it, `live_file` before all sections."""
    *first, start = (_asset(name) for name in _SCRIPTS)
    script = "\n".join([*first, *(_asset(name) for name in scripts), start])
    everything = {
        **dict.fromkeys(("connect", "jump", "networks", "networks_link", "leaks", "leaks_link"), ""),
        "live": _asset(live_file) if live_file else "",
        **filled,
        **more,
        "style": _asset("report.css"),
        "plotly": _asset(_PLOTLY),
        "script": script,
    }
    # One pass, so that nothing that was put in is ever taken for a place to fill.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: everything[place.group(1)], _asset("page.html"))


def common_target(comparison: Comparison) -> float | None:
    """The highest multiple of 5 % that every run counted has reached; None where that is nothing."""
    lowest = min((run.best_accuracy for group in comparison.groups for run in group.counted), default=0.0)
    steps = int(lowest * 20 + 1e-9) if lowest == lowest else 0
    return steps / 20 or None


def _asset(name: str) -> str:
    return resources.files("potluck.report").joinpath("assets", name).read_text(encoding="utf-8")
