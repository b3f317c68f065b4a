"""Compare rules by share of attackers: means over attacks and seeds on which every rule was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from generate.benchmark.formatting import format_mean_std, wrap_text

SHARES = (0.0, 0.1, 0.2, 0.3)


@dataclass(frozen=True)
class HonestAccuracy:
    """Honest accuracy of one run, and what it was measured on; a share of 0 means no attack."""

    data: str
    method: str
    rule: str
    attack: str
    share: float
    seed: int
    honest: float

    @property
    def case(self) -> tuple[str, float, int]:
        """What must be the same for rules to compare."""
        return self.attack, self.share, self.seed


def sections(found: Sequence[HonestAccuracy]) -> list[str]:
    """For each data set a table of methods and rules over the share of attackers."""
    parts = []
    for data in dict.fromkeys(one.data for one in found):
        lines, attacks, seeds = list[str](), set[str](), set[int]()
        for method in dict.fromkeys(one.method for one in found if one.data == data):
            kept = _comparable([one for one in found if (one.data, one.method) == (data, method)])
            if kept:
                lines += _lines(method, kept)
                attacks |= {one.attack for one in kept if one.share}
                seeds |= {one.seed for one in kept}
        if lines:
            head = [
                "| method | rule | no attack | 10 % | 20 % | 30 % | worst attack | cases |",
                "|---|---|---:|---:|---:|---:|---:|---:|",
            ]
            reading = (
                f"Means over {', '.join(sorted(attacks))} and the seeds {', '.join(map(str, sorted(seeds)))}, ± the "
                "standard deviation over seeds where there are several; only what was run under every rule of the "
                "method at every share. *Cases* are runs. *Worst attack* is the lowest mean of one attack at one "
                "share. In bold: the rule with the best mean of the four columns, which is the one to take."
            )
            parts.append(
                f"## {data[0].upper()}{data[1:]}: which rule to take\n\n{wrap_text(reading)}\n\n"
                + "\n".join(head + lines)
            )
    return parts


def _comparable(found: Sequence[HonestAccuracy]) -> list[HonestAccuracy]:
    """Cases that all rules have which were measured at every share; nothing where there is but one such rule."""
    rules = [
        rule
        for rule in dict.fromkeys(one.rule for one in found)
        if {one.share for one in found if one.rule == rule} >= set(SHARES)
    ]
    if len(rules) < 2:
        return []
    cases = set.intersection(*({one.case for one in found if one.rule == rule} for rule in rules))
    at: dict[tuple[str, int], set[float]] = {}
    for attack, share, seed in cases:
        at.setdefault((attack, seed), set()).add(share)
    attacked = {key for key, known in at.items() if known >= set(SHARES[1:])}
    seeds = {seed for _, seed in attacked}
    calm = {key for key, known in at.items() if known == {0.0} and key[1] in seeds}
    whole = attacked | calm
    return [
        one for one in found if one.rule in rules and one.case in cases and (one.attack, one.seed) in whole
    ]


def _lines(method: str, kept: Sequence[HonestAccuracy]) -> list[str]:
    rules = list(dict.fromkeys(one.rule for one in kept))
    columns = {rule: [_over_seeds(kept, rule, share) for share in SHARES] for rule in rules}
    if not all(all(row) for row in columns.values()):
        return []
    best = max(rules, key=lambda rule: float(np.mean([np.mean(cell) for cell in columns[rule]])))
    lines = []
    for rule in rules:
        cells = " | ".join(format_mean_std(cell) for cell in columns[rule])
        cases = sum(one.rule == rule for one in kept)
        name = f"**`{rule}`**" if rule == best else f"`{rule}`"
        lines.append(f"| {method} | {name} | {cells} | {_worst(kept, rule)} | {cases} |")
    return lines


def _over_seeds(kept: Sequence[HonestAccuracy], rule: str, share: float) -> list[float]:
    """The mean over attacks, for each seed."""
    mine = [one for one in kept if (one.rule, one.share) == (rule, share)]
    return [
        float(np.mean([one.honest for one in mine if one.seed == seed]))
        for seed in sorted({o.seed for o in mine})
    ]


def _worst(kept: Sequence[HonestAccuracy], rule: str) -> str:
    cells: dict[tuple[str, float], list[float]] = {}
    for one in kept:
        if one.rule == rule and one.share:
            cells.setdefault((one.attack, one.share), []).append(one.honest)
    (attack, share), values = min(cells.items(), key=lambda item: float(np.mean(item[1])))
    return f"{100 * np.mean(values):.1f} ({attack}, {100 * share:.0f} %)"
