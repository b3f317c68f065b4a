"""Formulas of the site: LaTeX between dollar signs becomes MathML, which browsers render without any script."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

_FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def render(page: str, name: str) -> str:
    """Return a page with its formulas as MathML; a formula that cannot be read stops the build."""

    def formula(match: re.Match[str]) -> str:
        latex = html.unescape(match["latex"]).strip()
        try:
            made = str(convert(latex, display="block" if match["tag"] == "div" else "inline"))
        except Exception as error:
            raise PluginError(f"The formula {latex!r} of {name} cannot be read ({error}).") from None
        if "\\" in made or latex.count("{") != latex.count("}"):  # an unknown command is shown as it stands
            raise PluginError(f"The formula {latex!r} of {name} cannot be read.")
        return made

    return _FORMULA.sub(formula, page)
