"""R-Storm's scheduler, by hand. A node has 4 cores of 1,000 MHz; a task that says nothing asks for 128 MB and 100 MHz."""

from __future__ import annotations

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
