"""How long a job will take: measured where possible, guessed before."""

from __future__ import annotations

from collections.abc import Callable

from potluck.loop.jobs import Job, Kind

Guess = Callable[[int], float]
"""The relative cost of a client's job before anything was measured: parameters × samples, say."""


class Costs:
    """Seconds per client and kind of job. A client not measured yet is guessed at the others' speed."""

    def __init__(self, guess: Guess | None = None) -> None:
        self._guess = guess or (lambda client: 1.0)
        self._seconds: dict[tuple[Kind, int], float] = {}
        self._totals: dict[Kind, tuple[float, float]] = {}

    def note(self, job: Job, seconds: float) -> None:
        """A job took so long; the mean with what was known steadies the figure."""
        key = (job.kind, job.client)
        self._seconds[key] = (self._seconds.get(key, seconds) + seconds) / 2
        took, guessed = self._totals.get(job.kind, (0.0, 0.0))
        self._totals[job.kind] = took + seconds, guessed + self._guess(job.client)

    def of(self, job: Job) -> float:
        """The seconds expected; before the first measurement of this kind, just the guess."""
        known = self._seconds.get((job.kind, job.client))
        if known is not None:
            return known
        took, guessed = self._totals.get(job.kind, (1.0, 1.0))
        return self._guess(job.client) * (took / guessed if guessed else 1.0)
