"""R-Storm's scheduler, by hand. A node has 4 cores of 1,000 MHz; a task that says nothing asks for 128 MB and 100 MHz."""

from __future__ import annotations

from dataclasses import replace

from by_hand import cluster, graph, load, plan, task

from millrace.model.cluster import Cluster, Node, Slot
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload
from millrace.schedulers.resource_aware import ResourceAware

MEMORY = "topology.component.resources.onheap.memory.mb"
CPU = "topology.component.cpu.pcore.percent"
SMALL = cluster(memory_mb=1024, n1=[0], n2=[1])


def test_small_tasks_stay_near_the_reference_node() -> None:
    # Both nodes have the same to spare: n1 is the reference. Squared distance of the first task:
    # n1: (896/1024)^2 + (3900/4000)^2 = 0.77 + 0.95 = 1.72; n2: the same + 1 for the way. And so on.
    result = ResourceAware().schedule([graph(a=1, b=3)], SMALL, {}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0], b=[0, 0, 0])}


def test_components_take_turns_breadth_first() -> None:
    # 512 MB each: two fit a node. The order is a0, b0, a1, b1, so each a has a b beside it.
    result = ResourceAware().schedule([graph(config={MEMORY: 512}, a=2, b=2)], SMALL, {}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 1], b=[0, 1])}


def test_missing_memory_is_refused_with_the_amounts() -> None:
    # a0 and b0 to b3 ask for 5 x 512 = 2,560 MB, and there are 2 x 1,024: the last one finds nothing.
    result = ResourceAware().schedule([graph(config={MEMORY: 512}, a=1, b=4)], SMALL, {}, {})
    assert isinstance(result, CannotPlace)
    assert result.missing == {"t": (task("b3"),)}
    assert result.reason.startswith("cannot place 1 of 5 tasks: they need 2,560 MB of memory, the nodes had 2,048 MB free, at "
                                    "most 1,024 MB on one; 512 MB are missing. Add nodes")


def test_cpu_gives_way_when_no_node_has_any_left() -> None:
    # 300 % of a core are 3,000 MHz: one task on each node, then none has room. Both have 1,000 left; n1 is the reference.
    result = ResourceAware().schedule([graph(config={CPU: 300}, a=3)], SMALL, {}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 1, 0])}
    assert result.overload[0] == Overload("node n1", 6000.0, 4000.0)


def test_the_distance_is_weighted() -> None:
    # n1 has most to spare and is the reference. Of 4,096 MB, the largest node: n1 ((4096 - 512)/4096)^2 = 0.77,
    # n2 ((1024 - 512)/4096)^2 = 0.02, + 1 for the way; CPU is the same on both.
    nodes = Cluster((Node("n1", 4, 1000.0, 4096), Node("n2", 4, 1000.0, 1024)), (Slot("n1", "e0", 0), Slot("n2", "e1", 1)))
    graphs = [graph(config={MEMORY: 512}, a=1)]
    near = ResourceAware().schedule(graphs, nodes, {}, {})
    fit = ResourceAware(network_weight=0.0).schedule(graphs, nodes, {}, {})
    assert isinstance(near, NewPlan) and isinstance(fit, NewPlan)
    assert near.plans == {"t": plan(a=[0])} and fit.plans == {"t": plan(a=[1])}


def test_measured_load_takes_precedence_over_declared_load() -> None:
    # a0 uses 1,000 of n1's 1,024 MB: the 128 MB of a1 are not there.
    result = ResourceAware().schedule([graph(a=2)], SMALL, {"t": load(memory={"a0": 1000})}, {"t": plan(a=[0, 9])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 1])}


def test_tasks_that_have_a_place_keep_it() -> None:
    result = ResourceAware().schedule([graph(a=2)], SMALL, {}, {"t": plan(a=[0, 1])})
    assert result == NoChange("all 2 tasks have a worker")


def test_the_reference_node_is_where_the_topology_is() -> None:
    result = ResourceAware().schedule([graph(a=3)], SMALL, {}, {"t": plan(a=[1, 1, 9])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[1, 1, 1])}


# -- while it runs -------------------------------------------------------------------------------------------------------


