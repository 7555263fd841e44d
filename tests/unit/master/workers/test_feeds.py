"""Feeders are directed only to tasks that run where the plan says."""

from __future__ import annotations

from typing import Any

from millrace.control.assignment import Place
from millrace.control.feeding import FEED, FeedAddress
from millrace.control.topology_state import TopologyState
from millrace.master.load.observed import TaskObserved, TopologyObserved
from millrace.master.workers.feeds import feeds_for
from millrace.model.graph import TaskId, TopologyGraph
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


def test_the_answer_travels() -> None:
    answer = wire.Feeds("running", [FeedAddress(*ADDRESS)])
    assert wire.decode_control(wire.encode(answer)) == answer
