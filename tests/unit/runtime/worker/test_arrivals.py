"""What comes in before its plan does, or after it: who is refused, what is kept, for how long, and what is counted."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.control.assignment import Assignment, WorkerAddress
from millrace.runtime.clock import ManualClock
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker import arrivals
from millrace.runtime.worker.arrivals import STASH_SECONDS, Arrivals


class Desk:
    """Arrivals of a worker that has no topology, under a plan with workers of generations 4 and 7 and topology 5 elsewhere."""

    def __init__(self) -> None:
        self.clock, self.counters = ManualClock(100.0), Counter[str]()
        self.arrivals = Arrivals(self.clock, {}, self.counters)
        self.learn(5)

    def learn(self, *alive: int) -> None:
        workers = [WorkerAddress(slot, generation, "node", "boot", "", "") for slot, generation in ((0, 4), (1, 7))]
        self.arrivals.learn(Assignment(1, workers, [], list(alive)))

    def receive(self, message: wire.DataMessage, *bodies: bytes) -> None:
        self.arrivals.receive([wire.encode(message), *bodies])


def chunk(topology: int = 5, worker: int = 1, generation: int = 7) -> wire.Chunk:
    return wire.Chunk(worker, generation, topology, 0, 1, 1, 1, 2, 1, 0, 0, 1, wire.ROWS, 0, [], 0, 0.0)


def acks(topology: int) -> wire.Acks:
    return wire.Acks(1, 7, topology, 1, [(1, 2)])


@pytest.mark.parametrize(("worker", "generation"), [(1, 6), (0, 3), (2, 7), (2, 1)])
def test_a_worker_that_was_given_up_is_refused(worker: int, generation: int) -> None:
    desk = Desk()
    desk.receive(chunk(worker=worker, generation=generation), b"")
    assert desk.counters == {"fenced": 1}


@pytest.mark.parametrize(("worker", "generation"), [(1, 7), (1, 8), (2, 8)])
def test_one_that_the_plan_has_or_that_has_just_joined_is_not(worker: int, generation: int) -> None:
    desk = Desk()
    desk.receive(chunk(worker=worker, generation=generation), b"")
    assert desk.counters == {}


@pytest.mark.parametrize("frames", [[], [b""], [b"\xc1"], [b"no message", b"of ours"], [wire.encode(chunk())],
                                    [wire.encode(chunk()), b"", b""]])
def test_what_is_malformed_is_counted(frames: list[bytes]) -> None:
    desk = Desk()
    desk.arrivals.receive(frames)
    assert desk.counters == {"malformed": 1}


@pytest.mark.parametrize(("topology", "is_kept"), [(4, False), (5, True), (6, True)])
def test_only_a_topology_that_may_come_here_has_its_chunks_and_acks_kept(topology: int, is_kept: bool) -> None:
    """4 was killed, 5 runs elsewhere, 6 is newer than all that is known here."""
    desk = Desk()
    desk.receive(chunk(topology), b"")
    desk.receive(acks(topology))
    assert desk.counters == ({} if is_kept else {"stale": 2})


def test_chunks_whose_plan_does_not_come_are_given_up() -> None:
    desk = Desk()
    desk.receive(chunk(), b"")
    desk.clock.advance(STASH_SECONDS)
    desk.receive(chunk(6), b"")
    desk.arrivals.forget_old()
    assert desk.counters == {}
    desk.clock.advance(0.1)
    desk.arrivals.forget_old()
    assert desk.counters == {"stale": 1}


def test_acks_wait_from_plan_to_plan_but_not_for_ever() -> None:
    desk = Desk()
    desk.receive(acks(5))
    desk.clock.advance(STASH_SECONDS - 0.1)
    desk.arrivals.settle()
    assert desk.counters == {}
    desk.clock.advance(0.1)
    desk.arrivals.settle()
    assert desk.counters == {"stale": 1}


def test_acks_of_a_topology_that_was_killed_meanwhile_are_given_up() -> None:
    desk = Desk()
    desk.receive(acks(5))
    desk.learn()
    desk.arrivals.settle()
    assert desk.counters == {"stale": 1}


def test_no_more_is_kept_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "STASH_LIMIT", 3)
    desk = Desk()
    for topology in (5, 5, 6, 6, 5):
        desk.receive(chunk(topology), b"")
    for _ in range(4):
        desk.receive(acks(5))
    assert desk.counters == {"stale": 3}


def test_credits_and_probes_for_nobody_are_no_fault() -> None:
    desk = Desk()
    desk.receive(wire.Credits(1, 7, [(5, 1, 1, 2, 1, 9)]))
    desk.receive(wire.Probe(1, 7, 5, 1, 1, 2, 1, 9))
    assert desk.counters == {}
