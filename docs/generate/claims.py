"""Write the page of the papers' claims: each figure and verdict follows from stored results."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from generate.evidence import CONTRADICTED, NO_ROWS, RESULTS, VERDICTS, Finding, judge_test
from generate.text import table

LEDGER = Path(__file__).parents[1] / "tables" / "claims.toml"
ABOUT = """\
Every claim of the five papers' abstracts, experiments and conclusions, in our words, with what was run to test it and what came out. Made by
`make pages` from `docs/tables/claims.toml` (the claims and their tests) and the files in `results/` (the numbers); a test fails when this page
and the data disagree. [Reproduce](reproduce.md) has the papers' tables beside these runs; [the benchmark](benchmark.md) has the suite `cpu`, where every
method is tuned alike; the suites `gain`, `defaults` and `asynchrony` are [when it helps](when-it-helps.md), [default settings](defaults.md) and
[asynchrony](asynchrony.md).

**What a verdict takes.** A difference stands as *+3.0 ± 1.2*: chance reaches 1.2 points, so that three are more than chance. Over several seeds this is the
95 % interval of the difference on the same seeds and clients (by its spread over seeds, pooled over the tasks of a line), and a point at the least; with one seed it is
two standard errors of two shares right among as many test samples as there were, and a point at the least (two points for trials of the tuning). It is the reach of chance in *testing*: what another seed would
change in training is not in it, and verdicts of one seed say so.

* *supported*: ahead by more than chance in the mean over the places that were measured (*together*, against the rival that is best on average), and behind by more
  than chance in none;
* *contradicted*: behind by more than chance somewhere or together, or a lead of one point (of the paper's smallest, where a line says how much) excluded together; only
  at full size, or where numbers are counted: numbers sent and samples trained on do not depend on the size of an experiment;
* *undecided*: chance reaches further than the difference, or the rows are of the small scale or of a suite, which decide nothing but counts;
* *not run*: no rows so far; *not testable*: no experiment of this kind can show it."""


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
    found = [(claim, judge_claim(claim, results)) for claim in read_claims()]
    papers = list(dict.fromkeys(claim.paper for claim, _ in found))
    parts = ["# What the papers claim, and what was found", ABOUT, _overview(papers, found)]
    for paper in papers:
        rows = [_row(claim, one, results) for claim, one in found if claim.paper == paper]
        parts.append(f"## {paper}\n\n" + table(("claim", "where", "verdict", "result"), rows))
    return "\n\n".join(parts) + "\n"


def _overview(papers: list[str], found: list[tuple[Claim, Finding]]) -> str:
    verdicts = [one for one in VERDICTS if any(each.verdict == one for _, each in found)]
    rows = [
        (
            paper,
            *(
                sum(one.verdict == verdict for claim, one in found if claim.paper == paper)
                for verdict in verdicts
            ),
        )
        for paper in papers
    ]
    total = ("all", *(sum(one.verdict == verdict for _, one in found) for verdict in verdicts))
    return table(("paper", *verdicts), [*rows, total], numbers=range(1, len(verdicts) + 1))


def _row(claim: Claim, one: Finding, results: Path) -> tuple[str, str, str, str]:
    words = [one.figure and f"{one.figure}."]
    if claim.test is None or one.verdict == CONTRADICTED:
        words += [claim.why, _support(claim, results)]
    if claim.command:
        words.append(f"`{claim.command}`")
    verdict = f"**{one.verdict}**" + (f", {_counted(one.seeds)}" if one.seeds else "")
    return claim.says, claim.place, verdict, " ".join(word for word in words if word)


def _support(claim: Claim, results: Path) -> str:
    """The figure behind a reason, where there are rows for it."""
    found = [judge_test(test, results) for test in claim.because]
    told = [one.figure for one in found if one is not NO_ROWS]
    return f"(Beside it: {'. And '.join(told)}.)" if told else ""


def _counted(seeds: int) -> str:
    return "one seed" if seeds == 1 else f"{seeds} seeds"
