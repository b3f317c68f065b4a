"""How methods are told apart: colour, line and marker together, so that none of them is needed alone.

The colours are Okabe and Ito's, which stay apart for colour-blind readers; dark pages get lighter ones.
"""

from __future__ import annotations

from dataclasses import dataclass

_LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B6470")
_DARK = ("#4FA8E0", "#FF8A4C", "#2CC295", "#E39AC6", "#F2B632", "#9AD8FF", "#C3C9D2")
# (plotly, matplotlib) names of the same thing
_DASHES = (("solid", "-"), ("dash", "--"), ("dot", ":"), ("dashdot", "-."))
_MARKERS = (
    ("circle", "o"),
    ("square", "s"),
    ("diamond", "D"),
    ("triangle-up", "^"),
    ("triangle-down", "v"),
    ("x", "X"),
    ("star", "*"),
)


@dataclass(frozen=True)
class Look:
    """How one method is drawn, on screen and in print."""

    light: str
    dark: str
    dash: str
    symbol: str
    linestyle: str
    marker: str


def look(position: int) -> Look:
    """The look of the method at `position`; colours come round after seven, with another line each time."""
    dash, linestyle = _DASHES[position % len(_DASHES)]
    symbol, marker = _MARKERS[position % len(_MARKERS)]
    return Look(_LIGHT[position % len(_LIGHT)], _DARK[position % len(_DARK)], dash, symbol, linestyle, marker)
