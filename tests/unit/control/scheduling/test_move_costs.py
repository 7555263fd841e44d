"""The cost of moves: tuples that wait, and state that travels."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.scheduling.move_costs import HANDOVER_SECONDS, RESTART_SECONDS, TASK_TUPLES, TUPLE_BYTES, MoveCosts
from millrace.model.graph import TaskId
from millrace.model.load import Load, TaskLoad
from millrace.model.plan import Plan

A, B = TaskId("a", 0), TaskId("b", 0)
LOAD = {"t": Load(2.0, {A: TaskLoad(emitted=2000), B: TaskLoad(executed=600)})}
OLD, NEW = Plan(1, {A: 0, B: 0}), Plan(2, {A: 0, B: 1})


def record(strategy: str = "handover", pause_ms: float | None = 10.0, size: int = 0, **more: Any) -> dict[str, Any]:
    return {"topology": "t", "strategy": strategy, "moved": [{"task": "b[0]", "pause_ms": pause_ms, "groups": [],
                                                              "precopied_bytes": size, "delta_bytes": 0}], **more}


def cost(costs: MoveCosts, new: Plan = NEW, strategy: str = "handover") -> float:
    return costs.tuples({"t": new}, {"t": OLD}, LOAD, strategy)


def test_a_plan_without_moves_costs_nothing() -> None:
    assert cost(MoveCosts(), OLD) == 0.0
    assert MoveCosts().tuples({"t": NEW}, {}, LOAD, "handover") == 0.0, "it starts, and does not move"


def test_tuples_of_the_moved_task_wait_for_the_pause() -> None:
    assert cost(MoveCosts()) == pytest.approx(300 * HANDOVER_SECONDS + TASK_TUPLES)
    assert cost(MoveCosts(), strategy="storm") == pytest.approx(1300 * RESTART_SECONDS + TASK_TUPLES), "all tasks restart"


def test_pauses_and_state_are_those_of_past_migrations() -> None:
    costs = MoveCosts()
    for pause in (10.0, 20.0, 90.0):
        costs.learn(record(pause_ms=pause, size=5000))
    assert costs.pause("handover") == pytest.approx(0.02)
    assert cost(costs) == pytest.approx(300 * 0.02 + TASK_TUPLES + 5000 / TUPLE_BYTES)
    costs.learn(record("storm", None, longest_gap_ms=8000.0))
    assert cost(costs, strategy="storm") == pytest.approx(1300 * 8.0 + TASK_TUPLES)
    costs.learn(record("dcr", None, longest_gap_ms=None))
    assert costs.pause("dcr") == RESTART_SECONDS


def test_key_groups_cost_their_share() -> None:
    old = Plan(1, {B: 0}, {"b": (0, 0, 0, 0)})
    costs = MoveCosts()
    costs.learn(record(pause_ms=100.0, size=4000))
    moved = costs.tuples({"t": Plan(2, {B: 0}, {"b": (0, 0, 1, 0)})}, {"t": old}, LOAD, "handover")
    assert moved == pytest.approx(300 / 4 * 0.1 + 4000 / 4 / TUPLE_BYTES)
