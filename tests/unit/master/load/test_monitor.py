"""The load monitor: windows are differences of rising counters, through restarts, moves and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.master.load.monitor import LoadMonitor, WorkerMeters
from millrace.master.load.observed import TopologyObserved
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample
from millrace.runtime.meters import COUNTERS, LATENCIES, SECONDS, LatencyHistogram, Meters
from millrace.runtime.wire.messages import Report

MHZ = 2000.0
CLUSTER = Cluster((Node("n0", 2, MHZ, 4096), Node("n1", 2, MHZ, 8192)),
                  (Slot("n0", "e", 0), Slot("n0", "e", 1), Slot("n1", "e", 2)))
GRAPH = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                            ComponentDef("b", "bolt", "m:C", 2, {}, (), (Input("a", "default", Grouping.SHUFFLE),), False,
                                         "process")), {})
A, B0, B1 = TaskId("a", 0), TaskId("b", 0), TaskId("b", 1)
PLACES = {A: 0, B0: 1, B1: 2}


class Watched:
    """One topology, its workers, and a monitor with windows of one second."""

    def __init__(self) -> None:
        self.observed = TopologyObserved(GRAPH, 0.0)
        self.places = dict(PLACES)
        self.workers = {slot: WorkerMeters(slot, 0.0, 100.0) for slot in range(3)}
        self.cluster = CLUSTER
        self.monitor = LoadMonitor(0.0)
        self.now = 0.0

    def report(self, task: TaskId, slot: int | None = None, incarnation: int = 1, queue: int = 0,
               traffic: dict[TaskId, int] | None = None, sizes: dict[TaskId, int] | None = None, meters: Meters | None = None,
               groups: dict[str, list[int]] | None = None, lag: tuple[int, int] | None = None,
               keys: dict[str, list[tuple[str, int, float]]] | None = None, **counts: float) -> None:
        filled: dict[str, Any] = {**dict.fromkeys(COUNTERS + SECONDS, 0), **counts}
        latencies = (meters or Meters()).report()
        self.observed.take(self.places[task] if slot is None else slot, self.now, {
            "task": self.observed.graph.number(task), "incarnation": incarnation, "queue_length": queue, "lag": lag, **filled,
            **{name: latencies[name] for name in LATENCIES},
            "traffic": {self.observed.graph.number(target): count for target, count in (traffic or {}).items()},
            "traffic_bytes": {self.observed.graph.number(target): size for target, size in (sizes or {}).items()},
            **({"key_groups": groups} if groups is not None else {}), **({"heavy_keys": keys} if keys is not None else {})})

    def used(self, slot: int, cpu: float, generation: int | None = None, memory: float = 100.0, loop: float = 0.0) -> None:
        self.workers[slot] = WorkerMeters(slot if generation is None else generation, cpu, memory, loop_seconds=loop)

    def end_window(self, seconds: float = 1.0) -> WindowSample:
        self.now += seconds
        return self.monitor.end_window(self.now, 1e9 + self.now, {"t": self.observed}, {"t": Plan(1, self.places)},
                                       self.workers, self.cluster)


@pytest.fixture
def watched() -> Watched:
    """Return a topology with one complete window."""
    made = Watched()
    for task in PLACES:
        made.report(task)
    made.end_window()
    return made


def test_windows_are_differences(watched: Watched) -> None:
    watched.report(A, emitted=100, traffic={B0: 60, B1: 40}, busy_seconds=0.5)
    first = watched.end_window(2.0)
    watched.report(A, emitted=130, traffic={B0: 60, B1: 70}, busy_seconds=0.75)
    second = watched.end_window()
    assert (first.seconds, second.seconds) == (2.0, 1.0)
    assert (first.at, second.at) == (1e9 + 3.0, 1e9 + 4.0)
    assert (first.loads["t"].tasks[A].emitted, second.loads["t"].tasks[A].emitted) == (100, 30)
    assert second.loads["t"].tasks[A].busy_seconds == 0.25
    assert first.loads["t"].traffic == {(A, B0): 60, (A, B1): 40}
    assert second.loads["t"].traffic == {(A, B1): 30}, "a pair that said nothing to each other had no traffic"
    assert second.loads["t"].window_seconds == 1.0


def test_bytes_are_differences_through_a_restart(watched: Watched) -> None:
    watched.report(A, traffic={B0: 10, B1: 10}, sizes={B0: 1000, B1: 500})
    assert watched.end_window().loads["t"].traffic_bytes == {(A, B0): 1000, (A, B1): 500}
    watched.report(A, traffic={B0: 15, B1: 10}, sizes={B0: 1300, B1: 500})
    assert watched.end_window().loads["t"].traffic_bytes == {(A, B0): 300}
    watched.report(A, incarnation=2, traffic={B1: 1}, sizes={B1: 50})
    assert watched.end_window().loads["t"].traffic_bytes == {(A, B1): 50}, "another incarnation counts from 0"
    assert watched.observed.load(9.0).traffic_bytes == {(A, B0): 1300, (A, B1): 550}


def test_an_acker_has_its_share_of_the_cpu_of_its_worker() -> None:
    watched, acker = Watched(), TaskId(ACKER, 0)
    watched.observed.follow(replace(GRAPH, ackers=1))
    watched.places |= {acker: 0}
    for task in watched.places:
        watched.report(task)
    watched.end_window()
    watched.report(A, cpu_seconds=0.3, traffic={acker: 7}, sizes={acker: 70})
    watched.report(acker, cpu_seconds=0.1, busy_seconds=0.1, executed=14, emitted=7, traffic={A: 7}, sizes={A: 63})
    watched.used(0, 0.4)
    window = watched.end_window()
    load = window.loads["t"]
    assert load.tasks[acker].cpu_mhz == pytest.approx(0.1 * MHZ) and load.tasks[A].cpu_mhz == pytest.approx(0.3 * MHZ)
    assert (load.traffic[A, acker], load.traffic[acker, A], load.traffic_bytes[acker, A]) == (7, 7, 63)
    assert load.tasks[acker].offered == 0 and load.settling == ()
    assert window.workers[0].busy == pytest.approx(0.1)


def test_nodes_have_what_other_processes_leave(watched: Watched) -> None:
    watched.cluster = Cluster(tuple(replace(node, others_mhz=500.0) for node in CLUSTER.nodes), CLUSTER.slots)
    node = watched.end_window().nodes["n0"]
    assert (node.capacity_mhz, node.others_mhz) == (2 * MHZ - 500.0, 500.0)


def test_a_source_offers_what_is_emitted_and_what_its_lag_grows_by(watched: Watched) -> None:
    watched.report(A, emitted=100, lag=(40, 100))
    first = watched.end_window().loads["t"].tasks[A]
    assert (first.offered, first.lag) == (100, 40), "nothing is known about the lag before"
    watched.report(A, emitted=150, lag=(70, 140))
    assert watched.end_window().loads["t"].tasks[A].offered == 70, "by the tuples emitted when the lag was read"
    watched.report(A, emitted=200, lag=(0, 200))
    assert watched.end_window().loads["t"].tasks[A].offered == 0, "the lag fell by more than was emitted"
    watched.report(A, incarnation=2, emitted=10, lag=(60, 10))
    assert watched.end_window().loads["t"].tasks[A].offered == 70, "another incarnation counts from 0"
    watched.report(A, incarnation=2, emitted=30)
    silent = watched.end_window().loads["t"].tasks[A]
    assert (silent.offered, silent.lag) == (20, None)
    total = watched.observed.load(9.0).tasks[A]
    assert (total.offered, total.lag) == (230, None), "what it emitted, while its lag is not known"
    watched.report(A, incarnation=2, emitted=30, lag=(50, 30))
    assert watched.observed.load(9.0).tasks[A].offered == 230 + 50 - 40


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=2, max_size=20))
def test_what_was_offered_in_all_windows_is_what_came_to_the_source(steps: list[tuple[int, int]]) -> None:
    """(tuples that come to the source, tuples that the spout would take) for each window."""
    watched, lag, emitted, came = Watched(), 0, 0, []
    watched.report(A, lag=(0, 0))
    watched.end_window()
    for arriving, taken in steps:
        lag += arriving
        emitted, lag = emitted + min(taken, lag), lag - min(taken, lag)
        watched.report(A, emitted=emitted, lag=(lag, emitted))
        measured = watched.end_window().loads["t"].tasks[A]
        came.append(arriving)
        assert (measured.offered, measured.lag) == (arriving, lag)
    assert watched.observed.load(9.0).tasks[A].offered == sum(came)


SPLITS = 4
WINDOW = st.tuples(st.lists(st.integers(0, 50), min_size=SPLITS, max_size=SPLITS),
                   st.lists(st.integers(0, SPLITS - 1), min_size=SPLITS, max_size=SPLITS), st.integers(1, SPLITS),
                   st.integers(0, 60))


@given(st.lists(WINDOW, min_size=1, max_size=20))
def test_lag_that_goes_to_other_tasks_with_its_splits_is_no_load(windows: list[tuple[list[int], list[int], int, int]]) -> None:
    """For each window: the tuples that come to each split, the owners of the splits, the number of tasks, and the tuples that a
    task takes of each of its splits."""
    watched = Watched()
    lags, emitted = [0] * SPLITS, dict.fromkeys(range(SPLITS), 0)
    watched.places |= {A: 0}
    watched.report(A, lag=(0, 0))
    watched.end_window()
    for arriving, owners, par, taken in windows:
        spout = replace(GRAPH.component("a"), par=par, splits=SPLITS)
        watched.observed.follow(replace(GRAPH, components=(spout, *GRAPH.components[1:])))
        watched.places = {B0: 1, B1: 2, **{TaskId("a", index): 0 for index in range(par)}}
        for split in range(SPLITS):
            lags[split] += arriving[split]
            took = min(taken, lags[split])
            lags[split] -= took
            emitted[owners[split] % par] += took
        for index in range(par):
            lag = sum(lags[split] for split in range(SPLITS) if owners[split] % par == index)
            watched.report(TaskId("a", index), emitted=emitted[index], lag=(lag, emitted[index]))
        tasks = watched.end_window().loads["t"].tasks
        offered = [tasks[TaskId("a", index)].offered for index in range(par)]
        assert sum(arriving) - par <= sum(offered) <= sum(arriving) and min(offered) >= 0, "each is rounded down"


def test_bolts_are_offered_nothing_and_time_without_credit_is_of_the_window(watched: Watched) -> None:
    watched.report(B0, emitted=50, executed=5, blocked_seconds=0.5)
    watched.end_window()
    watched.report(B0, emitted=90, executed=9, blocked_seconds=0.75)
    measured = watched.end_window().loads["t"].tasks[B0]
    assert (measured.offered, measured.lag, measured.blocked_seconds) == (0, None, 0.25)


def test_tuples_per_key_group_are_summed_over_senders(watched: Watched) -> None:
    watched.report(A, groups={"b": [5, 0, 2]})
    watched.report(B0, groups={"b": [1, 1, 1], "c": [9]})
    assert watched.end_window().loads["t"].key_groups == {"b": (6, 1, 3), "c": (9,)}
    watched.report(A, groups={"b": [8, 0, 2]})
    watched.report(B0, groups={"b": [1, 1, 2], "c": [9]})
    assert watched.end_window().loads["t"].key_groups == {"b": (3, 0, 1), "c": (0,)}
    watched.report(A, incarnation=2, groups={"b": [0, 4, 0]})
    assert watched.end_window().loads["t"].key_groups["b"] == (0, 4, 0), "another incarnation counts from 0"
    assert watched.observed.load(9.0).key_groups == {"b": (9, 5, 4), "c": (9,)}


def test_frequent_keys_are_weighted_by_what_their_senders_send(watched: Watched) -> None:
    watched.report(A, groups={"b": [100, 0]}, keys={"b": [("'x'", 0, 0.5)]})
    watched.report(B0, groups={"b": [10, 10]}, keys={"b": [("'y'", 1, 0.5), ("'x'", 0, 0.25)]})
    watched.report(B1, groups={"b": [0, 0]}, keys={"b": [("'z'", 1, 1.0)]})
    assert watched.end_window().loads["t"].heavy_keys == {"b": (("'x'", 0, 55.0), ("'y'", 1, 10.0))}
    assert watched.end_window().loads["t"].heavy_keys == {"b": ()}, "nothing was sent in the window"


def test_where_nobody_counts_key_groups_there_are_none(watched: Watched) -> None:
    watched.report(A, emitted=1)
    assert watched.end_window().loads["t"].key_groups == {}


def test_tasks_that_came_and_went_with_the_parallelism_are_known_by_what_was_sent_to_them(watched: Watched) -> None:
    b2 = TaskId("b", 2)
    watched.observed.follow(graph_with(3))
    watched.places[b2] = 1
    watched.report(A, traffic={B0: 1, b2: 7})
    watched.report(b2, executed=7)
    load = watched.end_window().loads["t"]
    assert (load.traffic[A, b2], load.tasks[b2].executed) == (7, 7)
    watched.observed.follow(graph_with(1))
    del watched.places[B1], watched.places[b2]
    watched.observed.take(1, watched.now, {**as_reported(graph_with(3), b2), "executed": 9})  # of the batch that ended
    after = watched.end_window().loads["t"]
    assert set(after.tasks) == {A, B0} and not after.traffic
    assert watched.observed.load(9.0).traffic == {(A, B0): 1, (A, b2): 7}
    assert watched.observed.total("b", "executed") == 9


def graph_with(par: int) -> TopologyGraph:
    """The graph with so many tasks of b."""
    return replace(GRAPH, components=(GRAPH.components[0], replace(GRAPH.components[1], par=par)))


def as_reported(graph: TopologyGraph, task: TaskId) -> dict[str, Any]:
    latencies = Meters().report()
    return {"task": graph.number(task), "incarnation": 1, "queue_length": 0, "traffic": {},
            **dict.fromkeys(COUNTERS + SECONDS, 0), **{name: latencies[name] for name in LATENCIES}}


def test_without_a_report_a_window_is_empty(watched: Watched) -> None:
    watched.report(A, emitted=100, traffic={B0: 60})
    watched.end_window()
    empty = watched.end_window()
    assert empty.loads["t"].tasks[A].emitted == 0 and not empty.loads["t"].traffic


def test_latencies_are_those_of_the_window(watched: Watched) -> None:
    slow, fast = Meters(), Meters()
    slow.execute_latency.record(1.0)
    fast.execute_latency.record(0.001, 99)
    watched.report(A, meters=slow)
    first = watched.end_window().loads["t"].tasks[A].execute_latency_ms
    watched.report(A, meters=fast)
    second = watched.end_window().loads["t"].tasks[A].execute_latency_ms
    assert first is not None and first.p50 == pytest.approx(1000.0, rel=0.02)
    assert first.mean == pytest.approx(1000.0, rel=0.02)
    assert second is not None and second.p99 == pytest.approx(1.0, rel=0.02)
    assert watched.end_window().loads["t"].tasks[A].execute_latency_ms is None
    assert watched.observed.latency("a", "execute_latency").count == 100, "since the start, they are all there"


def test_latencies_since_the_start_have_those_of_the_window_that_has_not_ended(watched: Watched) -> None:
    for expected in (1, 2):
        meters = Meters()
        meters.process_latency.record(0.01)
        watched.report(A, meters=meters)
        assert watched.observed.latency("a", "process_latency").count == expected
        watched.end_window()


def test_a_moved_task_is_settling_in_the_window_in_which_it_moved(watched: Watched) -> None:
    watched.report(A, emitted=100, traffic={B0: 10})
    assert watched.end_window().loads["t"].settling == ()
    watched.places[A] = 2
    watched.report(A, incarnation=2, emitted=5, traffic={B0: 1})
    moved = watched.end_window().loads["t"]
    assert moved.settling == (A,)
    assert (moved.tasks[A].emitted, moved.traffic[A, B0]) == (5, 1), "what it did before the move is not counted again"
    watched.report(A, incarnation=2, emitted=25, traffic={B0: 3})
    after = watched.end_window().loads["t"]
    assert after.settling == ()
    assert (after.tasks[A].emitted, after.traffic[A, B0]) == (20, 2)


def test_a_task_that_has_not_been_heard_of_in_its_new_place_is_settling(watched: Watched) -> None:
    """The last report is from its previous worker."""
    watched.places[A] = 2
    watched.report(A, slot=0, emitted=100)
    assert watched.end_window().loads["t"].settling == (A,)
    watched.report(A, slot=2, incarnation=2)
    assert watched.end_window().loads["t"].settling == (A,), "in this window it began"
    assert watched.end_window().loads["t"].settling == ()


def test_the_worker_that_a_task_left_may_not_know_it_yet(watched: Watched) -> None:
    watched.report(A, emitted=1000, traffic={B0: 1000})
    watched.end_window()
    watched.places[A] = 2
    for count in (1, 2, 3):
        watched.report(A, slot=2, incarnation=2, emitted=count, traffic={B0: count})
        watched.report(A, slot=0, incarnation=1, emitted=1000 + count, traffic={B0: 1000 + count})
    load = watched.end_window().loads["t"]
    assert (load.tasks[A].emitted, load.traffic[A, B0]) == (3, 3)
    assert watched.observed.total("a", "emitted") == 1003


def test_at_first_every_task_is_settling() -> None:
    watched = Watched()
    watched.report(A, emitted=7)
    watched.report(B0)
    first = watched.end_window().loads["t"]
    assert first.settling == (A, B0) and first.tasks[A].emitted == 7
    watched.report(B1)
    assert watched.end_window().loads["t"].settling == (B1,)


def test_cpu_is_shared_out_by_thread_time(watched: Watched) -> None:
    watched.places = {A: 0, B0: 0, B1: 2}
    for task in PLACES:
        watched.report(task)
    watched.end_window()
    watched.report(A, cpu_seconds=0.3)
    watched.report(B0, cpu_seconds=0.1)
    watched.report(B1, cpu_seconds=0.1)
    watched.used(0, 0.8)  # twice what its tasks' threads used: the rest is work for them too
    watched.used(2, 0.1)
    window = watched.end_window()
    mhz = {task: load.cpu_mhz for task, load in window.loads["t"].tasks.items()}
    assert mhz == pytest.approx({A: 0.6 * MHZ, B0: 0.2 * MHZ, B1: 0.1 * MHZ})
    assert window.workers[0].cpu_mhz == pytest.approx(0.8 * MHZ)
    assert window.nodes["n0"].cpu_mhz == pytest.approx(0.8 * MHZ) and window.nodes["n0"].capacity_mhz == 2 * MHZ
    assert window.nodes["n1"].cpu_mhz == pytest.approx(0.1 * MHZ) and window.nodes["n1"].memory_mb == 8192


@given(st.lists(st.tuples(st.floats(0.001, 5), st.integers(0, 10**6)), min_size=3, max_size=3), st.floats(0, 10),
       st.floats(1, 5000))
def test_the_parts_of_the_tasks_are_the_whole_of_the_worker(own: list[tuple[float, int]], cpu: float, memory: float) -> None:
    watched = Watched()
    watched.places = dict.fromkeys(PLACES, 1)
    for task in PLACES:
        watched.report(task)
    watched.end_window()
    for task, (seconds, tuples) in zip(PLACES, own):
        watched.report(task, cpu_seconds=seconds, executed=tuples)
    watched.used(1, cpu, memory=memory)
    window = watched.end_window()
    tasks = window.loads["t"].tasks.values()
    assert sum(load.cpu_mhz for load in tasks) == pytest.approx(window.workers[1].cpu_mhz)
    if any(tuples for _, tuples in own):
        assert sum(load.memory_mb for load in tasks) == pytest.approx(window.workers[1].memory_mb)


def test_memory_is_shared_out_by_tuples(watched: Watched) -> None:
    watched.places = {A: 0, B0: 0, B1: 2}
    for task in PLACES:
        watched.report(task)
    watched.end_window()
    watched.report(A, emitted=30)
    watched.report(B0, executed=60, emitted=10)
    watched.used(0, 0.0, memory=200.0)
    window = watched.end_window()
    memory = {task: load.memory_mb for task, load in window.loads["t"].tasks.items()}
    assert memory == pytest.approx({A: 60.0, B0: 140.0, B1: 0.0})
    assert window.nodes["n0"].memory_used_mb == 300.0


def test_tuples_in_flight_of_a_spout_are_not_its_queue(watched: Watched) -> None:
    watched.report(A, queue=5000)
    window = watched.end_window()
    assert (window.loads["t"].tasks[A].queue_length, window.workers[0].queue_length) == (0, 0)


def test_a_worker_is_busy_with_all_its_tasks(watched: Watched) -> None:
    watched.report(A, busy_seconds=0.5)
    watched.report(B0, busy_seconds=0.25)
    window = watched.end_window()
    assert [worker.busy for worker in window.workers.values()] == [0.5, 0.25, 0.0]


def test_a_worker_is_busy_with_routing_and_encoding_too(watched: Watched) -> None:
    watched.used(0, 0.2, loop=0.75)
    watched.used(1, 50.0, loop=40.0, generation=7)  # another process, which is older than the window
    watched.report(A, busy_seconds=0.5)
    first = watched.end_window()
    assert [worker.busy for worker in first.workers.values()] == [0.75, 0.0, 0.0]
    watched.used(0, 0.3, loop=1.0)
    watched.used(1, 50.1, loop=40.5, generation=7)
    second = watched.end_window()
    assert [worker.busy for worker in second.workers.values()] == [0.25, 0.5, 0.0]


def reported(turns: Sequence[float] = (), pauses: Sequence[float] = ()) -> Report:
    """A worker's report with turns of its loop and pauses for its collector, in seconds."""
    histograms = LatencyHistogram(), LatencyHistogram()
    for histogram, durations in zip(histograms, (turns, pauses), strict=True):
        for seconds in durations:
            histogram.record(seconds)
    return Report(0, 1, 1, 0.5, [], [], [], [], [], {}, turns=histograms[0].take(), collector_pauses=histograms[1].take())


