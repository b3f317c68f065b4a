"""The one exception a user may see, and what may stand in a sentence that quotes others."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import partial


class PotluckError(Exception):
    """Something the user can mend. The command prints it as one sentence and exits with code 2."""


def unknown(kind: str, value: str, valid: Iterable[str]) -> PotluckError:
    """The error for a name that does not exist, with the nearest name that does."""
    names = sorted(valid)
    same = [name for name in names if _bare(value) in (_bare(name), _bare(name.rpartition(".")[2]))]
    near = difflib.get_close_matches(value, names, n=3, cutoff=0.5)
    if same:
        hint = f"Did you mean {' or '.join(map(repr, same))}?"
    elif near:
        hint = f"Did you mean {max(near, key=partial(_likeness, value))!r}?"
    else:
        hint = f"Choose one of: {', '.join(names)}."
    return PotluckError(f"Unknown {kind} {value!r}. {hint}")


def _bare(name: str) -> str:
    """A name without what people spell differently: `FedGH`, `LG_FedAvg` and `fedgh`, `lg-fedavg` are the same."""
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


def _likeness(value: str, name: str) -> tuple[float, bool]:
    """How alike two names are; of two equally near ones, letters that merely changed places win."""
    return difflib.SequenceMatcher(None, value, name).ratio(), sorted(value) == sorted(name)


MAX_TEXT, MAX_TRACE = 2_000, 20_000
"""Characters of a reason and of a trace that are kept."""

_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")
"""What steers a terminal, turns the reading direction round, or cannot be written as UTF-8."""


def plain(text: str, limit: int = MAX_TEXT) -> str:
    """The text without what is no text, cut where it is longer than anybody would read."""
    kept = text if len(text) <= limit else f"{text[:limit]} …"
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", kept)
