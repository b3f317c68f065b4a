"""Collect what is known of clients before training, beside what they gained in stored runs: the data of `worth-it`.

    PYTHONPATH=docs python -m generate.calibration

reads `results/cpu.csv` and `results/cpu.json`, deals the samples of every task and seed again (which needs the data
sets), and writes `results/worth-it.csv`: a line per client, with a gain over standalone training for each method. Two
tasks with rows are the least: rules are calibrated on one half of the tasks and scored on the other.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from potluck.runs.resolve import resolve
from potluck.suites.statistics import BASELINES, REFERENCE
from potluck.suites.store import Results
from potluck.suites.suite import Suite, Task, find_suite

ROOT = Path(__file__).parents[2]
FACTS = ("task", "seed", "client", "samples", "classes", "of_classes", "largest")
LEAST_TASKS = 2


def main(root: Path = ROOT) -> None:
    """Write the table; end with a sentence where too few tasks have rows."""
    suite, results = find_suite("cpu"), Results.read(root / "results", "cpu")
    tasks = calibration_tasks(suite, results)
    if len(tasks) < LEAST_TASKS:
        names = ", ".join(task.name for task in tasks) or "none"
        raise SystemExit(
            f"Rules are calibrated on one half of the tasks and scored on the other, and of the suite cpu only {names} "
            f"has rows of {REFERENCE} and of a method; run potluck benchmark cpu --resume first."
        )
    rows = [row for task in tasks for seed in task.seeds for row in task_rows(suite, results, task, seed)]
    methods = sorted({name for row in rows for name in row} - set(FACTS))
    with (root / "results" / "worth-it.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*FACTS, *methods], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def calibration_tasks(suite: Suite, results: Results) -> list[Task]:
    """Return the tasks that have rows of training alone and of a federated method."""
    methods = {
        task.name: {row.method for row in results.rows if row.task == task.name} for task in suite.tasks
    }
    return [
        task
        for task in suite.tasks
        if REFERENCE in methods[task.name] and methods[task.name] - set(BASELINES)
    ]


def task_rows(suite: Suite, results: Results, task: Task, seed: int) -> Iterator[dict[str, str]]:
    """Yield a line per client that was tested, if the stored runs of a task and seed have as many of them."""
    clients = {
        row.method: results.details[row.experiment]["clients"]
        for row in results.rows
        if (row.task, row.seed) == (task.name, seed) and row.method in (REFERENCE, *federated(results))
    }
    if REFERENCE not in clients:
        return
    plan = resolve(suite.experiment(task, REFERENCE, seed, {"training.lr": task.rates[0]}), measure=False)
    counts = plan.federation.class_counts()
    tested = [
        info.index
        for info, member in zip(plan.federation.task.clients, plan.federation.members, strict=True)
        if info.index not in plan.newcomers and len(member.test)
    ]
    alone = clients.pop(REFERENCE)
    if len(tested) != len(alone):
        raise SystemExit(f"{task.name}, seed {seed}: {len(alone)} stored clients, {len(tested)} dealt again")
    for place, index in enumerate(tested):
        own = counts[index]
        facts = (task.name, seed, index, sum(own), sum(n > 0 for n in own), len(own), max(own))
        gains = {
            name: f"{values[place] - alone[place]:.5g}"
            for name, values in sorted(clients.items())
            if len(values) == len(alone)
        }
        yield {**dict(zip(FACTS, map(str, facts), strict=True)), **gains}


def federated(results: Results) -> set[str]:
    """Return the methods of the rows that are no baselines."""
    return {row.method for row in results.rows} - set(BASELINES)


if __name__ == "__main__":
    main()