def test_a_window_has_the_delays_of_all_its_reports(watched: Watched) -> None:
    first = WorkerMeters.of(reported([0.001, 0.001]))
    watched.workers[0] = WorkerMeters.of(reported([0.001, 0.008], [0.064]), first)
    window = watched.end_window().workers
    assert window[0].turn_ms is not None and window[0].collector_ms is not None
    assert (window[0].turn_ms.p50, window[0].turn_ms.max) == (pytest.approx(1, rel=0.01), pytest.approx(8, rel=0.01))
    assert (window[0].collector_ms.p99, window[0].collections) == (pytest.approx(64, rel=0.01), 1)
    assert (window[1].turn_ms, window[1].collector_ms, window[1].collections) == (None, None, 0)


def test_the_next_window_has_only_the_delays_in_it(watched: Watched) -> None:
    watched.workers[0] = WorkerMeters.of(reported([0.008], [0.064]))
    watched.end_window()
    assert watched.end_window().workers[0].turn_ms is None, "there was no report"
    watched.workers[0] = WorkerMeters.of(reported([0.002]), watched.workers[0])
    worker = watched.end_window().workers[0]
    assert worker.turn_ms is not None and worker.turn_ms.max == pytest.approx(2, rel=0.01)
    assert (worker.collector_ms, worker.collections) == (None, 0)


