"""Plans as values, and their difference."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from millrace.errors import TopologyError
from millrace.model.graph import TaskId
from millrace.model.plan import KEY_GROUPS, KeyGroupMove, Plan, PlanDifference, initial_key_groups, rescaled_key_groups

A0, A1, B0 = TaskId("a", 0), TaskId("a", 1), TaskId("b", 0)
PLAN = Plan(3, {B0: 1, A1: 2, A0: 1}, {"b": (0, 0, 0)})


def test_a_plan_is_equal_to_its_copies_whatever_their_order() -> None:
    same = Plan(3, {A0: 1, A1: 2, B0: 1}, {"b": (0, 0, 0)})
    assert same == PLAN and hash(same) == hash(PLAN)
    assert list(PLAN.placement) == [A0, A1, B0]
    assert dataclasses.replace(PLAN, version=4) != PLAN


def test_a_plan_survives_the_wire_and_pickle() -> None:
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(PLAN), type=Plan)
    assert arrived == PLAN and hash(arrived) == hash(PLAN)
    assert isinstance(next(iter(arrived.placement)), TaskId)
    assert pickle.loads(pickle.dumps(PLAN)) == PLAN
    assert Plan(1, {}) == msgspec.msgpack.decode(msgspec.msgpack.encode(Plan(1, {})), type=Plan)


def test_a_plan_never_changes() -> None:
    slots = {A0: 1}
    plan = Plan(1, slots)
    slots[A1] = 2
    assert plan.placement == {A0: 1}
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.version = 2  # type: ignore[misc]
    placement: Any = plan.placement
    for change in (lambda: placement.__setitem__(A1, 1), lambda: placement.__delitem__(A0),
                   lambda: placement.__ior__({A1: 1}), lambda: placement.pop(A0), lambda: placement.popitem(),
                   lambda: placement.update({}), lambda: placement.setdefault(A1, 1), lambda: placement.clear()):
        with pytest.raises(TypeError, match=r"immutable.*dataclasses\.replace"):
            change()


def test_plan_properties() -> None:
    assert PLAN.parallelism == {"a": 2, "b": 1}


def test_the_difference_of_two_plans() -> None:
    b1 = TaskId("b", 1)
    new = Plan(4, {A0: 2, B0: 1, b1: 2}, {"b": (0, 0, 1)})
    diff = Plan.diff(PLAN, new)
    assert diff == PlanDifference(started=(b1,), stopped=(A1,), moved=(A0,), key_groups=(KeyGroupMove("b", 2, 0, 1),))
    assert diff
    back = Plan.diff(new, PLAN)
    assert back == PlanDifference(started=(A1,), stopped=(b1,), moved=(A0,), key_groups=(KeyGroupMove("b", 2, 1, 0),))


def test_plans_that_place_alike_do_not_differ() -> None:
    assert not Plan.diff(PLAN, dataclasses.replace(PLAN, version=9))
    assert Plan.diff(Plan(0, {}), PLAN) == PlanDifference(started=(A0, A1, B0), stopped=(), moved=())


def test_the_number_of_key_groups_is_fixed() -> None:
    with pytest.raises(ValueError, match="'b' has 3 key groups in one plan and 2 in the other"):
        Plan.diff(PLAN, Plan(4, {}, {"b": (0, 0)}))


def test_key_groups_by_example() -> None:
    assert KEY_GROUPS == 128
    assert initial_key_groups(7, 3) == (0, 0, 0, 1, 1, 2, 2)
    assert rescaled_key_groups((0, 0, 0, 1, 1, 2, 2), 3) == (0, 0, 0, 1, 1, 2, 2)
    assert rescaled_key_groups((0, 0, 0, 1, 1, 1), 3) == (0, 0, 2, 1, 1, 2)
    assert rescaled_key_groups((0, 0, 1, 1, 2, 2), 2) == (0, 0, 1, 1, 0, 1)


@pytest.mark.parametrize("make", [initial_key_groups, lambda groups, par: rescaled_key_groups([0] * groups, par)])
def test_key_groups_are_refused(make: Callable[[int, int], tuple[int, ...]]) -> None:
    with pytest.raises(TopologyError, match=r"4 key groups are too few for 5 tasks: lower par, or raise topology\.key"):
        make(4, 5)
    with pytest.raises(TopologyError, match="over 0 tasks"):
        make(4, 0)
