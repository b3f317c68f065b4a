"""Predict before or early in training what a client gains by joining, with an interval, by calibrated rules."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from potluck.runs.run import Record, Run

Verdict = Literal["join", "do not join", "cannot tell"]
SHARE = 0.8
"""The share of gains that an interval is meant to hold."""
PRIOR = 10.0
"""Validation samples without a difference that are added to those of a client, so that few samples say little."""


@dataclass(frozen=True)
class ClientFacts:
    """What is known of a client before or early in training, as counts of samples.

    `local` is the accuracy of its standalone model on validation samples after a short run; `gained` and `lost` count
    validation samples that only the federated, or only the standalone model got right then.
    """

    samples: int
    classes: int = 0
    of_classes: int = 0
    largest: int = 0
    validation: int = 0
    local: float | None = None
    gained: int | None = None
    lost: int | None = None


def _log_samples(facts: ClientFacts) -> float:
    return math.log10(max(1, facts.samples))


def _log_per_class(facts: ClientFacts) -> float:
    return math.log10(max(1, facts.samples) / max(1, facts.classes))


def _difference(facts: ClientFacts) -> float:
    """Return the early difference of accuracies on validation samples, drawn towards zero where they are few."""
    return ((facts.gained or 0) - (facts.lost or 0)) / (facts.validation + PRIOR)


FEATURES = {
    "constant": lambda facts: 1.0,
    "log10 samples": _log_samples,
    "log10 samples per class": _log_per_class,
    "share of classes": lambda facts: facts.classes / max(1, facts.of_classes),
    "share of largest class": lambda facts: facts.largest / max(1, facts.samples),
    "local accuracy": lambda facts: facts.local or 0.0,
    "early difference": _difference,
}
RULES: dict[str, tuple[str, ...]] = {
    "samples": ("constant", "log10 samples"),
    "counts": (
        "constant",
        "log10 samples",
        "log10 samples per class",
        "share of classes",
        "share of largest class",
    ),
    "local": ("constant", "log10 samples", "local accuracy"),
    "early": ("constant", "early difference"),
}
"""Candidates: sample counts alone, class counts, a short local run, a few federated rounds."""


@dataclass(frozen=True)
class Case:
    """A client of a stored run: its task, what was known of it, and what it gained on test samples, as a fraction."""

    task: str
    facts: ClientFacts
    gain: float


@dataclass(frozen=True)
class Rule:
    """A linear prediction of the gain; `below` and `above` are the ends of the interval around it."""

    name: str
    weights: tuple[float, ...]
    below: float
    above: float

    def predict(self, facts: ClientFacts) -> Prediction:
        """Predict one client's gain."""
        values = (FEATURES[name](facts) for name in RULES[self.name])
        gain = sum(weight * value for weight, value in zip(self.weights, values, strict=True))
        return Prediction(gain, gain + self.below, gain + self.above)


@dataclass(frozen=True)
class Prediction:
    """An expected gain in accuracy, as a fraction, with its interval."""

    gain: float
    low: float
    high: float

    @property
    def verdict(self) -> Verdict:
        """What the interval says: a gain, a loss, or neither."""
        return "join" if self.low > 0 else "do not join" if self.high < 0 else "cannot tell"


# -- calibration -------------------------------------------------------------------------------------------------


def fit_rule(name: str, cases: Sequence[Case]) -> Rule:
    """Fit a rule by least squares, every task counting alike.

    The interval holds the middle 80 % of gains of every task that the rule was fitted without: it is as wide as the
    worst of them needs.
    """
    tasks = sorted({case.task for case in cases})
    below, above = [], []
    for held_out_task in tasks:
        training_cases = [case for case in cases if case.task != held_out_task] or list(cases)
        rule = Rule(name, _fit(name, training_cases), 0.0, 0.0)
        errors = [case.gain - rule.predict(case.facts).gain for case in cases if case.task == held_out_task]
        below.append(float(np.quantile(errors, (1 - SHARE) / 2)))
        above.append(float(np.quantile(errors, (1 + SHARE) / 2)))
    return Rule(name, _fit(name, cases), min(below), max(above))


