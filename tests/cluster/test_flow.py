"""Flow control: windows, limits, pause, kill, ticks, and tasks with their own thread."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.control.events import Paused, Unpaused
from millrace.control.events import Ticked as TimePassed
from millrace.testing.local_cluster import LocalCluster
from support.cluster.ack_parts import ByTheHundred
from support.cluster.cluster_runs import counter, drain, run_through
from support.cluster.plain_parts import (
    AllAtOnce,
    Burst,
    Lives,
    Never,
    Numbers,
    NumbersBlocking,
    Pass,
    PassBlocking,
    Sink,
    SinkBlocking,
    Switched,
)
from support.cluster.records import EVENTS, SEEN
from support.cluster.timed_parts import EmitsOnTick, FakeTicked, Sums, SumsBlocking, TickedBlocking

GUARANTEES = pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
TICKS = "topology.tick.tuple.freq.secs"
WINDOW = "topology.channel.window"
N = 3000


class Narrow(Topology):
    """Sends from four tasks to one sink that takes a chunk at a time."""

    numbers = Numbers.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=4)
    sink = SinkBlocking.spec(inputs=[through])


def fullest(cluster: LocalCluster) -> int:
    """The largest number of chunks of one channel in an inbox, however many parts they are processed in."""
    counts = Counter((task.name, delivery.inlet) for name in ("through", "sink") for task in cluster.tasks(name)
                     for delivery in task.inbox.waiting if not delivery.more)
    return max(counts.values(), default=0)


def small_chunks(guarantee: str, **config: Any) -> dict[str, Any]:
    return {"topology.guarantee": guarantee, "topology.chunk.tuples": 20, "burst": 20, **config}


# ---- back-pressure ----


@GUARANTEES
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("window", [1, 4])
def test_a_slow_bolt_holds_back_its_senders(window: int, workers: int, guarantee: str) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(Narrow, config=small_chunks(guarantee, **{WINDOW: window}))
    cluster.run(0.3)
    most = 0
    for _ in range(300):
        cluster.step()
        most = max(most, fullest(cluster))
    assert most == window, "full, and never more than that"
    emitted = sum(task.meters.emitted for task in cluster.tasks("numbers"))
    assert emitted - len(SEEN["sink"]) <= (2 * 4 + 4) * window * 20 + 6 * 2 * 20, "what is under way is bounded"


@GUARANTEES
def test_the_window_holds_after_a_sender_was_reassigned(guarantee: str) -> None:
    """Credits for chunks of a lost incarnation must not let the next one send more."""
    cluster = LocalCluster(3)
    cluster.submit(Narrow, config=small_chunks(guarantee))
    cluster.run(0.4)
    sink = next(slot for task, slot in cluster.where("narrow").items() if task.component == "sink")
    most = 0
    for slot in [slot for slot in range(3) if slot != sink] * 2:
        cluster.kill(slot)
        cluster.start(slot)
        for _ in range(150):
            cluster.step()
            most = max(most, fullest(cluster))
    assert most == 4


@GUARANTEES
def test_a_bolt_that_multiplies_its_input_delivers_all_of_it(guarantee: str) -> None:
    class Wide(Topology):
        numbers = Numbers.spec()
        burst = Burst.spec(inputs=[numbers], par=2)
        sink = SinkBlocking.spec(inputs={burst: Grouping.fields("n")}, par=2)

    run_through(Wide, limit=300, **small_chunks(guarantee))
    assert sorted(SEEN["sink"]) == list(range(30_000))


@GUARANTEES
def test_a_spout_that_sends_everything_in_one_call_delivers_all_of_it(guarantee: str) -> None:
    class Flood(Topology):
        numbers = AllAtOnce.spec(par=2)
        sink = SinkBlocking.spec(inputs=[numbers], par=2)

    run_through(Flood, limit=N, **small_chunks(guarantee))
    assert sorted(SEEN["sink"]) == list(range(N))


# ---- the limit of tuples in flight ----


@pytest.mark.parametrize("most", [1, 10, 64])
def test_no_more_than_the_limit_is_in_flight(most: int) -> None:
    cluster = LocalCluster(2)
    cluster.submit(Narrow, config={"limit": 200 * most, "burst": 1, "topology.max.spout.pending": most, WINDOW: 100})
    pending = []
    for _ in range(1200):
        cluster.step()
        pending += [task.tracking.flight.tuples for task in cluster.tasks("numbers")]
    assert max(pending) == most
    assert len(SEEN["sink"]) > 50 * most, "and it goes on"


def test_a_spout_at_its_limit_still_gets_failures() -> None:
    class Stuck(Topology):
        numbers = Numbers.spec()
        never = Never.spec(inputs=[numbers])

    cluster = LocalCluster(1)
    cluster.submit(Stuck, config={"burst": 1, "topology.max.spout.pending": 5, "topology.message.timeout.secs": 0.5})
    cluster.run(3.0)
    assert set(SEEN["never"]) == set(range(5)), "those in flight again and again, and nothing else"
    assert len(SEEN["never"]) >= 20


# ---- pause and kill ----


class Simple(Topology):
    numbers = Switched.spec(par=2)
    through = Pass.spec(inputs=[numbers], par=2)
    sink = Sink.spec(inputs=[through], par=2)


@GUARANTEES
def test_a_paused_topology_emits_nothing_and_continues_where_it_was(guarantee: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(Simple, config={"limit": 200_000, **small_chunks(guarantee)})
    cluster.run(0.5)
    cluster.tell(Paused("simple"))
    emitted = sum(task.meters.emitted for task in cluster.tasks("numbers"))
    cluster.run(1.0)
    assert sum(task.meters.emitted for task in cluster.tasks("numbers")) == emitted == len(SEEN["sink"]) > 0
    assert cluster.master.drained(cluster.master.topologies["simple"])
    cluster.tell(Unpaused("simple"))
    cluster.run(0.5)
    drain(cluster, "simple")
    counts = Counter(SEEN["sink"])
    assert set(counts.values()) == {1}
    assert len(counts) > emitted
    assert [sorted(EVENTS)[i][0] for i in (0, -1)] == ["activate", "deactivate"]
    assert Counter(what for what, _ in EVENTS) == {"activate": 4, "deactivate": 4}


@GUARANTEES
@pytest.mark.parametrize("workers", [1, 2])
def test_kill_lets_emitted_tuples_finish(workers: int, guarantee: str) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(Narrow, config=small_chunks(guarantee))
    cluster.run(0.5)
    cluster.stop("narrow", wait=30)
    spouts = cluster.tasks("numbers")
    cluster.run_until(lambda: cluster.ended == ["narrow"])
    assert sum(task.meters.emitted for task in spouts) == len(SEEN["sink"])
    assert set(Counter(SEEN["sink"]).values()) == {1}
    assert "narrow: drained" in cluster.said


class Closing(Topology):
    numbers = Numbers.spec(par=2)
    one = Lives.spec(inputs=[numbers])
    two = Lives.spec(inputs=[numbers], par=2)


@GUARANTEES
@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_that_does_not_wait_ends_every_task_once(workers: int, guarantee: str) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(Closing, config=small_chunks(guarantee))
    cluster.run(0.3)
    cluster.stop("closing", wait=0.0)
    cluster.tell(TimePassed(cluster.clock.now()))
    assert cluster.ended == ["closing"]
    seen = sum(map(len, SEEN.values()))
    cluster.run(0.5)
    assert sum(map(len, SEEN.values())) == seen, "nothing is processed after the end"
    ends = [("one", 0), ("two", 0), ("two", 1)]
    assert sorted(EVENTS) == [("close", *end) for end in ends] + [("initialize", *end) for end in ends]


def test_a_killed_topology_leaves_nothing_behind_in_the_workers() -> None:
    cluster = LocalCluster(2)
    cluster.run(0.2)
    before = [len(worker.timers._heap) for worker in cluster.workers.values()]
    for _ in range(3):
        cluster.submit(Closing, config={"topology.message.timeout.secs": 1.0, TICKS: 0.1})
        cluster.run(0.3)
        cluster.stop("closing", wait=0.0)
        cluster.run(0.2)
    cluster.run(12.0)
    assert [len(worker.timers._heap) for worker in cluster.workers.values()] == before
    assert [worker.arrivals._stash for worker in cluster.workers.values()] == [{}, {}]
    assert [worker.topologies for worker in cluster.workers.values()] == [{}, {}]


def test_a_name_can_be_used_again_and_nothing_of_the_first_run_is_left() -> None:
    cluster = LocalCluster(2)
    for _ in range(3):
        cluster.submit(Simple, config={"limit": N})
        cluster.run(0.5)
        drain(cluster, "simple")
    assert Counter(SEEN["sink"]) == dict.fromkeys(range(N), 3)
    assert cluster.ended == ["simple"] * 3
    assert counter(cluster, "stale") == 0


def test_at_most_once_kill_waits_for_tuples_that_a_batch_holds() -> None:
    class Held(Topology):
        numbers = Numbers.spec()
        sums = Sums.spec(inputs=[numbers], config={TICKS: 1.0})
        sink = Sink.spec(inputs=[sums])

    run_through(Held, seconds=0.5, limit=100, **{"topology.guarantee": "at-most-once"})
    assert sum(total for _, total in SEEN["sink"]) == sum(range(100))


# ---- ticks and threads ----


class Clockwork(Topology):
    numbers = Numbers.spec()
    ticked = FakeTicked.spec(inputs=[numbers], par=2, config={TICKS: 0.1})
    counts = EmitsOnTick.spec(inputs=[numbers], config={TICKS: 0.25})
    silent = FakeTicked.spec(inputs=[numbers], config={})
    sink = Sink.spec(inputs=[counts])


@GUARANTEES
def test_bolts_with_the_tick_setting_get_ticks(guarantee: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(Clockwork, config={"limit": 500, "topology.guarantee": guarantee})
    cluster.run(2.05)
    assert Counter(EVENTS) == {(task, True, "__system", -1, (0.1,)): 20 for task in (0, 1)}
    assert len(SEEN["sink"]) == 8
    assert SEEN["sink"][-1] == 500
    assert sorted(SEEN["ticked"]) == sorted(SEEN["silent"]) == list(range(500))


def test_a_topologys_tick_setting_applies_to_all_its_bolts() -> None:
    cluster = LocalCluster(1)
    cluster.submit(Clockwork, config={"limit": 5, TICKS: 1.0})
    cluster.run(3.05)
    assert Counter((task, seconds) for task, _, _, _, (seconds,) in EVENTS) == {(0, 0.1): 30, (1, 0.1): 30, (0, 1.0): 3}


class SlowThreads(LocalCluster):
    """Makes a call of a component with its own thread take seven steps."""

    def _step_worker(self, slot: int) -> None:
        threads = self._threads[slot]
        waiting = threads.waiting.copy()
        if self._steps % 7:
            threads.waiting.clear()
        super()._step_worker(slot)
        if self._steps % 7:
            threads.waiting.extendleft(reversed(waiting))


@GUARANTEES
def test_a_bolt_whose_thread_is_always_busy_still_gets_ticks(guarantee: str) -> None:
    class Busy(Topology):
        numbers = Numbers.spec(par=2)
        ticked = TickedBlocking.spec(inputs=[numbers], config={TICKS: 0.07})
        sums = SumsBlocking.spec(inputs=[numbers], config={TICKS: 0.07})

    cluster = SlowThreads(1)
    cluster.submit(Busy, config=small_chunks(guarantee))
    cluster.run(1.0)
    EVENTS.clear()
    cluster.run(1.0)
    assert sum(len(entry) == 5 for entry in EVENTS) >= 10
    assert sum(entry[0] == "batch" for entry in EVENTS) >= 5


@pytest.mark.parametrize("many", [100, 1000])
def test_a_bolt_that_acks_by_the_hundred_gets_enough_tuples_with_any_chunk_size(many: int) -> None:
    class Bulk(Topology):
        numbers = Numbers.spec()
        bulk = ByTheHundred.spec(inputs=[numbers])

    run_through(Bulk, seconds=3.0, limit=2000, many=many, burst=1, **{"topology.chunk.tuples": 1})
    assert sorted(SEEN["bulk"]) == list(range(2000)), "and none of them is replayed"


class Threads(Topology):
    numbers = NumbersBlocking.spec(par=2)
    through = PassBlocking.spec(inputs=[numbers], par=2)
    counts = EmitsOnTick.spec(inputs=[through])
    sink = SinkBlocking.spec(inputs={through: Grouping.fields("n")}, par=3)


@GUARANTEES
@pytest.mark.parametrize("workers", [1, 3])
def test_components_with_their_own_threads_do_the_same_work(workers: int, guarantee: str) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(Threads, config={"limit": N, TICKS: 0.05, "topology.guarantee": guarantee})
    cluster.run(1.0)
    positions = cluster.master.topologies["threads"].positions
    drain(cluster, "threads")
    assert sorted(SEEN["sink"]) == list(range(N))
    assert sum(positions.values()) == N
