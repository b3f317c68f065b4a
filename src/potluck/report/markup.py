"""Small pieces of HTML that several sections use; whatever text they are given is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from potluck.report.palette import look

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


def swatch(position: int) -> str:
    """A short line in the method's colour, dash and marker; decoration, the label says it in words."""
    dashes = {"solid": "", "dash": "7 3", "dot": "2 3", "dashdot": "7 3 2 3"}[look(position).dash]
    return (
        f'<svg class="swatch" data-group="{position}" width="26" height="10" aria-hidden="true">'
        f'<line x1="1" y1="5" x2="25" y2="5" stroke-dasharray="{dashes}"/>'
        f'<path d="{_SYMBOLS[look(position).symbol]}"/></svg>'
    )


def scrolled(inner: str, name: str) -> str:
    """A wide table that scrolls by itself, by finger and by keyboard, so that the page need not."""
    label = escape(name, quote=True)
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">{inner}</div>'


def plain_table(headings: Iterable[str], lines: Iterable[Sequence[str]]) -> str:
    """A table of texts whose first column names the line."""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in headings)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        + "</tr>"
        for first, *rest in lines
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
