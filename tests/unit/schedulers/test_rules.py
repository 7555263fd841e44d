"""Plans that break a rule are refused, with the rule named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.api.grouping import Grouping
from millrace.errors import SchedulerFailed
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, NoChange, Overload, SchedulingResult
from millrace.schedulers.rules import broken_rules, check_result, result_from_json, result_to_json

GRAPH = TopologyGraph("t", (
    ComponentDef("a", "spout", "m:A", 2, {}, (), (), False, "next_tuple"),
    ComponentDef("count", "bolt", "m:B", 2, {}, (), (Input("a", "default", Grouping.fields("x")),), False, "process"),
    ComponentDef("sink", "bolt", "m:B", 1, {}, (), (Input("count", "default", Grouping.SHUFFLE),), False, "process"),
), {"topology.key.groups": 4})
A0, SINK = TaskId("a", 0), TaskId("sink", 0)
CLUSTER = Cluster((Node("n", 1, 1000.0, 100),), (Slot("n", "e", 0), Slot("n", "e", 3)))
GROUPS = (0, 0, 1, 1)
PLACES = dict.fromkeys(GRAPH.tasks(), 0)
OLD = Plan(5, PLACES, {"count": GROUPS})
GOOD = Plan(6, {**PLACES, A0: 3}, {"count": GROUPS})
SITUATION = Situation((GRAPH,), CLUSTER, {}, {"t": OLD})


def without(task: TaskId) -> dict[TaskId, int]:
    return {key: slot for key, slot in PLACES.items() if key != task}


def test_a_good_plan_breaks_no_rule() -> None:
    for plan in (GOOD, OLD, replace(GOOD, version=5)):
        assert list(broken_rules(GRAPH, CLUSTER, OLD, plan)) == []
    assert list(broken_rules(GRAPH, CLUSTER, None, replace(GOOD, version=1))) == []
    result = NewPlan({"t": GOOD}, "r")
    assert check_result(SITUATION, result) is result


@pytest.mark.parametrize(("change", "says"), [
    ({"placement": without(A0)}, "1 tasks have no slot, for example a[0]"),
    ({"placement": {}}, "5 tasks have no slot"),
    ({"placement": {**PLACES, TaskId("a", 2): 0}}, "it places a[2], which the topology does not have"),
    ({"placement": {**PLACES, A0: 1}}, "it uses slot 1, and the live slots are [0, 3]"),
    ({"placement": {**PLACES, A0: -1}}, "it uses slot -1"),
    ({"version": 4}, "it has version 4 where the plan in force has 5"),
    ({"version": 7}, "it has version 7"),
    ({"key_groups": {}}, "'count' has 0 key groups instead of 4"),
    ({"key_groups": {"count": (0, 0, 1)}}, "'count' has 3 key groups instead of 4"),
    ({"key_groups": {"count": (0, 0, 1, 2)}}, "a key group of 'count' belongs to none of its 2 tasks"),
    ({"key_groups": {"count": (0, 0, 1, -1)}}, "a key group of 'count' belongs to none of its 2 tasks"),
    ({"placement": {**PLACES, A0: "3"}}, "is '3', which is not a whole number"),
    ({"placement": {**PLACES, A0: 0.5}}, "is 0.5, which is not a whole number"),
    ({"placement": {**PLACES, A0: None}}, "is None, which is not a whole number"),
    ({"placement": {tuple(task): slot for task, slot in PLACES.items()}}, "('a', 0), which is not a TaskId"),
    ({"key_groups": {"count": ("0", "0", "1", "1")}}, "is '0', which is not a whole number"),
    ({"version": "6"}, "is '6', which is not a whole number"),
])
def test_a_broken_rule_is_found_and_said(change: Mapping[str, Any], says: str) -> None:
    plan = replace(GOOD, **change)
    assert any(says in wrong for wrong in broken_rules(GRAPH, CLUSTER, OLD, plan))
    with pytest.raises(SchedulerFailed, match="its plan for 't' cannot be run: "):
        check_result(SITUATION, NewPlan({"t": plan}, "r"))


BATCHED = replace(GRAPH, batched=True)


def test_key_groups_may_change_owners() -> None:
    for graph in (GRAPH, BATCHED):
        assert list(broken_rules(graph, CLUSTER, OLD, replace(GOOD, key_groups={"count": (0, 1, 1, 1)}))) == []


@pytest.mark.parametrize("change", [
    {"placement": {**PLACES, TaskId("count", 2): 3}, "key_groups": {"count": (0, 0, 1, 2)}},
    {"placement": without(TaskId("count", 1)), "key_groups": {"count": (0, 0, 0, 0)}},
    {"placement": {**PLACES, TaskId("sink", 1): 0}},
])
def test_between_batches_numbers_of_tasks_may_change(change: Mapping[str, Any]) -> None:
    assert list(broken_rules(BATCHED, CLUSTER, OLD, replace(GOOD, **change))) == []
    assert list(broken_rules(GRAPH, CLUSTER, OLD, replace(GOOD, **change)))


@pytest.mark.parametrize(("change", "says"), [
    ({"placement": {**PLACES, TaskId("a", 2): 0}}, "is a spout"),
    ({"placement": {**PLACES, TaskId("count", 3): 0}}, "it places count[3], which the topology does not have"),
    ({"placement": {**PLACES, TaskId("x", 0): 0}}, "it places x[0], which the topology does not have"),
    ({"placement": without(SINK)}, "1 tasks have no slot, for example sink[0]"),
    ({"placement": without(TaskId("count", 1))}, "a key group of 'count' belongs to none of its 1 tasks"),
    ({"key_groups": {"count": (0, 1, 2, 1)}}, "a key group of 'count' belongs to none of its 2 tasks"),
    ({"key_groups": {"count": (0, 1, 1)}}, "'count' has 3 key groups instead of 4"),
])
def test_rules_hold_between_batches_too(change: Mapping[str, Any], says: str) -> None:
    assert any(says in wrong for wrong in broken_rules(BATCHED, CLUSTER, OLD, replace(GOOD, **change)))


def test_every_broken_rule_is_found() -> None:
    worst = Plan(9, {**without(A0), TaskId("x", 0): 7}, {"count": (5,)})
    assert len(list(broken_rules(GRAPH, CLUSTER, OLD, worst))) == 6


def test_a_new_topology_has_the_key_groups_that_were_asked_for() -> None:
    wrong = Plan(1, PLACES, {"count": (0, 1)})
    assert any("2 key groups instead of 4" in violation for violation in broken_rules(GRAPH, CLUSTER, None, wrong))


@pytest.mark.parametrize(("result", "says"), [
    ("a plan", "it returned str; expected NewPlan, NoChange or CannotPlace"),
    (None, "it returned NoneType"),
    ({"t": GOOD}, "it returned dict"),
    (GOOD, "it returned Plan"),
    (NewPlan, "it returned type"),
    (NewPlan({}, "r"), "it was asked about t and returned plans for none"),
    (NewPlan({"u": GOOD}, "r"), "it was asked about t and returned plans for u"),
    (NewPlan({"t": GOOD, "u": GOOD}, "r"), "returned plans for t, u"),
    (NewPlan({1: GOOD}, "r"), "returned plans for 1"),  # type: ignore[dict-item]
    (NewPlan({"t": "here"}, "r"), "it is a str and not a Plan"),  # type: ignore[dict-item]
    (NewPlan({"t": None}, "r"), "it is a NoneType and not a Plan"),  # type: ignore[dict-item]
    (NewPlan({"t": GOOD}, None), "its reason is None"),  # type: ignore[arg-type]
    (NoChange(3), "its reason is 3"),  # type: ignore[arg-type]
    (CannotPlace({}, b"x"), "its reason is b'x'"),  # type: ignore[arg-type]
    (NewPlan({"t": GOOD}, "r", "too much"), "expected a tuple of Overload"),  # type: ignore[arg-type]
    (NewPlan({"t": GOOD}, "r", ("node n",)), "expected a tuple of Overload"),  # type: ignore[arg-type]
])
def test_an_invalid_answer_is_refused(result: Any, says: str) -> None:
    with pytest.raises(SchedulerFailed) as failed:
        check_result(SITUATION, result)
    assert says in str(failed.value)


@pytest.mark.parametrize("result", [NoChange("all is well"), CannotPlace({"t": (A0, SINK)}, "no room"), CannotPlace({}, "")])
def test_other_answers_are_as_good(result: SchedulingResult) -> None:
    assert check_result(SITUATION, result) is result


def test_nothing_asked_and_nothing_answered() -> None:
    empty = Situation((), CLUSTER)
    assert check_result(empty, NewPlan({}, "r")) == NewPlan({}, "r")
    with pytest.raises(SchedulerFailed, match="asked about no topology"):
        check_result(empty, NewPlan({"t": GOOD}, "r"))


@pytest.mark.parametrize("result", [
    NewPlan({"t": GOOD}, "less traffic", (Overload("node n", 5000.5, 4000.0), Overload("worker 3", 1.0, 0.0))),
    NewPlan({"t": GOOD, "u": OLD}, ""), NoChange("[all] is \"well\" ✓"), CannotPlace({"t": (A0, SINK), "u": ()}, "no room"),
])
def test_results_survive_json_and_msgpack(result: SchedulingResult) -> None:
    assert result_from_json(json.loads(json.dumps(result_to_json(result)))) == result
    assert result_from_json(msgspec.msgpack.decode(msgspec.msgpack.encode(result_to_json(result)))) == result


def test_numbers_of_numpy_are_numbers() -> None:
    """Schedulers reckon with arrays."""
    plan = Plan(6, {task: np.int64(0) for task in PLACES}, {"count": tuple(np.array(GROUPS))})  # type: ignore[misc]
    assert check_result(SITUATION, NewPlan({"t": plan}, "r")).reason == "r"
