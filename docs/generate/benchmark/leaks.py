"""Write the page of leaks: attack scores by payload beside chance, with and without noise, and a figure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from generate.benchmark.figures import save
from generate.benchmark.formatting import count_seeds, provenance_sentence, wrap_text
from potluck.analysis.leak.inversion import SCORES, WITH_EXTRACTOR, WITHOUT_EXTRACTOR
from potluck.suites.statistics import paired_difference
from potluck.suites.store import Results, Row
from potluck.suites.suite import Suite

FIGURE, PICTURED = "leaks.svg", ("plain", "fedproto")
PLAIN, NOISE, ALIKE = ("plain",), ("noise", "noise-hidden"), ("alike",)
KINDS = {
    "Class means": ("fedproto", "fedgh"),
    "Class logits": ("fedhe",),
    "A head": ("lg-fedavg",),
    "Logits for public samples": ("fedmd",),
    "All weights": ("fedavg",),
}
INVERTED = "inverted "
PSNR, SSIM = SCORES


@dataclass(frozen=True)
class Score:
    """One question to one method under one setting: scores and chance levels, a seed each."""

    scores: tuple[float, ...]
    chances: tuple[float, ...]

    @property
    def leaks(self) -> bool:
        """Whether the 95 % interval over seeds of what it is above chance lies above 0."""
        difference = paired_difference(dict(enumerate(self.scores)), dict(enumerate(self.chances)))
        return difference is not None and difference.low > 0

    @property
    def gain(self) -> float:
        """By how much it is above chance, on average."""
        return float(np.mean(self.scores) - np.mean(self.chances))

    def shown(self, digits: int) -> str:
        """The mean, the standard deviation over seeds, and the chance level in brackets; bold where it leaks."""
        spread = f" ± {np.std(self.scores, ddof=1):.{digits}f}" if len(self.scores) > 1 else ""
        text = f"{np.mean(self.scores):.{digits}f}"
        return f"{f'**{text}**' if self.leaks else text}{spread} ({np.mean(self.chances):.{digits}f})"


Table = dict[str, Score]
"""Scores by question."""


def scores(results: Results, tasks: Sequence[str], method: str) -> Table:
    """What was found of a method on the first of these tasks that it was run on, in the order of the questions."""
    by_question: dict[str, tuple[list[float], list[float]]] = {}
    for row in _rows(results, tasks, method):
        for score in _leaks(results, row).get("scores", ()):
            there = by_question.setdefault(score["question"], ([], []))
            there[0].append(score["score"])
            there[1].append(score["chance"])
    return {
        question: Score(tuple(own_scores), tuple(chance))
        for question, (own_scores, chance) in by_question.items()
    }


def _rows(results: Results, tasks: Sequence[str], method: str) -> list[Row]:
    return [row for row in results.rows if row.task in tasks and row.method == method]


def _leaks(results: Results, row: Row) -> dict[str, Any]:
    leaks: dict[str, Any] = results.details.get(row.experiment, {}).get("leaks", {})
    return leaks


def page(suite: Suite, results: Results) -> str:
    """The words of `leaks.md` beside this file, with a section for each kind of payload: what it tells, what not."""
    sections: list[str] = []
    for kind, methods in KINDS.items():
        if scored := [method for method in methods if scores(results, PLAIN, method)]:
            sections.append(f"## {kind}")
            for method in scored:
                sections += filter(None, _section(results, method))
    made = {
        "seeds": count_seeds(results.rows),
        "told": _told_counts(results),
        "made": wrap_text(provenance_sentence(suite, results)),
        "spent": _spent(results),
        "picture": _picture(results),
        "sections": "\n\n".join(sections),
    }
    words = Path(__file__).with_name("leaks.txt").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda place: made[place.group(1)], words)


def _told_counts(results: Results) -> str:
    """How many of the questions that were asked with and without noise are above chance in either."""
    both = [
        (plain[question], noise[question])
        for method in dict.fromkeys(method for methods in KINDS.values() for method in methods)
        for plain, noise in [(scores(results, PLAIN, method), scores(results, NOISE, method))]
        for question in plain.keys() & noise.keys()
        if not question.startswith(INVERTED)
    ]
    without, with_noise = (sum(pair[place].leaks for pair in both) for place in (0, 1))
    return f"of {len(both)} scores {without} are above chance without it and {with_noise} with it"


def _spent(results: Results) -> str:
    """The largest ε of the runs with noise."""
    spent = [
        privacy["epsilon"]
        for row in results.rows
        if (privacy := results.details.get(row.experiment, {}).get("privacy")) and privacy.get("epsilon")
    ]
    if not spent:
        return ""
    return f" (ε = {min(spent):.1f} to {max(spent):.1f} at δ = 10⁻⁵ for one client's whole data)"


def _picture(results: Results) -> str:
    shown = _pictured(results)
    if not shown:
        return "No pictures are stored."
    each = ", ".join(dict.fromkeys(_sizes(entry["samples"]) for entry in shown))
    caption = (
        f"The first classes, by client and class, of each size ({each}): fedproto, seed 0, no noise. From above: the "
        "client's mean picture, the sample of its own that is nearest to the picture made with the extractor, what is "
        "made of the class mean with the extractor and without it, and the typical picture of the class."
    )
    picture = f"![Clients' pictures, and what can be made of class means](figures/{FIGURE})"
    return f"{picture}\n\n{wrap_text(caption)}"


def _sizes(samples: int) -> str:
    return "one sample" if samples == 1 else "two to five" if samples <= 5 else "six or more"


def _pictured(results: Results) -> list[dict[str, Any]]:
    task, method = PICTURED
    for row in _rows(results, (task,), method):
        return list(_leaks(results, row).get("pictures", ()))
    return []


def draw(suite: Suite, results: Results, folder: Path) -> None:
    """The pictures of one run."""
    from potluck.report.leaks import inversion_figure

    if shown := _pictured(results):
        save(inversion_figure(shown), folder / FIGURE)


def _section(results: Results, method: str) -> list[str]:
    plain, noise, alike = (scores(results, tasks, method) for tasks in (PLAIN, NOISE, ALIKE))
    rows = _rows(results, PLAIN, method)
    skipped = list(dict.fromkeys(text for row in rows for text in _leaks(results, row).get("skipped", ())))
    heading = f"### {method}\n\n" + wrap_text(_accuracies(results, method) + " ".join(["", *skipped]))
    return [heading, _questions(plain, noise), _pictures(plain, noise, alike), _verdict(plain, noise, alike)]


def _accuracies(results: Results, method: str) -> str:
    accuracies = []
    for words, tasks in (("without noise", PLAIN), ("with it", NOISE)):
        percentages = [100 * row.final_accuracy for row in _rows(results, tasks, method)]
        if percentages:
            accuracies.append(f"{np.mean(percentages):.1f} % {words}")
    return f"Accuracy of clients: {', '.join(accuracies)}."


def _questions(plain: Table, noise: Table) -> str:
    lines = ["| question | no noise | noise |", "|---|---:|---:|"]
    for question, score in plain.items():
        if not question.startswith(INVERTED):
            noisy = noise[question].shown(2) if question in noise else ""
            lines.append(
                f"| {question.replace('told right', 'inferred correctly')} | {score.shown(2)} | {noisy} |"
            )
    return "\n".join(lines)


def _pictures(plain: Table, noise: Table, alike: Table) -> str:
    """A line for each kind of picture and who made it; PSNR and SSIM under every setting."""
    inverted = [question.removesuffix(f": {PSNR}") for question in plain if question.endswith(f": {PSNR}")]
    settings = {"no noise": plain, "noise": noise, "begun alike": alike}
    tables = {name: table for name, table in settings.items() if table}
    if not inverted:
        return ""
    heads = [f"{score}, {name}" for name in tables for score in ("PSNR", "SSIM")]
    lines = [f"| picture | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for text in inverted:
        cells = [
            table[f"{text}: {score}"].shown(digits) if f"{text}: {score}" in table else ""
            for table in tables.values()
            for score, digits in ((PSNR, 1), (SSIM, 2))
        ]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _verdict(plain: Table, noise: Table, alike: Table) -> str:
    """What is above chance with every seed, and what is not: the evidence and the counter-evidence."""
    lines = []
    for words, table in (("Without noise", plain), ("With noise", noise)):
        questions = [question for question in table if not question.startswith(INVERTED)]
        if questions:
            lines.append(_inferred(words, questions, table))
    if any(question.startswith(INVERTED) for question in plain):
        named = {"without noise": plain, "with noise": noise, "without noise, begun alike": alike}
        lines += [_seen(words, table) for words, table in named.items() if table]
    return "\n".join(f"* {line}" for line in lines)


def _inferred(words: str, questions: Sequence[str], table: Table) -> str:
    yes = [_short(question) for question in questions if table[question].leaks]
    no = [_short(question) for question in questions if not table[question].leaks]
    parts = [
        f"inferred: {', '.join(yes)}" if yes else "nothing is inferred",
        f"not inferred: {', '.join(no)}" if no else "",
    ]
    return f"{words}, {'; '.join(filter(None, parts))}."


SHORT = {
    "does it hold a class? (share told right)": "which classes",
    "in what proportions? (overlap)": "proportions",
    "was a sample trained on? (AUC)": "membership",
    "… true positives at 1 % false ones": "membership at 1 %",
    "is a client recognised in its next answer?": "the sender",
}


def _short(question: str) -> str:
    if "(classes of" in question:
        return f"samples in classes of {question.partition('(classes of ')[2].rstrip(')')}"
    return SHORT.get(question, question)


def _seen(words: str, table: Table) -> str:
    """By how many decibels pictures are better than the typical one, for each who may look."""
    seen = []
    for observer in (WITH_EXTRACTOR, WITHOUT_EXTRACTOR):
        gains = [
            f"{table[question].gain:+.1f} dB (classes of {question.partition('classes of ')[2].partition(':')[0]})"
            for question in table
            if question.startswith(f"{INVERTED}{observer}, classes") and question.endswith(PSNR)
        ]
        if gains:
            seen.append(f"{observer} {', '.join(gains)}")
    nothing = "nothing was made" if not seen else ""
    return f"Pictures {words}, beside the typical one of the class: {'; '.join(seen)}{nothing}."
