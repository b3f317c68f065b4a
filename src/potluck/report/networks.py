"""The report's pictures of what networks see: CKA and t-SNE, drawn once and put into the page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from potluck.analysis.groups import Group
from potluck.report.options import Options
from potluck.report.style import for_print

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINK = '<li><a href="#networks">Networks</a></li>'


def networks_section(groups: Sequence[Group]) -> str:
    """Similarity of clients at every stage, for all methods; then each method by itself, pair by pair and laid out."""
    from potluck.report import seen_figures  # needs torch, which other parts of the report do not

    with for_print():
        caption = "How alike clients' networks see the same test samples (mean linear CKA over pairs), stage by stage"
        pictures = [_picture(seen_figures.cka_stages(list(groups), Options()), caption)]
        for group in groups:
            shown = f"{group.label}: how alike each pair of clients sees them (linear CKA of the features)"
            pictures.append(_picture(seen_figures.cka([group], Options()), shown))
            shown = f"{group.label}: features of clients' own test samples (t-SNE); the colour is the class"
            pictures.append(_picture(seen_figures.tsne([group], Options()), shown))
            if seen_figures.sends_vectors(group):
                shown = f"{group.label}: what the server sends of each class, and the mean of what clients have (t-SNE)"
                pictures.append(_picture(seen_figures.tsne([group], Options(field="vectors")), shown))
    heading = (
        '<section id="networks" aria-labelledby="h-networks">\n<h2 id="h-networks">What networks see</h2>'
    )
    return "\n".join([heading, *pictures, "</section>"])


def _picture(figure: Figure, caption: str) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    image = base64.b64encode(out.getvalue()).decode()
    words = escape(caption, quote=True)
    return (
        f'<figure><img class="drawn" alt="{words}" src="data:image/svg+xml;base64,{image}">'
        f"<figcaption>{words}</figcaption></figure>"
    )
