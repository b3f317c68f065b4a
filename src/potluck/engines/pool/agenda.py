"""Who does what next: the teams that wait, where each client lives, and which team an idle worker takes."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping

from potluck.engines.pool.costs import Costs
from potluck.engines.vectorized.teams import Team

Entry = tuple[float, int, Team]
"""(minus the expected seconds, the id of the first job, the team): a heap gives the longest work first."""

NOBODY = -1


class Agenda:
    """Waiting teams of jobs, mostly of one job each; those of one client in the order submitted, one at a time.

    A client's home is the worker that has it in memory; a team's is that of most of its clients. An idle worker takes
    the longest work among its own teams and those without a home; with none left it takes some from the worker with
    most ahead, if that saves more than moving a client costs.
    """

    def __init__(
        self, costs: Costs, moving: float = 0.02, place: Callable[[int], str] = lambda worker: ""
    ) -> None:
        self.costs, self._place = costs, place
        self.moving = moving
        self._teams: defaultdict[int, deque[Team]] = defaultdict(deque)
        self._at_work: set[int] = set()
        self._home: dict[int, int] = {}
        self._ready: defaultdict[int, list[Entry]] = defaultdict(list)
        self._ahead: defaultdict[int, float] = defaultdict(float)

    def __bool__(self) -> bool:
        return bool(self._teams)

    def add(self, team: Team) -> None:
        """New jobs, each behind those of the same client."""
        for job in team:
            self._teams[job.client].append(team)
        self._offer(team)

    def again(self, team: Team) -> None:
        """Jobs whose worker died go first among their clients'."""
        for job in team:
            self._at_work.discard(job.client)
            self._teams[job.client].appendleft(team)
        self._offer(team)

    def done(self, team: Team) -> None:
        """A team's jobs ended: the next ones of its clients may start."""
        for job in team:
            self._at_work.discard(job.client)
        following = {id(queue[0]): queue[0] for job in team if (queue := self._teams.get(job.client))}
        for one in following.values():
            self._offer(one)

    def take(self, worker: int, busy: Mapping[int, float]) -> tuple[Team, list[tuple[int, int]]] | None:
        """The team for an idle worker, and the clients that move there for it, each with the worker it leaves.

        `busy` gives the seconds that each other worker still needs for what it does now.
        """
        own = [(self._ready[key][0], key) for key in (worker, NOBODY) if self._ready[key]]
        source = min(own)[1] if own else self._worth_helping(worker, busy)
        if source is None:
            return None
        cost, _, team = heapq.heappop(self._ready[source])
        self._ahead[source] += cost
        moved = [
            (job.client, home)
            for job in team
            if (home := self._home.get(job.client, NOBODY)) not in (worker, NOBODY)
        ]
        for job in team:
            self._home[job.client] = worker
            self._at_work.add(job.client)
            self._teams[job.client].popleft()
            if not self._teams[job.client]:
                del self._teams[job.client]
        return team, moved

    def _offer(self, team: Team) -> None:
        """Have it taken, if each of its jobs is its client's next."""
        if any(job.client in self._at_work or self._teams[job.client][0] is not team for job in team):
            return
        cost, home = self.costs.of_team(team), self._home_of(team)
        heapq.heappush(self._ready[home], (-cost, team[0].id, team))
        self._ahead[home] += cost

    def _home_of(self, team: Team) -> int:
        homes = Counter(home for job in team if (home := self._home.get(job.client)) is not None)
        return min(homes, key=lambda home: (-homes[home], home), default=NOBODY)

    def _worth_helping(self, worker: int, busy: Mapping[int, float]) -> int | None:
        """The worker with most to do before it would come to the team we could take from it now.

        Where our device is slower than its, the jobs take longer here: that much more it must have to do.
        """
        gains = {
            other: self._gain(worker, other, heap[0], busy.get(other, 0.0))
            for other, heap in self._ready.items()
            if heap and other != worker
        }
        longest = max(gains, key=lambda other: (gains[other], -other), default=None)
        return longest if longest is not None and gains[longest] > self.moving else None

    def _gain(self, worker: int, other: int, entry: Entry, busy: float) -> float:
        """Seconds by which a team would end sooner with us than with the worker that has it."""
        cost, kind = -entry[0], entry[2][0].kind
        here, there = (self.costs.slowness(kind, self._place(one)) for one in (worker, other))
        return busy + (self._ahead[other] - cost) * there + cost * (there - here)