@pytest.mark.parametrize(("blocking", "routing"), [(False, (0.1, 0.3)), (True, (0.4, 0.0))])
def test_the_loop_of_a_worker_is_shared_out_by_the_time_in_user_code(blocking: bool, routing: tuple[float, float]) -> None:
    spout, bolt = GRAPH.components
    watched = Watched()
    watched.observed.follow(replace(GRAPH, components=(spout, replace(bolt, blocking=blocking))))
    watched.places = dict.fromkeys(PLACES, 0)
    for task in PLACES:
        watched.report(task)
    watched.end_window()
    user = 0.2 if blocking else 0.8  # seconds of user code on the loop
    watched.used(0, 0.2, loop=user + 0.4)
    watched.report(A, busy_seconds=0.2)
    watched.report(B0, busy_seconds=0.6)
    load = watched.end_window().loads["t"]
    assert (load.tasks[A].routing_seconds, load.tasks[B0].routing_seconds) == pytest.approx(routing)
    assert load.tasks[B0].busy_seconds == load.capacity(B0) == 0.6, "rates of processing are those of user code"
    assert load.loop_share(A) == pytest.approx(0.2 + routing[0])


def test_a_loop_that_is_not_measured_was_busy_with_user_code_only(watched: Watched) -> None:
    watched.report(A, busy_seconds=0.5)
    task = watched.end_window().loads["t"].tasks[A]
    assert (task.routing_seconds, task.loop_seconds) == (0.0, 0.5)


