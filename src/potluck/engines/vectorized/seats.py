"""Several clients' jobs side by side, each stopping where it wants to train, so that they can train together."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from potluck.core.client import Client
from potluck.core.training import Fit, FitRequest
from potluck.engines.vectorized.stack import fit_together, in_pieces, key_of


class _Thread(threading.Thread):
    """Does one job after another; ends with the program, even in the middle of one."""

    idle: ClassVar[list[_Thread]] = []
    """Starting a thread takes longer than a small client's whole job, so those without work wait for the next."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._action: Callable[[], None] | None = None
        self._go = threading.Semaphore(0)
        self.start()

    @classmethod
    def give(cls, action: Callable[[], None]) -> None:
        """Have one of them do this."""
        thread = cls.idle.pop() if cls.idle else cls()
        thread._action = action
        thread._go.release()

    def run(self) -> None:
        """All its life."""
        while True:
            self._go.acquire()
            assert self._action is not None
            self._action()
            self._action = None  # it holds a client
            self.idle.append(self)


os.register_at_fork(after_in_child=_Thread.idle.clear)  # threads do not survive a fork


class Seat:
    """One job in a thread of its own. Threads take turns: only one of them, or the caller, runs at any time."""

    def __init__(self, me: Client, action: Callable[[], Any]) -> None:
        self.me, self.action = me, action
        self.request: FitRequest | None = None
        self.result: Any = None
        self.done = False
        self._reply: Fit | BaseException | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        _Thread.give(self._run)

    def _run(self) -> None:
        self._go.acquire()
        self.me.trainer = self._ask
        try:
            self.result = self.action()
        except BaseException as error:
            self.result = error
        finally:
            self.me.trainer = None
            self.done, self.request = True, None
            self._back.release()

    def _ask(self, request: FitRequest) -> Fit:
        """Called in the job's thread: hand the request over and wait until it is done."""
        self.request = request
        self._back.release()
        self._go.acquire()
        if isinstance(self._reply, BaseException):
            raise self._reply
        assert self._reply is not None
        return self._reply

    def advance(self, reply: Fit | BaseException | None = None) -> None:
        """Let the job run until it wants to train (again) or ends."""
        self._reply, self.request = reply, None
        self._go.release()
        self._back.acquire()


def run_together(seats: Sequence[Seat]) -> list[Any]:
    """Run all jobs to their ends, training those together whose requests are alike; results or exceptions."""
    for seat in seats:
        seat.advance()
    while waiting := [seat for seat in seats if not seat.done]:
        for group in _alike(waiting):
            for seat, reply in zip(group, _train(group), strict=True):
                seat.advance(reply)
    return [seat.result for seat in seats]


def _alike(seats: Sequence[Seat]) -> list[Sequence[Seat]]:
    """Those that can train together, no more of them at once than pays."""
    groups: dict[object, list[Seat]] = defaultdict(list)
    for number, seat in enumerate(seats):
        assert seat.request is not None
        key = key_of(seat.me, seat.request)
        groups[("alone", number) if key is None else key].append(seat)
    return [
        piece
        for group in groups.values()
        if (first := group[0].request) is not None
        for piece in in_pieces(group, first.model.parameters(), group[0].me.task.device)
    ]


def _train(group: Sequence[Seat]) -> list[Fit | BaseException]:
    pairs = [(seat.me, seat.request) for seat in group if seat.request is not None]
    try:
        return list(fit_together(pairs))
    except Exception as error:
        if len(pairs) > 1:
            error.add_note(
                "Clients were trained stacked; with engine.vectorize = 'off' each trains by itself."
            )
        return [error] * len(pairs)
