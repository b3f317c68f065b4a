"""Whom a schedule without whole rounds may ask next, in a population that nobody goes through for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Mapping
from typing import Protocol


class Numbers(Protocol):
    """Numbers one after another, each found by its place: a list, a range, or what `Without` leaves of them."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: int, /) -> int: ...


class Without:
    """A sequence without what stands at some places (ascending), which are skipped and not copied around."""

    def __init__(self, whole: Numbers, places: list[int]) -> None:
        self._whole, self._places = whole, places

    def __len__(self) -> int:
        return len(self._whole) - len(self._places)

    def __getitem__(self, place: int, /) -> int:
        # `places[n] - n` of the others stand before the n-th place that is skipped.
        gaps = range(len(self._places))
        return self._whole[place + bisect_right(gaps, place, key=lambda gap: self._places[gap] - gap)]


def place_of(one: int, numbers: Numbers) -> int | None:
    """Where a number stands among ascending ones, if it does."""
    place = bisect_left(numbers, one)
    return place if place < len(numbers) and numbers[place] == one else None


def leave_out(some: Iterable[int], numbers: Numbers) -> Numbers:
    """Ascending numbers without some of them."""
    places = sorted(place for one in some if (place := place_of(one, numbers)) is not None)
    return Without(numbers, places) if places else numbers


class Abreast:
    """Which of some clients (ascending) are fewer than `lead` jobs ahead of the one that was asked least often.

    It is kept up from job to job. Everybody is looked at only when the last of those with the fewest jobs was asked
    again: the fewest are one more then, so that this happens at most once in as many jobs as there are clients.
    """

    def __init__(self, clients: Numbers, numbers: Mapping[int, int], lead: int) -> None:
        self._clients, self._jobs, self._lead = clients, dict(numbers), lead
        self._look()

    def _look(self) -> None:
        jobs = [self._jobs.get(self._clients[place], 0) for place in range(len(self._clients))]
        self._fewest = min(jobs, default=0)
        self._last = jobs.count(self._fewest)
        self._ahead = [place for place, count in enumerate(jobs) if self._is_ahead(count)]

    def _is_ahead(self, jobs: int) -> bool:
        return jobs - self._fewest >= self._lead

    def close(self, busy: Iterable[int]) -> Numbers:
        """Those who may be asked, without the busy ones; good until the next one is asked."""
        return leave_out(busy, Without(self._clients, self._ahead) if self._ahead else self._clients)

    def ask(self, client: int) -> None:
        """One more job for this client."""
        before = self._jobs.get(client, 0)
        self._jobs[client] = before + 1
        self._last -= before == self._fewest
        if not self._last:
            self._look()
        elif self._is_ahead(before + 1) and not self._is_ahead(before):
            insort(self._ahead, bisect_left(self._clients, client))
