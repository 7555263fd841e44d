"""A handle on one running topology, for users of the Python API; both engines return it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from millrace.control.events import Event, Regrouped, Withdrawn
from millrace.control.migrations import record_of_request
from millrace.control.moves import BY_HANDOVER
from millrace.control.scaling import BY_SCALING
from millrace.control.topology_status import ENDED, RUNNING
from millrace.errors import MillraceError, NotTheAuthor, UnknownTopology
from millrace.master.ended import EndedTopology
from millrace.master.load.observed import TopologyObserved
from millrace.master.requests.record import moves_of
from millrace.master.scheduling.elastic_handle import ElasticHandle
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.state_view import MasterView
from millrace.model.graph import TaskId
from millrace.model.load import Load

T = TypeVar("T")


class TopologyPort(Protocol):
    """The part of the master that a handle on a topology uses; callable from any thread."""

    @property
    def superseded(self) -> str:
        """The reason why this master has stopped deciding; empty until another driver takes over."""

    @property
    def state(self) -> MasterView:
        """Workers and topologies."""

    @property
    def scheduling(self) -> SchedulingLoop:
        """Loads, schedulers and elasticity; only on the master's thread."""

    @property
    def observed(self) -> Mapping[str, TopologyObserved]:
        """Reports of the tasks, by running topology."""

    @property
    def ended(self) -> Mapping[str, EndedTopology]:
        """Results of topologies that ended recently, by name."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread and return its result."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event; only on its thread."""

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is evaluated on the master's thread, holds. False if time ran out."""

    def move(self, name: str, task: TaskId, slot: int, strategy: str, parameters: Mapping[str, float] | None) -> None:
        """Move one running task to another worker."""

    def rebalance(self, name: str, placement: Mapping[TaskId, int], strategy: str,
                  parameters: Mapping[str, float] | None) -> None:
        """Begin to migrate the topology to another placement."""

    def past_migrations(self, name: str) -> list[dict[str, Any]]:
        """The newest migrations of the topology, in order."""

    def rescale(self, name: str, par: Mapping[str, int]) -> None:
        """Change the number of tasks of these components."""

    def pause(self, name: str) -> None:
        """Pause the spouts."""

    def unpause(self, name: str) -> None:
        """Let the spouts continue."""

    def kill(self, name: str, wait: float = 10.0) -> None:
        """End the topology; returns at once."""


