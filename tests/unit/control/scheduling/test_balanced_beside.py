"""Key groups are balanced beside a scheduler that places tasks only, if the policy asks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.control.scheduling.schedule_generator import (
    ADVISED,
    ASKED,
    BALANCE,
    BY_REQUEST,
    ENACTED,
    NO_CHANGE,
    NOT_WORTH_IT,
    OVERLOAD,
    PERIOD,
    Choice,
    Policy,
    ScheduleGenerator,
)
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, SchedulingResult

GROUPS = 6
GRAPH = TopologyGraph("t", (
    ComponentDef("a", "spout", "m:A", 1, {}, (), (), False, "next_tuple"),
    ComponentDef("count", "bolt", "m:B", 2, {}, (), (Input("a", "default", Grouping.fields("x")),), False, "process"),
), {"topology.key.groups": GROUPS})
CLUSTER = Cluster((Node("n", 4, 1000.0, 4096),), (Slot("n", "e", 0), Slot("n", "e", 1)))
A, COUNT0, COUNT1 = TaskId("a", 0), TaskId("count", 0), TaskId("count", 1)
PLACES = {A: 0, COUNT0: 0, COUNT1: 1}
HALVES = (0, 0, 0, 1, 1, 1)
SKEWED, EVEN = (8000.0, 8000.0, 8000.0, 1000.0, 1000.0, 1000.0), (1000.0,) * GROUPS
STAYS = NoChange("traffic cannot be lowered")
MOVES = NewPlan({"t": Plan(4, {**PLACES, COUNT1: 0}, {"count": HALVES})}, "somewhere else")  # gains nothing


def situation(counts: tuple[float, ...]) -> Situation:
    load = Load(10.0, dict.fromkeys(PLACES, TaskLoad(cpu_mhz=10.0, executed=1000)), key_groups={"count": counts})
    return Situation((GRAPH,), CLUSTER, {"t": load}, {"t": Plan(3, PLACES, {"count": HALVES})})


def generator(**policy: Any) -> ScheduleGenerator:
    return ScheduleGenerator(Choice("mine", {"gamma": 1.5}, 300.0), Policy(**policy))


def outcomes(made: ScheduleGenerator) -> list[tuple[str, str]]:
    return [(decision.scheduler, decision.outcome) for decision in made.decisions]


@pytest.mark.parametrize(("answer", "own"), [(STAYS, NO_CHANGE), (MOVES, NOT_WORTH_IT)])
def test_key_groups_move_where_the_scheduler_changes_nothing(answer: SchedulingResult, own: str) -> None:
    made, now = generator(balance=True), situation(SKEWED)
    balanced = made.balanced(now, made.decide(now, answer, PERIOD, 1.0), 2.0)
    assert balanced is not None
    plans, decision = balanced
    assert plans.plans["t"].placement == PLACES and plans.plans["t"].version == 4
    owners = plans.plans["t"].key_groups["count"]
    assert sum(old != new for old, new in zip(HALVES, owners, strict=True)) == 1 and owners[3:] == (1, 1, 1)
    assert (decision.number, decision.trigger, decision.parameters, decision.reason) == (2, PERIOD, {}, plans.reason)
    assert decision.expected["before"]["skew"] > decision.expected["after"]["skew"]
    assert outcomes(made) == [("mine", own), (BALANCE, ENACTED)]


@pytest.mark.parametrize(("policy", "counts"), [({}, SKEWED), ({"balance": True}, EVEN), ({"balance": True}, (0.0,) * GROUPS),
                                                ({"balance": True, "min_gain": 0.9}, SKEWED)])
def test_nothing_moves_unless_it_is_wanted_and_worth_it(policy: dict[str, Any], counts: tuple[float, ...]) -> None:
    made, now = generator(**policy), situation(counts)
    assert made.balanced(now, made.decide(now, STAYS, OVERLOAD, 1.0), 2.0) is None
    assert outcomes(made) == [("mine", NO_CHANGE)], "what is not worth it leaves no trace"


def test_skew_must_last() -> None:
    """In half of the windows, the other task has the hot key groups."""
    made, now = generator(balance=True), situation(SKEWED)
    for number in range(10):
        load = situation(SKEWED if number % 2 else SKEWED[::-1]).load
        made.take(WindowSample(float(number), 10.0, load), CLUSTER)
    assert made.balanced(now, made.decide(now, STAYS, PERIOD, 1.0), 2.0) is None


@pytest.mark.parametrize("answer", [NewPlan({"t": Plan(4, {**PLACES, A: 1, COUNT0: 1}, {"count": HALVES})}, "nearer"),
                                    CannotPlace({"t": (COUNT0,)}, "no room")])
def test_a_plan_of_the_scheduler_comes_first(answer: SchedulingResult) -> None:
    made = generator(balance=True)
    traffic = {(A, COUNT0): 10.0, (A, COUNT1): 1e6}
    now = situation(SKEWED)
    nodes = Cluster((Node("n", 4, 1000.0, 4096), Node("m", 4, 1000.0, 4096)), (Slot("n", "e", 0), Slot("m", "e", 1)))
    load = {"t": Load(10.0, now.load["t"].tasks, traffic, key_groups=now.load["t"].key_groups)}
    now = Situation((GRAPH,), nodes, load, now.plan)
    decision = made.decide(now, answer, PERIOD, 1.0)
    assert (decision.outcome == ENACTED) == isinstance(answer, NewPlan)
    assert made.balanced(now, decision, 2.0) is None


def test_a_dry_run_only_advises() -> None:
    made, now = generator(balance=True, dry_run=True), situation(SKEWED)
    balanced = made.balanced(now, made.decide(now, STAYS, PERIOD, 1.0), 2.0)
    assert balanced is not None and balanced[1].outcome == ADVISED


def test_a_request_for_a_plan_of_the_scheduler_is_not_passed_on() -> None:
    made, now = generator(balance=True), situation(SKEWED)
    balanced = made.balanced(now, made.decide(now, STAYS, BY_REQUEST, 1.0), 2.0)
    assert balanced is not None and balanced[1].trigger == ASKED
    made.overtaken(balanced[1], "the plan has changed")
    assert not made.enacts_next


def test_repeated_answers_and_advice_beside_them_are_two_lines() -> None:
    """Each request is one answer, whatever is decided beside it."""
    made, now = generator(balance=True, dry_run=True), situation(SKEWED)
    for at in range(10):
        made.balanced(now, made.decide(now, STAYS, PERIOD, float(at)), float(at))
    rows = [(each.number, each.scheduler, each.outcome, each.times, each.at) for each in made.decisions]
    assert rows == [(1, "mine", NO_CHANGE, 10, 9.0), (2, BALANCE, ADVISED, 10, 9.0)]
    assert made._answers == 10


def test_an_answer_after_a_plan_beside_it_is_another_line() -> None:
    made, now = generator(balance=True), situation(SKEWED)
    for at in range(2):
        balanced = made.balanced(now, made.decide(now, STAYS, PERIOD, float(at)), float(at))
        assert balanced is not None
        made.enacted(balanced[1], float(at))
    made.decide(situation(EVEN), STAYS, PERIOD, 3.0)
    assert outcomes(made) == [("mine", NO_CHANGE), (BALANCE, ENACTED)] * 2 + [("mine", NO_CHANGE)]


@pytest.mark.parametrize("earlier", [STAYS, NewPlan({"t": Plan(4, {**PLACES, A: 2}, {"count": HALVES})}, "elsewhere")])
def test_only_loads_of_places_whose_key_groups_move_are_forgotten(earlier: SchedulingResult) -> None:
    """Not those of places that a plan which is not worth it would have changed."""
    workers = (Slot("n", "e", 0), Slot("n", "e", 1), Slot("m", "e", 2), Slot("m", "e", 3))
    cluster = Cluster((Node("n", 4, 1000.0, 4096), Node("m", 4, 1000.0, 4096)), workers)
    made, now = generator(balance=True), replace(situation(SKEWED), cluster=cluster)
    loads = {slot.number: WorkerLoad(slot.node, 990.0) for slot in workers}
    for number in range(5):
        made.take(WindowSample(float(number), 10.0, now.load, workers=loads), cluster)
    assert [place.where for place in made.overloaded()] == [f"worker {number}" for number in range(4)]
    own = made.decide(now, earlier, PERIOD, 1.0)
    balanced = made.balanced(now, own, 2.0)
    assert own.outcome in (NO_CHANGE, NOT_WORTH_IT) and balanced is not None
    made.enacted(balanced[1], 3.0)
    assert [place.where for place in made.overloaded()] == ["worker 2", "worker 3"]
