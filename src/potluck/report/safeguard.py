"""The report's section on safeguards: which model each client uses in the end, and how often rightly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from potluck.analysis.formatting import percent
from potluck.analysis.groups import Group
from potluck.report.sections import plain_table, scroll_region
from potluck.runs.run import Run

LINK = '<li><a href="#safeguard">Safeguard</a></li>'
HEADINGS = (
    "client",
    "alone %",
    "federated %",
    "used %",
    "federated share",
    "gained",
    "lost",
    "not below alone",
)


def safeguard_sentence(facts: Mapping[str, Any]) -> str:
    """Return what a safeguard did as a sentence, from the summary's `safeguard`."""
    if not facts.get("clients"):
        return f"Safeguard {facts['mode']}: the clients' choices stay on their machines."
    return (
        f"Safeguard {facts['mode']}: {facts['chose_federated']:.0%} of {facts['clients']} clients use the federated "
        f"model, {facts['right']:.0%} rightly on test samples; below alone {facts['below_alone']:.0%} (significantly "
        f"{facts['worse_than_alone']:.0%}), without it {facts['federated_below_alone']:.0%} "
        f"({facts['federated_worse_than_alone']:.0%})."
    )


def safeguard_section(groups: Sequence[Group]) -> str:
    """Write the choices of every run with a safeguard; an empty text where there is none."""
    parts = [
        _run_section(f"{group.label}, seed {run.seed}", run)
        for group in groups
        for run in group.runs
        if run.summary.get("safeguard")
    ]
    if not parts:
        return ""
    introduction = (
        "<p>Every client also trained alone, and used the federated model only where its validation samples supported "
        "it. Accuracies are on test samples, which no client chose by; <em>gained</em> and <em>lost</em> count test "
        "samples that only the used model, or only the standalone model, got right.</p>"
    )
    heading = '<section id="safeguard" aria-labelledby="h-safeguard">\n<h2 id="h-safeguard">Safeguard</h2>'
    return "\n".join([heading, introduction, *parts, "</section>"])


def _run_section(name: str, run: Run) -> str:
    sentence = f"<p>{escape(safeguard_sentence(run.summary['safeguard']))}</p>"
    rows = [row for row in run.clients if row["final"] and "federated_weight" in row]
    if not rows:
        return f"<h3>{escape(name)}</h3>{sentence}"
    lines = [
        (
            str(row["name"]),
            percent(row["accuracy_alone"]),
            percent(row["accuracy_federated"]),
            percent(row["accuracy"]),
            f"{row['federated_weight']:.2f}",
            str(row["gained"]),
            str(row["lost"]),
            "yes" if row["gained"] >= row["lost"] else "no",
        )
        for row in rows
    ]
    table = scroll_region(plain_table(HEADINGS, lines), f"Safeguard: {name}")
    return f"<h3>{escape(name)}</h3>{sentence}{table}"
