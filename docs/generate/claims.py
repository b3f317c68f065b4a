"""Write the page of the papers' claims: each figure and verdict follows from stored results."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generate.evidence import CONTRADICTED, NO_ROWS, RESULTS, VERDICTS, Finding
from generate.papers import CELLS, unclean_sentence
from generate.scores import training_spread
from generate.text import cell, table
from generate.verdicts import judge_test
from potluck.recipes.store import read_cells

LEDGER = Path(__file__).parents[1] / "tables" / "claims.toml"
ABOUT = """\
Every claim of the five papers' abstracts, experiments and conclusions, in our words, with what was run to test it and what came out. Made by
`make pages` from `docs/tables/claims.toml` (the claims and their tests) and the files in `results/` (the numbers); a test fails when this page
and the data disagree. [Reproduce](reproduce.md) has the papers' tables beside these runs; [the benchmark](benchmark.md) has the suite `cpu`, where every
method is tuned alike; the suites `gain`, `defaults` and `asynchrony` are [when it helps](when-it-helps.md), [default settings](defaults.md) and
[asynchrony](asynchrony.md).

## What a verdict takes

* **supported**: ahead by more than chance in the mean over the places that were measured, against the rival that is best on average, and behind by more than
  chance in none;
* **contradicted**: behind by more than chance somewhere or in the mean, or the claimed lead (one point where none is claimed) excluded in the mean;
* **undecided**: the default, wherever chance, rounds, rows or scale do not let the numbers decide; **not run**: no rows so far; **not testable**: no experiment of
  this kind can show it.

Only rows of the full scale (the paper's data, clients, models and local training) decide, and counts: numbers sent, memory and operations follow from shapes.
Rows of the small scale and of suites are shown and decide nothing, but for counts that support a claim. Rows of the full scale decide what a run ends with only if

* they have a fifth of the paper's rounds: no run of ten rounds says what converges in five hundred;
* the method's mechanism acted where it records that: mixing weights off one, a header or guiding vectors that moved, features that were exchanged;
* every row is there that the claim is about; but one rival that is ahead is enough to contradict a lead over all.

**Chance.** A difference stands as *+3.0 ± 1.2*: the 95 % interval over seeds, by the spread of the differences on the same seeds and clients, and a point at the least. With
one seed it is the larger of two reaches: that of testing on so many samples, and that of another seed, taken from {spread}. A rival that is the best of
several is one of so many comparisons (Bonferroni), and the interval is wider for it."""


@dataclass(frozen=True)
class Claim:
    """One line of the ledger: a test, or else a verdict of its own."""

    paper: str
    place: str
    says: str
    why: str = ""
    test: Mapping[str, Any] | None = None
    verdict: str = ""
    because: Sequence[Mapping[str, Any]] = ()
    """Tests whose figures support the reason."""

    @property
    def brief(self) -> str:
        """The first sentence of the reason of a claim without a test."""
        return "" if self.test else self.why.split(". ")[0].split("; ")[0].removesuffix(".") + "."

    @property
    def command(self) -> str:
        """What makes the numbers behind its test."""
        if self.test is None:
            return ""
        if "recipe" in self.test:
            return f"potluck reproduce {self.test['recipe']}"
        return f"potluck benchmark {self.test.get('suite') or self.test['trials']}"


def read_claims() -> list[Claim]:
    """The claims as they are written down."""
    claims = [Claim(**entry) for entry in tomllib.loads(LEDGER.read_text(encoding="utf-8"))["claim"]]
    for claim in claims:
        if (claim.test is None) == (claim.verdict == "") or claim.verdict not in ("", *VERDICTS):
            raise ValueError(
                f"{claim.says!r} needs a test, or else one of the verdicts {', '.join(VERDICTS)}"
            )
    return claims


def judge_claim(claim: Claim, results: Path = RESULTS) -> Finding:
    """What the stored results say of a claim."""
    return judge_test(claim.test, results) if claim.test else Finding("", claim.verdict)


def page(results: Path = RESULTS) -> str:
    """The whole page; the same text for the same results."""
    judged = [(claim, judge_claim(claim, results)) for claim in read_claims()]
    papers = list(dict.fromkeys(claim.paper for claim, _ in judged))
    about = f"{ABOUT.format(spread=_spread(results))}{_unclean(results)}"
    parts = ["# What the papers claim, and what was found", about, _overview(papers, judged)]
    for paper in papers:
        of_paper = [(claim, finding) for claim, finding in judged if claim.paper == paper]
        rows = [(number, *claim_cells(claim, finding)) for number, (claim, finding) in enumerate(of_paper, 1)]
        parts.append(f"## {paper}\n\n" + table(("", "claim", "where", "verdict", "evidence"), rows))
        lines = [
            _details(number, claim, finding, results) for number, (claim, finding) in enumerate(of_paper, 1)
        ]
        parts.append(
            "<details markdown>\n<summary>Every place, reason and command</summary>\n\n"
            + "\n".join(lines)
            + "\n\n</details>"
        )
    return "\n\n".join(parts) + "\n"


def _spread(results: Path) -> str:
    """Where the reach of another seed comes from, in words."""
    spread = training_spread(results)
    return (
        f"rows that have several seeds (of {spread.source}: standard deviation {spread.deviation:.1f} points, "
        f"{spread.freedom} degrees of freedom)"
    )


def _unclean(results: Path) -> str:
    """A paragraph on rows of the small scale from changed sources."""
    text = unclean_sentence(read_cells(results / CELLS.name))
    return f"\n\n**Small scale.** In `results/{CELLS.name}`, {text}" if text else ""


def _overview(papers: list[str], judged: list[tuple[Claim, Finding]]) -> str:
    verdicts = [verdict for verdict in VERDICTS if any(each.verdict == verdict for _, each in judged)]
    rows = [
        (
            paper,
            *(
                sum(finding.verdict == verdict for claim, finding in judged if claim.paper == paper)
                for verdict in verdicts
            ),
        )
        for paper in papers
    ]
    total = ("all", *(sum(finding.verdict == verdict for _, finding in judged) for verdict in verdicts))
    return table(("paper", *verdicts), [*rows, total], numbers=range(1, len(verdicts) + 1))


def claim_cells(claim: Claim, finding: Finding) -> tuple[str, str, str, str]:
    """The cells of a claim's line: one figure; without rows the command, or the first sentence of the reason."""
    verdict = f"**{finding.verdict}**" + (f", {_counted(finding.seeds)}" if finding.seeds else "")
    brief = f"{finding.figure}." if finding.figure and finding is not NO_ROWS else claim.brief
    if finding is NO_ROWS and claim.test and "recipe" in claim.test:
        brief = f"`{claim.command} --scale full`"
    return claim.says, claim.place, verdict, brief


def _details(number: int, claim: Claim, finding: Finding, results: Path) -> str:
    """A line with the figures of all places, the reason and the command."""
    words = [f"{finding.details or finding.figure}." if finding.figure else ""]
    if claim.test is None or finding.verdict == CONTRADICTED:
        words += [claim.why, _support(claim, results)]
    words += [f"`{claim.command}`"] if claim.command else []
    return f"{number}. " + cell(" ".join(word for word in words if word))


def _support(claim: Claim, results: Path) -> str:
    """The figure behind a reason, where there are rows for it."""
    findings = [judge_test(test, results) for test in claim.because]
    details = [finding.details or finding.figure for finding in findings if finding is not NO_ROWS]
    return f"(Beside it: {'. And '.join(details)}.)" if details else ""


def _counted(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"
