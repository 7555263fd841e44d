"""Chunks that wait for manual acks: counted in tuples, and looked up by a tuple or its id."""

from __future__ import annotations

import pytest

from millrace.api.tuple import Tuple
from millrace.runtime.flow.channel import UNTRACKED, Delivery, Inlet
from millrace.runtime.tasks.unacked import UnackedChunks
from millrace.runtime.wire import messages as wire


def chunk(edge: int, count: int = 3, arrived: float = 0.0) -> Delivery:
    inlet = Inlet(0x10001, 0, "words", ("default",), 0, None)
    delivery = Delivery(inlet, 0, [(n,) for n in range(count)], count, wire.ROWS, True, edge, UNTRACKED)
    delivery.arrived = arrived
    return delivery


def test_tuples_are_counted_until_their_chunk_is_let_go() -> None:
    held, first, other = UnackedChunks(), chunk(1), chunk(2, count=4)
    held.add(first)
    held.add(other)
    assert (len(held), held.tuples) == (2, 7)
    assert held.remove(first)
    assert (len(held), held.tuples) == (1, 4)


def test_an_unknown_chunk_is_not_counted_down() -> None:
    held, first = UnackedChunks(), chunk(1)
    held.add(first)
    assert held.remove(first) and not held.remove(first) and not held.remove(chunk(2))
    assert not held and held.tuples == 0


def test_only_what_came_before_is_forgotten() -> None:
    held, old, new = UnackedChunks(), chunk(1, arrived=10.0), chunk(2, arrived=20.0)
    held.add(old)
    held.add(new)
    held.expire(20.0)
    assert (len(held), held.tuples) == (1, new.count)
    assert held.find(old.tuple_id(0))[0] is None


def test_a_tuple_knows_its_chunk_and_an_id_is_looked_up() -> None:
    held, first = UnackedChunks(), chunk(1)
    held.add(first)
    assert held.find(Tuple((2,), first, 2)) == (first, 2)
    assert held.find(first.tuple_id(2)) == (first, 2)


def test_an_id_may_be_of_a_chunk_that_is_not_held_yet() -> None:
    held, first = UnackedChunks(), chunk(1)
    assert held.find(first.tuple_id(1)) == (None, 1)
    assert held.find(first.tuple_id(1), [chunk(2), first]) == (first, 1)


@pytest.mark.parametrize("made_up", ["", "nothing", "10001.1", "10001.1:", "10001.1:-1", "10001.1:3", "10001.1:x", ":0"])
def test_a_made_up_id_finds_nothing(made_up: str) -> None:
    held = UnackedChunks()
    held.add(chunk(1))
    assert held.find(made_up)[0] is None


def test_a_tuple_from_elsewhere_finds_nothing() -> None:
    assert UnackedChunks().find(Tuple.of("1", "words", "default", 1, ("a",)))[0] is None
