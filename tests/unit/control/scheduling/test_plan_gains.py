"""Gains of a plan in the last windows, and their noise."""

from __future__ import annotations

import random
from statistics import NormalDist

from hypothesis import given
from hypothesis import strategies as st

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
from millrace.schedulers.problem import Problem

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