def test_a_task_leaves_a_node_that_lacks_memory_for_it() -> None:
    # n1 has 1,024 MB and needs 1,100: 76 too many. The 300 MB of a1 are the least that is enough, and n2 has room.
    seen = load(memory={"a0": 700, "a1": 300, "a2": 50, "a3": 50})
    result = ResourceAware().schedule([graph(a=4)], SMALL, {"t": seen}, {"t": plan(a=[0, 0, 0, 0])})
    assert result == NewPlan({"t": plan(2, a=[0, 1, 0, 0])}, "1 tasks moved from nodes and workers that lacked memory or CPU")


def test_several_small_tasks_leave_if_the_large_one_fits_nowhere_else() -> None:
    # 176 MB too many on n1. Only 921 - 800 = 121 MB of n2 may be filled, so neither 600 nor 500 MB fit there.
    seen = load(memory={"a0": 600, "a1": 500, "a2": 50, "a3": 50, "b0": 800})
    result = ResourceAware().schedule([graph(a=4, b=1)], SMALL, {"t": seen}, {"t": plan(a=[0, 0, 0, 0], b=[1])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0, 1, 1], b=[1])}
    assert "2 tasks moved" in result.reason and "node n1 lacks 76 MB of memory, and no other has room" in result.reason


def test_a_task_leaves_a_node_that_lacks_cpu_if_another_has_room() -> None:
    seen = load(memory={"a0": 10, "a1": 10, "a2": 10}, a0=3000.0, a1=800.0, a2=700.0)
    result = ResourceAware().schedule([graph(a=3)], SMALL, {"t": seen}, {"t": plan(a=[0, 0, 0])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[0, 0, 1])}, "500 of 4,500 MHz are too many, and 700 the least that is enough"
    full = ResourceAware().schedule([graph(a=3)], cluster(n1=[0]), {"t": seen}, {"t": plan(a=[0, 0, 0])})
    assert isinstance(full, NoChange) and full.overload, "CPU is soft: without room elsewhere nothing moves"


def test_a_task_that_cannot_be_moved_stays() -> None:
    fixed = replace(graph(a=2), components=tuple(replace(part, movable=False) for part in graph(a=2).components))
    result = ResourceAware().schedule([fixed], SMALL, {"t": load(memory={"a0": 600, "a1": 600})}, {"t": plan(a=[0, 0])})
    assert isinstance(result, NoChange) and "node n1 lacks 176 MB of memory" in result.reason


def test_lost_tasks_are_placed_without_moving_others() -> None:
    seen = load(memory={"a0": 700, "a1": 500, "a2": 50})
    result = ResourceAware().place([graph(a=3)], SMALL, {"t": seen}, {"t": plan(a=[0, 0, 9])})
    assert isinstance(result, NewPlan) and result.plans == {"t": plan(2, a=[0, 0, 1])}


def test_tasks_make_room_for_one_that_fits_only_on_their_node() -> None:
    # n2 has 800 MHz and needs 900. Only n1 can have them, if its 400 and 300 go to n2; no move or exchange is possible before.
    nodes = Cluster((Node("n1", 1, 1000.0, 4096), Node("n2", 1, 800.0, 4096)), (Slot("n1", "e0", 0), Slot("n2", "e1", 1)))
    seen = load(memory={"a0": 10, "b0": 10, "b1": 10}, a0=900.0, b0=400.0, b1=300.0)
    result = ResourceAware().schedule([graph(a=1, b=2)], nodes, {"t": seen}, {"t": plan(a=[1], b=[0, 0])})
    assert isinstance(result, NewPlan) and not result.overload
    assert result.plans == {"t": plan(2, a=[0], b=[1, 1])}


def test_tasks_are_not_rearranged_beyond_the_memory_of_a_node() -> None:
    nodes = Cluster((Node("n1", 1, 1000.0, 4096), Node("n2", 1, 800.0, 100)), (Slot("n1", "e0", 0), Slot("n2", "e1", 1)))
    seen = load(memory={"a0": 10, "b0": 90, "b1": 90}, a0=900.0, b0=400.0, b1=300.0)
    result = ResourceAware().schedule([graph(a=1, b=2)], nodes, {"t": seen}, {"t": plan(a=[1], b=[0, 0])})
    assert isinstance(result, NoChange)