def test_the_queue_floor_is_over_two_windows(watched: Watched) -> None:
    floors = []
    for queue in (50, 80, 20, 90):
        watched.report(B0, queue=queue)
        window = watched.end_window()
        floors.append(window.loads["t"].tasks[B0].queue_floor)
        assert window.workers[1].queue_length == queue
    assert floors == [0, 50, 20, 20]


def test_a_worker_that_was_started_again_has_used_what_it_used_since(watched: Watched) -> None:
    watched.used(0, 500.0)
    watched.end_window()
    watched.used(0, 0.4, generation=7)
    assert watched.end_window().workers[0].cpu_mhz == pytest.approx(0.4 * MHZ)
    watched.used(0, 0.6, generation=7)
    assert watched.end_window().workers[0].cpu_mhz == pytest.approx(0.2 * MHZ)


def test_a_process_that_came_back_after_long_has_not_used_it_all_in_one_window(watched: Watched) -> None:
    """Cut off and let in again, it counts from when it was started."""
    watched.used(0, 500.0)
    watched.end_window()
    del watched.workers[0]
    watched.end_window()
    watched.used(0, 501.0, generation=7)
    assert watched.end_window().workers[0].cpu_mhz == 0.0
    watched.used(0, 501.5, generation=7)
    assert watched.end_window().workers[0].cpu_mhz == pytest.approx(0.5 * MHZ)


