"""Links to other workers: opened once, dropped with the address, and counted when they cannot be opened."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.control.assignment import WorkerAddress
from millrace.errors import MillraceError
from millrace.runtime.flow import links as links_module
from millrace.runtime.flow.links import Links, Nowhere
from millrace.runtime.wire import messages as wire


class Wire:
    def __init__(self) -> None:
        self.sent: list[list[Any]] = []

    def send(self, frames: list[Any]) -> None:
        self.sent.append(frames)


class FakePeers:
    """Peers that record their calls."""

    def __init__(self) -> None:
        self.made: list[WorkerAddress] = []
        self.forgotten: list[int] = []
        self.refused: set[int] = set()

    def link(self, address: WorkerAddress) -> Wire:
        if address.slot in self.refused:
            raise MillraceError("no way there")
        self.made.append(address)
        return Wire()

    def forget(self, slot: int) -> None:
        self.forgotten.append(slot)


def at(slot: int, generation: int = 1) -> WorkerAddress:
    return WorkerAddress(slot, generation, "node", "boot", f"ipc{generation}", "")


def reaching(*addresses: WorkerAddress) -> tuple[Links, FakePeers, Counter[str]]:
    peers, counters = FakePeers(), Counter[str]()
    links = Links(peers, counters)
    links.reach(addresses)
    return links, peers, counters


def test_a_link_is_made_when_it_is_first_needed_and_then_kept() -> None:
    links, peers, _ = reaching(at(0), at(1))
    assert peers.made == []
    assert links.to(1) is links.to(1)
    links.reach([at(0), at(1)])
    assert links.to(1) is not None and peers.made == [at(1)] and peers.forgotten == []


def test_another_worker_in_the_slot_gets_another_link() -> None:
    links, peers, _ = reaching(at(0), at(1))
    before = links.to(1)
    links.reach([at(0), at(1, generation=2)])
    assert peers.forgotten == [1]
    assert links.to(1) is not before and peers.made == [at(1), at(1, generation=2)]


def test_a_lost_worker_has_no_link() -> None:
    links, peers, _ = reaching(at(0), at(1))
    links.to(1)
    links.reach([at(0)])
    assert (peers.forgotten, links.to(1)) == ([1], None)
    links.send(1, wire.Credits(0, 1, []))
    assert peers.made == [at(1)]


def credit(number: int) -> wire.Credits:
    return wire.Credits(0, 1, [(1, 2, 3, 4, 5, number, 7, 8)])


def received(links: Links, slot: int) -> list[wire.DataMessage]:
    link = links.to(slot)
    assert isinstance(link, Wire)
    return [wire.decode_data(frame) for (frame,) in link.sent]


def test_messages_to_a_worker_without_an_address_wait_for_the_plan_that_has_it() -> None:
    links, _, _ = reaching(at(0))
    links.send(1, credit(1))
    links.send(2, credit(2))
    links.send(1, credit(3))
    links.reach([at(0)])
    links.reach([at(0), at(1)])
    assert received(links, 1) == [credit(1), credit(3)]
    links.reach([at(0), at(1), at(2)])
    assert received(links, 1) == [credit(1), credit(3)] and received(links, 2) == [credit(2)]


def test_the_messages_that_wait_are_limited_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links_module, "UNSENT_LIMIT", 2)
    links, _, _ = reaching(at(0))
    for number in range(4):
        links.send(1, credit(number))
    links.reach([at(0), at(1)])
    assert received(links, 1) == [credit(2), credit(3)]


def test_a_worker_that_cannot_be_reached_is_counted_once() -> None:
    links, peers, counters = reaching(at(1))
    peers.refused = {1}
    assert isinstance(links.to(1), Nowhere) and isinstance(links.to(1), Nowhere)
    assert counters == {"unreachable": 1}


def test_messages_leave_encoded() -> None:
    links, _, _ = reaching(at(1))
    message = wire.Credits(0, 1, [(1, 2, 3, 4, 5, 6, 7, 8)])
    links.send(1, message)
    link = links.to(1)
    assert isinstance(link, Wire)
    ((frame,),) = link.sent
    assert wire.decode_data(frame) == message
