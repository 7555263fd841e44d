"""Feeders are directed only to tasks that run where the plan says."""

from __future__ import annotations

from typing import Any

from millrace.control.assignment import Place
from millrace.control.feeding import FEED, FeedAddress
from millrace.control.topology_state import TopologyState
from millrace.master.load.observed import TaskObserved, TopologyObserved
from millrace.master.workers.feeds import feeds_for
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire

ADDRESS = ["ipc:///there", "", "boot"]


def feeds(places: dict[TaskId, Place], tasks: dict[TaskId, TaskObserved], name: str = "t") -> wire.Feeds:
    graph = TopologyGraph("t", (), {})
    topology, observed = TopologyState(1, graph, places=places), TopologyObserved(graph, 0.0)
    observed.tasks = tasks
    return feeds_for(wire.AskFeeds(name, "lines"), {"t": topology}, {"t": observed})


def seen(incarnation: int, **metrics: Any) -> TaskObserved:
    return TaskObserved(incarnation=incarnation, custom=metrics)


def test_tasks_that_have_reported_their_address() -> None:
    places = {TaskId("lines", 0): Place(0, 1), TaskId("lines", 1): Place(1, 1), TaskId("other", 0): Place(1, 1)}
    tasks = {TaskId("lines", 0): seen(1, **{FEED: ADDRESS}), TaskId("lines", 1): seen(1), TaskId("other", 0): seen(
        1, **{FEED: ADDRESS})}
    assert feeds(places, tasks) == wire.Feeds("waiting", [FeedAddress(*ADDRESS)])


def test_an_incarnation_that_was_replaced_is_not_shown() -> None:
    places = {TaskId("lines", 0): Place(0, 2)}
    assert feeds(places, {TaskId("lines", 0): seen(1, **{FEED: ADDRESS})}).feeds == []


def test_a_topology_that_is_gone_has_no_status() -> None:
    assert feeds({}, {}, name="gone") == wire.Feeds("", [])


def test_the_owners_of_splits_by_their_feeds() -> None:
    spout = ComponentDef("lines", "spout", "none:none", 3, {}, (), (), False, "next_tuple", dataframe=True, splits=5)
    places = {TaskId("lines", index): Place(0, 1) for index in range(3)}
    addresses = {index: [f"ipc:///{index}", "", "boot"] for index in (0, 2)}
    topology = TopologyState(1, TopologyGraph("t", (spout,), {}), places=places, key_groups={"lines": (0, 2, 1, 2, 0)})
    observed = TopologyObserved(topology.graph, 0.0)
    observed.tasks = {TaskId("lines", 0): seen(1, **{FEED: addresses[0]}), TaskId("lines", 1): seen(1),
                      TaskId("lines", 2): seen(1, **{FEED: addresses[2]})}
    answer = feeds_for(wire.AskFeeds("t", "lines"), {"t": topology}, {"t": observed})
    assert answer == wire.Feeds("waiting", [FeedAddress(*addresses[0]), FeedAddress(*addresses[2])], [0, 1, -1, 1, 0])


def test_the_answer_travels() -> None:
    answer = wire.Feeds("running", [FeedAddress(*ADDRESS)], [0, -1])
    assert wire.decode_control(wire.encode(answer)) == answer
