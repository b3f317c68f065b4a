"""Write the report: one self-contained HTML file."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from potluck.analysis.comparison import Comparison, compare
from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError
from potluck.report import sections
from potluck.report.data import report_data, to_json
from potluck.report.leaks import LINK as LEAKS_LINK
from potluck.report.leaks import leaks_section
from potluck.report.safeguard import LINK as SAFEGUARD_LINK
from potluck.report.safeguard import safeguard_section
from potluck.report.sections import cards
from potluck.report.style import FigureOptions, print_style
from potluck.runs.read import read_run
from potluck.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NETWORKS_LINK = '<li><a href="#networks">Networks</a></li>'


def networks_section(groups: Sequence[Group]) -> str:
    """Draw the similarity of clients at every stage for all methods, then CKA and t-SNE of each method."""
    from potluck.report import feature_figures

    with print_style():
        caption = (
            "Similarity of the clients' networks on common samples (mean linear CKA over pairs), by stage"
        )
        pictures = [_picture(feature_figures.cka_stages(list(groups), FigureOptions()), caption)]
        for group in groups:
            caption = f"{group.label}: similarity of each pair of clients (linear CKA of the features)"
            pictures.append(_picture(feature_figures.cka([group], FigureOptions()), caption))
            caption = f"{group.label}: features of the clients' test samples (t-SNE); the colour is the class"
            pictures.append(_picture(feature_figures.plot_features([group], FigureOptions()), caption))
            if feature_figures.sends_vectors(group):
                caption = f"{group.label}: the server's vector of each class, and the clients' mean (t-SNE)"
                pictures.append(
                    _picture(feature_figures.plot_features([group], FigureOptions(field="vectors")), caption)
                )
    heading = '<section id="networks" aria-labelledby="h-networks">\n<h2 id="h-networks">Representations</h2>'
    return "\n".join([heading, *pictures, "</section>"])


def _picture(figure: Figure, caption: str) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return sections.embedded_image(out.getvalue(), "svg+xml", caption)


_OPTIONAL = (
    "connect",
    "pictures",
    "jump",
    "networks",
    "networks_link",
    "leaks",
    "leaks_link",
    "safeguard",
    "safeguard_link",
)
"""Placeholders of the page that are empty where a report lacks the section."""
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
# Plotly's "basic" build (plotly.js-basic-dist-min 4.1.1, MIT) has lines and bars; the full library would make every
# report four times as large.
_PLOTLY = "plotly-basic.min.js"


def write_report(
    runs: Iterable[Run | str | Path],
    path: str | Path,
    reference: str | None = None,
    target: float | None = None,
    networks: bool = False,
    pictures: Mapping[str, Path] | None = None,
) -> Path:
    """Write the report of one or several runs to `path` and return it.

    `reference` names the method that others are compared with (Standalone, or the first run's where that was not
    run). `target` is the accuracy whose cost is shown, by default the highest multiple of 5 % that every method
    reached. With `networks` the page has CKA and t-SNE of the clients' networks, from the runs' last checkpoints.
    `pictures` are PNG files that are shown above the comparison, by their captions.
    """
    loaded = [run if isinstance(run, Run) else read_run(run) for run in runs]
    file = Path(path)
    comparison = compare_for_page(loaded, reference, target)
    html = render_report(comparison, networks=networks, pictures=pictures or {})
    if not file.name:
        raise PotluckError(f"--out {str(path)!r} is a folder; name the HTML file to write.")
    unfinished = file.with_name(file.name + ".part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(html, encoding="utf-8")
        os.replace(unfinished, file)
    except OSError as error:
        with suppress(OSError):  # do not leave half a page behind
            unfinished.unlink(missing_ok=True)
        raise PotluckError(
            f"Cannot write the report to {str(file)!r}: {error.strerror}; the runs are complete: free space, or write "
            "it elsewhere with potluck report RUN --out FILE."
        ) from None
    return file


def compare_for_page(
    runs: Sequence[Run], reference: str | None = None, target: float | None = None
) -> Comparison:
    """Compare the runs; the default target is one that every method reached."""
    comparison = compare(runs, target, reference)
    if target is None and (reachable := common_target(comparison)):
        comparison = compare(runs, reachable, reference)
    return comparison


def render_report(
    comparison: Comparison, *, networks: bool = False, pictures: Mapping[str, Path] | None = None
) -> str:
    """Return the whole page as text."""
    extra = {}
    if pictures:
        images = [sections.embedded_image(file.read_bytes(), "png", text) for text, file in pictures.items()]
        extra["pictures"] = "\n".join(['<section id="pictures" aria-label="Figures">', *images, "</section>"])
    if networks:
        extra = {"networks": networks_section(comparison.groups), "networks_link": _NETWORKS_LINK}
    if leaks := leaks_section(comparison.groups):
        extra |= {"leaks": leaks, "leaks_link": LEAKS_LINK}
    if safeguards := safeguard_section(comparison.groups):
        extra |= {"safeguard": safeguards, "safeguard_link": SAFEGUARD_LINK}
    return fill_page(
        {**page_parts(comparison), **extra, "data": to_json(report_data(comparison))},
        brand="Potluck report",
        footer="This file needs no network.",
    )


def page_parts(comparison: Comparison) -> dict[str, str]:
    """Return the page's texts and tables as HTML, by the name of their placeholder."""
    title, subtitle = sections.headline(comparison)
    return {
        "title": escape(title),
        "subtitle": escape(subtitle),
        "findings": sections.findings_section(comparison),
        "cards": cards(comparison),
        "table": sections.comparison_table(comparison),
        "methods": sections.methods_section(comparison),
        "made": sections.provenance_section(comparison),
        "toggles": sections.toggles(comparison),
        "ledger": sections.traffic_section(comparison),
        "settings": sections.settings_section(comparison),
        "commands": sections.commands_section(comparison),
    }


def fill_page(
    filled: Mapping[str, str], scripts: Sequence[str] = (), live_file: str | None = None, **more: str
) -> str:
    """Fill the page's template; `scripts` come before the script that starts it, `live_file` before all sections."""
    *first, start = (_asset(name) for name in _SCRIPTS)
    script = "\n".join([*first, *(_asset(name) for name in scripts), start])
    everything = {
        **dict.fromkeys(_OPTIONAL, ""),
        "live": _asset(live_file) if live_file else "",
        **filled,
        **more,
        "style": _asset("report.css"),
        "plotly": _asset(_PLOTLY),
        "script": script,
    }
    # One pass, so that inserted text is never taken for a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: everything[place.group(1)], _asset("page.html"))


def common_target(comparison: Comparison) -> float | None:
    """Return the highest multiple of 5 % that every counted run has reached; None where that is 0."""
    lowest = min(
        (run.best_accuracy for group in comparison.groups for run in group.counted_runs), default=0.0
    )
    steps = int(lowest * 20 + 1e-9) if lowest == lowest else 0
    return steps / 20 or None


def _asset(name: str) -> str:
    return resources.files("potluck.report").joinpath("assets", name).read_text(encoding="utf-8")
