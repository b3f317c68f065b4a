"""Write what two soak tests measured, the second one with secure sums, into the guide to three machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from generate.text import code, replace_block, table

RESULTS = Path(__file__).parents[2] / "results" / "soak.json"
SUMS = RESULTS.with_name("soak-sums.json")
NAME = "soak"
KINDS = {
    "the server": "the server (Flower's SuperLink)",
    "the runner": "the program that starts runs",
    "the server's app": "the run's own process",
    "node": "a node's connection (SuperNode)",
    "the worker of node": "a node's worker",
}


def update_page(page: str) -> str:
    """The page with the figures of the stored soak."""
    plain_run, sums = (json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, SUMS))
    return replace_block(page, NAME, f"{body(plain_run)}\n\n{with_sums(sums)}")


def with_sums(soak: dict[str, Any]) -> str:
    """A sentence on the soak with secure sums."""
    losses, made = sum(soak["losses on record"].values()), soak["made"]
    return (
        f"With `privacy.secure_sums` (fedproto, sums of two clients or more, `python tests/support/soak.py --secure-sums --minutes "
        f"{soak['minutes']:g} --every {soak['every']:g}`): {soak['strikes']} strikes in {soak['minutes']:g} minutes, some of them between the stages of a sum. The run "
        f"had all its {soak['rounds']} rounds; {soak['answers']} of {3 * soak['rounds']} answers are in their sums, {losses} on record as lost. "
        f"Commit {made['commit']}, load {made['load']:g}."
    )


def body(soak: dict[str, Any]) -> str:
    """The command, what was struck how often, and what became of the run."""
    made, losses = soak["made"], soak["losses on record"]
    command = f"    make soak MINUTES={soak['minutes']:g} RECORD=results/soak.json\n"
    rows = [
        [KINDS[kind], *(_struck(soak["faults"], action, kind) for action in ("killed", "stopped"))]
        for kind in KINDS
    ]
    counts = ", ".join(f"{count} {code(kind)}" for kind, count in sorted(losses.items())) or "none"
    again = sum(soak["starts again"].values())
    return "\n".join(
        [
            command,
            f"{soak['strikes']} strikes in {soak['minutes']:g} minutes, one every {soak['every']:g} seconds, on a machine with other "
            f"work (load {made['load']:g} on {made['machine'].rpartition(', ')[2]}):\n",
            table(["program", "killed", "stopped for 10 to 75 seconds"], rows, numbers=(1, 2)),
            "",
            f"The run had all its {soak['rounds']} rounds, {soak['rounds without a loss']} of them without a loss. Of "
            f"{3 * soak['rounds']} answers {soak['answers']} came; the others are on record, each with its reason ({counts}). Programs were "
            f"started again {again} times, and the run was submitted again {soak['submitted again']} times. The last round ended "
            f"{soak['seconds'] / 60:.0f} minutes after the first. Commit {made.get('commit', 'unknown')}, Flower {made['flwr']}, "
            f"Python {made['python']}, torch {made['torch']}.",
        ]
    )  # fmt: skip


def _struck(faults: dict[str, int], action: str, kind: str) -> int:
    """How often a program of this kind was struck in this way, whichever node's it was."""
    return sum(count for name, count in faults.items() if name.rstrip(" 0123456789") == f"{action} {kind}")
