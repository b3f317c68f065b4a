"""Clients in memory up to a budget, the others in a store."""

from __future__ import annotations

import torch

from potluck.core.tree import Flat, flatten, size, unflatten
from potluck.methods.standalone import Standalone
from potluck.worker.cache import ClientCache
from support.tiny import Recorder, make_loop, tiny

FED = tiny(4, hidden=(5,))
ONE = 8 * (4 * 5 + 5 + 5 * 3 + 3 + 3 * 3 + 3)
"""Bytes of a client: the network of 4-5-3-3 in double precision."""


class Shelf:
    """A store that remembers what was done."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], Flat] = {}

    def save(self, client: int, version: int, state: Flat) -> None:
        self.kept[client, version] = flatten(unflatten(state))

    def load(self, client: int, version: int) -> Flat:
        return self.kept[client, version]

    def drop(self, client: int, version: int) -> None:
        del self.kept[client, version]


def limited(budget: int | None, *, at_once: bool = False) -> tuple[ClientCache, Shelf]:
    residents, shelf = ClientCache(FED.client), Shelf()
    residents.set_budget(shelf, budget, at_once=at_once)
    return residents, shelf


def visit(residents: ClientCache, index: int, version: int = 0) -> None:
    client = residents[index]
    if version:
        client.private["mark"] = torch.tensor([float(version)])
        residents.mark_changed(index, version)
    residents.trim()


def test_a_client_is_as_large_as_its_tensors() -> None:
    assert size(FED.client(0).state()) == ONE


def test_the_least_recently_used_leave_first_and_come_back_as_they_were() -> None:
    residents, shelf = limited(2 * ONE + 8)
    visit(residents, 0, version=7)
    visit(residents, 1)
    visit(residents, 0)
    visit(residents, 2)
    assert [index in residents for index in range(3)] == [True, False, True]
    assert shelf.kept == {}  # client 1 never changed, so it need not be kept
    visit(residents, 3)
    assert 0 not in residents
    assert list(shelf.kept) == [(0, 7)]
    assert residents[0].private["mark"].item() == 7


def test_only_the_last_version_is_kept_in_the_store() -> None:
    residents, shelf = limited(0)
    for version in (3, 5):
        visit(residents, 0, version)
        visit(residents, 1)
    assert list(shelf.kept) == [(0, 5)]


def test_a_client_larger_than_the_budget_still_works() -> None:
    residents, _ = limited(0)
    visit(residents, 0)
    assert 0 in residents


def test_changes_are_stored_at_once_where_asked_and_older_versions_are_left_to_their_keeper() -> None:
    residents, shelf = limited(None, at_once=True)
    visit(residents, 0, version=3)
    visit(residents, 0, version=5)
    assert list(shelf.kept) == [(0, 3), (0, 5)]
    assert residents.stored_version(0) == 5


def test_a_copy_that_was_overtaken_elsewhere_is_not_used() -> None:
    here, shelf = limited(None, at_once=True)
    there, _ = limited(None, at_once=True)
    there.set_budget(shelf, None, at_once=True)
    visit(here, 0, version=1)
    there.set_version(0, 1)
    visit(there, 0, version=2)
    assert here[0].private["mark"].item() == 1
    here.set_version(0, 2)
    assert here[0].private["mark"].item() == 2
    there.set_version(0, 2)
    assert 0 in there  # the true version stays in memory


def test_budget_may_be_measured_at_first_eviction() -> None:
    calls: list[int] = []

    def measure() -> int:
        calls.append(1)
        return 2 * ONE

    residents, _ = limited(None)
    residents.set_budget(Shelf(), measure)
    assert not calls
    for index in (0, 1, 2):
        visit(residents, index)
    assert calls == [1]
    assert [index in residents for index in range(3)] == [False, True, True]


def test_gradients_are_freed_with_the_job() -> None:
    client = FED.client(0)
    client.fit()
    assert any(parameter.grad is not None for parameter in client.model.parameters())
    client.free_gradients()
    assert all(parameter.grad is None for parameter in client.model.parameters())


def test_unchanged_clients_are_discarded_and_changed_ones_stay() -> None:
    residents, shelf = limited(None)
    for index, version in ((0, 0), (1, 4), (2, 6)):
        visit(residents, index, version)
    shelf.save(2, 6, residents[2].state())
    residents.set_version(2, 6)
    for index in range(4):
        residents.discard_unchanged(index)
    assert [index in residents for index in range(4)] == [False, True, False, False]
    assert residents[1].private["mark"].item() == 4
    assert residents[2].private["mark"].item() == 6


def test_final_evaluation_keeps_untrained_clients_out_of_memory() -> None:
    recorder = Recorder()
    loop = make_loop(Standalone(), tiny(12), rounds=2, participation=0.25, callbacks=[recorder])
    loop.run()
    worked = {number for step in recorder.steps for number in step.record.participants}
    assert len(recorder.end.scores) == 12
    assert {index for index in range(12) if index in loop.dispatcher.engine.worker.cache} == worked
    never = next(index for index in range(12) if index not in worked)
    again = recorder.end.fetch(never)["model"]
    assert all(
        torch.equal(again[name], tensor) for name, tensor in tiny(12).client(never).model.state_dict().items()
    )
