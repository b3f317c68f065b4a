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
