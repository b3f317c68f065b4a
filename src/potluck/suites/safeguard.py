"""What a safeguarded run shows of every client: both models on validation and test samples, early and in the end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from typing import Any

from potluck.runs.run import Record, Run


@dataclass(frozen=True)
class ClientOutcome:
    """One client of a safeguarded run, as counts of samples.

    `alone` and `early_alone` are right answers of the standalone model: on test samples in the end, and on validation
    samples at the first evaluation. A pair of `gained` and `lost` counts samples that only the federated model
    (`used_…`: only what the client used) got right, and that only the standalone model did.
    """

    client: int
    train: int
    classes: int
    largest_class: int
    validation: int
    test: int
    alone: int
    gained: int
    lost: int
    weight: float
    used_gained: int
    used_lost: int
    validation_gained: int
    validation_lost: int
    early_alone: int
    early_gained: int
    early_lost: int


def outcomes(run: Run) -> list[ClientOutcome]:
    """Return the outcome of every client with validation and test samples that was tested at the end."""
    early: dict[int, Record] = {}
    for row in run.client_rows():
        if "validation_gained" in row and not row["final"]:
            early.setdefault(int(row["client"]), row)
    counts = run.class_counts
    results = []
    for row in run.client_rows():
        client = int(row["client"])
        if not row["final"] or "validation_gained" not in row or "gained" not in row or client not in early:
            continue
        own = [] if counts is None else counts[client]
        results.append(_outcome(row, early[client], sum(count > 0 for count in own), max(own, default=0)))
    return results


def _outcome(row: Record, early: Record, classes: int, largest: int) -> ClientOutcome:
    test, validation = int(row["samples"]), int(row["validation_samples"])
    return ClientOutcome(
        client=int(row["client"]),
        train=int(row["train_samples"]),
        classes=int(classes),
        largest_class=int(largest),
        validation=validation,
        test=test,
        alone=round(row["accuracy_alone"] * test),
        gained=row["federated_gained"],
        lost=row["federated_lost"],
        weight=round(row["federated_weight"], 4),
        used_gained=row["gained"],
        used_lost=row["lost"],
        validation_gained=row["validation_gained"],
        validation_lost=row["validation_lost"],
        early_alone=round(early["accuracy_validation_alone"] * validation),
        early_gained=early["validation_gained"],
        early_lost=early["validation_lost"],
    )


def safeguard_details(run: Run) -> dict[str, Any]:
    """Return what a suite stores of a safeguarded run; nothing of others."""
    facts = run.summary.get("safeguard")
    if not facts:
        return {}
    clients = [list(astuple(outcome)) for outcome in outcomes(run)]
    cost = [run.summary.get("flops_per_client_round"), facts["flops_per_client_round"]]
    return {"safeguard": {"mode": facts["mode"], "flops": cost, "clients": clients}}


def stored_outcomes(details: Mapping[str, Any]) -> Iterator[ClientOutcome]:
    """Yield the clients of a stored run, without attackers."""
    attackers = details.get("attack", {}).get("clients", ())
    for values in details.get("safeguard", {}).get("clients", ()):
        outcome = ClientOutcome(**dict(zip(_NAMES, values, strict=True)))
        if outcome.client not in attackers:
            yield outcome


_NAMES = tuple(entry.name for entry in fields(ClientOutcome))
