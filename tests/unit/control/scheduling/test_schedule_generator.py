"""The schedule generator: the timing of scheduler runs, the value of a plan against its moves, and the outcome."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.control.scheduling.schedule_generator import (
    ADVISED,
    ASKED,
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
    overloads,
)
from millrace.errors import BadParameter, MillraceError
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload
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
              **mhz: float) -> Situation:
    tasks = {task: TaskLoad(cpu_mhz=mhz.get(task.component, 10.0)) for task in (A, B, C, D)}
    return Situation((graph(),), CLUSTER, {"t": Load(1.0, tasks, traffic or {}, settling)}, {"t": running})


def new(plan: Plan, *overload: Overload) -> NewPlan:
    return NewPlan({"t": plan}, "because", overload)


def sample(queue: int = 0, node: float = 0.0, worker: float = 0.0, name: str = "t") -> WindowSample:
    load = Load(1.0, {A: TaskLoad(queue_length=queue), B: TaskLoad()})
    return WindowSample(0.0, 1.0, {name: load}, {}, {0: WorkerLoad("n0", worker)}, {"n0": NodeLoad(node)})


def generator(**policy: Any) -> ScheduleGenerator:
    """Return a generator that last ran at START, so that it is due again a period later."""
    made = ScheduleGenerator(CHOICE, Policy(**policy))
    assert made.due(START, sample(), CLUSTER) == PERIOD
    return made


# -- when --------------------------------------------------------------------------------------------------------------


def test_it_is_asked_once_a_period() -> None:
    made = generator(period=7)
    assert made.due(START + 6.99, sample(), CLUSTER) is None
    assert made.due(START + 7, sample(), CLUSTER) == PERIOD
    assert made.due(START + 8, sample(), CLUSTER) is None
    assert made.due(START + 14, sample(), CLUSTER) == PERIOD


def test_a_period_of_0_is_the_schedulers_own() -> None:
    made = generator()
    assert made.period == CHOICE.period
    assert made.due(START + 299, sample(), CLUSTER) is None
    assert made.due(START + 300, sample(), CLUSTER) == PERIOD


@pytest.mark.parametrize(("node", "worker", "due"), [
    (0.0, 0.0, None), (3599.0, 0.0, None), (3600.0, 0.0, OVERLOAD), (9999.0, 0.0, OVERLOAD),
    (0.0, 899.0, None), (0.0, 900.0, OVERLOAD),
])
def test_overload_of_a_node_or_a_worker_makes_it_due_at_once(node: float, worker: float, due: str | None) -> None:
    assert generator(overload=0.9).due(START + 1, sample(node=node, worker=worker), CLUSTER) == due


def test_an_overload_is_described() -> None:
    texts = list(overloads(sample(node=4000.0, worker=1200.0), CLUSTER, 0.9))
    assert len(texts) == 2
    assert "n0" in texts[0] and "4,000" in texts[0]
    assert "worker 0 uses 1,200 of the 1,000 MHz" in texts[1]
    crowded = WindowSample(0.0, 1.0, {}, {}, {0: WorkerLoad("n0", 100.0, busy=0.95)}, {"n0": NodeLoad(100.0)})
    assert list(overloads(crowded, CLUSTER, 0.9)) == ["worker 0 was in user code for 95% of the time"]
    assert not list(overloads(sample(), Cluster((Node("n0", 4, 0.0, 1),), (Slot("n0", "e", 0),)), 0.0))


def windows(made: ScheduleGenerator, *queues: int) -> list[str | None]:
    return [made.due(START + 1 + number, sample(queue), CLUSTER) for number, queue in enumerate(queues)]


def test_queues_that_grow_three_windows_in_a_row_are_overload() -> None:
    assert windows(generator(), 1, 2, 3) == [None, None, OVERLOAD]  # the window of `generator` was empty
    assert windows(generator(), 1, 2, 2, 3) == [None] * 4
    assert windows(generator(), 5, 4, 5, 6, 7) == [None, None, None, None, OVERLOAD]


def test_queues_grow_unseen_while_it_cools_down_but_are_not_forgotten() -> None:
    made = generator(cool_down=3)
    made.enacted(made.failed("", PERIOD, 0.0), START + 0.5)
    assert windows(made, 1, 2, 3, 4) == [None, None, None, OVERLOAD]


def test_the_queues_of_one_topology_are_not_taken_for_those_of_another() -> None:
    made = generator()
    for number, name in enumerate(["t", "u", "t", "u", "t"]):
        assert made.due(START + 1 + number, sample(number + 1, name=name), CLUSTER) is None


def test_set_asks_at_once() -> None:
    made = generator()
    made.set(Choice("other", {}, 60.0), Policy())
    assert made.due(START + 1, sample(), CLUSTER) == ASKED
    assert made.due(START + 2, sample(), CLUSTER) is None


@pytest.mark.parametrize("why", ["asked", "overload", "period"])
def test_never_while_it_cools_down_and_at_once_after_it(why: str) -> None:
    made = generator(cool_down=10, period=1)
    made.enacted(made.failed("", PERIOD, 0.0), START)
    if why == "asked":
        made.set(CHOICE, made.policy)
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
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 99.9})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED


def test_a_least_gain_of_1_accepts_only_zero_traffic() -> None:
    made = ScheduleGenerator(CHOICE, Policy(min_gain=1.0))
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == ENACTED
    case = situation(plan(0, 0, 0, 2), {(A, D): 100.0, (A, B): 0.1})
    assert made.decide(case, new(plan(2, 0, 0, 2, 2)), PERIOD, 1.0).outcome == NOT_WORTH_IT


@pytest.mark.parametrize(("mhz", "outcome"), [(899.0, NOT_WORTH_IT), (900.0, ENACTED), (5000.0, ENACTED)])
def test_an_overloaded_worker_is_relieved(mhz: float, outcome: str) -> None:
    case = situation(plan(0, 0, 2, 2), a=mhz / 2, b=mhz / 2)
    decision = ScheduleGenerator(CHOICE, Policy(overload=0.9)).decide(case, new(plan(1, 0, 2, 2, 2)), PERIOD, 1.0)
    assert decision.outcome == outcome


@pytest.mark.parametrize(("mhz", "outcome"), [(1700.0, NOT_WORTH_IT), (1800.0, ENACTED)])
def test_an_overloaded_node_is_relieved_even_if_that_costs_traffic(mhz: float, outcome: str) -> None:
    """The load of each worker stays the same; only the node is relieved."""
    weak = Cluster((Node("n0", 2, MHZ, 4096), Node("n1", 2, MHZ, 4096)), CLUSTER.slots)
    case = situation(plan(0, 1, 2, 2), {(A, B): 50.0}, a=mhz / 2, b=mhz / 2, c=0.0, d=0.0)
    case = Situation(case.graphs, weak, case.load, case.plan)
    policy = Policy(overload=0.9, min_gain=0.1)
    assert ScheduleGenerator(CHOICE, policy).decide(case, new(plan(0, 3, 2, 2, 2)), PERIOD, 1.0).outcome == outcome


@pytest.mark.parametrize(("busy", "outcome"), [(0.95, ENACTED), (0.89, NOT_WORTH_IT)])
def test_a_worker_without_time_left_is_relieved_though_it_gets_little_cpu(busy: float, outcome: str) -> None:
    """As on a machine that others use too. And it is not brought back for the traffic: that would fill it again."""
    made = generator(overload=0.9, cool_down=0.0)
    seen = WindowSample(0.0, 1.0, {}, {}, {0: WorkerLoad("n0", 300.0, busy=busy)}, {"n0": NodeLoad(300.0)})
    made.due(START + 1, seen, CLUSTER)
    together = situation(plan(0, 0, 2, 2), {(A, B): 50.0}, a=150.0, b=150.0)
    apart = situation(plan(0, 2, 2, 2), {(A, B): 50.0}, a=150.0, b=150.0)
    assert made.decide(together, new(plan(0, 2, 2, 2, 2)), OVERLOAD, 1.0).outcome == outcome
    back = made.decide(apart, new(plan(0, 0, 2, 2, 2)), PERIOD, 2.0).outcome
    assert back == (NOT_WORTH_IT if outcome == ENACTED else ENACTED)


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
    assert "of a worker" in decision.reason and "overload" in decision.reason
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
@given(st.floats(0, 20), st.lists(st.tuples(st.floats(0, 15), st.sampled_from(["window", "busy", "queues", "set", "observe"]),
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
            seen = sample(answer * 10 if step == "queues" else 0, 9999.0 if step == "busy" else 0.0)
            trigger = made.due(now, seen, CLUSTER)
            decision = made.decide(case, answers[answer], trigger, now) if trigger is not None else None
            if decision is not None and decision.outcome == ENACTED:
                assert last is None or now - last >= cool_down
                last = now
                made.enacted(decision, now)
    numbers = [decision.number for decision in made.decisions]
    assert numbers == sorted(set(numbers))
