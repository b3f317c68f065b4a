"""Who gains: differences between two methods client by client, and means over clients of one architecture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from potluck.analysis.significance import same_clients
from potluck.core.errors import PotluckError
from potluck.runs.run import ClientResult, Run


@dataclass(frozen=True)
class ClientDifference:
    """How much better one client ends under the first method than under the second (a fraction of 1)."""

    client: ClientResult
    seed: int
    difference: float


@dataclass(frozen=True)
class Difference:
    """All clients' differences, sorted from the greatest loss to the greatest gain."""

    clients: tuple[ClientDifference, ...]

    @property
    def share_better(self) -> float:
        """The share of clients that are strictly better off with the first method."""
        return sum(each.difference > 0 for each in self.clients) / len(self.clients)

    @property
    def share_worse(self) -> float:
        """The share of clients that are strictly worse off; neither share counts the others."""
        return sum(each.difference < 0 for each in self.clients) / len(self.clients)

    @property
    def mean(self) -> float:
        """The mean difference over clients."""
        return float(np.mean([each.difference for each in self.clients]))


@dataclass(frozen=True)
class GroupMean:
    """The accuracy of the clients that share an architecture (or a named set of architectures)."""

    name: str
    mean: float
    std: float
    clients: int


def client_differences(a: Sequence[Run], b: Sequence[Run]) -> Difference:
    """Final accuracies under `a` minus those under `b`, client by client, over their common seeds."""
    partner = {run.seed: run for run in b}
    pairs = [(run, partner[run.seed]) for run in a if run.seed in partner]
    if not pairs:
        raise PotluckError(
            f"Runs of seeds {[run.seed for run in a]} and {[run.seed for run in b]} have no seed in common: "
            f"run both methods with one seed."
        )
    found: list[ClientDifference] = []
    for one, other in pairs:
        if not same_clients(one, other):
            raise PotluckError(
                f"Runs {one.name!r} and {other.name!r} have different clients: compare runs of one partition."
            )
        known = other.client_accuracy
        found += [
            ClientDifference(client, one.seed, round(client.accuracy - known[client.index], 9))
            for client in one.client_results
            if client.index in known
        ]
    if not found:
        raise PotluckError(
            f"Run {pairs[0][0].name!r} has tested no client yet: wait for its first evaluation."
        )
    return Difference(tuple(sorted(found, key=lambda each: each.difference)))


def architecture_means(
    runs: Sequence[Run], sets: Mapping[str, Sequence[str]] | None = None
) -> tuple[GroupMean, ...]:
    """The mean final accuracy of each architecture's clients, over all runs.

    `sets` names sets of architectures to take together, such as the two-layer and the three-layer networks.
    """
    names = {each: name for name, members in (sets or {}).items() for each in members}
    found: dict[str, list[float]] = {name: [] for name in sets or ()}
    for run in runs:
        for client in run.client_results:
            if sets is None or client.architecture in names:
                found.setdefault(names.get(client.architecture, client.architecture), []).append(
                    client.accuracy
                )
    return tuple(
        GroupMean(name, float(np.mean(values)), float(np.std(values)), len(values))
        for name, values in (found.items() if sets else sorted(found.items()))
        if values
    )
