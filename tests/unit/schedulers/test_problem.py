"""The scheduling problem as arrays: resources, limits, and what is minimised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan

from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import TaskId
from millrace.model.load import Load, TaskLoad
from millrace.schedulers.base import LOOPS, Overload
from millrace.schedulers.problem import Problem

NODES = cluster(n1=[0, 1], n2=[2])
GRAPH = graph(a=1, b=2)
TALK = {"a0 b0": 30.0, "b0 a0": 10.0, "a0 b1": 5.0}
APART = {"t": plan(a=[0], b=[1, 2])}  # b0 on the same node as a0, in another worker; b1 on the other node


def test_time_in_user_code_fills_a_loop_and_cpu_a_core() -> None:
    busy = load(a0=100, b0=200, busy={"a0": 0.5, "b0": 0.75})
    problem = Problem.of([GRAPH], NODES, {"t": busy}, {"t": plan(a=[0], b=[0, 2])})
    assert problem.needs.tolist() == [[100.0, 200.0, 0.0], [0.5, 0.75, 0.0]]
    assert problem.slot_limit.tolist() == [[1000.0] * 3, [1.0] * 3]
    assert problem.node_limit.tolist() == [[4000.0, 4000.0], [2.0, 1.0]]  # a loop for each slot
    assert problem.slot_used(problem.current).tolist() == [[300.0, 0.0, 0.0], [1.25, 0.0, 0.0]]
    assert problem.node_used(problem.current).tolist() == [[300.0, 0.0], [1.25, 0.0]]
    assert problem.figures(problem.current).largest_worker_time == 1.25
    assert problem.overload(problem.current) == (Overload("worker 0", 1.25, 1.0, LOOPS),)
    assert str(problem.overload(problem.current)[0]) == "worker 0 would be busy for 125% of the time"
    assert problem.excess(problem.current) == pytest.approx(0.25)
    assert problem.excess(np.array([0, 1, 2])) == 0


def test_a_loop_is_busy_with_routing_too() -> None:
    routed = Load(1.0, {TaskId("b", number): TaskLoad(busy_seconds=0.25, routing_seconds=0.125) for number in range(2)})
    problem = Problem.of([GRAPH], NODES, {"t": routed, "other": routed}, {"other": plan(b=[1, 1])})
    assert problem.time.tolist() == [0.0, 0.375, 0.375] and problem.slot_time_taken.tolist() == [0.0, 0.75, 0.0]


def test_a_task_with_a_thread_of_its_own_takes_no_time_of_the_loop() -> None:
    busy = load(busy={"a0": 0.5, "b0": 0.9})
    problem = Problem.of([graph(blocking="b", a=1, b=2)], NODES, {"t": busy}, {})
    assert problem.time.tolist() == [0.5, 0.0, 0.0]


def test_a_task_has_at_most_one_loop_and_a_broken_meter_none() -> None:
    busy = load(busy={"a0": 7.0, "b0": float("nan"), "b1": -1.0})
    assert Problem.of([GRAPH], NODES, {"t": busy}, {}).time.tolist() == [1.0, 0.0, 0.0]
    assert Problem.of([GRAPH], NODES, {"t": replace(busy, window_seconds=0.0)}, {}).time.tolist() == [0.0, 0.0, 0.0]


def test_other_topologies_take_loop_time() -> None:
    loads = {"t": load(a0=1), "other": load(x0=50, busy={"x0": 0.4})}
    problem = Problem.of([GRAPH], NODES, loads, {**APART, "other": plan(x=[1])})
    assert problem.slot_time_taken.tolist() == [0.0, 0.4, 0.0] and problem.slot_taken.tolist() == [0.0, 50.0, 0.0]


def test_tuples_between_nodes_cost_1_and_others_nothing() -> None:
    problem = Problem.of([GRAPH], NODES, {"t": load(TALK)}, APART)
    figures = problem.figures(problem.current)
    assert (figures.inter_node, figures.inter_process, figures.cost) == (5.0, 40.0, 5.0)
    assert problem.in_words(figures.cost) == "5 tuples/s between nodes"


def test_bytes_are_minimised_and_unmeasured_pairs_have_tuples_of_mean_size() -> None:
    measured = load(TALK, size={"a0 b0": 300.0, "b0 a0": 500.0})  # 40 tuples of 20 bytes on average
    problem = Problem.of([GRAPH], NODES, {"t": measured}, APART, minimise="bytes")
    assert problem.rate.tolist() == [800.0, 100.0] and problem.tuples.tolist() == [40.0, 5.0]
    figures = problem.figures(problem.current)
    assert (figures.inter_node, figures.cost) == (5.0, 100.0)
    assert problem.in_words(figures.cost) == "100 bytes/s between nodes"
    unmeasured = Problem.of([GRAPH], NODES, {"t": load(TALK)}, APART, minimise="bytes")
    assert unmeasured.rate.tolist() == [40.0, 5.0]


def test_links_have_a_cost_and_workers_of_a_node_a_weight() -> None:
    nodes = cluster(n1=[0, 1], n2=[2], n3=[3], links={"n2 n1": 4.0, "n1 n9": 7.0})
    problem = Problem.of([GRAPH], nodes, {"t": load(TALK)}, APART, minimise="cost", between_workers=0.5)
    assert problem.distance is not None and problem.distance.tolist() == [[0, 4, 1], [4, 0, 1], [1, 1, 0]]
    assert problem.cost(problem.current) == 40 * 0.5 + 5 * 4.0
    assert problem.cost(np.array([0, 0, 3])) == 5.0
    assert problem.cost(np.array([-1, 0, 3])) == 45.0  # a task without a slot
    assert problem.figures(problem.current).inter_node == 5.0
    assert problem.in_words(40.0) == "40 units of cost per second"


def test_links_do_not_matter_unless_cost_is_minimised_and_equal_ones_need_no_matrix() -> None:
    nodes = cluster(n1=[0, 1], n2=[2], links={"n2 n1": 4.0})
    assert Problem.of([GRAPH], nodes, {"t": load(TALK)}, APART).distance is None
    assert Problem.of([GRAPH], NODES, {"t": load(TALK)}, APART, minimise="cost").distance is None


def shared(*mhz: float) -> Problem:
    """A task on each of three nodes, of which the first two have the same machine with 2,000 MHz."""
    nodes = tuple(Node(f"n{number}", 1, 1000.0, 4096, machine) for number, machine in enumerate(("host", "host", "")))
    used = load(a0=mhz[0], b0=mhz[1], c0=mhz[2])
    return Problem.of([graph(a=1, b=1, c=1)], Cluster(nodes, tuple(Slot(node.name, "e", at) for at, node in enumerate(nodes))),
                      {"t": used}, {"t": plan(a=[0], b=[1], c=[2])})


def test_a_node_may_use_what_another_one_leaves_of_their_machine() -> None:
    problem = shared(1200.0, 100.0, 500.0)
    assert problem.node_capacity.tolist() == pytest.approx([1200 / 0.9 + 278, 100 / 0.9 + 278, 1000], abs=1)
    assert problem.excesses(problem.current, 0.9)[3:6].tolist() == [0, 0, 0]


@pytest.mark.parametrize("mhz", [(0.0, 0.0), (300.0, 200.0), (1700.0, 50.0), (1900.0, 0.0), (1900.0, 500.0)])
def test_nodes_that_share_a_machine_never_get_more_than_that_and_are_full_only_with_it(mhz: tuple[float, float]) -> None:
    problem = shared(*mhz, 0.0)
    assert problem.node_capacity[:2].sum() == pytest.approx(2000.0)
    assert problem.place_loads(problem.current)[3:5].max() <= max(sum(mhz) / 2000, 0.9) + 1e-9


def test_a_node_may_use_the_memory_that_another_one_leaves_of_their_machine() -> None:
    nodes = tuple(Node(f"n{number}", 1, 1000.0, 1000, "host") for number in range(2))
    cluster = Cluster(nodes, tuple(Slot(node.name, "e", at) for at, node in enumerate(nodes)))
    for used, memory in ((1200.0, [1450.0, 550.0]), (2400.0, [1846.0, 154.0])):
        measured = load(memory={"a0": used, "b0": 200.0 if used > 2000 else 300.0}, a0=1, b0=1)
        problem = Problem.of([graph(a=1, b=1)], cluster, {"t": measured}, {"t": plan(a=[0], b=[1])})
        assert problem.node_memory.tolist() == pytest.approx(memory, abs=1)
        assert bool(problem.excess(problem.current)) == (used > 2000), "only all of a machine can be too little"
