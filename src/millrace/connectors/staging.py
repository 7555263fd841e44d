"""What the sinks of the two-phase commit share: whose staged rows are made visible, and whose are thrown away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from millrace.api.component import Component
from millrace.api.sink import TwoPhaseSink
from millrace.errors import MillraceError
from millrace.state.path_step import path_step


class Staging(ABC):
    """Where a task keeps what it was given until a wave is committed.

    Everything lies under (sink, task, epoch), so that two incarnations of a task never write to the same place. What
    was added is first *open*, then *prepared* under a wave. A new instance in the same epoch goes on with what is open
    there: a task is built anew after an exception.
    """

    @abstractmethod
    def prepare(self, wave: int) -> None:
        """Makes what is open of this task and epoch durable under this wave. Raises if any of it is gone."""

    @abstractmethod
    def publish(self, task: int, epoch: int, wave: int) -> None:
        """Makes visible, in its order, what is prepared there up to this wave. What is visible already is not there
        any more, so a second call, also one at the same time, does nothing."""

    @abstractmethod
    def discard(self, task: int, epoch: int) -> None:
        """Throws away all that is there, open or prepared."""

    @abstractmethod
    def staged(self) -> Iterable[tuple[int, int]]:
        """The (task, epoch) pairs of this sink that have something staged."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what is open here; what is staged stays."""


class StagedSink(TwoPhaseSink):
    """A two-phase sink that stages through a `Staging`. A subclass sets `staging` in `initialize` if `exactly_once`."""

    staging: Staging | None = None

    def prepare(self, wave: int) -> None:
        self._two_phase().prepare(wave)

    def commit(self, wave: int) -> None:
        self._two_phase().publish(self.task_index, self.epoch, wave)

    def recover(self, wave: int, epoch: int) -> None:
        """Task 0 also answers for tasks that are no more."""
        staging = self._two_phase()
        for task, staged_in in sorted(set(staging.staged())):
            mine = task == self.task_index or (self.task_index == 0 and task >= self.parallelism)
            # A later epoch is at work already: then this incarnation is itself cut off, and must not touch it. This
            # one's own has just begun; what is there is of an earlier run whose checkpoints were taken away.
            if not mine or staged_in > self.epoch:
                continue
            if staged_in == epoch:
                staging.publish(task, staged_in, wave)
            staging.discard(task, staged_in)

    def close(self) -> None:
        if self.staging is not None:
            self.staging.close()

    def _two_phase(self) -> Staging:
        if self.staging is None:
            raise MillraceError(f"{self.component_name}: prepare, commit and recover are for exactly-once topologies, and "
                                "this sink was initialized without exactly_once")
        return self.staging


def staged_name(component: Component) -> str:
    """Names a sink in its store: different for different sinks, not long, and without any sign that is special there."""
    return f"{path_step(component.topology_name)}+{path_step(component.component_name)}"


def gone(component: Component, where: str) -> MillraceError:
    return MillraceError(f"{component.component_name}: not all that was staged in {where} is there any more (task "
                         f"{component.task_index} in epoch {component.epoch}). Either a later epoch has thrown it away, and "
                         "this incarnation is to end; or someone else has, and the topology must go back to its last "
                         "committed wave.")
