"""T-Storm, by hand. K = 2 nodes everywhere; a node has 4 cores of 1,000 MHz unless said otherwise."""

from __future__ import annotations

from by_hand import cluster, graph, load, plan

from millrace.model.cluster import Cluster, Node, Slot
from millrace.schedulers.base import NewPlan, NoChange, Overload
from millrace.schedulers.tstorm import TStorm

NODES = cluster(n1=[0, 1], n2=[2, 3])
# Totals: a0 = 100 + 10 = 110, b0 = 100, b1 = 80 + 10 = 90, a1 = 80. So the order is a0, b0, b1, a1.
TALK = {"a0 b0": 100.0, "a1 b1": 60.0, "b1 a1": 20.0, "a0 b1": 10.0}
LIGHT = load(TALK, a0=100, a1=100, b0=100, b1=100)


def single_core(first: float, second: float) -> Cluster:
    """Two nodes with one core each, so that node and worker have the same capacity."""
    return Cluster((Node("n1", 1, first, 4096), Node("n2", 1, second, 4096)), (Slot("n1", "e0", 0), Slot("n2", "e1", 1)))


def test_gamma_1_spreads_and_keeps_those_together_that_talk_most() -> None:
    # At most ceil(1 x 4 / 2) = 2 tasks on a node. a0: n1. b0: n1 adds 0, n2 adds 100: n1, which is full now.
    # b1: n2, adding 10. a1: n2 adds 0.
    result = TStorm(gamma=1.0).schedule([graph(a=2, b=2)], NODES, {"t": LIGHT}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 2], b=[0, 2])}
    assert "10" in result.reason.split("become ")[1]


def test_a_large_gamma_packs() -> None:
    # ceil(2 x 4 / 2) = 4 tasks on a node: all find room where the first is.
    result = TStorm(gamma=2.0).schedule([graph(a=2, b=2)], NODES, {"t": LIGHT}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 0], b=[0, 0])}
    assert result.reason.startswith("4 tasks on 1 of 2 nodes, at most 4 on each") and result.reason.endswith("become 0")


def test_the_number_of_tasks_allowed_is_rounded_up() -> None:
    # 1.1 x 4 / 2 = 2.2: three. a0, b0 and b1 (which talks to a0) on n1, a1 on n2.
    result = TStorm(gamma=1.1).schedule([graph(a=2, b=2)], NODES, {"t": LIGHT}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 2], b=[0, 0])}


def test_a_node_takes_no_more_than_its_capacity_allows() -> None:
    # 0.9 x 4,000 = 3,600 MHz: two tasks of 1,500 fit on a node and three (4,500) do not, whatever gamma says.
    heavy = load(TALK, a0=1500, a1=1500, b0=1500, b1=1500)
    result = TStorm(gamma=2.0, capacity=0.9, cores=0).schedule([graph(a=2, b=2)], NODES, {"t": heavy}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 2], b=[0, 2])}
    # The one worker of each node has one core only: that is said too.
    assert result.overload == (Overload("worker 0", 3000.0, 1000.0), Overload("worker 2", 3000.0, 1000.0))


def test_the_number_of_tasks_gives_way_first() -> None:
    # At most 2 tasks on a node, at most 3,600 and 900 MHz. a0, a1: n1, as ties go to the node that is used. a2: n2.
    # a3: n2 would have 1,000 MHz, and n1 has its two tasks: (3) gives way, n1.
    result = TStorm(gamma=1.0, capacity=0.9).schedule(
        [graph(a=4)], single_core(4000, 1000), {"t": load(a0=500, a1=500, a2=500, a3=500)}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 0, 1, 0])}
    assert "1 tasks exceed the number per node that gamma allows" in result.reason
    assert result.overload == ()


def test_then_the_capacity_gives_way_and_the_overload_is_reported() -> None:
    # Three tasks of 3,000 MHz on 4,000 and 5,000: a0 n1, a1 n2, a2: 6,000/4,000 = 1.5 against 6,000/5,000 = 1.2, so n2.
    result = TStorm(gamma=1.0, capacity=1.0).schedule(
        [graph(a=3)], single_core(4000, 5000), {"t": load(a0=3000, a1=3000, a2=3000)}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 1, 1])}
    assert result.overload == (Overload("node n2", 6000.0, 5000.0), Overload("worker 1", 6000.0, 5000.0))
    assert "1 exceed the CPU of every node" in result.reason


def test_tasks_of_topologies_that_are_not_asked_about_count() -> None:
    # N_e = 2 + 2: at most ceil(4 / 2) = 2 on a node, and n1 has two already.
    result = TStorm(gamma=1.0).schedule([graph(a=2)], NODES, {"t": load({"a0 a1": 5.0}, a0=1, a1=1)},
                                        {"other": plan(x=[0, 1])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[2, 2])}


def test_the_worker_of_a_node_is_the_one_with_most_of_the_topology_now() -> None:
    result = TStorm(gamma=2.0).schedule([graph(a=2, b=2)], NODES, {"t": LIGHT}, {"t": plan(a=[1, 0], b=[1, 3])})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(2, a=[1, 1], b=[1, 1])}
    again = TStorm(gamma=2.0).schedule([graph(a=2, b=2)], NODES, {"t": LIGHT}, result.plans)
    assert isinstance(again, NoChange)


def test_two_topologies_on_a_node_have_a_worker_each() -> None:
    loads = {"t": load({"a0 a1": 5.0}, a0=100, a1=100), "u": load({"b0 b1": 9.0}, b0=100, b1=100)}
    result = TStorm(gamma=2.0).schedule([graph(a=2), graph("u", b=2)], NODES, loads, {})
    assert isinstance(result, NewPlan)
    # b0 and b1 talk most and go first: n1. For a0 all nodes add 0 and none is used: the least loaded, n2.
    assert result.plans == {"t": plan(a=[2, 2]), "u": plan(b=[0, 0])}


def test_a_first_assignment_has_one_worker_on_a_node() -> None:
    result = TStorm().schedule([graph(a=2, b=2)], NODES, {}, {})
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": plan(a=[0, 2], b=[0, 2])}
    packed = TStorm().schedule([graph(config={"topology.workers": 1}, a=2, b=2)], NODES, {}, {})  # min(1 asked for, 2 nodes)
    assert isinstance(packed, NewPlan)
    assert packed.plans == {"t": plan(a=[0, 0], b=[0, 0])}


def test_a_topology_without_a_load_is_spread_beside_one_that_has_one() -> None:
    running = {"t": plan(a=[0, 0], b=[0, 0])}
    result = TStorm(gamma=2.0).schedule([graph(a=2, b=2), graph("new", c=2)], NODES, {"t": LIGHT}, running)
    assert isinstance(result, NewPlan)
    assert result.plans == {"t": running["t"], "new": plan(c=[2, 1])}
