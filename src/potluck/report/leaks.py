"""Show what answers reveal, as measured by `potluck leak`: pictures, and the report's section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from potluck.analysis.groups import Group
from potluck.core.errors import PotluckError
from potluck.core.files import parse_json, read_text
from potluck.report.sections import embedded_image, plain_table, scroll_region
from potluck.runs.folder import LEAK_PICTURES, LEAKS
from potluck.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINK = '<li><a href="#leaks">Leaks</a></li>'
HEADINGS = ("question", "score", "chance", "cases", "from")


def inversion_figure(shown: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a column per class of a client and a row per kind of picture; missing pictures stay empty."""
    from matplotlib.figure import Figure

    from potluck.analysis.leak.observations import read_pictures

    columns = [read_pictures(entry) for entry in shown]
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
    """Draw the pictures of an audit into the run's folder; without pictures, delete an older file."""
    file = run / LEAK_PICTURES
    if not shown:
        file.unlink(missing_ok=True)
        return None
    inversion_figure(shown).savefig(file, dpi=150, metadata={"Software": None})
    return file


def leaks_section(groups: Sequence[Group]) -> str:
    """Write scores and pictures of every audited run; an empty text where there is none."""
    parts = [part for group in groups for run in group.runs if (part := _run_section(group.label, run))]
    if not parts:
        return ""
    introduction = (
        "<p>What an honest-but-curious server could infer, each score beside its chance level. Pictures made "
        "<em>with the extractor</em> need the client's own network, or weights that were sent.</p>"
    )
    heading = '<section id="leaks" aria-labelledby="h-leaks">\n<h2 id="h-leaks">What answers reveal</h2>'
    return "\n".join([heading, introduction, *parts, "</section>"])


def _run_section(label: str, run: Run) -> str:
    file = run.path / LEAKS
    if not file.is_file():
        return ""
    try:
        leaks = parse_json(read_text(file))
        lines = [
            (
                leak["question"],
                f"{leak['score']:.3f}",
                f"{leak['chance']:.3f}",
                str(leak["cases"]),
                leak["way"],
            )
            for leak in leaks["scores"]
        ]
        skipped = "".join(f"<p>{escape(sentence)}</p>" for sentence in leaks["skipped"])
    except (ValueError, KeyError, TypeError):
        raise PotluckError(f"{str(file)!r} cannot be read; write it again with potluck leak.") from None
    name = f"{label}, seed {run.seed}"
    table = scroll_region(plain_table(HEADINGS, lines), f"What answers reveal: {name}")
    return f"<h3>{escape(name)}</h3>{table}{skipped}{_picture(run.path / LEAK_PICTURES, name)}"


def _picture(file: Path, name: str) -> str:
    if not file.is_file():
        return ""
    caption = f"{name}: clients' pictures, reconstructions, and the mean picture of the class"
    return embedded_image(file.read_bytes(), "png", caption)
