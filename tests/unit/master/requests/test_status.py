"""The contents of the `status` answer."""

from __future__ import annotations

from millrace.connectors.tap import TAP_METRIC, UNREAD_METRIC
from millrace.control.feeding import FEED
from millrace.control.topology_state import TopologyState
from millrace.master.load.observed import TaskObserved, TopologyObserved
from millrace.master.requests.status import topology_status, without_workers
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph

GRAPH = TopologyGraph("t", (ComponentDef("lines", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),
                            ComponentDef("out", "bolt", "m:C", 1, {}, (), (), False, "process")), {})


def test_addresses_are_not_shown_as_metrics() -> None:
    observed = TopologyObserved(GRAPH, 0.0)
    observed.tasks[TaskId("lines", 0)] = TaskObserved(custom={FEED: ["ipc:///there", "", "boot"]})
    observed.tasks[TaskId("out", 0)] = TaskObserved(custom={TAP_METRIC: {"ipc": "ipc:///here"}, UNREAD_METRIC: 3, "feed": 2})
    assert topology_status(TopologyState(1, GRAPH), observed, None)["metrics"] == {"out[0]": {UNREAD_METRIC: 3, "feed": 2}}


def test_a_host_has_no_worker_if_none_of_its_executors_has() -> None:
    hosts = {"0": "a", "1": "b", "2": "b", "3": "c", "4": "d"}
    assert without_workers(hosts, ["0", "2", "an executor that is gone"]) == ["c", "d"]
    assert without_workers({}, ["0"]) == []
