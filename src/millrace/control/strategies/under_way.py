"""A migration that is under way: its steps, and how far it has come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from millrace.control.migrations import ROLLED_BACK, Migration, TaskMove
from millrace.control.moves import Cause
from millrace.control.strategies.steps import HandOver, Step, step_name
from millrace.model.graph import TaskId


@dataclass(slots=True)
class MigrationUnderWay:
    """A migration of one topology. `moves`, `sources`: the new and the old slot of each task that moves."""

    strategy: str
    parameters: Mapping[str, float]
    cause: Cause
    steps: Sequence[Step]
    moves: Mapping[TaskId, int]
    sources: Mapping[TaskId, int]
    began: float
    from_version: int
    in_flight: int
    at: int = 0  # number of the current step
    entered: bool = False
    since: float = 0.0  # time when the current step began
    revision: int = 0  # that all workers must have carried out
    wave: int = 0  # that must be committed; 0: none was requested yet
    drained: bool = False  # nothing is in flight
    placed: bool = False  # the tasks of the current step have their new places
    started: bool = False  # and all workers know them
    removed: dict[TaskId, int] = field(default_factory=dict)  # tasks that nobody has, and the slots where they are to start
    awaited: dict[int, int] = field(default_factory=dict)  # slot -> generation of the worker that ends there
    restarted: list[int] = field(default_factory=list)  # slots
    handed_over: list[TaskMove] = field(default_factory=list)
    done: list[tuple[str, float]] = field(default_factory=list)  # steps, with their seconds
    switched: float | None = None  # when tasks first changed their places by hand-over
    rebalance_began: float | None = None
    rebalance_ended: float | None = None
    went_back: float | None = None  # when all tasks last went back to a wave
    trouble: str = ""  # why it fails
    reason: str = ""  # why tasks were not handed over
    given_up: bool = False  # it ends because of the trouble
    tries: int = 0  # to hand over tasks after that
    not_before: float = 0.0  # time of the next try
    lost: bool = False  # tasks were lost while they were handed over

    @property
    def step(self) -> Step | None:
        """The current step; None if all are over."""
        return self.steps[self.at] if self.at < len(self.steps) else None

    @property
    def hands_over(self) -> bool:
        """True while tasks may be handed over."""
        return isinstance(self.step, HandOver) and (self.given_up or not self.trouble)

    @property
    def disturbed(self) -> bool:
        """True if tasks have ended for it, and the stream has noticed."""
        return self.rebalance_began is not None or self.lost

    @property
    def progress(self) -> float:
        """The share of its steps that are over, from 0 to 1."""
        return self.at / len(self.steps) if self.steps else 1.0

    def complete(self, now: float) -> None:
        """Record the end of the current step."""
        if self.step is not None:
            self.done.append((step_name(self.step), now - self.since))
        self.at, self.entered = self.at + 1, False

    def redirect(self, steps: Sequence[Step]) -> None:
        """Take these steps instead of those that are left."""
        self.steps, self.entered = [*self.steps[:self.at], *steps], False

    def note_moves(self, record: Migration) -> None:
        """Record moves of a step that have ended."""
        self.handed_over += record.moved
        self.reason = record.reason or self.reason
        self.lost = self.lost or record.outcome == ROLLED_BACK
        if self.switched is None:
            self.switched = record.switched
