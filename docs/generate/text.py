"""Format Markdown: tables, and page blocks between two comments that are replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Sequence[int] = ()) -> str:
    """A Markdown table; the columns of `numbers` are set to the right."""
    rule = ["---:" if place in numbers else "---" for place in range(len(head))]
    lines = [list(head), rule, *[[cell(value) for value in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: object) -> str:
    """A value inside a table: no line breaks, no bars."""
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return " ".join(text.split()).replace("|", "\\|")


def code(value: object) -> str:
    """A value as code."""
    return f"`{value}`"


def format_default(value: object) -> str:
    """A default as an experiment file would say it."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, tuple | list):
        return code(", ".join(map(str, value))) if value else "none"
    return code(value) if value != "" else "empty"


def find_block(page: str, name: str) -> str | None:
    """What stands between a page's `<!-- name: made by … -->` and `<!-- end -->`; nothing where there is no such block."""
    match = _pattern(name).search(page)
    return match[2] if match else None


def replace_block(page: str, name: str, body: str) -> str:
    """The page with another body of that block."""
    if find_block(page, name) is None:
        raise ValueError(f"the page has no block <!-- {name}: made by make pages -->")
    return _pattern(name).sub(lambda match: f"{match[1]}\n{body.strip()}\n{match[3]}", page, count=1)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name}: made by make pages -->\n)(.*?)(<!-- end -->)", re.DOTALL)
