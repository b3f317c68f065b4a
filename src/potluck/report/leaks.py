"""What answers give away, as `potluck leak` found it: pictures, and the report's section."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.report.markup import plain_table, scrolled
from potluck.runs.folder import LEAK_PICTURES, LEAKS
from potluck.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINK = '<li><a href="#leaks">Leaks</a></li>'
HEADINGS = ("question", "score", "chance", "cases", "from")


def inversion_figure(shown: Sequence[Mapping[str, Any]]) -> Figure:
    """A column for each class of a client, a row for each kind of picture; what was not made stays empty."""
    from matplotlib.figure import Figure

    from potluck.analysis.leak.finding import read_shown

    columns = [read_shown(entry) for entry in shown]
    rows = list(dict.fromkeys(name for column in columns for name in column))
    figure = Figure(figsize=(1.5 + 0.8 * len(columns), 0.85 * len(rows) + 0.45), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for down, name in enumerate(rows):
        for across, (entry, column) in enumerate(zip(shown, columns, strict=True)):
            axes = grid[down, across]
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if name in column:
                picture = column[name]
                grey = len(picture) == 1
                axes.imshow(
                    picture[0] if grey else picture.transpose(1, 2, 0),
                    cmap="gray" if grey else None,
                    vmin=0,
                    vmax=255,
                )
            if down == 0:
                axes.set_title(_title(entry), fontsize=6)
            if across == 0:
                axes.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
    return figure


def _title(entry: Mapping[str, Any]) -> str:
    samples = "1 sample" if entry["samples"] == 1 else f"{entry['samples']} samples"
    return f"client {entry['client']}\nclass {entry['class']}\n{samples}"


def draw_pictures(run: Path, shown: Sequence[Mapping[str, Any]]) -> Path | None:
    """The pictures of a look at a run, in its folder; an older file goes where there are none."""
    file = run / LEAK_PICTURES
    if not shown:
        file.unlink(missing_ok=True)
        return None
    inversion_figure(shown).savefig(file, dpi=150, metadata={"Software": None})
    return file


def leaks_section(groups: Sequence[Group]) -> str:
    """For every run that was looked at the scores and pictures; nothing where none was."""
    parts = [part for group in groups for run in group.runs if (part := _run(group.label, run))]
    if not parts:
        return ""
    words = (
        "<p>What a curious server could have found out, each score beside what chance would give. Pictures made "
        "<em>with the extractor</em> need the client's own network, or weights that were sent.</p>"
    )
    heading = '<section id="leaks" aria-labelledby="h-leaks">\n<h2 id="h-leaks">What answers give away</h2>'
    return "\n".join([heading, words, *parts, "</section>"])


def _run(label: str, run: Run) -> str:
    file = run.path / LEAKS
    if not file.is_file():
        return ""
    try:
        found = parse_json(read_text(file))
        lines = [
            (one["question"], f"{one['score']:.3f}", f"{one['chance']:.3f}", str(one["cases"]), one["way"])
            for one in found["scores"]
        ]
        skipped = "".join(f"<p>{escape(sentence)}</p>" for sentence in found["skipped"])
    except (ValueError, KeyError, TypeError):
        raise PotluckError(f"{str(file)!r} cannot be read; make it again with potluck leak.") from None
    name = f"{label}, seed {run.seed}"
    table = scrolled(plain_table(HEADINGS, lines), f"What answers give away: {name}")
    return f"<h3>{escape(name)}</h3>{table}{skipped}{_picture(run.path / LEAK_PICTURES, name)}"


def _picture(file: Path, name: str) -> str:
    if not file.is_file():
        return ""
    words = escape(
        f"{name}: clients' own pictures, those made from answers, and the usual ones of the class", quote=True
    )
    image = base64.b64encode(file.read_bytes()).decode()
    return (
        f'<figure><img class="drawn" alt="{words}" src="data:image/png;base64,{image}">'
        f"<figcaption>{words}</figcaption></figure>"
    )
