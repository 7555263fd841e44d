"""Gains of a plan in the last windows, and their noise."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.scheduling import plan_gains
from millrace.control.scheduling.plan_gains import (
    CHANCE,
    balance_gains,
    exceeds_noise,
    planned_slots,
    traffic_gains,
    with_recent_loads,
)
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.inputs.measured import numbers_of
from millrace.schedulers.instances import random_situation
from millrace.schedulers.problem import MINIMISED, Ints, Problem

CLUSTER = Cluster((Node("n0", 4, 1000.0, 4096), Node("n1", 4, 1000.0, 4096)), (Slot("n0", "e", 0), Slot("n1", "e", 1)))
A, B, C = (TaskId(name, 0) for name in "abc")
GRAPH = TopologyGraph("t", tuple(ComponentDef(name, "spout", "m:C", 1, {}, (), (), False, "next_tuple") for name in "abc"), {})
APART = Plan(1, {A: 0, B: 1, C: 1})
TOGETHER = Plan(2, {A: 1, B: 1, C: 1})


def load(tuples: float, seconds: float = 2.0, settling: tuple[TaskId, ...] = (), mhz: float = 10.0) -> Load:
    return Load(seconds, dict.fromkeys((A, B, C), TaskLoad(cpu_mhz=mhz, busy_seconds=seconds / 4)),
                {(A, B): tuples, (B, C): 1000.0}, settling)


def case(running: Plan = APART) -> Situation:
    return Situation((GRAPH,), CLUSTER, {"t": load(100.0)}, {"t": running})


def test_the_gain_is_the_traffic_that_becomes_local_in_each_window() -> None:
    windows = [{"t": load(100.0)}, {"t": load(60.0, 1.0)}, {"t": load(0.0)}]
    assert traffic_gains(case(), {"t": TOGETHER}, windows, {}) == [50.0, 60.0, 0.0]
    assert traffic_gains(case(TOGETHER), {"t": APART}, windows, {}) == [-50.0, -60.0, 0.0]
    assert traffic_gains(case(), {"t": APART}, windows, {}) == [], "nothing moves"


def test_windows_that_do_not_have_the_whole_traffic_of_a_moved_task_are_left_out() -> None:
    windows = [{"t": load(100.0, settling=(A,))}, {"t": load(100.0, settling=(B,))}, {"t": load(100.0, settling=(C,))},
               {}, {"t": Load(1.0, {B: TaskLoad()})}]
    assert traffic_gains(case(), {"t": TOGETHER}, windows, {}) == [50.0], "c does not exchange tuples with a"


def test_ackers_without_a_load_do_not_hide_a_gain() -> None:
    acker = TaskId(ACKER, 0)
    graph = TopologyGraph("t", GRAPH.components, {}, ackers=1)
    situation = Situation((graph,), CLUSTER, {}, {"t": Plan(1, {**APART.placement, acker: 0})})
    moved = Plan(2, {**TOGETHER.placement, acker: 1})
    assert traffic_gains(situation, {"t": moved}, [{"t": load(100.0)}], {}) == [50.0]


def test_bytes_and_costs_of_links_are_gained_if_they_are_minimised() -> None:
    sized = Load(1.0, dict.fromkeys((A, B, C), TaskLoad()), {(A, B): 10.0}, traffic_bytes={(A, B): 700.0})
    far = Cluster(CLUSTER.nodes, CLUSTER.slots, {("n0", "n1"): 3.0})
    situation = Situation((GRAPH,), far, {}, {"t": APART})
    gains = [traffic_gains(situation, {"t": TOGETHER}, [{"t": sized}], {"minimise": unit})
             for unit in ("tuples", "bytes", "cost")]
    assert gains == [[10.0], [700.0], [2100.0]]


def gains_by_problems(situation: Situation, plans: Mapping[str, Plan], windows: Sequence[Mapping[str, Load]],
                      objective: Mapping[str, Any]) -> list[float]:
    """The definition of the gains: the costs of the two placements under the traffic of the moved tasks in each window."""
    moved = {name: {task for task, slot in plan.placement.items() if situation.plan[name].placement[task] != slot}
             for name, plan in plans.items()}
    graphs = [graph for graph in situation.graphs if moved[graph.name]]
    gains = []
    for window in windows:
        loads = {}
        for graph in graphs:
            load, own = window.get(graph.name), moved[graph.name]
            if load is not None and own <= set(load.tasks) and not own & set(load.settling):
                traffic = {pair: sent for pair, sent in load.traffic.items() if own & set(pair)}
                if not any(set(pair) & set(load.settling) for pair in traffic):
                    sizes = {pair: size for pair, size in load.traffic_bytes.items() if pair in traffic}
                    loads[graph.name] = Load(load.window_seconds, {}, traffic, traffic_bytes=sizes)
        if len(loads) == len(graphs):
            problem = Problem.of(graphs, situation.cluster, loads, situation.plan, **objective)
            gains.append(problem.cost(problem.current) - problem.cost(planned_slots(problem, plans)))
    return gains if graphs else []


def noisy(load: Load, rng: np.random.Generator) -> Load | None:
    """The load with noise, as a window may have it: without some pairs, sizes and tasks, or with tasks that have just moved."""
    if rng.random() < 0.1:
        return None
    quiet = rng.random() < 0.5
    traffic = {pair: sent * rng.uniform(0.5, 2.0) for pair, sent in load.traffic.items() if quiet or rng.random() < 0.9}
    sizes = {pair: sent * rng.uniform(10, 500) for pair, sent in load.traffic.items() if rng.random() < 0.9}
    settling = tuple(task for task in load.tasks if rng.random() < 0.03)
    tasks = {task: seen for task, seen in load.tasks.items() if rng.random() < 0.99}
    return Load(float(rng.choice([0.0, 1.0, 7.5], p=[0.1, 0.45, 0.45])), tasks, traffic, settling, traffic_bytes=sizes)


@given(st.integers(0, 2**32), st.sampled_from(MINIMISED), st.sampled_from([0.0, 0.3]), st.floats(0.05, 1.0))
def test_gains_are_the_differences_of_the_costs_of_both_placements(seed: int, minimise: str, near: float, share: float) -> None:
    rng = np.random.default_rng(seed)
    situation = random_situation(rng, cores=2)
    nodes, slots = [node.name for node in situation.cluster.nodes], [slot.number for slot in situation.cluster.slots]
    links = {pair: float(rng.choice([1.0, 3.0, 0.5])) for pair in combinations(nodes, 2)}
    situation = replace(situation, cluster=replace(situation.cluster, links=links))
    plans = {name: Plan(2, {task: int(rng.choice(slots)) if rng.random() < share else slot
                            for task, slot in plan.placement.items()}) for name, plan in situation.plan.items()}
    windows = [{name: seen for name, load in situation.load.items() if (seen := noisy(load, rng)) is not None}
               for _ in range(6)]
    windows += windows[-1:]
    objective = {"minimise": minimise, "between_workers": near}
    wanted = gains_by_problems(situation, plans, windows, objective)
    assert traffic_gains(situation, plans, windows, objective) == pytest.approx(wanted, rel=1e-9, abs=1e-6)


def test_the_tasks_of_the_traffic_are_looked_up_once_for_all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    problems, lookups = [], []

    def problem(*question: Any, **objective: Any) -> Problem:
        problems.append(question)
        return of(*question, **objective)

    def numbers(*question: Any) -> Ints:
        lookups.append(question)
        return numbers_of(*question)

    of = Problem.of
    monkeypatch.setattr(Problem, "of", problem)
    monkeypatch.setattr(plan_gains, "numbers_of", numbers)
    windows = [{"t": load(100.0)}] * 5 + [{"t": Load(1.0, load(0.0).tasks, {(A, C): 7.0})}] + [{"t": load(60.0)}] * 4
    assert traffic_gains(case(), {"t": TOGETHER}, windows, {}) == [50.0] * 5 + [7.0] + [30.0] * 4
    assert len(problems) == 1 and len(lookups) == 3, "again only when other tasks communicate"


def test_key_groups_gain_by_the_relief_of_the_fullest_task() -> None:
    running, new = Plan(1, {}, {"a": (0, 0, 1)}), Plan(2, {}, {"a": (0, 1, 1)})
    window = {"t": Load(2.0, {}, {}, key_groups={"a": (60.0, 40.0, 10.0)})}
    situation = Situation((GRAPH,), CLUSTER, {}, {"t": running})
    assert balance_gains(situation, {"t": new}, [window, {"t": Load(2.0)}, {}]) == [20.0]
    assert balance_gains(situation, {"t": running}, [window]) == []


def test_loads_are_averaged_over_the_windows_that_have_a_task_whole() -> None:
    situation = case()
    problem = Problem.of(situation.graphs, CLUSTER, situation.load, situation.plan)
    windows = [{"t": load(0, mhz=20.0)}, {"t": load(0, mhz=30.0)}, {"t": load(0, settling=(A,), mhz=100.0)}, {}]
    recent = with_recent_loads(problem, windows)
    assert recent.cpu.tolist() == [25.0, 50.0, 50.0] and recent.time.tolist() == [0.25, 0.25, 0.25]
    assert with_recent_loads(problem, []).cpu.tolist() == problem.cpu.tolist()
    assert planned_slots(problem, {"t": TOGETHER}).tolist() == [1, 1, 1]


def test_loops_that_are_busy_outside_user_code_are_averaged_too() -> None:
    situation = case()
    problem = Problem.of(situation.graphs, CLUSTER, situation.load, situation.plan)
    windows = [{"t": Load(2.0, {A: TaskLoad(busy_seconds=0.5, routing_seconds=routing)})} for routing in (0.25, 0.75)]
    assert with_recent_loads(problem, windows).time.tolist() == [0.5, 0.25, 0.25]


# -- noise -------------------------------------------------------------------------------------------------------------


def test_a_gain_in_every_window_is_no_noise_and_none_is() -> None:
    assert exceeds_noise([5.0] * 3) and not exceeds_noise([0.0] * 3) and not exceeds_noise([-5.0] * 3)
    assert exceeds_noise([]) and exceeds_noise([1.0]), "one window tells nothing about noise"
    assert not exceeds_noise([100.0, -90.0, 100.0, -90.0, 100.0])
    assert exceeds_noise([100.0, 90.0, 110.0, 95.0, 105.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=10), st.floats(1e-3, 1e3))
def test_the_unit_of_the_gains_does_not_matter(gains: list[float], factor: float) -> None:
    assert not (exceeds_noise(gains) and exceeds_noise([-gain for gain in gains]))
    spread = max(gains) - min(gains)
    if spread > 1.0:
        assert exceeds_noise([gain * factor for gain in gains]) == exceeds_noise(gains)


def test_without_a_gain_chance_passes_as_rarely_as_promised() -> None:
    rng = random.Random(1)
    tries = 20_000
    passed = sum(exceeds_noise([rng.gauss(0, 1) for _ in range(10)]) for _ in range(tries))
    limit = tries * CHANCE + NormalDist().inv_cdf(0.999) * (tries * CHANCE) ** 0.5
    assert passed <= limit
