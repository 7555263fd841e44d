"""A worker's knowledge of the others, from its parts of the plan: addresses that stay known, and fencing by generations."""

from __future__ import annotations

import pytest

from millrace.control.assignment import Assignment, WorkerAddress, ranges_of
from millrace.runtime.worker.known_workers import KnownWorkers


def at(slot: int, generation: int) -> WorkerAddress:
    return WorkerAddress(slot, generation, "node", "boot", f"ipc{generation}", "")


def plan(*addresses: WorkerAddress, others: tuple[int, ...] = ()) -> Assignment:
    """A part with these addresses, while workers of other generations live as well."""
    return Assignment(1, list(addresses), generations=ranges_of([*others, *(address.generation for address in addresses)]))


def test_an_address_stays_known_while_its_worker_lives() -> None:
    known = KnownWorkers()
    known.learn(plan(at(0, 1), at(1, 2)))
    known.learn(plan(at(0, 1), others=(2, 3)))
    assert sorted(known.addresses) == [at(0, 1), at(1, 2)]
    known.learn(plan(at(0, 1), others=(3, 4)))
    assert sorted(known.addresses) == [at(0, 1)], "its worker is gone, and another one may be in its slot"
    assert [known.generation_of(slot) for slot in range(2)] == [1, 0]


def test_a_new_worker_in_a_slot_replaces_the_address() -> None:
    known = KnownWorkers()
    known.learn(plan(at(1, 2)))
    known.learn(plan(at(1, 3)))
    assert list(known.addresses) == [at(1, 3)] and known.generation_of(1) == 3


@pytest.mark.parametrize(("slot", "generation", "gone"), [
    (0, 4, False), (0, 3, True), (1, 6, False), (2, 6, False), (1, 5, True), (1, 7, True), (1, 9, False)])
def test_workers_without_an_address_are_judged_by_their_generations(slot: int, generation: int, gone: bool) -> None:
    known = KnownWorkers()
    known.learn(plan(at(0, 4), others=(6, 8)))
    assert known.is_fenced(slot, generation) == known.is_lost(slot, generation) == gone


def test_the_newest_worker_is_known_to_be_lost_after_it_has_left_the_plan() -> None:
    known = KnownWorkers()
    known.learn(plan(at(0, 1), others=(2,)))
    known.learn(plan(at(0, 1)))
    assert known.is_lost(1, 2) and known.is_fenced(1, 2)
    assert not known.is_lost(1, 3) and not known.is_fenced(1, 3), "it may have joined since"
