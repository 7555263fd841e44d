"""The cost of the moves of a plan, in tuples: those that wait meanwhile, and state that travels as if it were tuples.

The gain of a plan is a rate, tuples per second less between nodes. A plan is worth its moves if it saves more tuples within the
time in which it must pay than its moves cost. Pauses and sizes of state are those of past migrations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from millrace.control.moves import BY_HANDOVER
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.plan import Plan

TASK_TUPLES = 100.0  # a task moves at the price of so many tuples at least: its code is loaded and its channels are wired anew
TUPLE_BYTES = 100.0  # of state that travels at the price of one tuple
HANDOVER_SECONDS = 0.05  # pause of a task, before one was measured
RESTART_SECONDS = 5.0  # pause of a topology whose tasks restart, before one was measured
MOVES_KEPT = 50


@dataclass(slots=True)
class MoveCosts:
    """Pauses and sizes of state, learned from the records of migrations."""

    _pauses: dict[str, deque[float]] = field(default_factory=dict)  # seconds, by strategy
    _bytes: dict[tuple[str, str], float] = field(default_factory=dict)  # of a task, by topology and component

    def learn(self, record: Mapping[str, Any]) -> None:
        """Take the record of a migration, as `millrace migrations --json` has it."""
        strategy, topology = str(record.get("strategy", "")), str(record.get("topology", ""))
        moved = record.get("moved") or ()
        if strategy == BY_HANDOVER:
            paused = [move["pause_ms"] for move in moved if move.get("pause_ms") is not None]
        else:
            paused = [record["longest_gap_ms"]] if record.get("longest_gap_ms") is not None else []
        pauses = self._pauses.setdefault(strategy, deque(maxlen=MOVES_KEPT))
        pauses.extend(milliseconds / 1000 for milliseconds in paused)
        for move in moved:
            if not move.get("groups"):
                component = TaskId.parse(move["task"]).component
                self._bytes[topology, component] = float(move.get("precopied_bytes", 0) + move.get("delta_bytes", 0))

    def pause(self, strategy: str) -> float:
        """Seconds that a task pauses when it moves, or the whole topology if the strategy restarts its tasks."""
        if self._pauses.get(strategy):
            return median(self._pauses[strategy])
        return HANDOVER_SECONDS if strategy == BY_HANDOVER else RESTART_SECONDS

    def tuples(self, plans: Mapping[str, Plan], running: Mapping[str, Plan], load: Mapping[str, Load], strategy: str) -> float:
        """The cost of going from the running plans to these."""
        return sum(self._of_topology(name, plan, running[name], load.get(name, Load()), strategy)
                   for name, plan in plans.items() if name in running and plan is not running[name])

    def _of_topology(self, name: str, plan: Plan, running: Plan, load: Load, strategy: str) -> float:
        change = Plan.diff(running, plan)
        if not change.moved and not change.key_groups:
            return 0.0
        waiting = change.moved if strategy == BY_HANDOVER else tuple(running.placement)
        cost = _rate(load, waiting) * self.pause(strategy) + TASK_TUPLES * len(change.moved)
        cost += sum(self._bytes.get((name, task.component), 0.0) for task in change.moved) / TUPLE_BYTES
        for move in change.key_groups:
            share = 1 / len(running.key_groups[move.component])
            whole = [task for task in load.tasks if task.component == move.component]
            cost += _rate(load, whole) * share * self.pause(strategy)
            cost += self._bytes.get((name, move.component), 0.0) * len(whole) * share / TUPLE_BYTES
        return cost


def _rate(load: Load, tasks: Iterable[TaskId]) -> float:
    """Tuples per second that the tasks process, or emit if they are spouts."""
    if load.window_seconds <= 0:
        return 0.0
    seen = [load.tasks[task] for task in tasks if task in load.tasks]
    return sum(measured.executed or measured.emitted for measured in seen) / load.window_seconds
