"""Plans that relieve an overload, and what they may cost."""

from __future__ import annotations

import pytest

from millrace.control.scheduling.plan_acceptance import Evidence, Reviewer
from millrace.control.scheduling.thresholds import Thresholds
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import Situation


def situation(cores: tuple[float, ...], tasks: tuple[float, ...], slots: tuple[int, ...]) -> Situation:
    """Tasks with these MHz on nodes with one core and one worker each."""
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", len(tasks), {}, (), (), False, "next_tuple"),), {})
    nodes = [Node(f"n{number}", 1, mhz, 4096) for number, mhz in enumerate(cores)]
    load = Load(1.0, {TaskId("a", index): TaskLoad(cpu_mhz=mhz) for index, mhz in enumerate(tasks)}, {})
    return Situation((graph,), Cluster(tuple(nodes), tuple(Slot(node.name, "e", at) for at, node in enumerate(nodes))),
                     {"t": load}, {"t": plan(slots)})


def plan(slots: tuple[int, ...], version: int = 1) -> Plan:
    return Plan(version, {TaskId("a", index): slot for index, slot in enumerate(slots)})


def accepted(running: Situation, slots: tuple[int, ...], thresholds: Thresholds) -> bool:
    return Reviewer(running, thresholds).review({"t": plan(slots, 2)}).accepted


def test_a_task_may_fill_the_only_node_that_it_fits_on_beyond_the_share_that_a_scheduler_fills() -> None:
    # 960 of 800 MHz, and then of 1,000: more than the threshold of 95 %, but no more than there is.
    assert accepted(situation((1000, 800), (960, 100), (1, 0)), (0, 1), Thresholds(0.02))


@pytest.mark.parametrize(("tasks", "worth_it"), [((1150, 100, 100), True), ((1010, 100, 100), False)])
def test_an_overload_must_fall_by_a_hundredth_for_every_move(tasks: tuple[float, ...], worth_it: bool) -> None:
    # Three moves. What n1 and its worker use beyond 1,000 MHz is twice 12 %, or twice 0.8 %, of the 1,300 of the largest node.
    limits = Thresholds(0.02, overload=1.0, fills=1.0)
    assert accepted(situation((1300, 1000), tasks, (1, 0, 0)), (0, 1, 1), limits) == worth_it


@pytest.mark.parametrize(("tasks", "worth_it"), [((600, 250, 200, 660), True), ((600, 250, 140, 720), False)])
def test_only_where_more_is_used_than_there_is_another_place_may_rise_above_the_threshold(tasks: tuple[float, ...],
                                                                                          worth_it: bool) -> None:
    # Of 1,050 MHz, or 990, on n0 850 are left. n1 has 860 then, above its 85 %.
    limits = Thresholds(overload=0.85, fills=0.8)
    assert accepted(situation((1000, 1000), tasks, (0, 0, 0, 1)), (0, 0, 1, 1), limits) == worth_it


def reason(running: Situation, slots: tuple[int, ...], thresholds: Thresholds, evidence: Evidence | None = None) -> str:
    return Reviewer(running, thresholds, evidence).review({"t": plan(slots, 2)}).shortfall.rpartition("%: ")[2]


def test_a_refusal_says_what_is_missing() -> None:
    full = situation((1000, 1000), (600, 395, 100), (0, 0, 1))
    limits = Thresholds(0.02, overload=0.95, fills=0.9)
    noise = Evidence(overloaded=(), beyond=())
    assert reason(full, (1, 0, 0), limits, noise) == (
        "the overload of worker 0, node n0 does not last: it may be noise; it does not lower the traffic")
    little = situation((1300, 1000), (1010, 100, 100), (1, 0, 0))
    assert reason(little, (0, 1, 1), Thresholds(0.02, overload=1.0, fills=1.0)) == (
        "it relieves 1.5% of a worker or node by moving 3 tasks, less than 1% for each; it does not lower the traffic")
    assert reason(situation((1000, 1000), (600, 200, 200), (0, 0, 1)), (0, 1, 1), limits) == "it does not lower the traffic"
    assert reason(situation((1000, 1000), (600, 200, 500), (0, 0, 1)), (1, 0, 1), limits) == "it overloads worker 1, node n1"
