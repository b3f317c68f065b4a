"""The exception for user errors, and text from other parties made safe to print."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import partial


class PotluckError(Exception):
    """A user error. The command prints it as one sentence and exits with code 2."""


def unknown(kind: str, value: str, valid: Iterable[str]) -> PotluckError:
    """Return the error for an unknown name, with the nearest valid one."""
    names = sorted(valid)
    same = [
        name
        for name in names
        if _normalised(value) in (_normalised(name), _normalised(name.rpartition(".")[2]))
    ]
    matches = difflib.get_close_matches(value, names, n=3, cutoff=0.5)
    if same:
        hint = f"Did you mean {' or '.join(map(repr, same))}?"
    elif matches:
        hint = f"Did you mean {max(matches, key=partial(_similarity, value))!r}?"
    else:
        hint = f"Choose one of: {', '.join(names)}."
    return PotluckError(f"Unknown {kind} {value!r}. {hint}")


def how_to_set(name: str, value: str = "", *, option: bool = True) -> str:
    """Return how to give a data setting: its name in files, its option of commands, its argument in Python.

    `how_to_set("label", "COLUMN")` is `set data.label=COLUMN (--label COLUMN; in Python label=)`.
    """
    typed = f"--{name.replace('_', '-')} {value}; " if option else ""
    return f"set data.{name}{f'={value}' if value else ''} ({typed}in Python {name}=)"


def _normalised(name: str) -> str:
    """Normalise spelling: `FedGH` and `LG_FedAvg` become `fedgh` and `lgfedavg`."""
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _similarity(value: str, name: str) -> tuple[float, bool]:
    """Rate the similarity of two names; of equally near ones, an anagram is rated higher."""
    return difflib.SequenceMatcher(None, value, name).ratio(), sorted(value) == sorted(name)


MAX_TEXT, MAX_TRACE = 2_000, 20_000
"""Characters of a reason and of a trace that are kept."""

_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""Characters that control a terminal, change the reading direction, or cannot be encoded as UTF-8."""


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """Return the text without control characters, cut at `limit`."""
    shortened = text if len(text) <= limit else f"{text[:limit]} …"
    return _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", shortened)