def test_a_worker_of_which_nothing_is_heard_used_nothing(watched: Watched) -> None:
    watched.used(0, 0.5)
    watched.end_window()
    assert watched.end_window().workers[0].cpu_mhz == 0.0
    watched.workers = {}
    assert watched.end_window().workers[0].cpu_mhz == 0.0


def test_a_task_on_a_worker_that_is_gone_has_no_cpu(watched: Watched) -> None:
    watched.report(A, emitted=5, cpu_seconds=0.5)
    watched.used(0, 0.5)
    watched.cluster = Cluster(CLUSTER.nodes, CLUSTER.slots[1:])
    window = watched.end_window()
    assert (window.loads["t"].tasks[A].emitted, window.loads["t"].tasks[A].cpu_mhz) == (5, 0.0)
    assert 0 not in window.workers and window.nodes["n0"].cpu_mhz == 0.0
    del watched.workers[0]
    assert watched.end_window().loads["t"].tasks[A].cpu_mhz == 0.0


def test_a_task_without_a_place_is_left_out(watched: Watched) -> None:
    del watched.places[A]
    watched.report(A, slot=0, emitted=5, traffic={B0: 5})
    load = watched.end_window().loads["t"]
    assert set(load.tasks) == {B0, B1} and not load.traffic
    watched.places[A] = 1
    watched.report(A, incarnation=2, emitted=2)
    back = watched.end_window().loads["t"]
    assert back.settling == (A,) and back.tasks[A].emitted == 7, "what was not told of it while it had no place is told now"


def test_a_topology_that_ended_is_forgotten(watched: Watched) -> None:
    watched.report(A, emitted=1000, traffic={B0: 1000})
    watched.end_window()
    watched.monitor.forget("t")
    watched.observed = TopologyObserved(GRAPH, watched.now)  # submitted again under the same name
    watched.report(A, emitted=10, traffic={B0: 10})
    load = watched.end_window().loads["t"]
    assert (load.tasks[A].emitted, load.traffic[A, B0], load.settling) == (10, 10, (A,))


def test_a_window_without_length_divides_by_nothing(watched: Watched) -> None:
    watched.report(A, emitted=5)
    window = watched.end_window(0.0)
    assert window.seconds > 0 and window.loads["t"].tasks[A].emitted == 5
    assert window.loads["t"].tasks[A].cpu_mhz == 0.0
    watched.monitor.since += 100  # a clock that goes backwards
    assert watched.end_window().seconds > 0


def test_no_cluster_and_no_topology() -> None:
    window = LoadMonitor(0.0).end_window(1.0, 2.0, {}, {}, {}, Cluster((), ()))
    assert (window.loads, window.workers, window.nodes) == ({}, {}, {})
