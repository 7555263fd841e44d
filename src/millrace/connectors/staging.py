"""The base of two-phase sinks: decides which staged rows are published and which are discarded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from millrace.api.component import Component
from millrace.api.sink import TwoPhaseSink
from millrace.errors import MillraceError, RowsLost
from millrace.state.path_step import path_step


class Staging(ABC):
    """Storage for the rows of a task until a wave is committed.

    Everything is stored under (sink, task, epoch), so that two incarnations of a task never write to the same place. Added
    rows are first *open*, then *prepared* under a wave. A new instance in the same epoch, made after an exception, continues
    with the open rows.
    """

    @abstractmethod
    def prepare(self, wave: int) -> list[str]:
        """Makes the open rows of this task and epoch durable under this wave. Raises if any of them is gone. Returns tokens
        for all rows of this task and epoch that are prepared and not published."""

    @abstractmethod
    def missing(self, task: int, epoch: int, wave: int, tokens: Sequence[str]) -> list[str]:
        """Those of the tokens, returned when the task prepared the wave, whose rows are neither staged nor published."""

    @abstractmethod
    def publish(self, task: int, epoch: int, wave: int) -> None:
        """Makes the rows prepared up to this wave visible, in order, and notes that for `missing`. Published rows are no longer
        staged, so a second call, even a concurrent one, does nothing."""

    @abstractmethod
    def discard(self, task: int, epoch: int) -> None:
        """Discards all rows there, open or prepared."""

    @abstractmethod
    def staged(self) -> Iterable[tuple[int, int]]:
        """The (task, epoch) pairs of this sink that have staged rows."""

    @abstractmethod
    def close(self) -> None:
        """Releases resources; staged rows stay."""


class StagedSink(TwoPhaseSink):
    """A two-phase sink that stages through a `Staging`. A subclass sets `staging` in `initialize` if `exactly_once`."""

    staging: Staging | None = None

    def prepare(self, wave: int) -> list[str]:
        return self._two_phase().prepare(wave)

    def commit(self, wave: int) -> None:
        self._two_phase().publish(self.task_index, self.epoch, wave)

    def missing(self, task: int, wave: int, epoch: int, tokens: Sequence[str]) -> list[str]:
        return self._two_phase().missing(task, epoch, wave, tokens)

    def recover(self, wave: int, epoch: int) -> None:
        """Publishes or discards the rows of earlier incarnations. Task 0 also does this for tasks that no longer exist."""
        staging = self._two_phase()
        for task, staged_in in sorted(set(staging.staged())):
            mine = task == self.task_index or (self.task_index == 0 and task >= self.parallelism)
            # If a later epoch has begun, this incarnation is cut off and must not touch its rows. Rows in this incarnation's
            # own epoch, which has just begun, belong to an earlier run whose checkpoints were deleted.
            if not mine or staged_in > self.epoch:
                continue
            if staged_in == epoch:
                staging.publish(task, staged_in, wave)
            staging.discard(task, staged_in)

    def hand_over(self) -> None:
        """Releases the open rows: the next instance finds them in the staging, under the same epoch."""
        self._two_phase().close()

    def take_over(self, staged: Any) -> None:
        self._two_phase()

    def close(self) -> None:
        if self.staging is not None:
            self.staging.close()

    def _two_phase(self) -> Staging:
        if self.staging is None:
            raise MillraceError(f"{self.component_name}: prepare, commit and recover are for exactly-once topologies, and "
                                "this sink was initialized without exactly_once")
        return self.staging


def staged_name(component: Component) -> str:
    """The name of a sink in its store: unique, short, and without special characters."""
    return f"{path_step(component.topology_name)}+{path_step(component.component_name)}"


def gone(component: Component, where: str) -> RowsLost:
    return RowsLost(f"{component.component_name}: rows staged in {where} are missing (task {component.task_index} "
                    f"in epoch {component.epoch}). Either a later epoch has discarded them, and this incarnation will "
                    "end; or someone else has, and the topology must roll back to its last committed wave.")
