"""The contents of the `status` answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.connectors.tap import TAP_METRIC, UNREAD_METRIC
from millrace.control.assignment import WorkerAddress
from millrace.control.feeding import FEED
from millrace.control.scheduling.hot_groups import HotGroup, HotGroups
from millrace.control.scheduling.overload_warnings import OverloadWarnings
from millrace.control.topology_state import TopologyState
from millrace.control.waves import Waves
from millrace.control.workers import LongCall, WorkerView
from millrace.master.load.cluster_links import ClusterLinks
from millrace.master.load.observed import TaskObserved, TopologyObserved
from millrace.master.requests.status import load_of, topology_status, warnings_of, without_workers
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, Percentiles, TaskLoad
from millrace.model.sample import WindowSample, WorkerLoad

GRAPH = TopologyGraph("t", (ComponentDef("lines", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                            ComponentDef("out", "bolt", "m:C", 1, {}, (), (), False, "process")), {})


def test_the_time_of_tasks_is_shared_into_busy_blocked_and_idle() -> None:
    load = Load(10.0, {TaskId("lines", 0): TaskLoad(emitted=50, offered=70, lag=20, blocked_seconds=6.0, busy_seconds=3.0),
                       TaskId("out", 0): TaskLoad(executed=50, busy_seconds=12.0)})
    state: Any = SimpleNamespace(topologies={"t": TopologyState(1, GRAPH)}, topology=lambda name: None)
    scheduling: Any = SimpleNamespace(sample=None, window_seconds=10.0, load={"t": load}, links=ClusterLinks({}),
                                      hops=lambda name: [], elastic=SimpleNamespace(predictions={}))
    shown = load_of(state, scheduling, "t")["topologies"]["t"]["components"]
    assert {key: shown["lines"][key] for key in ("offered_rate", "lag", "busy", "blocked", "idle")} == {
        "offered_rate": 7.0, "lag": 20, "busy": 0.3, "blocked": 0.6, "idle": pytest.approx(0.1)}
    assert {key: shown["out"][key] for key in ("offered_rate", "lag", "busy", "blocked", "idle")} == {
        "offered_rate": None, "lag": None, "busy": 1.2, "blocked": 0.0, "idle": 0.0}


def test_the_delays_of_a_worker_are_plain_data() -> None:
    turns, pauses = Percentiles(0.2, 0.5, 4.0, 9.0, 12.0), Percentiles(3.0, 3.0, 3.0, 3.0, 3.0)
    sample = WindowSample(0.0, 10.0, workers={0: WorkerLoad("host", turn_ms=turns, collector_ms=pauses, collections=1),
                                              1: WorkerLoad("host")})
    state: Any = SimpleNamespace(topologies={})
    scheduling: Any = SimpleNamespace(sample=sample, window_seconds=10.0, links=ClusterLinks({}))
    shown = load_of(state, scheduling, None)["workers"]
    assert shown[0]["turn_ms"] == {"p50": 0.2, "p90": 0.5, "p99": 4.0, "p999": 9.0, "max": 12.0}
    assert (set(shown[0]["collector_ms"].values()), shown[0]["collections"]) == ({3.0}, 1)
    assert (shown[1]["turn_ms"], shown[1]["collector_ms"], shown[1]["collections"]) == (None, None, 0)


def test_addresses_are_not_shown_as_metrics() -> None:
    observed = TopologyObserved(GRAPH, 0.0)
    observed.tasks[TaskId("lines", 0)] = TaskObserved(custom={FEED: ["ipc:///there", "", "boot"]})
    observed.tasks[TaskId("out", 0)] = TaskObserved(custom={TAP_METRIC: {"ipc": "ipc:///here"}, UNREAD_METRIC: 3, "feed": 2})
    assert topology_status(TopologyState(1, GRAPH), observed, None)["metrics"] == {"out[0]": {UNREAD_METRIC: 3, "feed": 2}}


def test_warnings_name_the_store_topologies_that_wait_and_long_calls() -> None:
    waits = TopologyState(1, GRAPH)
    waits.waves = Waves(1.0, 1.0, failed=2)
    waits.spouts_wait, waits.troubled = True, "no space left"
    worker = WorkerView(WorkerAddress(0, 1, "host", "boot", "", ""), "", Node("host", 1, 1000.0, 1024))
    worker.long_calls = (LongCall("process of out[0] of 't' (out.py:7)", 61.2), LongCall("tick of out[0]", 9.0))
    state: Any = SimpleNamespace(workers={0: worker}, topologies={"t": waits})
    hot = HotGroups({("t", "out", 7): HotGroup("t", TaskId("out", 0), 7, 0.9, "'the'", 0.75)})
    overloads = OverloadWarnings({("t", "out"): "slow"})
    master: Any = SimpleNamespace(state=state, store_alarm="the checkpoint store /x has not answered for 70 s: write",
                                  capacity=SimpleNamespace(warning="no worker could be added: no core is free"),
                                  scheduling=SimpleNamespace(hot_groups=hot, overloads=overloads))
    assert warnings_of(master) == [
        "the checkpoint store /x has not answered for 70 s: write",
        "no worker could be added: no core is free",
        "t: its spouts wait, because 2 waves in a row have failed: no space left",
        "t: key group 7 of out, in out[0], needs about 90% of a task's time, and tasks cannot share a key group: more tasks, "
        "or `balance`, do not help. The key 'the' has about 75% of its tuples. Declare a `merge` in the bolt, or a "
        "`combine` in its grouping, so that its senders merge tuples of a key, or make it faster (process_rows, process_arrow)",
        "t: slow", "worker 0: process of out[0] of 't' (out.py:7) has not returned for 61 s"]


def test_a_host_has_no_worker_if_none_of_its_executors_has() -> None:
    hosts = {"0": "a", "1": "b", "2": "b", "3": "c", "4": "d"}
    assert without_workers(hosts, ["0", "2", "an executor that is gone"]) == ["c", "d"]
    assert without_workers({}, ["0"]) == []
