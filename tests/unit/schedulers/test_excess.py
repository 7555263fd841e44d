"""The excess of places, and the few moves that relieve it."""

from __future__ import annotations

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan

from millrace.schedulers.base import NewPlan
from millrace.schedulers.overload import PER_MOVE, FillLimits, beyond, excess_of_places, relieves, rises, threshold
from millrace.schedulers.partitioning.relief import relief_first, relieved
from millrace.schedulers.partitioning.room import BEYOND_ALL, weighed_excess
from millrace.schedulers.problem import Problem
from millrace.schedulers.tstorm import TStorm

THREE = cluster(n1=[0], n2=[1], n3=[2])  # nodes of four cores, each with one worker


def waiting(placed: list[int], *busy: float) -> Problem:
    """Tasks that keep a loop busy for so much of the time."""
    names = {f"a{number}": share for number, share in enumerate(busy)}
    return Problem.of([graph(a=len(busy))], THREE, {"t": load(busy=names)}, {"t": plan(a=placed)})


def test_the_threshold_is_above_what_is_filled_and_not_above_all_that_there_is() -> None:
    assert [threshold(packing) for packing in (0.8, 0.9, 1.0)] == [pytest.approx(0.85), pytest.approx(0.95), 1.0]


def test_excess_is_counted_in_units_of_the_largest_place() -> None:
    used, has = np.array([[900.0, 1950.0], [0.97, 0.5]]), np.array([[1000.0, 2000.0], [1.0, 1.0]])
    assert excess_of_places(used, has, 0.9) == pytest.approx([0.07, 0.075])
    assert excess_of_places(used, has, 1.0) == pytest.approx([0.0, 0.0])
    assert beyond(used, has, np.array([1.0, 2.0])) == pytest.approx([0.0, 0.0])


def test_what_one_task_needs_that_fits_nowhere_is_not_avoidable() -> None:
    alone, beside = waiting([0, 1], 1.0, 0.3), waiting([0, 0], 1.0, 0.3)
    assert alone.excess(alone.current, 0.95) == pytest.approx(0.05)
    assert not alone.excesses(alone.current, 0.95, avoidable=True).any()
    assert beside.excesses(beside.current, 0.95, avoidable=True) == pytest.approx([0.3, *[0] * 8])
    assert beside.place_loads(beside.current) == pytest.approx([1.3, *[0] * 8])


def test_moves_must_be_worth_the_excess_that_they_relieve() -> None:
    before = np.array([0.1, 0.0])
    assert relieves(before, np.zeros(2), moves=int(0.1 / PER_MOVE) - 1)
    assert not relieves(before, np.zeros(2), moves=int(0.1 / PER_MOVE) + 1)
    assert not relieves(before, before, moves=0)
    assert not relieves(before, np.array([0.0, 0.01]), moves=1), "another place is overloaded"
    assert rises(np.zeros(1), np.full(1, 0.01)) and not rises(np.ones(1), np.ones(1) + 1e-12)


def test_more_than_there_is_weighs_more_than_more_than_a_share() -> None:
    full = waiting([0, 0, 0, 1], 0.33, 0.33, 0.33, 0.1)
    assert full.excess(full.current) == 0
    assert weighed_excess(full, full.current, 0.95) == pytest.approx(0.04)
    over = waiting([0, 0, 0, 0], 0.33, 0.33, 0.33, 0.11)
    assert weighed_excess(over, over.current, 0.95) == pytest.approx(BEYOND_ALL * 0.1 + 0.15)


def test_only_what_must_leave_leaves() -> None:
    # Of 99 %, one of the small tasks is not enough; once a large one has left, the small one is back.
    problem = waiting([0, 0, 0, 0], 0.02, 0.32, 0.32, 0.33)
    slots = relieved(problem, problem.current, FillLimits.of(0.9))
    assert (slots != problem.current).sum() == 1 and problem.excess(slots, 0.95) == 0
    # A place is relieved only to others that stay within the capacity.
    tight = waiting([0, 0, 0, 1, 2], 0.33, 0.33, 0.33, 0.6, 0.6)
    assert (relieved(tight, tight.current, FillLimits.of(0.9)) == tight.current).all()
    assert (relieved(tight, tight.current, FillLimits(0.94, 0.95)) != tight.current).sum() == 1


@pytest.mark.parametrize("busy", [0.91, 0.94, 0.97, 1.0])
def test_a_task_that_needs_more_than_is_filled_leaves_others_for_a_place_to_itself(busy: float) -> None:
    problem = waiting([0, 0, 1], busy, 0.3, 0.01)
    slots = relieved(problem, problem.current, FillLimits.of(0.9)).tolist()
    assert slots in ([2, 0, 1], [0, 1, 1])
    pair = waiting([0, 0, 1, 2], busy, 0.3, 0.7, 0.01)
    assert relieved(pair, pair.current, FillLimits.of(0.9)).tolist() == [0, 2, 1, 2], "beside it there is no room"
    alone = waiting([0, 1], busy, 0.3)
    assert (relieved(alone, alone.current, FillLimits.of(0.9)) == alone.current).all()


def test_what_others_overload_is_no_overload_of_tasks_that_need_nothing() -> None:
    running = {"t": plan(a=[0]), "u": plan(a=[0])}
    problem = Problem.of([graph(a=1)], THREE, {"u": load(busy={"a0": 0.99})}, running)
    assert not problem.excesses(problem.current, 0.95).any()


def test_relief_goes_before_a_new_placement_unless_that_gains_much_traffic() -> None:
    busy = {"a0": 0.33, "a1": 0.33, "b0": 0.33, "b1": 0.1}
    running = {"t": plan(a=[0, 0], b=[0, 1])}
    for rate, few in ((10.0, True), (100.0, False)):
        measured = load({"a0 b0": 95.0, "a0 b1": 200.0, "a1 b1": rate}, busy=busy)
        problem = Problem.of([graph(a=2, b=2)], THREE, {"t": measured}, running)
        other = np.array([1, 2, 1, 2])
        slots = relief_first(problem, other, FillLimits.of(0.9))
        assert (slots is not other) == few
        assert not few or (slots != problem.current).sum() == 1


def test_tstorm_relieves_a_full_worker_before_it_places_all_tasks_anew() -> None:
    measured = load({"a0 b0": 9.0, "a1 b1": 9.0}, busy={"a0": 0.5, "a1": 0.2, "b0": 0.49, "b1": 0.2})
    graphs, running = [graph(a=2, b=2)], {"t": plan(a=[0, 1], b=[0, 1])}
    result = TStorm().schedule(graphs, THREE, {"t": measured}, running)
    assert isinstance(result, NewPlan) and result.reason.startswith("an overload is relieved: ")
    moved = [task for task, slot in result.plans["t"].placement.items() if slot != running["t"].placement[task]]
    assert len(moved) == 1
    paper = TStorm(cores=0).schedule(graphs, THREE, {"t": measured}, running)
    assert "an overload is relieved" not in paper.reason
