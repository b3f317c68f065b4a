"""How long a job will take: measured where possible, guessed before."""

from __future__ import annotations

from collections.abc import Callable

from potluck.engines.vectorized.teams import Team
from potluck.loop.jobs import Job, Kind

Guess = Callable[[int], float]
"""The relative cost of a client's job before anything was measured: parameters × samples, say."""


class Costs:
    """Seconds per client and kind of job. A client not measured yet is guessed at the others' speed.

    Where devices are of different speed, seconds are those of the mean device; each has a factor of its own.
    """

    def __init__(self, guess: Guess | None = None) -> None:
        self._guess = guess or (lambda client: 1.0)
        self._seconds: dict[tuple[Kind, int], float] = {}
        self._totals: dict[Kind, tuple[float, float]] = {}
        self._places: dict[tuple[Kind, str], tuple[float, float]] = {}

    def note(self, job: Job, seconds: float, place: str = "") -> None:
        """A job took so long on a device; the mean with what was known steadies the figure."""
        key, guess = (job.kind, job.client), self._guess(job.client)
        took, guessed = self._totals.get(job.kind, (0.0, 0.0))
        self._totals[job.kind] = took + seconds, guessed + guess
        took, guessed = self._places.get((job.kind, place), (0.0, 0.0))
        self._places[job.kind, place] = took + seconds, guessed + guess
        seconds /= self.slowness(job.kind, place)
        self._seconds[key] = (self._seconds.get(key, seconds) + seconds) / 2

    def slowness(self, kind: Kind, place: str) -> float:
        """How many times as long as on the mean device jobs of a kind take on this one, as far as is known."""
        took, guessed = self._totals.get(kind, (0.0, 0.0))
        here, guessed_here = self._places.get((kind, place), (0.0, 0.0))
        if not (took and guessed and here and guessed_here):
            return 1.0
        return (here / guessed_here) / (took / guessed)

    def of_team(self, team: Team, place: str | None = None) -> float:
        """The seconds expected for all jobs of a team."""
        return sum(self.of(job, place) for job in team)

    def of(self, job: Job, place: str | None = None) -> float:
        """The seconds expected, on a device if told; before the first measurement of this kind, just the guess."""
        if place is not None:
            return self.of(job) * self.slowness(job.kind, place)
        known = self._seconds.get((job.kind, job.client))
        if known is not None:
            return known
        took, guessed = self._totals.get(job.kind, (1.0, 1.0))
        return self._guess(job.client) * (took / guessed if guessed else 1.0)
