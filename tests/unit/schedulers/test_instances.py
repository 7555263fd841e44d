"""Random situations: the properties that the comparison relies on."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.model.situation import Situation
from millrace.schedulers.base import NoChange
from millrace.schedulers.even import Even
from millrace.schedulers.instances import large_situation, random_situation, simulated_situation
from millrace.schedulers.optimal import least_traffic
from millrace.schedulers.problem import Problem


def problem(case: Situation) -> Problem:
    return Problem.of(case.graphs, case.cluster, case.load, case.plan)


def made(count: int, seed: int = 1) -> list[Situation]:
    rng = np.random.default_rng(seed)
    return [random_situation(rng) for _ in range(count)]


def test_equal_seeds_make_equal_situations() -> None:
    assert made(3) == made(3)
    assert made(3) != made(3, seed=2)


def test_they_have_the_sizes_that_were_asked_for() -> None:
    seen = [problem(case) for case in made(200)]
    assert {each.count for each in seen} == set(range(4, 13))
    assert {each.nodes for each in seen} == {2, 3, 4}
    assert {len(each.graphs) for each in seen} == {1, 2, 3}
    small = problem(random_situation(np.random.default_rng(1), tasks=(2, 2), nodes=(1, 1)))
    assert (small.count, small.nodes) == (2, 1)


def test_every_task_is_measured_and_runs_where_even_put_it() -> None:
    for case in made(20):
        seen = problem(case)
        assert (seen.cpu > 0).all() and (seen.current >= 0).all() and len(seen.rate)
        again = Even().schedule(case.graphs, case.cluster, case.load, case.plan)
        assert isinstance(again, NoChange)


def test_some_placement_always_fits_and_it_usually_needs_traffic_between_nodes() -> None:
    results = [least_traffic(problem(case)) for case in made(30)]
    assert all(each.proven for each in results)
    assert sum(each.value > 1e-6 for each in results) > 10


def test_they_can_be_written_and_read_again() -> None:
    for case in made(3):
        assert Situation.from_json(case.to_json()) == case


@pytest.mark.parametrize(("tasks", "slots"), [(100, 10), (1010, 100)])
def test_a_large_one_has_about_twenty_edges_for_each_task(tasks: int, slots: int) -> None:
    seen = problem(large_situation(tasks, slots, np.random.default_rng(1)))
    assert seen.count == tasks and len(seen.slot_numbers) == slots
    assert 15 <= len(seen.rate) / tasks <= 20
    assert seen.cpu.sum() < seen.node_capacity.sum()


READS = {"chain": [set(), {0}, {1}, {2}], "diamond": [set(), {0}, {0}, {1, 2}], "star": [set(), {0}, {1}, {1}],
         "all-to-all": [set(), {0}, {0, 1}, {0, 1, 2}]}


@pytest.mark.parametrize("shape", READS)
def test_shapes(shape: str) -> None:
    rng = np.random.default_rng(1)
    graphs = [graph for _ in range(50) for graph in random_situation(rng, tasks=(8, 12), shape=shape).graphs]
    four = [graph for graph in graphs if len(graph.components) == 4]
    assert four
    for graph in four:
        assert [{int(read.source[1:]) for read in component.inputs} for component in graph.components] == READS[shape]


def test_nodes_with_several_cores_have_room_for_every_task_on_one_of_them() -> None:
    rng = np.random.default_rng(2)
    for _ in range(30):
        seen = problem(random_situation(rng, cores=3))
        assert seen.node_capacity == pytest.approx(3 * seen.node_mhz) and seen.cpu.max() <= seen.node_mhz.max()
        assert (np.bincount(seen.slot_node) >= 3).all()


def test_spouts_that_cannot_move() -> None:
    rng = np.random.default_rng(3)
    every, none = (problem(random_situation(rng, pinned=share)) for share in (1.0, 0.0))
    spouts = [task.component == "c0" for _, task in every.tasks]
    assert every.pinned.tolist() == spouts and not none.pinned.any()


def test_a_simulated_cluster_has_all_shapes_and_is_a_third_full() -> None:
    case = simulated_situation(500, 20, np.random.default_rng(1))
    seen = problem(case)
    assert (seen.count, seen.nodes, len(seen.slot_numbers)) == (500, 20, 80) and (seen.current < 0).all()
    assert seen.cpu.sum() <= seen.node_capacity.sum() / 3 * (1 + 1e-9) and seen.cpu.max() <= seen.node_mhz.min() / 4
    assert len(case.graphs) == 5 and simulated_situation(500, 20, np.random.default_rng(1)) == case
