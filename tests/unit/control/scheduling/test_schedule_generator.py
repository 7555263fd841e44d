"""The schedule generator: the timing of scheduler runs, the value of a plan against its moves, and the outcome."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.control.scheduling.schedule_generator import (
    ADVISED,
    ASKED,
    BY_REQUEST,
    CANNOT_PLACE,
    DECISIONS_KEPT,
    ENACTED,
    FAILED,
    NO_CHANGE,
    NOT_WORTH_IT,
    OVERLOAD,
    OVERTAKEN,
    PERIOD,
    Choice,
    Decision,
    Policy,
    ScheduleGenerator,
)
from millrace.errors import BadParameter, MillraceError
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload
from millrace.schedulers.registry import make_scheduler
from support.examples import examples

MHZ = 1000.0
CLUSTER = Cluster((Node("n0", 4, MHZ, 4096), Node("n1", 4, MHZ, 4096)),
                  (Slot("n0", "e", 0), Slot("n0", "e", 1), Slot("n1", "e", 2), Slot("n1", "e", 3)))
A, B, C, D = (TaskId(name, 0) for name in "abcd")
START = 1000.0
CHOICE = Choice("mine", {"gamma": 1.5}, 300.0)


def graph() -> TopologyGraph:
    return TopologyGraph("t", tuple(ComponentDef(name, "spout", "m:C", 1, {}, (), (), False, "next_tuple") for name in "abcd"),
                         {})


def plan(a: int, b: int, c: int, d: int, version: int = 1) -> Plan:
    return Plan(version, {A: a, B: b, C: c, D: d})


def situation(running: Plan, traffic: dict[tuple[TaskId, TaskId], float] | None = None, settling: tuple[TaskId, ...] = (),
              busy: float = 0.0, **mhz: float) -> Situation:
    tasks = {task: TaskLoad(cpu_mhz=mhz.get(task.component, 10.0), busy_seconds=busy if task in (A, B) else 0.0)
             for task in (A, B, C, D)}
    return Situation((graph(),), CLUSTER, {"t": Load(1.0, tasks, traffic or {}, settling)}, {"t": running})


def new(plan: Plan, *overload: Overload) -> NewPlan:
    return NewPlan({"t": plan}, "because", overload)


def sample(node: float = 0.0, worker: float = 0.0, busy: float = 0.0) -> WindowSample:
    load = Load(1.0, {A: TaskLoad(), B: TaskLoad()})
    return WindowSample(0.0, 1.0, {"t": load}, {}, {0: WorkerLoad("n0", worker, busy=busy)}, {"n0": NodeLoad(node)})


def generator(**policy: Any) -> ScheduleGenerator:
    """Return a generator that last ran at START, so that it is due again a period later."""
    made = ScheduleGenerator(CHOICE, Policy(**policy))
    assert made.due(START, sample(), CLUSTER) == PERIOD
    return made


# -- when --------------------------------------------------------------------------------------------------------------


def test_it_is_asked_once_a_period() -> None:
    made = generator(period=7)
    assert made.due(START + 6.4, sample(), CLUSTER) is None
    assert made.due(START + 7, sample(), CLUSTER) == PERIOD
    assert made.due(START + 8, sample(), CLUSTER) is None
    assert made.due(START + 13.98, sample(), CLUSTER) == PERIOD, "the window ended a bit early"


def test_a_period_of_0_is_the_schedulers_own() -> None:
    made = generator()
    assert made.period == CHOICE.period
    assert made.due(START + 299, sample(), CLUSTER) is None
    assert made.due(START + 300, sample(), CLUSTER) == PERIOD


@pytest.mark.parametrize(("node", "worker", "busy", "due"), [
    (0.0, 0.0, 0.0, None), (3600.0, 0.0, 0.0, None), (3990.0, 0.0, 0.0, OVERLOAD), (0.0, 900.0, 0.0, None),
    (0.0, 990.0, 0.0, OVERLOAD), (0.0, 10.0, 0.99, OVERLOAD),
])
def test_overload_of_a_node_or_worker_that_lasts_makes_it_due(node: float, worker: float, busy: float, due: str | None) -> None:
    """Waiting in user code fills a worker as CPU does. A place filled as far as schedulers do is not overloaded."""
    made = generator()
    windows = [made.due(START + number, sample(node, worker, busy), CLUSTER) for number in (1, 2, 3)]
    assert windows == [None, None, due]


def test_the_threshold_of_overload_is_above_what_the_scheduler_fills() -> None:
    assert ScheduleGenerator(CHOICE, Policy()).overload == pytest.approx(0.95)
    assert ScheduleGenerator(replace(CHOICE, packing=0.8), Policy()).overload == pytest.approx(0.85)
    assert ScheduleGenerator(replace(CHOICE, packing=1.0), Policy()).overload == 0.97, "a full place shows no more than 1"
    assert ScheduleGenerator(CHOICE, Policy(overload=0.7)).overload == 0.7


def test_a_topology_that_falls_behind_makes_it_due_at_once() -> None:
    made = generator()
    assert made.due(START + 1, sample(), CLUSTER) is None
    assert made.due(START + 2, sample(), CLUSTER, pressed=True) == OVERLOAD


def test_the_cool_down_is_the_schedulers_own_unless_it_is_set() -> None:
    """OTD runs every five seconds and waits by itself: a cool-down of ten would make that ten."""
    otd = ScheduleGenerator(Choice.of("otd", make_scheduler("otd")), Policy())
    assert (otd.period, otd.cool_down) == (5.0, 0.0)
    for turn in range(1, 5):
        assert otd.due(START + 5 * turn, sample(), CLUSTER) == PERIOD
        otd.enacted(otd.failed("", PERIOD, 0.0), START + 5 * turn)
    assert ScheduleGenerator(CHOICE, Policy()).cool_down == 10.0
    assert ScheduleGenerator(CHOICE, Policy(cool_down=3)).cool_down == 3.0


def test_set_asks_at_once() -> None:
    made = generator()
    made.set(Choice("other", {}, 60.0), Policy())
    assert made.due(START + 1, sample(), CLUSTER) == ASKED
    assert made.due(START + 2, sample(), CLUSTER) is None


@pytest.mark.parametrize(("changes", "due"), [
    ({"agent_poll": 1.0, "worker_poll": 1.0, "load_period": 5.0, "cool_down": 1.0, "period": 200.0}, None), ({}, None),
    ({"min_gain": 0.5}, ASKED), ({"overload": 0.5}, ASKED), ({"balance": True}, ASKED), ({"dry_run": True}, ASKED),
    ({"strategy": "storm"}, ASKED), ({"time_limit": 90.0}, ASKED)])
def test_another_policy_asks_only_if_plans_depend_on_the_difference(changes: dict[str, Any], due: str | None) -> None:
    made = generator()
    made.set(CHOICE, made.policy.changed(changes))
    assert made.due(START + 1, sample(), CLUSTER) == due
    assert made.policy == Policy().changed(changes)


def test_another_policy_keeps_the_pauses_and_what_plans_before_ask_of_later_ones() -> None:
    made, full = ScheduleGenerator(CHOICE, Policy()), sample(node=9999.0)
    enacted(made, START - 1000)
    times = []
    for now in range(1000, 1100):
        made.set(CHOICE, replace(made.policy, agent_poll=float(now)))
        if made.due(now, full, CLUSTER) is not None:
            times.append(now)
    assert times == [1000, 1002, 1004, 1008, 1016, 1032, 1064]
    made.set(replace(CHOICE), made.policy)
    assert made._plans and made.due(1100, full, CLUSTER) == ASKED, "its code may be another"
    made.set(Choice("other", {}, 60.0), made.policy)
    assert not made._plans and made.due(1101, full, CLUSTER) == ASKED


@pytest.mark.parametrize("why", ["asked", "overload", "period"])
def test_never_while_it_cools_down_and_at_once_after_it(why: str) -> None:
    made = generator(cool_down=10, period=300 if why == "overload" else 1)
    made.enacted(made.failed("", PERIOD, 0.0), START)
    if why == "asked":
        made.ask()
    seen = sample(node=9999.0) if why == "overload" else sample()
    for now in (START, START + 5, START + 9.99):
        assert made.due(now, seen, CLUSTER) is None
    assert made.due(START + 10, seen, CLUSTER) == why


# -- whether -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after", "outcome"), [
    (1000.0, 981.0, NOT_WORTH_IT), (1000.0, 980.0, ENACTED), (1000.0, 0.0, ENACTED), (1000.0, 1000.0, NOT_WORTH_IT),
    (1000.0, 1010.0, NOT_WORTH_IT),
])
def test_traffic_must_fall_by_the_least_gain(before: float, after: float, outcome: str) -> None:
    # a moves from b's node to d's: traffic between a and b then crosses nodes, traffic between a and d no longer does
    case = situation(plan(0, 0, 0, 2), {(A, D): before, (A, B): after})
    decision = ScheduleGenerator(CHOICE, Policy(min_gain=0.02)).decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert decision.outcome == outcome


def test_with_no_least_gain_there_must_still_be_a_gain() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 100.0})
    made = ScheduleGenerator(CHOICE, Policy(min_gain=0.0))
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 99.0})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED


def test_a_least_gain_of_1_accepts_only_zero_traffic() -> None:
    made = ScheduleGenerator(CHOICE, Policy(min_gain=1.0))
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 0.1})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT


@pytest.mark.parametrize(("mhz", "outcome"), [(899.0, NOT_WORTH_IT), (920.0, ENACTED), (5000.0, ENACTED)])
def test_an_overloaded_worker_is_relieved(mhz: float, outcome: str) -> None:
    case = situation(plan(0, 0, 2, 2), a=mhz / 2, b=mhz / 2)
    decision = ScheduleGenerator(CHOICE, Policy(overload=0.9)).decide(case, new(plan(1, 0, 2, 2, 2)), PERIOD, 1.0)
    assert decision.outcome == outcome


@pytest.mark.parametrize(("mhz", "outcome"), [(1700.0, NOT_WORTH_IT), (1840.0, ENACTED)])
def test_an_overloaded_node_is_relieved_even_if_that_costs_traffic(mhz: float, outcome: str) -> None:
    """The load of each worker stays the same; only the node is relieved."""
    weak = Cluster((Node("n0", 2, MHZ, 4096), Node("n1", 2, MHZ, 4096)), CLUSTER.slots)
    case = situation(plan(0, 1, 2, 2), {(A, B): 50.0}, a=mhz / 2, b=mhz / 2, c=0.0, d=0.0)
    case = Situation(case.graphs, weak, case.load, case.plan)
    policy = Policy(overload=0.9, min_gain=0.1)
    assert ScheduleGenerator(CHOICE, policy).decide(case, new(plan(0, 3, 2, 2, 2)), PERIOD, 1.0).outcome == outcome


@pytest.mark.parametrize(("busy", "outcome"), [(0.97, ENACTED), (0.89, NOT_WORTH_IT)])
def test_a_worker_without_time_left_is_relieved_though_it_uses_little_cpu(busy: float, outcome: str) -> None:
    """As one that waits, or on a machine that others use too. And it is not brought back for the traffic: that would fill it
    again."""
    made = ScheduleGenerator(CHOICE, Policy())
    together = situation(plan(0, 0, 2, 2), {(A, B): 5000.0}, busy=busy / 2)
    apart = situation(plan(0, 2, 2, 2), {(A, B): 5000.0}, busy=busy / 2)
    assert made.decide(together, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0).outcome == outcome
    back = made.decide(apart, new(plan(0, 0, 2, 2, 2)), PERIOD, 2.0).outcome
    assert back == (NOT_WORTH_IT if outcome == ENACTED else ENACTED)


def test_a_relief_that_overloads_another_place_is_none() -> None:
    case = situation(plan(0, 0, 2, 2), a=600.0, b=600.0, c=600.0)
    made = ScheduleGenerator(CHOICE, Policy())
    assert made.decide(case, new(plan(0, 2, 2, 2, 2)), OVERLOAD, 1.0).outcome == NOT_WORTH_IT
    assert made.decide(case, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0).outcome == ENACTED


def test_an_overload_is_relieved_only_if_it_lasts() -> None:
    """One window is noise: the estimate of a scheduler that does not smooth would undo its plans for it."""
    made, case = ScheduleGenerator(CHOICE, Policy()), situation(plan(0, 0, 2, 2), a=500.0, b=500.0)
    for outcome in (NOT_WORTH_IT, NOT_WORTH_IT, ENACTED):
        made.take(replace(sample(worker=1000.0), loads=case.load), CLUSTER)
        assert made.decide(case, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0).outcome == outcome


def test_only_the_place_whose_overload_lasts_is_relieved() -> None:
    """That another one is full in the newest windows may be noise."""
    made = ScheduleGenerator(CHOICE, Policy())
    case = situation(plan(0, 0, 2, 2), a=500.0, b=500.0, c=500.0, d=500.0)
    for _ in range(3):
        made.take(replace(sample(worker=1000.0), loads=case.load), CLUSTER)
    assert made.decide(case, new(plan(0, 0, 2, 3, 2)), OVERLOAD, 1.0).outcome == NOT_WORTH_IT
    assert made.decide(case, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0).outcome == ENACTED


def test_after_a_plan_a_worker_is_overloaded_only_by_new_windows() -> None:
    made, case = ScheduleGenerator(CHOICE, Policy()), situation(plan(0, 0, 2, 2), a=500.0, b=500.0)
    for _ in range(8):
        made.take(replace(sample(worker=1000.0), loads=case.load), CLUSTER)
    assert [place.where for place in made.overloaded()] == ["worker 0"]
    made.enacted(made.decide(case, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0), START)
    assert not made.overloaded()


@pytest.mark.parametrize(("traffic", "outcome"), [(1000.0, NOT_WORTH_IT), (1500.0, ENACTED)])
def test_a_further_plan_must_gain_more_unless_the_load_has_changed(traffic: float, outcome: str) -> None:
    """All four tasks have moved. A plan that saves a tenth more is then one of many that noise shows; but if the traffic is
    not as promised, the load is another one."""
    made = ScheduleGenerator(CHOICE, Policy())
    before = situation(plan(0, 1, 2, 3), {(A, C): 3000.0, (B, D): 3000.0, (A, B): 900.0, (C, D): 100.0})
    first = made.decide(before, new(plan(2, 2, 0, 0, 2)), PERIOD, 1.0)
    assert first.outcome == NOT_WORTH_IT, "it saves nothing"
    first = made.decide(before, new(plan(2, 0, 3, 1, 2)), PERIOD, 1.0)
    assert first.outcome == ENACTED and first.expected["after"]["cost"] == 1000.0
    made.enacted(first, START)
    part = traffic / 1000
    after = situation(plan(2, 0, 3, 1, 2), {(A, B): 900.0 * part, (C, D): 100.0 * part, (A, C): 780.0 * part})
    assert made.decide(after, new(plan(0, 1, 3, 1, 3)), PERIOD, 2.0).outcome == outcome
    fresh = ScheduleGenerator(CHOICE, Policy())
    assert fresh.decide(after, new(plan(0, 1, 3, 1, 3)), PERIOD, 2.0).outcome == ENACTED


def measured(made: ScheduleGenerator, case: Situation, *rates: float) -> None:
    """Windows in which a and d exchange so many tuples a second."""
    for rate in rates:
        load = replace(case.load["t"], traffic={**case.load["t"].traffic, (A, D): rate})
        made.take(WindowSample(0.0, 1.0, {"t": load}), CLUSTER)


def test_a_gain_must_exceed_the_noise_of_the_windows() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 1100.0, (A, B): 1000.0})
    steady, noisy = (ScheduleGenerator(CHOICE, Policy()) for _ in range(2))
    measured(steady, case, *[1090.0, 1110.0] * 4)
    measured(noisy, case, *[800.0, 1400.0] * 4)
    assert steady.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED
    refused = noisy.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert refused.outcome == NOT_WORTH_IT and "noise in the last 8 windows" in refused.reason


def test_the_windows_of_the_last_run_tell_noise_from_a_gain() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 1100.0, (A, B): 1000.0})
    fresh, resumed = (ScheduleGenerator(CHOICE, Policy()) for _ in range(2))
    measured(resumed, case, 1400.0)  # windows of another topology came before
    resumed.recall("t", [replace(case.load["t"], traffic={(A, B): 1000.0, (A, D): rate}) for rate in [1400.0, 800.0] * 20])
    for made in (fresh, resumed):
        measured(made, case, 1400.0)
    assert fresh.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED
    refused = resumed.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert refused.outcome == NOT_WORTH_IT and "noise in the last 10 windows" in refused.reason


def test_schedulers_that_weigh_their_plans_are_held_against_noise_too() -> None:
    made = ScheduleGenerator(replace(CHOICE, weighs_itself=True), Policy())
    case = situation(plan(0, 0, 0, 2), {(A, D): 1100.0, (A, B): 1000.0})
    assert made.min_gain == 0.0
    measured(made, case, *[800.0, 1400.0] * 4)
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT


def test_a_gain_must_pay_for_its_moves() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 1.0})
    made = ScheduleGenerator(CHOICE, Policy(payback=60))
    refused = made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert refused.outcome == NOT_WORTH_IT
    assert "it saves 60 tuples in 60 s, and its moves cost as much as 100" in refused.reason
    for payback in (0.0, 300.0):
        made.set(CHOICE, Policy(payback=payback))
        assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED
    made.costs.learn({"topology": "t", "strategy": "handover", "moved": [
        {"task": "a[0]", "groups": [], "pause_ms": 5.0, "precopied_bytes": 10_000_000, "delta_bytes": 0}]})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT, "100,000 tuples' worth of state"


def test_a_relief_below_the_least_gain_is_not_enacted() -> None:
    case = situation(plan(0, 0, 2, 2), a=1000.0, b=10.0)
    made = ScheduleGenerator(CHOICE, Policy(overload=0.9, min_gain=0.02))
    assert made.decide(case, new(plan(0, 1, 2, 2, 2)), OVERLOAD, 1.0).outcome == NOT_WORTH_IT


def test_fewer_nodes_at_no_cost_are_worth_it_and_at_a_cost_are_not() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    assert made.decide(situation(plan(0, 0, 0, 2)), new(plan(0, 0, 0, 0, 2)), PERIOD, 1.0).outcome == ENACTED
    assert made.decide(situation(plan(0, 0, 0, 0)), new(plan(0, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT


@pytest.mark.parametrize("traffic", [100.0, 0.0])
def test_a_plan_that_overloads_is_not_a_gain(traffic: float) -> None:
    """A plan with less traffic or fewer nodes that overloads a worker would be reverted by relief, in a loop."""
    together, apart = plan(0, 0, 0, 0), plan(0, 0, 0, 2)
    mhz = {"a": 500.0, "d": 450.0}
    made = ScheduleGenerator(CHOICE, Policy(overload=0.9))
    decision = made.decide(situation(apart, {(A, D): traffic}, **mhz), new(together), PERIOD, 1.0)
    assert decision.outcome == NOT_WORTH_IT
    assert "of a worker 52% -> 97%: it overloads worker 0" in decision.reason
    assert made.decide(situation(together, {(A, D): traffic}, **mhz), new(apart), OVERLOAD, 1.0).outcome == ENACTED


def test_an_existing_overload_does_not_block_a_gain() -> None:
    case = situation(plan(0, 0, 1, 2), {(C, D): 100.0}, a=2000.0)
    assert ScheduleGenerator(CHOICE, Policy()).decide(case, new(plan(0, 0, 3, 2, 2)), PERIOD, 1.0).outcome == ENACTED


def test_unplaced_tasks_are_placed_at_any_cost() -> None:
    case = situation(plan(0, 0, 9, 0), {(A, C): 100.0}, c=5000.0)
    decision = ScheduleGenerator(CHOICE, Policy(min_gain=1.0)).decide(case, new(plan(0, 0, 2, 0, 2)), PERIOD, 1.0)
    assert (decision.outcome, decision.moved) == (ENACTED, ("t/c[0]: worker 9 -> 2",))


def test_a_dry_run_only_advises() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    decision = ScheduleGenerator(CHOICE, Policy(dry_run=True)).decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert (decision.outcome, decision.moved) == (ADVISED, ("t/a[0]: worker 0 -> 2",))
    assert decision.expected["before"]["inter_node"] == 100.0 and decision.expected["after"]["inter_node"] == 0.0


def test_a_plan_without_moves_is_no_change() -> None:
    case = situation(plan(0, 0, 0, 2))
    decision = ScheduleGenerator(CHOICE, Policy()).decide(case, new(plan(0, 0, 0, 2, 2)), PERIOD, 1.0)
    assert (decision.outcome, decision.moved) == (NO_CHANGE, ())
    assert ScheduleGenerator(CHOICE, Policy()).decide(case, NoChange("all is well"), PERIOD, 1.0).reason == "all is well"


def test_tasks_that_cannot_be_placed_are_reported() -> None:
    case = situation(plan(0, 0, 0, 0))
    decision = ScheduleGenerator(CHOICE, Policy()).decide(case, CannotPlace({"t": (A,)}, "no room"), PERIOD, 5.0)
    assert (decision.outcome, decision.reason, decision.at) == (CANNOT_PLACE, "no room", 5.0)


def test_the_overload_that_stays_is_in_the_reason() -> None:
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    over = Overload("node n1", 5000.0, 4000.0)
    decision = ScheduleGenerator(CHOICE, Policy()).decide(case, new(plan(2, 0, 0, 2, 2), over), PERIOD, 1.0)
    assert decision.reason == "because; node n1 would need 5,000 MHz and has 4,000"


def test_two_plans_that_are_each_a_little_better_in_turn_are_not_run_in_turn() -> None:
    """The load sways by 1 %: each time, the other plan is the better one."""
    made = ScheduleGenerator(CHOICE, Policy())
    first, second = plan(0, 0, 0, 2), plan(2, 0, 0, 2)
    for turn in range(20):
        less, more = (99.0, 100.0) if turn % 2 else (100.0, 99.0)
        case = situation(first, {(A, D): max(less, more), (A, B): min(less, more)})
        assert made.decide(case, new(second), PERIOD, float(turn)).outcome == NOT_WORTH_IT
        case = situation(second, {(A, B): max(less, more), (A, D): min(less, more)})
        assert made.decide(case, new(first), PERIOD, float(turn)).outcome == NOT_WORTH_IT


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_the_same_decision_again_is_one_line() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 100.0})
    for at in range(5):
        made.decide(case, NoChange("all is well"), PERIOD, float(at))
    for at in range(5, 8):
        made.failed("it raised", PERIOD, float(at))
    for at in range(8, 10):
        made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, float(at))
    made.failed("it raised", OVERLOAD, 10.0)
    rows = [(decision.number, decision.outcome, decision.times, decision.at) for decision in made.decisions]
    assert rows == [(1, NO_CHANGE, 5, 4.0), (2, FAILED, 3, 7.0), (3, NOT_WORTH_IT, 2, 9.0), (4, FAILED, 1, 10.0)]


def test_enacted_decisions_are_never_merged() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    for _ in range(2):
        made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert [(decision.number, decision.times) for decision in made.decisions] == [(1, 1), (2, 1)]


def test_the_same_from_another_scheduler_is_another_line() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    made.failed("x", PERIOD, 1.0)
    made.set(Choice("mine", {"gamma": 2.0}, 300.0), Policy())
    made.failed("x", PERIOD, 2.0)
    assert [dict(decision.parameters) for decision in made.decisions] == [{"gamma": 1.5}, {"gamma": 2.0}]


def enacted(made: ScheduleGenerator, now: float = START) -> Decision:
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    decision = made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    assert decision.outcome == ENACTED
    made.enacted(decision, now)
    return decision


def test_the_outcome_is_from_the_first_settled_window() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    decision = enacted(made)
    after = {(A, B): 30.0, (A, D): 100.0}
    assert made.observe(situation(plan(2, 0, 0, 2, 2), after, settling=(A,))) is None
    assert made.observe(Situation((), CLUSTER)) is None
    made.failed("in between", PERIOD, 2.0)
    seen = made.observe(situation(plan(2, 0, 0, 2, 2), after))
    assert seen is not None and seen.number == decision.number and seen.came_of["inter_node"] == 30.0
    assert made.decisions[0] == seen and made.decisions[1].outcome == FAILED
    assert made.observe(situation(plan(2, 0, 0, 2, 2))) is None, "it is looked at once"


def test_a_decision_not_enacted_has_no_outcome() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    made.failed("x", PERIOD, 1.0)
    assert made.observe(situation(plan(0, 0, 0, 0))) is None


def test_an_overtaken_decision_starts_no_cool_down() -> None:
    made = ScheduleGenerator(CHOICE, Policy(period=1))
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    decision = made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0)
    over = made.overtaken(decision, "a worker was lost")
    assert (over.outcome, over.number) == (OVERTAKEN, decision.number)
    assert over.reason.endswith("(a worker was lost)")
    assert list(made.decisions) == [over]
    assert not made.cooling(START) and made.observe(situation(plan(0, 0, 0, 2))) is None


# -- by request --------------------------------------------------------------------------------------------------------


def test_a_plan_by_request_is_carried_out_once_whatever_it_gains() -> None:
    made = generator(min_gain=0.5, dry_run=True, cool_down=1e6)
    made.enacted(made.decide(situation(plan(0, 0, 2, 2)), new(plan(0, 2, 0, 2, 2)), PERIOD, 1.0), START)
    made.set(CHOICE, made.policy, enact=True)
    assert made.due(START + 1, sample(), CLUSTER) == BY_REQUEST, "the cool-down does not hold it up"
    worse = situation(plan(0, 0, 2, 2), {(A, B): 100.0}), new(plan(0, 2, 0, 2, 2))
    decision = made.decide(*worse, BY_REQUEST, 2.0)
    assert (decision.outcome, decision.trigger) == (ENACTED, BY_REQUEST)
    assert decision.expected["after"]["inter_node"] == 100.0 > decision.expected["before"]["inter_node"]
    assert not made.enacts_next and made.due(START + 2, sample(), CLUSTER) is None
    assert made.decide(*worse, ASKED, 3.0).outcome == NOT_WORTH_IT, "once"


def test_a_request_ends_with_an_answer_without_a_plan() -> None:
    made = generator()
    made.set(CHOICE, made.policy, enact=True)
    assert made.due(START + 1, sample(), CLUSTER) == BY_REQUEST
    assert made.decide(situation(plan(0, 0, 0, 0)), NoChange("as it should be"), BY_REQUEST, 1.0).outcome == NO_CHANGE
    assert not made.enacts_next


def test_a_request_whose_plan_was_overtaken_gets_the_next_plan() -> None:
    made = generator()
    made.set(CHOICE, made.policy, enact=True)
    case = situation(plan(0, 0, 0, 2))
    made.due(START + 1, sample(), CLUSTER)
    made.overtaken(made.decide(case, new(plan(2, 0, 0, 2, 2)), BY_REQUEST, 1.0), "a worker was lost")
    assert made.due(START + 2, sample(), CLUSTER) == BY_REQUEST
    made.overtaken(made.decide(case, new(plan(2, 0, 0, 2, 2)), BY_REQUEST, 1.0), "it is not allowed", passes=False)
    assert not made.enacts_next


def test_another_scheduler_does_not_inherit_a_request() -> None:
    made = generator()
    made.set(CHOICE, made.policy, enact=True)
    made.set(Choice("other", {}, 300.0), made.policy)
    assert made.due(START + 1, sample(), CLUSTER) == ASKED


def test_parameters_of_the_strategy_stay_as_long_as_the_strategy_does() -> None:
    policy = Policy().changed({"strategy": "tstorm", "strategy_parameters": {"spout_delay": 1}})
    policy = policy.changed({"period": 5.0}).changed({"strategy": "tstorm", "strategy_parameters": {"shutdown_delay": 2}})
    assert (policy.strategy, policy.strategy_parameters) == ("tstorm", {"spout_delay": 1, "shutdown_delay": 2})
    policy = policy.changed({"strategy": "storm"})
    assert (policy.strategy, policy.strategy_parameters) == ("storm", {})


@pytest.mark.parametrize(("changes", "message"), [
    ({"strategy": "teleport"}, "is not one of handover"),
    ({"strategy_parameters": {"message_timeout": 5}}, "handover has no parameter 'message_timeout'; it has none"),
    ({"strategy": "storm", "strategy_parameters": {"spout_delay": 5}}, "it has message_timeout=30"),
    ({"strategy": "storm", "strategy_parameters": {"message_timeout": -1}}, "expected seconds, 0 or more"),
    ({"strategy": "storm", "strategy_parameters": {"message_timeout": "soon"}}, "expected seconds, 0 or more")])
def test_a_wrong_strategy_or_parameter_of_it(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(MillraceError, match=message):
        Policy().changed(changes)


def test_numbers_continue_from_earlier_masters() -> None:
    past = [Decision(number, 1.0, "x", {}, PERIOD, FAILED, str(number)) for number in (7, 8, 12)]
    made = ScheduleGenerator(CHOICE, Policy())
    made.remember(past)
    assert made.failed("new", PERIOD, 2.0).number == 13
    assert [decision.number for decision in made.decisions] == [7, 8, 12, 13]


def test_only_the_newest_decisions_are_kept() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    for number in range(DECISIONS_KEPT + 5):
        made.failed(str(number), PERIOD, 1.0)
    assert len(made.decisions) == DECISIONS_KEPT and made.decisions[-1].number == DECISIONS_KEPT + 5


def test_a_decision_survives_json() -> None:
    made = ScheduleGenerator(CHOICE, Policy())
    enacted(made)
    decision = made.observe(situation(plan(2, 0, 0, 2, 2), {(A, B): 3.0}))
    assert decision is not None and decision.came_of
    assert Decision.from_json(json.loads(json.dumps(decision.to_json()))) == decision


def test_a_decision_with_missing_fields_can_be_read() -> None:
    data = {"number": 3, "at": 1.0, "scheduler": "x", "parameters": {}, "trigger": PERIOD, "outcome": FAILED, "reason": "r",
            "moved": None, "came_of": None, "written_by": "a later version"}
    assert Decision.from_json(data) == Decision(3, 1.0, "x", {}, PERIOD, FAILED, "r")


@pytest.mark.parametrize("settings", [{"period": -1}, {"cool_down": float("nan")}, {"min_gain": 1.1}, {"time_limit": 0},
                                   {"dry_run": 1}, {"overload": -0.1}, {"perod": 3}, {"period": "soon"}])
def test_an_invalid_policy_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadParameter):
        Policy().changed(settings)


def test_a_change_of_policy_keeps_the_rest() -> None:
    changed = Policy(period=5, dry_run=True).changed({"cool_down": 1})
    assert (changed.period, changed.cool_down, changed.dry_run) == (5.0, 1.0, True)


# -- whatever happens --------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200))
@given(st.floats(0, 20), st.lists(st.tuples(st.floats(0, 15), st.sampled_from(["window", "busy", "pressed", "set", "observe"]),
                                            st.integers(0, 4)), max_size=40))
def test_no_two_plans_are_enacted_within_the_cool_down(cool_down: float, steps: list[tuple[float, str, int]]) -> None:
    made = ScheduleGenerator(CHOICE, Policy(cool_down=cool_down, period=1.0))
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    answers = [new(plan(2, 0, 0, 2, 2)), NoChange("x"), new(plan(0, 0, 0, 2, 2)), CannotPlace({"t": (A,)}, "y"),
               new(plan(2, 0, 0, 2, 2))]
    now, last = START, None
    for wait, step, answer in steps:
        now += wait
        if step == "set":
            made.set(CHOICE, made.policy)
        elif step == "observe":
            made.observe(case)
        else:
            trigger = made.due(now, sample(9999.0 if step == "busy" else 0.0), CLUSTER, pressed=step == "pressed")
            decision = made.decide(case, answers[answer], trigger, now) if trigger is not None else None
            if decision is not None and decision.outcome == ENACTED:
                assert last is None or now - last >= cool_down
                last = now
                made.enacted(decision, now)
    numbers = [decision.number for decision in made.decisions]
    assert numbers == sorted(set(numbers))
