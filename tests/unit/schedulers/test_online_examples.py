"""The online scheduler of Aniello and others, by hand. A worker can use 0.9 x 1,000 MHz."""

from __future__ import annotations

from by_hand import cluster, graph, load, plan

from millrace.schedulers.base import NewPlan, NoChange
from millrace.schedulers.online import Online

TWO = cluster(n1=[0], n2=[1])
# In order: a0 a1, b0 b1, a1 b0, a0 b0.
TALK = {"a0 a1": 100.0, "b0 b1": 90.0, "a1 b0": 80.0, "a0 b0": 70.0}
LOAD = load(TALK, a0=300, a1=300, b0=300, b1=300)
RUNNING = {"t": plan(a=[0, 1], b=[0, 1])}  # 100 + 90 + 80 = 270 between the nodes


def test_a_pair_that_is_placed_is_looked_at_again() -> None:
    # a0 a1: both new, worker 0. b0 b1: both new, worker 1, the least loaded. a1 b0: together they would gain 80 and lose 90.
    # a0 b0: with b0 on worker 0, 70 + 80 become local and 90 do not: 900 MHz are within the limit. Left: b0 b1, 90.
    result = Online(improvement=0.6).schedule([graph(a=2, b=2)], TWO, {"t": LOAD}, RUNNING)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0], b=[0, 1])}
    assert result.reason == "270 tuples/s between nodes could become 90 (66.7% less): 1 tasks move"


def test_a_worker_takes_no_more_than_its_limit() -> None:
    # 3 x 301 = 903 MHz are too much: a0, a1 and b0, b1 stay apart, 80 + 70 between them.
    heavy = load(TALK, a0=301, a1=301, b0=301, b1=301)
    result = Online(improvement=0.4).schedule([graph(a=2, b=2)], TWO, {"t": heavy}, RUNNING)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0], b=[1, 1])}
    assert "270 tuples/s between nodes could become 150" in result.reason


def test_workers_that_talk_go_to_one_node() -> None:
    # Two workers as above, and a node that has room for both: nothing is left between nodes.
    heavy = load(TALK, a0=301, a1=301, b0=301, b1=301)
    result = Online().schedule([graph(a=2, b=2)], cluster(n1=[0, 1], n2=[2, 3]), {"t": heavy}, {"t": plan(a=[0, 2], b=[0, 2])})
    assert isinstance(result, NewPlan)
    nodes = {slot // 2 for slot in result.plans["t"].placement.values()}
    assert len(nodes) == 1 and len(set(result.plans["t"].placement.values())) == 2


def test_tasks_move_only_for_more_than_the_improvement_asked_for() -> None:
    # 400 MHz each: two fit a worker. a0 b0 together, a1 apart: of 50 + 50 between nodes 50 are left, exactly half.
    question = ([graph(a=2, b=1)], TWO, {"t": load({"a0 b0": 50.0, "a1 b0": 50.0}, a0=400, a1=400, b0=400)},
                {"t": plan(a=[0, 0], b=[1])})
    assert isinstance(Online(improvement=0.49).schedule(*question), NewPlan)
    assert Online(improvement=0.5).schedule(*question) == NoChange(
        "100 tuples/s between nodes could become 50 (50.0% less): more than 50.0% is required")


def test_a_topology_has_as_many_workers_as_it_asks_for() -> None:
    light = load(TALK, a0=100, a1=100, b0=100, b1=100)
    result = Online().schedule([graph(config={"topology.workers": 1}, a=2, b=2)], TWO, {"t": light}, RUNNING)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0], b=[0, 0])}


def test_without_traffic_only_what_has_no_worker_is_placed() -> None:
    result = Online().schedule([graph(a=3)], TWO, {}, {"t": plan(a=[0, 9, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1, 0])}
