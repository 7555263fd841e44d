"""The pauses between requests to a scheduler to relieve an overload that it does not relieve."""

from __future__ import annotations

from millrace.control.scheduling.relief_pauses import ReliefPauses
from millrace.control.scheduling.schedule_generator import ENACTED, OVERLOAD, OVERTAKEN, Choice, Policy, ScheduleGenerator
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan

WINDOW, PERIOD = 20.0, 300.0
FULL, BOTH, SLOTS = frozenset({"worker 0"}), frozenset({"worker 0", "worker 1"}), frozenset({0, 1})


def asked(pauses: ReliefPauses, seconds: range, overloaded: frozenset[str] = FULL, slots: frozenset[int] = SLOTS) -> list[int]:
    """The times at which it is asked, always in vain."""
    times = []
    for now in seconds:
        if pauses.over(now, overloaded, slots, WINDOW, PERIOD):
            times.append(now)
            pauses.asked(now, overloaded, slots)
    return times


def test_pauses_double_up_to_the_period() -> None:
    assert asked(ReliefPauses(), range(0, 1300, 20)) == [0, 40, 120, 280, 580, 880, 1180]


def test_something_else_that_is_overloaded_or_other_workers_are_a_reason_to_ask_at_once() -> None:
    pauses = ReliefPauses()
    asked(pauses, range(0, 600, 20))
    assert not asked(pauses, range(600, 620, 20))
    assert asked(pauses, range(620, 660, 20), BOTH) == [620]
    assert asked(pauses, range(660, 700, 20), BOTH, frozenset({0, 1, 2})) == [660]


def test_after_a_plan_and_after_a_time_without_overload_it_is_asked_at_once() -> None:
    pauses = ReliefPauses()
    asked(pauses, range(0, 600, 20))
    pauses.end()
    assert asked(pauses, range(600, 620, 20)) == [600]
    pauses.asked(620, frozenset(), SLOTS)
    assert asked(pauses, range(640, 660, 20)) == [640]


def test_a_scheduler_that_cannot_relieve_an_overload_is_not_asked_at_every_window() -> None:
    cluster = Cluster((Node("n0", 4, 1000.0, 4096),), (Slot("n0", "e", 0),))
    full = WindowSample(0.0, WINDOW, {}, {}, {0: WorkerLoad("n0", 990.0, busy=0.99)}, {"n0": NodeLoad(990.0)})
    made, times = ScheduleGenerator(Choice("mine", {}, PERIOD), Policy()), []
    for now in range(1000, 2200, 20):
        trigger = made.due(now, full, cluster, pressed=now >= 2100)
        if trigger is not None:
            times.append(now)
            made.failed("nothing helps", trigger, 0.0)
    assert times == [1000, 1040, 1080, 1160, 1320, 1620, 1920, 2100, 2140]
    assert made.decisions[-1].trigger == OVERLOAD


def asked_for_refused_plans(passes: bool) -> tuple[ScheduleGenerator, list[int]]:
    """A generator whose plans of relief are refused, with the times at which it asked."""
    cluster = Cluster((Node("n0", 4, 1000.0, 4096),), (Slot("n0", "e", 0), Slot("n0", "e", 1)))
    full = WindowSample(0.0, WINDOW, {}, {}, {0: WorkerLoad("n0", 990.0, busy=0.99)}, {"n0": NodeLoad(990.0)})
    task = TaskId("a", 0)
    graph = TopologyGraph("t", (ComponentDef("a", "spout", "m:C", 1, {}, (), (), False, "next_tuple"),), {})
    situation = Situation((graph,), cluster, {}, {"t": Plan(1, {task: 9})})
    made, times = ScheduleGenerator(Choice("mine", {}, PERIOD), Policy()), []
    for now in range(1000, 1600, 20):
        trigger = made.due(now, full, cluster)
        if trigger is not None:
            times.append(now)
            decision = made.decide(situation, NewPlan({"t": Plan(2, {task: 1})}, "because"), OVERLOAD, float(now))
            assert decision.outcome == ENACTED
            made.overtaken(decision, "not allowed", passes)
    return made, times


def test_a_plan_of_relief_that_the_master_refuses_is_not_asked_for_in_every_window() -> None:
    made, times = asked_for_refused_plans(passes=False)
    assert times == [1000, 1040, 1080, 1160, 1320]
    assert [(each.number, each.outcome, each.times, each.at) for each in made.decisions] == [(1, OVERTAKEN, 5, 1320.0)]
    assert made.failed("it raised", OVERLOAD, 2000.0).number == 2


def test_a_plan_of_relief_that_is_refused_for_a_moment_is_asked_for_at_once() -> None:
    _, times = asked_for_refused_plans(passes=True)
    assert times == [1000, *range(1040, 1600, 20)]
