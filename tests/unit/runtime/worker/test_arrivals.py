"""Messages that arrive before or after their plan: fencing, stashing, expiry and counters."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.control.assignment import Assignment, WorkerAddress, ranges_of
from millrace.runtime.clock import ManualClock
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker import arrivals
from millrace.runtime.worker.arrivals import STASH_SECONDS, Arrivals
from millrace.runtime.worker.known_workers import KnownWorkers


class ArrivalsFixture:
    """Arrivals of a worker that has no topology, under a plan with workers of generations 4 and 7 and topology 5 elsewhere."""

    def __init__(self) -> None:
        self.clock, self.counters = ManualClock(100.0), Counter[str]()
        self.workers = KnownWorkers()
        self.arrivals = Arrivals(self.clock, {}, self.workers, self.counters)
        self.learn(5)

    def learn(self, *alive: int) -> None:
        workers = [WorkerAddress(slot, generation, "node", "boot", "", "") for slot, generation in ((0, 4), (1, 7))]
        plan = Assignment(1, workers, [], ranges_of(alive), generations=[(4, 4), (7, 7)])
        self.workers.learn(plan)
        self.arrivals.learn(plan)

    def receive(self, message: wire.DataMessage, *bodies: bytes) -> None:
        self.arrivals.receive([wire.encode(message), *bodies])


def chunk(topology: int = 5, worker: int = 1, generation: int = 7) -> wire.Chunk:
    return wire.Chunk(worker, generation, topology, 0, 1, 1, 1, 2, 1, 0, 0, 1, wire.ROWS, 0, [], 0, 0.0)


def acks(topology: int) -> wire.Acks:
    return wire.Acks(1, 7, topology, 1, [(1, 2)])


@pytest.mark.parametrize(("worker", "generation"), [(1, 6), (0, 3), (2, 6), (2, 1)])
def test_an_abandoned_worker_is_refused(worker: int, generation: int) -> None:
    fixture = ArrivalsFixture()
    fixture.receive(chunk(worker=worker, generation=generation), b"")
    assert fixture.counters == {"fenced": 1}


@pytest.mark.parametrize(("worker", "generation"), [(1, 7), (1, 8), (2, 8)])
def test_a_current_or_newly_joined_worker_is_accepted(worker: int, generation: int) -> None:
    fixture = ArrivalsFixture()
    fixture.receive(chunk(worker=worker, generation=generation), b"")
    assert fixture.counters == {}


@pytest.mark.parametrize("frames", [[], [b""], [b"\xc1"], [b"no message", b"of ours"], [wire.encode(chunk())],
                                    [wire.encode(chunk()), b"", b""]])
def test_malformed_frames_are_counted(frames: list[bytes]) -> None:
    fixture = ArrivalsFixture()
    fixture.arrivals.receive(frames)
    assert fixture.counters == {"malformed": 1}


@pytest.mark.parametrize(("topology", "is_kept"), [(4, False), (5, True), (6, True)])
def test_only_a_topology_that_may_come_here_has_its_chunks_and_acks_kept(topology: int, is_kept: bool) -> None:
    """Topology 4 was killed, 5 runs elsewhere, 6 is newer than any known one."""
    fixture = ArrivalsFixture()
    fixture.receive(chunk(topology), b"")
    fixture.receive(acks(topology))
    assert fixture.counters == ({} if is_kept else {"stale": 2})


def test_chunks_without_a_plan_expire() -> None:
    fixture = ArrivalsFixture()
    fixture.receive(chunk(), b"")
    fixture.clock.advance(STASH_SECONDS)
    fixture.receive(chunk(6), b"")
    fixture.arrivals.forget_old()
    assert fixture.counters == {}
    fixture.clock.advance(0.1)
    fixture.arrivals.forget_old()
    assert fixture.counters == {"stale": 1}


def test_stashed_acks_expire() -> None:
    fixture = ArrivalsFixture()
    fixture.receive(acks(5))
    fixture.clock.advance(STASH_SECONDS - 0.1)
    fixture.arrivals.settle()
    assert fixture.counters == {}
    fixture.clock.advance(0.1)
    fixture.arrivals.settle()
    assert fixture.counters == {"stale": 1}


def test_acks_of_a_killed_topology_are_dropped() -> None:
    fixture = ArrivalsFixture()
    fixture.receive(acks(5))
    fixture.learn()
    fixture.arrivals.settle()
    assert fixture.counters == {"stale": 1}


def test_the_stash_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "STASH_LIMIT", 3)
    fixture = ArrivalsFixture()
    for topology in (5, 5, 6, 6, 5):
        fixture.receive(chunk(topology), b"")
    for _ in range(4):
        fixture.receive(acks(5))
    assert fixture.counters == {"stale": 3}


def test_credits_and_probes_without_a_receiver_are_ignored() -> None:
    fixture = ArrivalsFixture()
    fixture.receive(wire.Credits(1, 7, [(5, 1, 1, 2, 1, 9, 16, 4)]))
    fixture.receive(wire.Probe(1, 7, 5, 1, 1, 2, 1, 9))
    assert fixture.counters == {}
