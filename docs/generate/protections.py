"""Write two parts of `docs/privacy.md`: which protection fits which method, and what secure sums cost and hide.

The first is made of the methods' declarations, the second of `results/secure-sums.json`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from generate.text import replace_block, table
from potluck.core.method import Method
from potluck.core.supports import holds, settings_for
from potluck.experiment.experiment import make_method
from potluck.methods import METHODS, method_class

NAME, MEASURED = "protections", "sums"
RESULTS = Path(__file__).parents[2] / "results" / "secure-sums.json"
ASKED = {
    "does it hold a class? (share told right)": "holds a class",
    "in what proportions? (overlap)": "class proportions",
    "was a sample trained on? (AUC)": "membership (AUC)",
    "is a client recognised in its next answer?": "recognised",
    "is the sample nearest to a class vector its own? (classes of 1)": "nearest sample is its own (classes of 1)",
    "inverted with the extractor, classes of 1: PSNR in dB": "picture, classes of 1 (PSNR, dB)",
    "inverted with the extractor, classes of 2 to 5: PSNR in dB": "picture, classes of 2 to 5 (PSNR, dB)",
}


def update_page(page: str) -> str:
    """The page with its table as the code has it now, and the stored measurements."""
    page = replace_block(page, NAME, body())
    return replace_block(page, MEASURED, measured(json.loads(RESULTS.read_text(encoding="utf-8"))))


def body() -> str:
    """One line per method."""
    head = ("method", "plain", "secure sum", "row-level noise", "a node can demand")
    return table(head, [_row(name) for name in METHODS if name != "standalone"])


def _row(name: str) -> tuple[str, ...]:
    method = make_method(method_class(name), {})
    sums, rows = secure_sums(method), _rows(method)
    demands = ["secure_sums"] if not sums.startswith("no") else []
    return (f"[{name}](methods/{name}.md)", "yes", sums, rows, ", ".join([*demands, "clip, noise, epsilon"]))


def secure_sums(method: Method[Any, Any, Any]) -> str:
    """Say whether secure sums fit a method: how many sums a round has, or why the server needs single answers."""
    sums = method.supports.sums
    if sums is None:
        return f"no: {method.supports.single_answers or 'its server reads single answers'}"
    groups = "one for each architecture" if sums.per == "architecture" else "one for all"
    return groups if holds(sums.when, method) else f"{groups}, with `{settings_for(sums.when)}`"


def _rows(method: Method[Any, Any, Any]) -> str:
    condition = method.supports.row_privacy
    if condition is False:
        return "no"
    return "yes" if holds(condition, method) else f"with `{settings_for(condition)}`"


def measured(protections: dict[str, Any]) -> str:
    """Bytes, time, exactness and leaks, each with and without secure sums."""
    rows, made = protections["rows"], protections["made"]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    seeds = len({row["seed"] for row in rows})
    exactness = {entry["method"]: entry for entry in protections["exactness"]}
    clients = next(iter(exactness.values()))["clients"]
    costs = []
    for method in methods:
        exact = exactness[method]
        cells = [method]
        for key in ("bytes_up", "bytes_down"):
            plain, sums = (
                _mean([row[key] for row in rows if _is(row, method, sums)]) for sums in (False, True)
            )
            cells.append(f"{plain / 1024:.1f} → {sums / 1024:.1f}")
        accuracies = [
            100 * _mean([row["accuracy"] for row in rows if _is(row, method, sums)]) for sums in (False, True)
        ]
        cells += [
            f"{1000 * exact['seconds'] / clients:.1f}",
            f"{exact['difference']:.1e}",
            "" if exact["bound"] is None else f"{exact['bound']:.1e}",
            " → ".join(f"{accuracy:.1f}" for accuracy in accuracies),
        ]
        costs.append(cells)
    head = (
        "method", "kB up", "kB down", "ms per client", "largest difference", "its bound", "accuracy in %",
    )  # fmt: skip
    answered = table(
        ("method", *ASKED.values()),
        [_answers(rows, method) for method in methods if _answers(rows, method)[1:]],
    )
    return "\n".join(
        [
            f"Digits, 900 rows, ten clients of `small-mlp`, Dirichlet(0.5), four rounds; means of {seeds} seeds, plain → secure sum. Bytes are "
            "those of one client and round. Milliseconds are processor time of the three stages after training, with real cryptography, all "
            "parties in one process; the difference is that of the server's state after one round, in single precision.\n",
            table(head, costs, numbers=range(1, len(head))),
            "",
            "What `potluck leak` finds in what the server sees, plain → secure sum, with the chance level of the latter in brackets:\n",
            answered,
            "",
            "Made by `python -m benchmarks.secure_sums --store results/secure-sums.json`: "
            f"commit {made.get('commit', 'unknown')}, {made['machine']}, Python {made['python']}, torch {made['torch']}.",
        ]
    )  # fmt: skip


def _is(row: dict[str, Any], method: str, sums: bool) -> bool:
    return row["method"] == method and row["sums"] == sums


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _answers(rows: Sequence[dict[str, Any]], method: str) -> list[str]:
    cells = []
    for question in ASKED:
        by_sums = {
            sums: [
                leak
                for row in rows
                if _is(row, method, sums)
                for leak in row["leaks"]
                if leak["question"] == question
            ]
            for sums in (False, True)
        }
        if not by_sums[True] or not by_sums[False]:
            cells.append("")
            continue
        digits = 1 if "PSNR" in question else 2
        plain, sums = (_mean([leak["score"] for leak in by_sums[key]]) for key in (False, True))
        chance = _mean([leak["chance"] for leak in by_sums[True]])
        cells.append(f"{plain:.{digits}f} → {sums:.{digits}f} ({chance:.{digits}f})")
    return [method, *cells] if any(cells) else []
