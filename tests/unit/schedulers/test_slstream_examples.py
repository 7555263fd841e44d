"""Sl-Stream, by example: costs, weights and steps computed by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from by_hand import cluster, graph, load, plan, task

from millrace.errors import BadParameter
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers import slstream
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult
from millrace.schedulers.instances import random_situation
from millrace.schedulers.partitioning.partition import Cost, Cutting, polished
from millrace.schedulers.partitioning.qpso import Costs, contraction, decode, moved, swarm
from millrace.schedulers.placing import complete
from millrace.schedulers.problem import NOWHERE, Problem
from millrace.schedulers.slstream import SlStream, match_subgraphs

FREE = np.full(6, NOWHERE)  # of six tasks, all can be moved
SQUARE = {(0, 1): 10.0, (1, 2): 5.0, (2, 3): 10.0}  # a chain of four tasks


def situation(nodes: Sequence[tuple[float, int]], cpu: Sequence[float], edges: dict[tuple[int, int], float],
              memory: Sequence[float] | None = None, running: Sequence[int] | None = None) -> Situation:
    """Nodes as (MHz, MB), with one slot each; tasks a[0], a[1], ...; edges in tuples a second."""
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", len(cpu), {}, (), (), False, "next_tuple"),), {})
    tasks = {TaskId("a", index): TaskLoad(cpu_mhz=mhz, memory_mb=memory[index] if memory else 0.0)
             for index, mhz in enumerate(cpu)}
    traffic = {(TaskId("a", source), TaskId("a", target)): rate for (source, target), rate in edges.items()}
    cluster = Cluster(tuple(Node(f"n{number}", 1, mhz, mb) for number, (mhz, mb) in enumerate(nodes)),
                      tuple(Slot(f"n{number}", f"e{number}", number) for number in range(len(nodes))))
    plans = {} if running is None else {"t": Plan(1, {TaskId("a", index): slot for index, slot in enumerate(running)})}
    return Situation((graph,), cluster, {"t": Load(1.0, tasks, traffic)}, plans)


def problem(case: Situation) -> Problem:
    return Problem.of(case.graphs, case.cluster, case.load, case.plan)


def ask(scheduler: SlStream, case: Situation) -> SchedulingResult:
    return scheduler.schedule(case.graphs, case.cluster, case.load, case.plan)


def slots(result: SchedulingResult) -> list[int]:
    assert isinstance(result, NewPlan), result
    return list(result.plans["t"].placement.values())


def cutting(case: Situation, rho: float, alpha: float) -> Cutting:
    return Cutting.of(problem(case), len(case.cluster.nodes), rho, alpha)


# ---- p


def test_p_is_the_cut_if_tasks_are_alike() -> None:
    result = cutting(situation([(1000, 1000)] * 2, [100] * 4, SQUARE), rho=6, alpha=1)
    assert result.cost(np.array([0, 0, 1, 1])) == Cost(0, pytest.approx(5))
    assert result.cost(np.array([0, 1, 0, 1])) == Cost(0, pytest.approx(25))
    assert result.cost(np.array([0, 0, 0, 0])) == Cost(0, pytest.approx(0))


def test_p_counts_shares_of_tasks_against_shares_of_weight() -> None:
    # q1 = 1/2, 1/2; q2 = 4/6, 2/6: together 1/3 apart.
    result = cutting(situation([(1000, 1000)] * 2, [300, 100, 100, 100], SQUARE), rho=6, alpha=1)
    assert result.cost(np.array([0, 0, 1, 1])).p == pytest.approx(5 + 6 / 3)


def test_the_weight_mixes_cpu_and_memory() -> None:
    # R in shares of the whole: 1/3, 1/6, 1/6, 1/3.
    case = situation([(1000, 1000)] * 2, [300, 100, 100, 100], SQUARE, memory=[100, 100, 100, 300])
    result = cutting(case, rho=6, alpha=0.5)
    assert result.cost(np.array([0, 0, 1, 1])).p == pytest.approx(5)
    assert result.cost(np.array([0, 1, 1, 0])).p == pytest.approx(20 + 6 / 3)


def test_a_partition_that_does_not_fit_is_worse_than_any_that_does() -> None:
    result = cutting(situation([(200, 1000)] * 2, [100] * 4, SQUARE), rho=0, alpha=1)
    together, apart = result.cost(np.array([0, 0, 0, 0])), result.cost(np.array([0, 1, 0, 1]))
    assert together == Cost(pytest.approx(1001 * 200 / 400), 0) and apart == Cost(0, 25)
    assert apart < together


def test_memory_can_overload_too() -> None:
    result = cutting(situation([(1000, 100)] * 2, [1] * 4, SQUARE, memory=[60] * 4), rho=0, alpha=1)
    assert result.cost(np.array([0, 0, 1, 1])).overload == pytest.approx(1000 * 40 / 200)


def test_many_partitions_at_once_cost_the_same_as_one_by_one() -> None:
    result = cutting(situation([(150, 1000)] * 3, [90, 60, 80, 50], SQUARE), rho=3, alpha=1)
    rows = np.array([[0, 0, 1, 1], [2, 1, 0, 2], [0, 0, 0, 0]])
    costs = result.costs(rows)
    assert [Cost(*pair) for pair in zip(costs.overload, costs.value)] == [result.cost(row) for row in rows]


# ---- the swarm


def test_the_position_of_a_moved_particle() -> None:
    best, leader = np.array([[0.0, 2.0], [2.0, 0.0]]), np.array([0.0, 2.0])  # their mean is (1, 1)
    position, phi, u = np.array([[1.0, 1.0], [3.0, 3.0]]), np.full((2, 2), 0.5), np.full((2, 2), math.exp(-1))
    sign = np.array([[1.0, 1.0], [1.0, -1.0]])
    result = moved(position, best, leader, 0.5, phi, u, sign)
    assert result == pytest.approx(np.array([[0.0, 2.0], [2.0, 0.0]]))
    assert moved(position, best, leader, 0.5, phi, np.ones((2, 2)), sign) == pytest.approx(np.array([[0.0, 2.0], [1.0, 1.0]]))


def test_the_swarm_contracts_from_sigma_and_a_half_to_a_half() -> None:
    assert [contraction(0.8, 4, t) for t in range(4)] == pytest.approx([1.3, 1.1, 0.9, 0.7])


def test_a_coordinate_is_decoded_to_its_whole_part_within_the_subgraphs() -> None:
    assert decode(np.array([-0.5, 0.0, 0.99, 1.0, 2.7, 3.0]), 3).tolist() == [0, 0, 0, 1, 2, 2]


def test_the_swarm_finds_a_hidden_partition_and_is_never_worse_than_a_start() -> None:
    wanted = np.array([0, 1, 2, 0, 1, 2])

    def cost(labels: np.ndarray) -> Costs:
        return Costs(np.zeros(len(labels)), (labels != wanted).sum(axis=1).astype(float))

    start = np.array([[0, 1, 2, 2, 0, 1]])
    result = swarm(cost, start, 3, particles=20, iterations=100, sigma=0.5, rng=np.random.default_rng(1), fixed=FREE)
    assert result.labels[0].tolist() == wanted.tolist() and result.costs.value[0] == 0
    still = swarm(cost, start, 3, particles=1, iterations=0, sigma=0.5, rng=np.random.default_rng(1), fixed=FREE)
    assert still.labels.tolist() == start.tolist()


# ---- polishing


def test_polishing_swaps_where_no_single_move_fits() -> None:
    result = cutting(situation([(200, 1000)] * 2, [100] * 4, SQUARE), rho=0, alpha=1)
    assert result.cost(polished(result, np.array([0, 1, 0, 1]))).p == 5


def test_polishing_takes_overload_away_first() -> None:
    result = cutting(situation([(200, 1000)] * 2, [100] * 4, SQUARE), rho=0, alpha=1)
    assert result.cost(polished(result, np.array([0, 0, 0, 0]))) == Cost(0, 5)


# ---- matching


@pytest.mark.parametrize("mu", [0.0, 0.3, 1.0])
def test_the_matching_has_the_least_sum_of_weights_of_all(mu: float) -> None:
    """w_ij = μ·(free CPU - need) + (1 - μ)·(free memory - need), in shares of the largest node, tried out for each way."""
    free, needs = [(1000, 600), (500, 1000), (700, 800)], [(400, 200), (450, 700)]
    instance = problem(situation(free, [cpu for cpu, _ in needs], {(0, 1): 1.0}, memory=[memory for _, memory in needs]))

    def weight(node: int, subgraph: int) -> float:
        cpu, memory = free[node][0] - needs[subgraph][0], free[node][1] - needs[subgraph][1]
        return mu * cpu / 1000 + (1 - mu) * memory / 1000 if min(cpu, memory) >= 0 else math.inf

    sums = {ways: weight(ways[0], 0) + weight(ways[1], 1) for ways in itertools.permutations(range(3), 2)}
    result = match_subgraphs(instance, np.array([0, 1]), 2, mu=mu)
    assert result is not None and sums[tuple(result.tolist())] == pytest.approx(min(sums.values()))


def test_the_matching_is_the_one_that_the_weights_say() -> None:
    instance = problem(situation([(1000, 1000), (500, 1000), (700, 1000)], [400, 600], {(0, 1): 1.0}))
    assert match_subgraphs(instance, np.array([0, 1]), 2, mu=1.0).tolist() == [1, 2], "best fit: the largest hole stays"


def test_of_equal_matchings_the_one_that_moves_fewest_is_taken() -> None:
    instance = problem(situation([(1000, 1000)] * 3, [100] * 4, SQUARE, running=[2, 2, 1, 2]))
    assert match_subgraphs(instance, np.array([0, 0, 1, 1]), 2, mu=0.5).tolist() == [2, 2, 1, 1]


def test_resources_of_other_topologies_are_not_free() -> None:
    case = situation([(1000, 1000), (500, 1000)], [400, 600], {(0, 1): 1.0})
    others = {"o": Plan(1, {TaskId("x", 0): 0})}
    load = {**case.load, "o": Load(1.0, {TaskId("x", 0): TaskLoad(cpu_mhz=500.0)})}
    assert match_subgraphs(Problem.of(case.graphs, case.cluster, load, others), np.array([0, 1]), 2, mu=0.5) is None


# ---- the whole


def pairs(across: float, running: Sequence[int] | None = (0, 1, 0, 1)) -> Situation:
    """Two tasks fit a node; 100 tuples/s between nodes as it runs, 2 x `across` if it were turned round."""
    return situation([(200, 1000)] * 2, [100] * 4, {(0, 1): 50, (2, 3): 50, (0, 2): across, (1, 3): across}, running=running)


def test_xi_says_how_much_better_a_plan_must_be() -> None:
    assert slots(ask(SlStream(rho=0), pairs(34))) in ([0, 0, 1, 1], [1, 1, 0, 0])
    result = ask(SlStream(rho=0), pairs(35))
    assert result == NoChange("the plan stays: p would go from 100.0 to 70.0, which is not below xi = 0.7 times that")
    assert slots(ask(SlStream(rho=0, xi=0.71), pairs(35)))
    assert isinstance(ask(SlStream(rho=0, xi=1.0), pairs(50)), NoChange), "equal is not better"


def test_a_plan_that_overloads_a_node_is_left_however_good_its_p() -> None:
    assert len(set(slots(ask(SlStream(), pairs(1, running=[0, 0, 0, 0]))))) == 2


def test_a_first_placement_need_not_be_worth_a_move() -> None:
    result = slots(ask(SlStream(), pairs(35, running=None)))
    assert result[0] == result[1] != result[2] == result[3]


def test_asked_again_it_has_nothing_to_change() -> None:
    case = pairs(10)
    first = ask(SlStream(xi=1.0), case)
    assert isinstance(first, NewPlan)
    again = Situation(case.graphs, case.cluster, case.load, first.plans)
    assert isinstance(ask(SlStream(xi=1.0), again), NoChange)


def test_no_feasible_matching_keeps_the_plan_and_says_the_amounts() -> None:
    case = situation([(200, 1000)] * 2, [300, 100], {(0, 1): 10.0}, running=[0, 0])
    result = ask(SlStream(), case)
    assert isinstance(result, NoChange)
    assert "cannot be matched to nodes that have room for them: they need 300, 100 MHz" in result.reason
    assert "the nodes have 200, 200 MHz" in result.reason


def test_no_feasible_matching_still_places_what_has_no_slot() -> None:
    case = situation([(200, 1000)] * 2, [300, 100], {(0, 1): 10.0}, running=[0, 9])
    result = ask(SlStream(), case)
    assert isinstance(result, NewPlan) and result.plans["t"].placement[TaskId("a", 0)] == 0
    assert "1 tasks that had no slot are placed" in result.reason
    assert [str(each) for each in result.overload][:1] == ["node n0 would need 300 MHz and has 200"]


def test_fewer_subgraphs_than_nodes() -> None:
    case = situation([(450, 1000)] * 3, [100] * 4, SQUARE, running=[0, 1, 2, 0])
    assert len(set(slots(ask(SlStream(k=1), case)))) == 1
    assert len(set(slots(ask(SlStream(k=2, rho=0), case)))) <= 2


def test_without_any_load_tasks_are_spread_evenly() -> None:
    case = situation([(400, 1000)] * 2, [0] * 4, {})
    assert slots(ask(SlStream(), case)) == [0, 1, 0, 1]


def test_all_on_one_node_is_not_balanced_however_little_the_traffic() -> None:
    case = situation([(1000, 1000)] * 2, [100] * 8, {(first, second): 1.0 for first in range(8) for second in range(first)})
    counts = np.bincount(slots(ask(SlStream(), case)))
    assert counts.tolist() == [4, 4] or sorted(counts.tolist()) in ([2, 6], [3, 5])
    assert np.bincount(slots(ask(SlStream(balance=1000), case))).max() == 8, "within the headroom if balance does not matter"


def test_new_plans_leave_headroom() -> None:
    case = situation([(400, 1000)] * 2, [95] * 4, SQUARE, running=None)
    assert np.bincount(slots(ask(SlStream(balance=1000), case))).tolist() == [2, 2], "380 MHz are more than 0.9 x 400"
    assert len(set(slots(ask(SlStream(balance=1000, capacity=1.0), case)))) == 1


def test_a_subgraph_fits_the_cores_of_a_nodes_workers() -> None:
    """Two nodes with 4 cores, each with one worker, which uses one of them."""
    one = cluster(cores=4, mhz=1000.0, n1=[0], n2=[1])
    result = SlStream(balance=1000, k=2).schedule([graph(a=1, b=2)], one, {"t": load({"a0 b0": 10, "a0 b1": 9}, a0=600, b0=300,
                                                                                b1=300)}, {})
    assert isinstance(result, NewPlan) and not result.overload
    assert result.plans["t"].placement == {task("a0"): 0, task("b0"): 0, task("b1"): 1}


def test_a_subgraph_fits_the_loops_of_a_nodes_workers() -> None:
    """The tasks wait: they need a loop, and no CPU."""
    result = SlStream(balance=1000, k=2).schedule(
        [graph(a=1, b=2)], cluster(n1=[0], n2=[1]),
        {"t": load({"a0 b0": 10, "a0 b1": 9}, busy={"a0": 0.5, "b0": 0.4, "b1": 0.4}, a0=1)}, {})
    assert isinstance(result, NewPlan)
    assert result.plans["t"].placement == {task("a0"): 0, task("b0"): 0, task("b1"): 1}


def test_what_fits_a_node_but_none_of_its_workers_goes_elsewhere() -> None:
    """Three tasks of 0.6 cores on two workers of a node: 1.8 of 2 cores, but only two fit."""
    one = cluster(cores=2, mhz=1000.0, n1=[0, 1], n2=[2])
    result = SlStream(balance=1000, k=1).schedule(
        [graph(a=3)], one, {"t": load({"a0 a1": 10, "a1 a2": 10}, a0=600, a1=600, a2=600)}, {})
    assert isinstance(result, NewPlan) and not result.overload
    assert sorted(result.plans["t"].placement.values()) == [0, 1, 2]


# ---- tasks that cannot be moved


def pinned_case(traffic: dict[str, float], running: Plan, **mhz: float) -> SchedulingResult:
    topology = graph(pinned="a", a=2, b=1)
    return SlStream(xi=1.0, rho=0.0).schedule([topology], cluster(cores=1, mhz=1000.0, n1=[0], n2=[1]),
                                              {"t": load(traffic, **mhz)}, {"t": running})


def test_tasks_that_cannot_be_moved_never_share_a_subgraph_if_their_nodes_differ() -> None:
    """All three would fit one node, with no traffic between nodes; but a0 and a1 stay where they are."""
    result = pinned_case({"a0 b0": 1000, "a1 b0": 900}, plan(a=[0, 1], b=[1]), a0=100, a1=100, b0=100)
    assert isinstance(result, NewPlan) and result.reason == "2 subgraphs: p 1,000.0 -> 900.0"
    assert result.plans["t"].placement == {task("a0"): 0, task("a1"): 1, task("b0"): 0}


def test_a_plan_is_judged_with_the_tasks_that_cannot_be_moved_where_they_are() -> None:
    result = pinned_case({"a0 b0": 900, "a1 b0": 1000}, plan(a=[0, 1], b=[1]), a0=100, a1=100, b0=100)
    assert result == NoChange("the plan stays: p would go from 900.0 to 900.0, which is not below xi = 1 times that")


def test_a_subgraph_goes_to_the_node_of_its_task_that_cannot_be_moved() -> None:
    instance = Problem.of([graph(pinned="a", a=1, b=3)], cluster(n1=[0], n2=[1]), {"t": load({"a0 b0": 1}, a0=1)},
                          {"t": plan(a=[0], b=[1, 1, 1])})
    assert match_subgraphs(instance, np.array([1, 1, 0, 1]), 2, mu=0.5).tolist() == [0, 0, 1, 0], "though more tasks move"


# ---- as published


def test_as_published_the_swarm_starts_at_random_and_nothing_is_polished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slstream, "polished", lambda *_: pytest.fail("polished"))
    monkeypatch.setattr(Cutting, "greedy", lambda *_: pytest.fail("a greedy start"))
    case = pairs(10, running=None)
    first = ask(SlStream(published=True), case)
    assert isinstance(first, NewPlan) and ask(SlStream(published=True), case) == first


def test_as_published_the_plan_is_that_of_swarm_and_matching() -> None:
    scheduler, plans = SlStream(published=True, xi=1.0), 0
    for seed in range(20):
        case = random_situation(np.random.default_rng(seed), (8, 14), (2, 4))
        seen, result = problem(case), ask(scheduler, case)
        if isinstance(result, NewPlan):
            found, labels = scheduler.subgraphs(seen, complete(seen, seen.current, scheduler.capacity))
            planned = Problem.of(case.graphs, case.cluster, case.load, result.plans)
            matched = match_subgraphs(seen, labels, found.k, scheduler.mu)
            assert matched is not None and planned.nodes_of(planned.current).tolist() == matched.tolist(), seed
            plans += 1
    assert plans > 15


# ---- links


def test_with_costs_of_links_p_is_the_cost_of_the_plan() -> None:
    """b0 needs a node of its own: the near one is better, though the far one has as much room."""
    links = {"n1 n2": 5.0, "n1 n3": 1.0, "n2 n3": 1.0}
    result = SlStream(minimise="cost", rho=0).schedule(
        [graph(pinned="a", a=1, b=1)], cluster(cores=1, mhz=1000.0, links=links, n1=[0], n2=[1], n3=[2]),
        {"t": load({"a0 b0": 100}, size={"a0 b0": 100}, a0=600, b0=600)}, {"t": plan(a=[0], b=[1])})
    assert isinstance(result, NewPlan) and result.reason == "2 subgraphs: p 500.0 -> 100.0"
    assert result.plans["t"].placement[task("b0")] == 2


def test_no_slots() -> None:
    case = situation([], [1], {})
    assert isinstance(ask(SlStream(), case), CannotPlace)


@pytest.mark.parametrize("wrong", [{"k": 0}, {"xi": 1.1}, {"sigma": 0.4}, {"particles": 0}, {"rho": -1}, {"mu": 2},
                                   {"seed": -1}])
def test_parameters_have_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(BadParameter, match=next(iter(wrong))):
        SlStream(**wrong)


def test_traffic_between_workers_of_a_node_is_part_of_p() -> None:
    question = ([graph(a=1, b=1)], cluster(n1=[0, 1]), {"t": load({"a0 b0": 100.0}, a0=10, b0=10)}, {"t": plan(a=[0], b=[1])})
    assert isinstance(SlStream(xi=1).schedule(*question), NoChange)
    result = SlStream(xi=1, between_workers=0.5).schedule(*question)
    assert isinstance(result, NewPlan) and len(set(result.plans["t"].placement.values())) == 1
    assert "p 50.0 -> 0.0" in result.reason
    # Pairs that share a node, but not a worker, change workers there.
    pairs = ([graph(a=2, b=2)], cluster(cores=4, n1=[0, 1], n2=[2, 3]),
             {"t": load({"a0 b0": 100.0, "a1 b1": 100.0, "a0 b1": 1.0}, a0=440, b0=440, a1=440, b1=440)},
             {"t": plan(a=[0, 1], b=[1, 0])})
    crossed = SlStream(xi=1, between_workers=0.5).schedule(*pairs)
    assert isinstance(crossed, NewPlan)
    placed = {str(task): slot for task, slot in crossed.plans["t"].placement.items()}
    assert placed["a[0]"] == placed["b[0]"] != placed["a[1]"] == placed["b[1]"]
