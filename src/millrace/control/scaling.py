"""A change of parallelism that is under way on resident workers: its goal, and how far it has come.

    HOLD     no wave is under way, and none begins
    GROW     the tasks that are added start, without key groups; no tuples are routed to them yet
    REGROUP  they get tuples, and key groups are handed over to their new owners
    RETIRE   tasks that are too many get no more tuples, finish what they have, and end
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from millrace.control.migrations import COMPLETED, ROLLED_BACK, Migration, TaskMove
from millrace.control.moves import Cause
from millrace.model.graph import TaskId

HOLD, GROW, REGROUP, RETIRE = "hold", "grow", "regroup", "retire"
PHASES = (HOLD, GROW, REGROUP, RETIRE)
BY_SCALING = "scale"  # the strategy in the record


@dataclass(slots=True)
class Scaling:
    """The change of a topology from the numbers of tasks `before` to those `wanted`. `owners`: the key groups of the components
    that change, when it is over."""

    before: Mapping[str, int]
    wanted: Mapping[str, int]
    owners: Mapping[str, tuple[int, ...]]
    cause: Cause
    began: float
    from_version: int
    in_flight: int
    phase: str = HOLD
    entered: float = 0.0  # time when the phase began
    since: float = 0.0  # the same, or the time when the topology last was not running
    revision: int = 0  # that all workers must have carried out
    joining: tuple[TaskId, ...] = ()  # tasks that get no tuples yet
    admitted: bool = False  # they take part in waves
    tries: int = 0  # to hand over key groups, or to let tasks retire
    not_before: float = 0.0  # time of the next try
    trouble: str = ""  # why it could not be completed
    disturbed: bool = False  # tasks were lost while it was under way
    handed_over: list[TaskMove] = field(default_factory=list)
    switched: float | None = None  # when key groups first changed their owners
    done: list[tuple[str, float]] = field(default_factory=list)  # phases, with their seconds

    def enter(self, phase: str, now: float) -> None:
        """End the current phase and begin another one."""
        self.done.append((self.phase, now - self.entered))
        self.phase, self.entered, self.since, self.tries, self.not_before = phase, now, now, 0, 0.0

    @property
    def progress(self) -> float:
        """From 0 to 1."""
        return PHASES.index(self.phase) / len(PHASES)

    @property
    def key_groups_moved(self) -> int:
        return sum(len(move.groups) for move in self.handed_over)

    def note_moves(self, record: Migration) -> None:
        """Record moves that have ended for it."""
        if record.outcome == COMPLETED:
            self.handed_over += [move for move in record.moved if move.groups]
            self.switched = record.switched if self.switched is None else self.switched
        self.trouble = record.reason or self.trouble
        self.disturbed = self.disturbed or record.outcome == ROLLED_BACK
