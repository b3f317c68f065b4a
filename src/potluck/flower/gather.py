"""Who the clients of a run are: the nodes that come to its start, or, when it goes on, those that it began with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from potluck.core.errors import PotluckError
from potluck.flower.node.registration import Registration
from potluck.flower.roll import Roll, natural

Misfits = Callable[[Sequence[Registration]], Mapping[str, str]]
"""Which nodes contradict the others: names, each with its sentence."""


def gather(
    roll: Roll,
    count: int,
    wait: float,
    *,
    least: int = 0,
    stop: bool = True,
    misfits: Misfits = lambda people: {},
) -> None:
    """Wait until `count` nodes have introduced themselves; they become the clients, in the order of names.

    A node that cannot take part is left out. Others may still come in its place; when `wait` is over, the run begins
    without it, if `least` nodes are there. Where all are needed, one with a wrong name ends the start, and, there or
    with `stop`, one that does not want to take part.
    """
    found: dict[str, Registration] = {}
    ends, least = time.monotonic() + wait, least or count
    while True:
        roll.admit(found)
        over = time.monotonic() > ends
        if len(found) >= count or over:
            for name, why in misfits(list(found.values())).items():
                roll.part_with(name, why)
                del found[name]
        if len(found) >= count:
            break
        _give_up(roll, len(found), count, all_needed=least >= count, stop=stop)
        if over:
            came = len(found) + len(roll.left_out) + len(roll.asked)
            if len(found) >= least and came >= count:
                break
            raise PotluckError(_too_few(roll, len(found), count, wait))
        roll.pause()
    roll.begin([found[name] for name in sorted(found, key=natural)][:count])


def _give_up(roll: Roll, found: int, count: int, *, all_needed: bool, stop: bool) -> None:
    """End the start where just those have spoken that it waits for, and one of them will not do."""
    ending = {"name", "unwilling"} if all_needed else {"unwilling"} if stop else set()
    spoiled = [one.why for one in roll.left_out.values() if one.kind in ending]
    if spoiled and found + len(spoiled) >= count and not roll.asked:
        raise PotluckError(spoiled[0])


def _too_few(roll: Roll, found: int, count: int, wait: float) -> str:
    first = next((one.why for one in roll.left_out.values()), "")
    return (
        f"{found} of {count} nodes answered within engine.wait = {wait:g} seconds; start the "
        f"others (potluck node start) or raise engine.wait.{' One was left out: ' if first else ''}{first}"
    )


def gather_again(roll: Roll, people: Sequence[Registration], wait: float, least: int) -> None:
    """Wait for the nodes that a run began with. When `wait` is over it goes on without those that are not back.

    They stay its clients: their jobs are lost, and a node that comes back under its name takes part again.
    """
    roll.begin(people, missing=True)
    ends = time.monotonic() + wait
    while True:
        roll.call()
        missing = roll.missing()
        if not missing:
            return
        if time.monotonic() > ends:
            break
        roll.pause()
    if len(people) - len(missing) < max(1, least):
        first = next((f" {one.why}" for one in roll.left_out.values()), "")
        raise PotluckError(
            f"{len(people) - len(missing)} of this run's {len(people)} nodes were back within engine.wait = {wait:g} "
            f"seconds; start {', '.join(map(repr, missing[:5]))} (potluck node start) or raise engine.wait.{first}"
        )
    print(f"Going on without {', '.join(map(repr, missing))}.", flush=True)
