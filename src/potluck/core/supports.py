"""What a method supports beyond its algorithm: robust rules, caps on weights, row-level privacy, asynchronous steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Condition = bool | Mapping[str, Any]
"""Always, never, or the settings of the method under which it holds: `{"collect": "after"}`; a tuple: any of these."""


@dataclass(frozen=True)
class SecureSums:
    """How a server that needs nothing but sums over clients uses them; masks can then hide the single answers.

    Weights are averaged as `max_share` says (by samples, or all alike), tensors with a row per label class by class.

    * `when`: the settings of the method under which sums are enough.
    * `others`: of tensors that are neither, the server needs the `mean` over clients or their `total`.
    * `per`: one sum over all clients, or one for the clients of each architecture.
    """

    when: Condition = True
    others: Literal["mean", "total"] = "mean"
    per: Literal["federation", "architecture"] = "federation"


@dataclass(frozen=True)
class Supports:
    """A method's declaration: `supports: ClassVar[Supports] = Supports(robust="the weights")`. Every default is safe.

    * `robust`: what `schedule.robust` acts on, through the averages and class vectors of `kit`; empty: nothing.
    * `comparable`: all updates have tensors of the same shapes, which krum and geometric-median compare.
    * `max_share`: clients count by their samples in these averages, which `schedule.max_share` limits.
    * `row_privacy`: clients read their training rows through `me.fit` and `me.class_means` alone, and nothing else that
      they send depends on rows; noise added there then protects every single row.
    * `fits`: how often one job calls `me.fit`, which the privacy accounting counts and enforces.
    * `sums`: the server needs nothing but sums over clients, which `privacy.secure_sums` masks; None: it needs single
      answers, and `single_answers` says for what.
    * `asynchronous`: a server step on less than a whole round makes sense.
    * `schedule`: the mode that the paper describes, used where the experiment sets none.
    """

    robust: str = ""
    comparable: bool = True
    max_share: Condition = False
    row_privacy: Condition = False
    fits: int = 1
    sums: SecureSums | None = None
    single_answers: str = ""
    asynchronous: Condition = True
    schedule: Literal["sync", "async"] = "sync"


def holds(condition: Condition, method: object) -> bool:
    """Return whether a condition is met by the method's present settings."""
    if isinstance(condition, bool):
        return condition
    return all(getattr(method, name) in _alternatives(value) for name, value in condition.items())


def settings_for(condition: Condition) -> str:
    """Spell out the settings that meet a condition, for an error message; empty where no setting decides."""
    if isinstance(condition, bool):
        return ""
    return " and ".join(
        f"method.{name} = {' or '.join(_literal(choice) for choice in _alternatives(value))}"
        for name, value in condition.items()
    )


def _alternatives(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _literal(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)
