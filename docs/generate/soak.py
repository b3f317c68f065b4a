"""Write what soak tests and single outages cost into the guide to three machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from generate.text import code, replace_block, table

RESULTS = Path(__file__).parents[2] / "results" / "soak.json"
SUMS = RESULTS.with_name("soak-sums.json")
TEN = RESULTS.with_name("soak-ten.json")
OUTAGES = RESULTS.with_name("outages.json")
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
    plain_run, sums, ten, single = (
        json.loads(path.read_text(encoding="utf-8")) for path in (RESULTS, SUMS, TEN, OUTAGES)
    )
    page = replace_block(page, "outages", outages(single))
    return replace_block(page, NAME, f"{body(plain_run)}\n\n{with_hostile(ten)}\n\n{with_sums(sums)}")


def outages(stored: dict[str, Any]) -> str:
    """A table of single outages, and what each of them cost."""
    undisturbed, usual_rounds = next(
        (row["seconds"], row["rounds"]) for row in stored["outages"] if row["outage"] == "none"
    )
    rows = [
        [
            row["outage"],
            f"{row['same']} of {row['rounds']}",
            row["lost"],
            "yes" if row["last round has all"] else "no",
            max(0, row["seconds"] - undisturbed) if row["rounds"] == usual_rounds else "",
        ]
        for row in stored["outages"]
    ]
    head = [
        "outage after round 3",
        "rounds with the serial engine's bits",
        "answers lost",
        "all nodes in the last round",
        "seconds longer",
    ]
    commits = sorted({row["commit"] for row in stored["outages"]})
    loads = [row["load"] for row in stored["outages"]]
    return (
        f"{table(head, rows, numbers=(2, 4))}\n\nThree nodes, `make outages`. A lost answer changes all later rounds. A longer run goes on "
        f"without the node that is stopped, so its seconds are not those of the outage. Commit {', '.join(commits)}, Flower {stored['flwr']}, "
        f"load {min(loads):g} to {max(loads):g}."
    )


def with_hostile(soak: dict[str, Any]) -> str:
    """A sentence on the soak with ten nodes."""
    losses, made, hostile = (
        sum(soak["losses on record"].values()),
        soak["made"],
        soak["losses of the hostile node"],
    )
    every = soak["nodes"] * soak["rounds"]
    return (
        f"With {soak['nodes']} nodes, one of which withholds half of its answers (`python tests/support/soak.py --nodes {soak['nodes']} "
        f"--hostile --minutes {soak['minutes']:g} --every {soak['every']:g}`): {soak['strikes']} strikes in {soak['minutes']:g} minutes. The run had "
        f"all its {soak['rounds']} rounds; {soak['answers']} of {every} answers came, {losses} are on record as lost, {hostile} of them the "
        f"hostile node's, which is left out after two in succession. Commit {made['commit']}, load {made['load']:g}."
    )


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