class RunningTopology:
    """A handle on one topology of an engine."""

    def __init__(self, master: TopologyPort, name: str) -> None:
        self._master, self.name = master, name

    @property
    def status(self) -> str:
        """waiting, starting, running, paused, stopping, or ended."""
        state = self._master.state.topologies.get(self.name)
        return state.status if state is not None else ENDED

    @property
    def uncommitted(self) -> str:
        """The reason why input was not committed when it ended; empty if all was, or while it runs."""
        ended = self._master.ended.get(self.name)
        return "" if self.status != ENDED or ended is None else ended.uncommitted

    @property
    def failure(self) -> str:
        """The unexpected error of the master that has ended it; empty if there was none."""
        ended = self._master.ended.get(self.name)
        return "" if ended is None else ended.failure

    def observed(self) -> TopologyObserved:
        """The reports of its tasks; available after it ended too."""
        observed = self._master.observed.get(self.name)
        if observed is not None:
            return observed
        ended = self._master.ended.get(self.name)
        if ended is None:
            raise UnknownTopology(f"no topology named {self.name!r} was submitted here")
        return ended.observed

    def measured(self, look: Callable[[TopologyObserved], T]) -> T:
        """Evaluate `look` on the reports, on the master's thread, where each report changes them."""
        result: T = self._master.call(lambda: look(self.observed()))
        return result

    def load(self) -> Load:
        return self.measured(lambda observed: observed.load(time.monotonic()))

    def wait_running(self, seconds: float = 60.0) -> bool:
        return self._wait_until(lambda: self.status == RUNNING, seconds)

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for its end. Returns True if it has ended. Raises `NotTheAuthor` if another driver has taken
        over."""
        return self._wait_until(lambda: self.status == ENDED, seconds)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        reached = self._master.wait_until(lambda: bool(self._master.superseded) or condition(), seconds)
        if self._master.superseded:
            raise NotTheAuthor(self._master.superseded)
        return reached

    def move(self, task: TaskId | str, slot: int, strategy: str = BY_HANDOVER,
             parameters: Mapping[str, float] | None = None) -> None:
        """Move one running task to the worker in `slot`, with its state, by a strategy; hand-over lets the stream
        run. Returns at once; `moves()` has it until it has arrived, and then `migrations()`."""
        self._master.move(self.name, TaskId.parse(task) if isinstance(task, str) else task, slot, strategy, parameters)

    def regroup(self, component: str, owners: Mapping[int, int]) -> None:
        """Give key groups of a bolt to other tasks of it, by hand-over: key group -> index of the task. Returns at once, as
        `move` does."""
        self._tell(Regrouped(self.name, component, dict(owners)))

    def moves(self) -> list[dict[str, Any]]:
        """The moves that are under way and those that wait, as in `millrace moves --json`; empty if there are none."""
        state = self._master.state
        rows: list[dict[str, Any]] = self._master.call(
            lambda: moves_of(state, time.monotonic(), self.name) if self.name in state.topologies else [])
        return rows

    def cancel_move(self, task: TaskId | str) -> None:
        """Cancel the move of a task, and those of its key groups to other tasks; refused once they have begun to switch."""
        self._tell(Withdrawn(self.name, TaskId.parse(task) if isinstance(task, str) else task))

    def _tell(self, event: Event) -> None:
        self._master.call(lambda: self._master.tell(event))

    def rebalance(self, placement: Mapping[TaskId | str, int], strategy: str = BY_HANDOVER,
                  parameters: Mapping[str, float] | None = None, seconds: float = 300.0) -> dict[str, Any]:
        """Move tasks to the workers in these slots by a strategy of `millrace.control.strategies`, and wait until that is over.
        Returns the record, as in `millrace migrations --json`; some of its figures become known only later."""
        before = {row["id"] for row in self.migrations()}
        wanted = {TaskId.parse(task) if isinstance(task, str) else task: slot for task, slot in placement.items()}
        self._master.rebalance(self.name, wanted, strategy, parameters)
        if not self._master.wait_until(self._is_settled, seconds):
            raise MillraceError(f"the migration of {self.name!r} by {strategy} is not over after {seconds:g} s; `migrations` "
                                "will show how it ends")
        record = record_of_request(self.migrations(), before, strategy)
        if record is None:
            raise MillraceError(f"nothing was moved: every task of {self.name!r} is already where it is wanted, or it has "
                                "ended")
        return record

    def _is_settled(self) -> bool:
        """True if no migration, and no change of parallelism, is under way. Runs on the master's thread."""
        topology = self._master.state.topologies.get(self.name)
        return topology is None or (topology.migration is None and topology.scaling is None)

    def migrations(self) -> list[dict[str, Any]]:
        """The newest migrations, in order, as in `millrace migrations --json`."""
        return self._master.past_migrations(self.name)

    def scale(self, par: Mapping[str, int], seconds: float = 300.0) -> dict[str, Any] | None:
        """Give components other numbers of tasks, all or none, and wait until that is done; nothing stops. Returns the record
        of the migration, as in `millrace migrations --json`; None if nothing changes, and on the microbatch engine, where it
        takes effect with the next batch."""
        before = {row["id"] for row in self.migrations()}
        self._master.rescale(self.name, par)
        if not self._master.wait_until(self._is_settled, seconds):
            raise MillraceError(f"{self.name!r} is not scaled after {seconds:g} s; `migrations` will show how that ends")
        return record_of_request(self.migrations(), before, BY_SCALING)

    @property
    def elastic(self) -> ElasticHandle:
        """Lets its numbers of tasks follow the load: `elastic.set("erstream", t_max_ms=20)`."""
        return ElasticHandle(self._master, self.name)

    def pause(self) -> None:
        """Pause the spouts; bolts continue."""
        self._master.pause(self.name)

    def unpause(self) -> None:
        self._master.unpause(self.name)

    def drain(self, seconds: float = 30.0) -> bool:
        """Pause, and wait up to `seconds` until nothing is in flight. Returns True if that was reached."""
        self.pause()
        state = self._master.state
        return self._master.wait_until(
            lambda: self.name in state.topologies and state.drained(state.topologies[self.name]), seconds)

    def positions(self) -> dict[TaskId, int]:
        """The position of each task of a replayable spout below which everything has been fully processed. A spout with splits
        has one for each of them: the index is the number of the split."""
        topologies = self._master.state.topologies
        positions: dict[TaskId, int] = self._master.call(
            lambda: dict(topologies[self.name].positions) if self.name in topologies else {})
        return positions

    def kill(self, wait: float = 10.0) -> None:
        """Stop the spouts, give tuples in flight up to `wait` seconds, then end the tasks. Returns at once. An exactly-once
        topology goes on while it processes tuples, and ends after `wait` seconds without any, or after `wait` and 30 times
        `topology.checkpoint.timeout.secs` in all."""
        self._master.kill(self.name, wait)