def _fit(name: str, cases: Sequence[Case]) -> tuple[float, ...]:
    sizes = {task: sum(case.task == task for case in cases) for task in {case.task for case in cases}}
    scale = np.sqrt([1 / sizes[case.task] for case in cases])
    inputs = np.array([[FEATURES[feature](case.facts) for feature in RULES[name]] for case in cases])
    gains = np.array([case.gain for case in cases])
    weights = np.linalg.lstsq(inputs * scale[:, None], gains * scale, rcond=None)[0]
    return tuple(float(weight) for weight in weights)


@dataclass(frozen=True)
class RuleScore:
    """How a rule did on tasks that it was not calibrated on.

    `rank_correlation` (Spearman) is of predicted and actual gains, `coverage` the share of gains within the interval.
    `calls` counts verdicts "do not join", `right_calls` those whose client did end below alone; `leaning` and
    `right_leaning` are the same of all expected losses. `losses` is the share of clients below alone.
    """

    rule: str
    cases: int
    rank_correlation: float
    coverage: float
    calls: int
    right_calls: int
    leaning: int
    right_leaning: int
    losses: float


def score_rule(rule: Rule, cases: Sequence[Case]) -> RuleScore:
    """Score a rule on other tasks."""
    from scipy.stats import spearmanr

    predicted = [rule.predict(case.facts) for case in cases]
    gains: NDArray[np.float64] = np.array([case.gain for case in cases])
    expected = np.array([entry.gain for entry in predicted])
    constant = len(set(expected)) < 2 or len(set(gains)) < 2
    calls = np.array([entry.verdict == "do not join" for entry in predicted])
    inside = [entry.low <= gain <= entry.high for entry, gain in zip(predicted, gains, strict=True)]
    return RuleScore(
        rule.name,
        len(cases),
        0.0 if constant else float(spearmanr(expected, gains).statistic),
        float(np.mean(inside)),
        int(calls.sum()),
        int((gains[calls] < 0).sum()),
        int((expected < 0).sum()),
        int((gains[expected < 0] < 0).sum()),
        float((gains < 0).mean()),
    )


def split_tasks(cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
    """Return the cases to calibrate on and those to score on: every second task by name, so no result chooses."""
    tasks = sorted({case.task for case in cases})
    chosen = set(tasks[::2])
    return [case for case in cases if case.task in chosen], [
        case for case in cases if case.task not in chosen
    ]


# -- facts of runs -------------------------------------------------------------------------------------------------


def run_facts(run: Run) -> dict[str, ClientFacts]:
    """Return what a run, finished or not, says of each client: counts, and its first evidence on validation samples.

    The rules are calibrated on first evaluations, too.
    """
    counts, facts_by_name = run.class_counts, dict[str, ClientFacts]()
    first: dict[int, Record] = {}
    for row in run.client_rows():
        if row.get("train_samples"):
            first.setdefault(int(row["client"]), row)
    for client, row in sorted(first.items()):
        facts = ClientFacts(int(row["train_samples"]))
        if counts is not None and client < len(counts):
            facts = counted_facts(counts[client].tolist())
        if "validation_gained" in row:
            facts = replace(
                facts,
                validation=int(row["validation_samples"]),
                local=float(row["accuracy_validation_alone"]),
                gained=int(row["validation_gained"]),
                lost=int(row["validation_lost"]),
            )
        facts_by_name[str(row["name"])] = facts
    return facts_by_name


def counted_facts(counts: Sequence[int]) -> ClientFacts:
    """Return the facts of a client with so many training samples of each class."""
    return ClientFacts(sum(counts), sum(count > 0 for count in counts), len(counts), max(counts, default=0))


# -- shipped rules -------------------------------------------------------------------------------------------------

SHIPPED = "worth_it.json"


def shipped_rules() -> dict[str, tuple[Rule, RuleScore]]:
    """Return the rules that come with Potluck, `before` training and `early` in it, with their scores."""
    text = (resources.files("potluck.analysis") / SHIPPED).read_text("utf-8")
    return {
        when: (_read_rule(entry["rule"]), RuleScore(**entry["score"]))
        for when, entry in json.loads(text).items()
    }


def rules_text(rules: Mapping[str, tuple[Rule, RuleScore]]) -> str:
    """Return the content of the file with the shipped rules."""
    stored = {when: {"rule": asdict(rule), "score": asdict(score)} for when, (rule, score) in rules.items()}
    return json.dumps(_rounded(stored), indent=1) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(entry) for entry in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _read_rule(entry: Mapping[str, Any]) -> Rule:
    return Rule(entry["name"], tuple(entry["weights"]), entry["below"], entry["above"])
