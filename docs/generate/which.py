"""Write the table of "Which method?": what each method needs and sends on a small federation."""

from __future__ import annotations

import tempfile
from pathlib import Path

from generate import advice
from generate.text import replace_block, table

MARKS = ("same architecture", "nested width", "nested depth", "stages")
FEATURES = ("equal feature size", "shared small model of the clients' feature size")
SHARED = (
    "shared small model",
    "shared small model of the clients' feature size",
    "shared small model with no more features than a client's",
)


def update_page(page: str) -> str:
    """The page with its table as the code has it now."""
    return advice.update_page(replace_block(page, "methods", methods()))


def methods() -> str:
    """One line per method."""
    from potluck.methods import METHODS

    head = (
        "method",
        "clients' networks",
        "one feature size",
        "one kind of head",
        "shared small model",
        "public data",
        "robust rules act on",
        "numbers down",
        "numbers up",
    )
    return table(head, [_row(name) for name in METHODS], numbers=(7, 8))


def _row(name: str) -> tuple[object, ...]:
    from potluck.experiment.experiment import make_method
    from potluck.methods import method_class

    cls = method_class(name)
    requirements = {str(need) for need in make_method(cls, {}).requires()}
    down, up = traffic(name)
    return (
        f"[{name}](methods/{name}.md)",
        ", ".join(mark for mark in MARKS if mark in requirements) or "any",
        "yes" if requirements & set(FEATURES) else "",
        "yes" if "identical heads" in requirements else "",
        "yes" if requirements & set(SHARED) else "",
        "yes" if "public data" in requirements else "",
        cls.supports.robust or "nothing",
        down,
        up,
    )


def traffic(name: str) -> tuple[int, int]:
    """Numbers per client in the second round on digits: five clients and whatever networks suit the method."""
    import potluck

    with tempfile.TemporaryDirectory() as folder:
        run = potluck.run(
            name,
            clients=5,
            rounds=2,
            data={"name": "digits", "limit": 300},
            training={"epochs": 1},
            schedule={"mode": "sync"},
            evaluate={"every": 2},
            engine={"name": "serial", "checkpoint_every": 0},
            out=Path(folder) / "run",
        )
    last = run.rounds[-1]
    return round(last["floats_down"] / 5), round(last["floats_up"] / 5)
