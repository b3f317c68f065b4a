"""The one exception a user may see: a sentence that names the field, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import partial


class PotluckError(Exception):
    """Something the user can mend. The command prints it as one sentence and exits with code 2."""


def unknown(kind: str, value: str, valid: Iterable[str]) -> PotluckError:
    """The error for a name that does not exist, with the nearest name that does."""
    names = sorted(valid)
    near = difflib.get_close_matches(value, names, n=3, cutoff=0.5)
    hint = (
        f"Did you mean {max(near, key=partial(_likeness, value))!r}?"
        if near
        else f"Choose one of: {', '.join(names)}."
    )
    return PotluckError(f"Unknown {kind} {value!r}. {hint}")


def _likeness(value: str, name: str) -> tuple[float, bool]:
    """How alike two names are; of two equally near ones, letters that merely changed places win."""
    return difflib.SequenceMatcher(None, value, name).ratio(), sorted(value) == sorted(name)
