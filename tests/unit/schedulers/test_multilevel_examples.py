"""The multilevel scheduler and its steps, by example."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan, task

from millrace.errors import BadParameter, SchedulerFailed
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.instances import large_situation
from millrace.schedulers.multilevel import Multilevel
from millrace.schedulers.overload import FillLimits
from millrace.schedulers.partitioning import metis
from millrace.schedulers.partitioning.refinement import Ground, refined
from millrace.schedulers.partitioning.relief import relieved
from millrace.schedulers.problem import Ints, Problem
from millrace.schedulers.slstream import SlStream

PAIRS = {"a0 b0": 50.0, "a1 b1": 50.0, "a0 b1": 10.0, "a1 b0": 10.0}


def ask(scheduler: Multilevel | SlStream, situation: Situation) -> SchedulingResult:
    return scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)


def problem(situation: Situation) -> Problem:
    return Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)


def resulting(situation: Situation, result: SchedulingResult) -> Ints:
    assert not isinstance(result, CannotPlace)
    plans = result.plans if isinstance(result, NewPlan) else situation.plan
    return problem(replace(situation, plan=plans)).current


def four(running: dict[str, list[int]], pinned: str = "", move_cost: float = 1.0) -> SchedulingResult:
    """Two tasks fit a node of two."""
    return Multilevel(move_cost=move_cost).schedule(
        [graph(pinned=pinned, a=2, b=2)], cluster(cores=1, mhz=1000.0, n1=[0], n2=[1]),
        {"t": load(PAIRS, a0=400, a1=400, b0=400, b1=400)}, {"t": plan(**running)} if running else {})


def test_tasks_that_communicate_are_on_one_node() -> None:
    result = four({})
    assert isinstance(result, NewPlan)
    placement = result.plans["t"].placement
    assert placement[task("a0")] == placement[task("b0")] != placement[task("a1")] == placement[task("b1")]


def test_tasks_that_cannot_be_moved_stay_and_the_others_come_to_them() -> None:
    result = four({"a": [1, 0], "b": [1, 0]}, pinned="a")
    assert isinstance(result, NoChange) and "20 tuples/s between nodes" in result.reason
    result = four({"a": [1, 0], "b": [0, 1]}, pinned="a")
    assert isinstance(result, NewPlan) and result.reason == "20 tuples/s between nodes, before 100; 2 tasks move"
    assert result.plans["t"].placement == {task("a0"): 1, task("a1"): 0, task("b0"): 1, task("b1"): 0}


def test_a_task_moves_only_if_that_saves_more_than_the_cost_of_a_move() -> None:
    running = {"a": [0, 1], "b": [1, 0]}
    assert isinstance(four(running, move_cost=39.0), NewPlan), "2 moves save 80"
    assert isinstance(four(running, move_cost=41.0), NoChange)


def test_parts_go_to_the_nodes_of_most_of_their_tasks() -> None:
    """Only a1 and b1 are apart; either may go to the other."""
    result = Multilevel().schedule([graph(a=2, b=2)], cluster(cores=1, mhz=1000.0, n1=[0], n2=[1], n3=[2]),
                                   {"t": load(PAIRS, a0=400, a1=400, b0=400, b1=400)}, {"t": plan(a=[1, 2], b=[1, 0])})
    assert isinstance(result, NewPlan)
    placement = result.plans["t"].placement
    assert placement[task("a0")] == placement[task("b0")] == 1 and placement[task("a1")] == placement[task("b1")] in (0, 2)


def test_no_more_than_the_loop_time_of_the_workers() -> None:
    """Tasks that wait: no CPU, but half a loop each."""
    busy = dict.fromkeys(("a0", "a1", "b0", "b1"), 0.45)
    result = Multilevel().schedule([graph(a=2, b=2)], cluster(n1=[0], n2=[1]), {"t": load(PAIRS, busy=busy, a0=1)}, {})
    assert isinstance(result, NewPlan) and sorted(result.plans["t"].placement.values()) == [0, 0, 1, 1]


def test_traffic_between_workers_counts_at_its_weight() -> None:
    """All tasks fit one node of two workers, and two of them a worker."""
    case = ([graph(a=2, b=2)], cluster(cores=2, mhz=1000.0, n1=[0, 1]),
            {"t": load(PAIRS, a0=400, a1=400, b0=400, b1=400)}, {"t": plan(a=[0, 1], b=[1, 0])})
    assert isinstance(Multilevel().schedule(*case), NoChange)
    result = Multilevel(between_workers=0.5).schedule(*case)
    assert isinstance(result, NewPlan)
    placement = result.plans["t"].placement
    assert placement[task("a0")] == placement[task("b0")] != placement[task("a1")] == placement[task("b1")]


def test_the_cheaper_link_is_used() -> None:
    links = {"n1 n2": 5.0, "n1 n3": 1.0, "n2 n3": 1.0}
    result = Multilevel(minimise="cost").schedule(
        [graph(pinned="a", a=1, b=1)], cluster(cores=1, mhz=1000.0, links=links, n1=[0], n2=[1], n3=[2]),
        {"t": load({"a0 b0": 100}, size={"a0 b0": 100}, a0=600, b0=600)}, {"t": plan(a=[0], b=[1])})
    assert isinstance(result, NewPlan) and result.plans["t"].placement[task("b0")] == 2


def test_a_thousand_tasks_have_as_little_traffic_as_with_slstream() -> None:
    situation = large_situation(1000, 100, np.random.default_rng(3))
    seen = problem(situation)
    traffic = [seen.inter_node(resulting(situation, ask(scheduler, situation))) for scheduler in (Multilevel(), SlStream())]
    assert traffic[0] <= 1.05 * traffic[1]


@pytest.mark.parametrize("pinned", [False, True])
def test_many_tasks_on_many_nodes_fit_and_a_second_plan_moves_few(pinned: bool) -> None:
    """Large enough to be refined many at a time."""
    situation = large_situation(3000, 200, np.random.default_rng(2))
    if pinned:
        graphs = tuple(replace(each, components=tuple(replace(part, movable=number % 5 > 0)
                                                      for number, part in enumerate(each.components)))
                       for each in situation.graphs)
        situation = replace(situation, graphs=graphs)
    seen = problem(situation)
    result = ask(Multilevel(), situation)
    slots = resulting(situation, result)
    assert seen.inter_node(slots) < (0.75 if pinned else 0.5) * seen.inter_node(seen.current)
    assert seen.excess(slots) <= seen.excess(seen.current)
    assert (slots[seen.pinned] == seen.current[seen.pinned]).all()
    again = replace(situation, plan=result.plans) if isinstance(result, NewPlan) else situation
    second = ask(Multilevel(move_cost=5.0), again)
    assert problem(again).figures(resulting(again, second)).moved < 300


def test_a_first_plan_with_too_few_tasks_to_cut() -> None:
    """More nodes than tasks, and too many of both for a small problem."""
    situation = replace(large_situation(400, 1200, np.random.default_rng(1)), plan={})
    result = ask(Multilevel(), situation)
    assert isinstance(result, NewPlan) and len(result.plans["large"].placement) == 400


def test_without_any_load_tasks_are_spread_evenly() -> None:
    result = Multilevel().schedule([graph(a=4)], cluster(n1=[0], n2=[1]), {}, {})
    assert isinstance(result, NewPlan) and sorted(result.plans["t"].placement.values()) == [0, 0, 1, 1]


def test_no_slots() -> None:
    assert isinstance(Multilevel().schedule([graph(a=1)], cluster(n1=[]), {}, {}), CannotPlace)


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "find_spec", lambda name: None)
    with pytest.raises(SchedulerFailed, match=r"needs the package pymetis.*pip install pymetis"):
        four({})
    situation = large_situation(60, 6, np.random.default_rng(1))
    assert isinstance(ask(SlStream(), situation), NewPlan), "Sl-Stream has other starts"


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"move_cost": -1}, {"seed": -1}])
def test_parameters_have_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(BadParameter, match=next(iter(wrong))):
        Multilevel(**wrong)


# ---- METIS


def test_metis_prints_nothing_if_a_part_becomes_empty(capfd: pytest.CaptureFixture[str]) -> None:
    """A command that prints JSON may have asked for the parts."""
    chain = metis.traffic_graph(8, np.arange(7), np.arange(1, 8), np.ones(7))
    metis.parts(chain, np.array([1000.0, *[1.0] * 7]), np.array([1.0, 0.01, 0.01, 0.01]), 0.1, 1)
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == ""
    print("heard")
    assert capfd.readouterr().out == "heard\n"


def test_metis_cuts_two_cliques_apart_and_follows_targets(capfd: pytest.CaptureFixture[str]) -> None:
    left, right = np.triu_indices(9, 1)
    within = (left < 3) == (right < 3)
    links = metis.traffic_graph(9, left, right, np.where(within, 10.0, 0.1))
    parts = metis.parts(links, np.ones(9), np.array([1.0, 2.0]), 0.01, 1)
    assert parts is not None and parts.tolist() == [0] * 3 + [1] * 6
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(("tasks", "edges", "targets", "expected"), [
    (3, 1, [1.0, 1.0], None), (8, 0, [1.0, 1.0], None), (8, 1, [1.0, 0.0], None), (4, 1, [1.0], [0] * 4),
    (0, 0, [1.0, 1.0], None)])
def test_metis_is_not_asked_what_it_cannot_answer(tasks: int, edges: int, targets: list[float], expected: list[int] | None,
                                                  capfd: pytest.CaptureFixture[str]) -> None:
    links = metis.traffic_graph(tasks, np.zeros(edges, dtype=np.int64), np.ones(edges, dtype=np.int64), np.ones(edges))
    parts = metis.parts(links, np.ones(tasks), np.array(targets), 0.1, 1)
    assert (None if parts is None else parts.tolist()) == expected
    assert capfd.readouterr().out == ""


# ---- refinement and relief


def ground(edges: dict[tuple[int, int], float], count: int, limit: list[float], **changes: object) -> Ground:
    ends = np.array(list(edges), dtype=np.int64)
    links = metis.traffic_graph(count, ends[:, 0], ends[:, 1], np.array(list(edges.values())))
    plain = Ground(links, np.ones((1, count)), np.array([limit]), np.ones(count, dtype=bool), np.full(count, -1), 0.0)
    return plain._replace(**changes)


CHAIN = {(0, 1): 10.0, (1, 2): 5.0, (2, 3): 10.0}


def test_of_two_tasks_that_communicate_only_one_moves_at_a_time() -> None:
    """Each of the two would go to the other."""
    assert len(set(refined(ground({(0, 1): 1.0}, 2, [9, 9]), np.array([0, 1])).tolist())) == 1


def test_places_take_no_more_than_they_have_room_for() -> None:
    assert refined(ground(CHAIN, 4, [2, 2]), np.array([0, 1, 0, 1])).tolist() == [0, 1, 0, 1], "no single move fits"
    assert refined(ground(CHAIN, 4, [3, 2]), np.array([0, 1, 0, 1])).tolist() == [0, 0, 1, 1]


def test_a_star_moves_only_as_far_as_there_is_room() -> None:
    star = {(0, leaf): 1.0 + leaf for leaf in range(1, 6)}
    places = refined(ground(star, 6, [3, 9], free=np.arange(6) > 0), np.array([0, 1, 1, 1, 1, 1]))
    assert places.tolist() == [0, 1, 1, 1, 0, 0], "those that gain most"


def test_tasks_that_cannot_be_moved_and_those_that_gain_too_little_stay() -> None:
    edges, start = {(0, 1): 10.0}, np.array([0, 1])
    assert refined(ground(edges, 2, [9, 9], free=np.array([False, False])), start).tolist() == [0, 1]
    assert refined(ground(edges, 2, [9, 9], home=start, move_cost=11.0), start).tolist() == [0, 1]
    assert refined(ground(edges, 2, [9, 9], home=np.array([1, 0]), move_cost=11.0), start).tolist() == [1, 0], "they go home"


def test_refinement_by_distance() -> None:
    """The middle task is between two that stay; the third place is near both, but only places of neighbours are looked at."""
    far = np.array([[0.0, 5.0], [5.0, 0.0]])
    edges = {(0, 1): 10.0, (1, 2): 9.0}
    fixed = ground(edges, 3, [9, 9], free=np.array([False, True, False]), distance=far)
    assert refined(fixed, np.array([0, 1, 1])).tolist() == [0, 0, 1]
    assert refined(fixed._replace(home=np.array([0, 1, 1]), move_cost=5.1), np.array([0, 1, 1])).tolist() == [0, 1, 1]


def test_relief_moves_to_the_nearest_with_room_and_swaps_if_nothing_fits() -> None:
    case = Problem.of([graph(a=3)], cluster(cores=1, mhz=1000.0, n1=[0], n2=[1]),
                      {"t": load({"a0 a1": 1}, a0=700, a1=600, a2=300)}, {"t": plan(a=[0, 0, 1])})
    assert relieved(case, case.current, FillLimits.of(0.9)).tolist() == [0, 1, 1]
    tight = Problem.of([graph(a=3)], cluster(cores=1, mhz=1000.0, n1=[0], n2=[1]), {"t": load({}, a0=700, a1=400, a2=600)},
                       {"t": plan(a=[0, 0, 1])})
    assert sorted(relieved(tight, tight.current, FillLimits.of(0.9)).tolist()) == [0, 1, 1]
    assert tight.excess(relieved(tight, tight.current, FillLimits.of(0.9))) == 0
