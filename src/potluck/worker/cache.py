"""Clients in memory, and the store for those that do not fit."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from potluck.core import tree
from potluck.core.client import Client

LoadState = Callable[[int], tree.Flat | None]
"""Returns the saved state of a client; None where it starts as it was made."""


Budget = int | Callable[[], int] | None
"""Bytes that clients may take in memory; a function is called when the budget is first needed."""


class StateStore(Protocol):
    """Stores states of clients outside of memory, by client and version."""

    def save(self, client: int, version: int, state: tree.Flat) -> None:
        """Store a state."""

    def load(self, client: int, version: int) -> tree.Flat:
        """Load a stored state."""

    def drop(self, client: int, version: int) -> None:
        """Delete a state that is no longer needed."""


@dataclass
class CachedClient:
    """A client in memory; `version` is the id of the job that last changed it, 0 where none did."""

    client: Client
    version: int
    size: int = 0


class ClientCache:
    """Clients by index, made on first use. Over the budget, the least recently used are moved to the store.

    A client that never changed is not stored but made again. In a resumed run, `saved` gives the state that a client
    starts with.
    """

    def __init__(self, make: Callable[[int], Client], saved: LoadState | None = None) -> None:
        self._make, self._saved = make, saved
        self._clients: OrderedDict[int, CachedClient] = OrderedDict()
        self._unmeasured: set[int] = set()
        self._stored: dict[int, int] = {}
        self._size = 0
        self._store: StateStore | None = None
        self._budget: Budget = None
        self._at_once = False
        self.loading_seconds = 0.0
        """Seconds spent so far on making and loading clients."""

    def set_budget(self, store: StateStore, budget: Budget, *, at_once: bool = False) -> None:
        """Hold at most `budget` bytes of clients in memory; None: all clients.

        With `at_once` every change is stored immediately, and the caller deletes earlier versions.
        """
        self._store, self._budget, self._at_once = store, budget, at_once

    def __contains__(self, index: int) -> bool:
        return index in self._clients

    def __getitem__(self, index: int) -> Client:
        """Return a client from memory, from the store, or newly made."""
        if index not in self._clients:
            started = time.perf_counter()
            client, version = self._make(index), self.stored_version(index)
            if version and self._store is not None:
                client.restore(self._store.load(index, version))
            elif self._saved is not None and (state := self._saved(index)) is not None:
                client.restore(state)
            self._clients[index] = CachedClient(client, version)
            self._unmeasured.add(index)
            self.loading_seconds += time.perf_counter() - started
        self._clients.move_to_end(index)
        return self._clients[index].client

    def stored_version(self, index: int) -> int:
        """Return the version in the store; 0 where it has none."""
        return self._stored.get(index, 0)

    def set_version(self, index: int, version: int) -> None:
        """Set the current version in the store; a client in memory with another version is dropped."""
        if index in self._clients and self._clients[index].version != version:
            self.discard(index)
        self._stored[index] = version

    def discard(self, index: int) -> None:
        """Drop a client from memory, with its changes."""
        self._unmeasured.discard(index)
        entry = self._clients.pop(index, None)
        self._size -= entry.size if entry else 0

    def discard_unchanged(self, index: int) -> None:
        """Drop a client from memory if it can be made or loaded again unchanged."""
        if index in self._clients and self._clients[index].version == self.stored_version(index):
            self.discard(index)

    def mark_changed(self, index: int, version: int) -> None:
        """Note that a job changed this client."""
        self._clients[index].version = version
        self._unmeasured.add(index)
        if self._at_once:
            self._save(index)

    def trim(self) -> None:
        """Move the least recently used clients to the store until the rest fits; the last one used always stays."""
        if callable(self._budget):
            self._budget = self._budget()
        while self._unmeasured:
            self._measure(self._unmeasured.pop())
        while self._budget is not None and self._size > self._budget and len(self._clients) > 1:
            index = next(iter(self._clients))
            self._save(index)
            self.discard(index)

    def _measure(self, index: int) -> None:
        entry = self._clients[index]
        self._size -= entry.size
        entry.size = tree.size(entry.client.state(copy=False))
        self._size += entry.size

    def _save(self, index: int) -> None:
        entry, before = self._clients[index], self.stored_version(index)
        if self._store is None or entry.version == before:
            return
        self._store.save(index, entry.version, entry.client.state(copy=False))
        self._stored[index] = entry.version
        if before and not self._at_once:
            self._store.drop(index, before)
