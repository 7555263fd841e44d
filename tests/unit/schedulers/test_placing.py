"""Placement steps shared by schedulers."""

from __future__ import annotations

import numpy as np
from by_hand import graph, load, plan
from hypothesis import given
from hypothesis import strategies as st

from millrace.model.cluster import Cluster, Node, Slot
from millrace.schedulers.instances import random_situation
from millrace.schedulers.placing import SlotBoard, by_traffic, fewest_moves, slots_within
from millrace.schedulers.problem import Problem

ALIKE = Cluster(tuple(Node(name, 2, 1000.0, 1024) for name in "abc"),
                tuple(Slot(name, name, 2 * number + offset) for number, name in enumerate("abc") for offset in (0, 1)))
LOAD = {"t": load({"a0 a1": 5.0}, a0=1, a1=1)}


def problem(cluster: Cluster, **current: list[int]) -> Problem:
    return Problem.of([graph(a=2, b=2)], cluster, LOAD, {"t": plan(**current)})


def test_alike_nodes_and_slots_are_exchanged_until_most_tasks_stay() -> None:
    # a's tasks are on node c (slots 4, 5) and b's on node a (slot 0): the same again, with other names for the nodes
    placement = fewest_moves(problem(ALIKE, a=[4, 5], b=[0, 0]), np.array([1, 0, 3, 3]))
    assert placement.tolist() == [4, 5, 0, 0]


def test_nodes_that_differ_are_not_exchanged() -> None:
    other = Cluster((*ALIKE.nodes[:2], Node("c", 4, 1000.0, 1024)), ALIKE.slots)
    placement = fewest_moves(problem(other, a=[4, 5], b=[0, 0]), np.array([1, 0, 3, 3]))
    assert placement.tolist() == [3, 2, 0, 0] or placement.tolist() == [2, 3, 0, 0], "a's tasks may not get to node c"


def test_a_placement_that_cannot_be_nearer_is_left_alone() -> None:
    wanted = np.array([0, 0, 0, 0])
    assert fewest_moves(problem(ALIKE, a=[0, 1], b=[2, 3]), wanted).tolist() == wanted.tolist()


@given(st.integers(0, 2**32), st.sampled_from([0.3, 0.9, 1.0]))
def test_tasks_are_put_on_a_node_together_as_they_are_one_by_one(seed: int, capacity: float) -> None:
    rng = np.random.default_rng(seed)
    situation = random_situation(rng, tasks=(4, 25), nodes=(1, 3), cores=4)
    case = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    assignment = np.where(rng.random(case.count) < 0.5, case.current, -1)
    together, single = (SlotBoard(case, assignment.copy(), capacity) for _ in range(2))
    node, tasks = int(rng.integers(case.nodes)), by_traffic(case, np.flatnonzero(assignment < 0))
    together.put_all(tasks, node)
    for task in tasks.tolist():
        single.put(task, node)
    assert together.assignment.tolist() == single.assignment.tolist()
    assert together.used.tolist() == single.used.tolist() and together.counts.tolist() == single.counts.tolist()


def test_a_task_that_is_too_large_for_a_worker_stays_there_alone() -> None:
    used = {"t": load({"a0 b0": 5.0, "a1 b1": 9.0}, a0=950, a1=1, b0=100, b1=1)}
    case = Problem.of([graph(a=2, b=2)], ALIKE, used, {"t": plan(a=[1, 2], b=[1, 3])})
    assert slots_within(case, case.nodes_of(case.current), 0.9)[[0, 2]].tolist() == [1, 0]
    alone = Problem.of([graph(a=2, b=2)], ALIKE, used, {"t": plan(a=[1, 2], b=[4, 3])})
    assert slots_within(alone, alone.nodes_of(alone.current), 0.9).tolist() == alone.current.tolist()
