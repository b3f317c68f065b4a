"""Short forms of the rules: constructors for Python, `name:value` texts for the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from potluck.core.errors import PotluckError, unknown
from potluck.data.partitions.from_file import FromFile
from potluck.data.partitions.pathological import Pathological, Rule
from potluck.data.partitions.rules import Contiguous, Dirichlet, Iid, Natural, Partition
from potluck.data.partitions.skew import Skew


def iid() -> Iid:
    """Random rows, equal sizes."""
    return Iid()


def contiguous() -> Contiguous:
    """Equal pieces in file order."""
    return Contiguous()


def natural() -> Natural:
    """Return one client per person, writer or device in the data."""
    return Natural()


def dirichlet(alpha: float, min_size: int = 10, capped: bool = True) -> Dirichlet:
    """Label skew by Dirichlet shares: the smaller `alpha`, the more uneven."""
    return Dirichlet(alpha, min_size, capped)


def pathological(classes: int, rule: Rule = "yi", min_size: int = 40) -> Pathological:
    """Return a few classes per client, by Yi's rule or PFLlib's."""
    return Pathological(classes, rule, min_size)


def skew(
    rotate: float = 0.0, blur: float = 0.0, contrast: float = 0.0, base: Partition | None = None
) -> Skew:
    """Feature skew: rotations, blurs and contrasts of each client's own, over rows dealt by `base` (or at random)."""
    return Skew(rotate, blur, contrast, base or Iid())


def from_file(path: str) -> FromFile:
    """Your own assignment, from a .json, .csv or .npz file."""
    return FromFile(str(path))


NAMED = (Iid, Contiguous, Natural, Dirichlet, Pathological, FromFile, Skew)


def has_short_form(rule: Partition) -> bool:
    """Return whether a text describes a rule fully; a user's own class, even a subclass of ours, is more than it."""
    return type(rule) in NAMED


def parse_partition(text: str | Partition) -> Partition:
    """`"dirichlet:0.1"`, `"pathological:2,rule=pfllib"`, `"iid"`, `"file:PATH"`, … as a rule.

    `parse_partition(str(rule)) == rule` for every rule.
    """
    if isinstance(text, Partition):
        return text
    name, _, rest = text.strip().partition(":")
    makers: dict[str, Callable[[str], Partition]] = {
        "iid": lambda rest: _plain(text, rest, Iid()),
        "contiguous": lambda rest: _plain(text, rest, Contiguous()),
        "natural": lambda rest: _plain(text, rest, Natural()),
        "file": _file,
        "dirichlet": lambda rest: _dirichlet(text, rest),
        "pathological": lambda rest: _pathological(text, rest),
        "skew": lambda rest: _skew(text, rest),
    }
    if name not in makers:
        raise unknown("partition", text, makers)
    return makers[name](rest)


def _plain(text: str, rest: str, rule: Partition) -> Partition:
    if rest:
        raise PotluckError(f"Partition {text!r} takes no value; write {str(rule)!r}.")
    return rule


def _file(rest: str) -> Partition:
    if not rest:
        raise PotluckError("Partition 'file' needs a path; write file:PATH.")
    return FromFile(rest)


def _dirichlet(text: str, rest: str) -> Partition:
    value, options = _options(text, rest, {"min_size", "capped"}, "dirichlet:0.1")
    try:
        alpha, min_size = float(value), int(options.get("min_size", "10"))
        capped = {"true": True, "false": False}[options.get("capped", "true").lower()]
    except (ValueError, KeyError):
        raise _not_understood(text, "dirichlet:0.1 or dirichlet:0.1,min_size=40,capped=false") from None
    return Dirichlet(alpha, min_size, capped)


def _pathological(text: str, rest: str) -> Partition:
    value, options = _options(text, rest, {"rule", "min_size"}, "pathological:2")
    try:
        classes, min_size = int(value), int(options.get("min_size", "40"))
    except ValueError:
        raise _not_understood(text, "pathological:2 or pathological:2,rule=pfllib") from None
    return Pathological(classes, cast(Rule, options.get("rule", "yi")), min_size)


def _skew(text: str, rest: str) -> Partition:
    """`rotate=45,blur=1,contrast=0.5`; `base=RULE` comes last, because a rule may have commas itself."""
    changes, _, base = rest.partition("base=")
    values: dict[str, float] = {}
    for pair in (part.strip() for part in changes.split(",") if part.strip()):
        key, _, value = pair.partition("=")
        if key not in ("rotate", "blur", "contrast"):
            raise unknown(f"option of partition {text!r}", key, ("rotate", "blur", "contrast", "base"))
        try:
            values[key] = float(value)
        except ValueError:
            raise _not_understood(
                text, "skew:rotate=45 or skew:rotate=30,blur=1,base=dirichlet:0.5"
            ) from None
    return Skew(**values, base=parse_partition(base) if base else Iid())


def _options(text: str, rest: str, allowed: set[str], example: str) -> tuple[str, dict[str, str]]:
    """Return the value and the `key=value` pairs after the name."""
    first, *pairs = (part.strip() for part in rest.split(","))
    options = {key: value for key, _, value in (pair.partition("=") for pair in pairs)}
    for key in options:
        if key not in allowed:
            raise unknown(f"option of partition {text!r}", key, allowed)
    if not first:
        raise _not_understood(text, example)
    return first, options


def _not_understood(text: str, example: str) -> PotluckError:
    return PotluckError(f"Partition {text!r} is not understood; write {example}.")
