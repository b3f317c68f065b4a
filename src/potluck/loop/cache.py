"""The clients that are in memory, and the way out for those that do not fit."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from potluck.core import tree
from potluck.core.client import Client

Saved = Callable[[int], tree.Flat | None]
"""The state in which a client begins; None for one that begins as it was made."""


class StateStore(Protocol):
    """Keeps clients' states outside of memory, each under the client's index and a version."""

    def save(self, client: int, version: int, state: tree.Flat) -> None:
        """Write a state down."""

    def load(self, client: int, version: int) -> tree.Flat:
        """The state written before."""

    def drop(self, client: int, version: int) -> None:
        """Forget a state that is no longer needed."""


@dataclass
class Held:
    """A client in memory; `version` is the job that left it as it is, 0 as it was made."""

    client: Client
    version: int
    size: int


class ClientCache:
    """Clients by index, made when first needed. Over the budget, the least recently used are put in the store.

    A client that never changed is not stored: it is simply made again. Where a run goes on from a checkpoint,
    `saved` gives the state that a client begins with.
    """

    def __init__(self, make: Callable[[int], Client], saved: Saved | None = None) -> None:
        self._make, self._saved = make, saved
        self._here: OrderedDict[int, Held] = OrderedDict()
        self._stored: dict[int, int] = {}
        self._size = 0
        self._store: StateStore | None = None
        self._budget: int | None = None
        self._at_once = False
        self.loading = 0.0
        """Seconds spent so far on making clients and bringing them back."""

    def limit(self, store: StateStore, budget: int | None, *, at_once: bool = False) -> None:
        """Hold at most `budget` bytes of clients; `at_once` stores every change when it happens.

        Who stores at once also drops: earlier versions then stay until their keeper knows of the newer one.
        """
        self._store, self._budget, self._at_once = store, budget, at_once

    def __contains__(self, index: int) -> bool:
        return index in self._here

    def __getitem__(self, index: int) -> Client:
        """The client of this index: from memory, from the store, or new."""
        if index not in self._here:
            started = time.perf_counter()
            client, version = self._make(index), self.stored(index)
            if version and self._store is not None:
                client.restore(self._store.load(index, version))
            elif self._saved is not None and (state := self._saved(index)) is not None:
                client.restore(state)
            self._here[index] = Held(client, version, 0)
            self._measure(index)
            self.loading += time.perf_counter() - started
        self._here.move_to_end(index)
        return self._here[index].client

    def stored(self, index: int) -> int:
        """The version that the store has of this client; 0 where it has none."""
        return self._stored.get(index, 0)

    def expect(self, index: int, version: int) -> None:
        """Say which version is the true one; another that is here was overtaken elsewhere and is forgotten."""
        if index in self._here and self._here[index].version != version:
            self.forget(index)
        self._stored[index] = version

    def forget(self, index: int) -> None:
        """Drop a client from memory, whatever it holds."""
        held = self._here.pop(index, None)
        self._size -= held.size if held else 0

    def changed(self, index: int, version: int) -> None:
        """A job changed this client."""
        self._here[index].version = version
        self._measure(index)
        if self._at_once:
            self._save(index)

    def trim(self) -> None:
        """Make room: the least recently used leave until the rest fits; the last one used always stays."""
        while self._budget is not None and self._size > self._budget and len(self._here) > 1:
            index = next(iter(self._here))
            self._save(index)
            self.forget(index)

    def _measure(self, index: int) -> None:
        held = self._here[index]
        self._size -= held.size
        held.size = tree.size(held.client.state(copy=False))
        self._size += held.size

    def _save(self, index: int) -> None:
        held, before = self._here[index], self.stored(index)
        if self._store is None or held.version == before:
            return
        self._store.save(index, held.version, held.client.state(copy=False))
        self._stored[index] = held.version
        if before and not self._at_once:
            self._store.drop(index, before)
