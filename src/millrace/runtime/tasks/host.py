"""Protocols of the worker that hosts a task, which `Worker` implements, and of the task's topology there: `TopologyRun`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from millrace.api.dataframe import TaskFeed
from millrace.control.assignment import Move, Place
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.clock import Clock
from millrace.runtime.flow.channel import Inlet
from millrace.runtime.flow.tracker import Tracker
from millrace.runtime.meters import TopologyMeters
from millrace.runtime.tasks.user_errors import ErrorLog
from millrace.runtime.wire.messages import StatePart

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask
    from millrace.runtime.tasks.spout_position import SentPositions
    from millrace.runtime.tasks.task import Task


class FeedOpener(Protocol):
    """Opens the feeds of DataFrame spouts. `tell` takes a metric of the task."""

    def open(self, name: str, tell: Callable[[str, Any], None]) -> TaskFeed: ...


class Threads(Protocol):
    """Runs the work of blocking tasks on threads and calls `done` back on the loop."""

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None: ...

    def end(self, key: Any) -> None: ...


class Alarms(Protocol):
    """Calls functions at given times."""

    def at(self, at: float, call: Callable[[], None]) -> None: ...


class TaskHost(Protocol):
    """The worker of a task."""

    slot: int
    generation: int
    clock: Clock
    threads: Threads
    feeds: FeedOpener
    checkpoints: CheckpointAccess
    counters: Counter[str]
    errors: ErrorLog
    frame_limit: int
    grace: float  # seconds for roots to finish on their own after a worker was lost
    tell_master: Callable[[Any], None]

    @property
    def timers(self) -> Alarms: ...

    def ready(self, task: Task) -> None:
        """Give the task a turn."""

    def ready_at(self, task: Task, at: float) -> None:
        """Give the task a turn at that time."""

    def start_timers(self, task: BoltTask, due: Mapping[str, float]) -> None:
        """Start the ticks and timers of the task's component. `due`: seconds until the first of each, where it is known."""

    def connect(self, task: Task) -> None:
        """Give the task the channels of the current plan."""

    def send_state(self, slot: int, part: StatePart, body: bytes) -> None:
        """Send a part of a task's state to another worker."""

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """Credit the sender of a chunk that has been consumed."""

    def credit(self, task: BoltTask, inlet: Inlet) -> None:
        """Credit a task of another worker."""

    def broken(self, task: Task, reason: str) -> None:
        """Report that tuples are missing and that only a rollback can recover them."""

    def is_lost(self, slot: int, generation: int) -> bool:
        """True if that worker was in a plan and is no longer."""


class TaskTopology(Protocol):
    """The topology of a task, as its worker knows it."""

    number: int
    graph: TopologyGraph
    version: int
    epoch: int
    tracked: bool
    tracker: Tracker
    window: int
    losses: int
    broken: str
    capturing: bool  # tasks keep their input after the next wave, for a migration
    tasks: dict[int, Task]  # the tasks that run in this worker
    places: dict[TaskId, Place]
    positions: dict[TaskId, int]
    sent: defaultdict[TaskId, SentPositions]  # by replayable spout
    meters: TopologyMeters
    holders: dict[TaskId, list[int]]  # slots that keep blocks of a task's snapshots

    @property
    def apart(self) -> frozenset[TaskId]:
        """Tasks that are starting or retiring: no tuples are routed to them."""

    @property
    def retiring(self) -> frozenset[TaskId]:
        """Those of them that get nothing at all any more."""

    @property
    def key_groups(self) -> Mapping[str, tuple[int, ...]]: ...

    @property
    def blocks(self) -> tuple[int, int]: ...

    @property
    def restore(self) -> tuple[int, int, int]: ...

    @property
    def recovers(self) -> tuple[int, int]: ...

    def lanes(self, component: str) -> Sequence[Move]:
        """The moves of the component's key groups that are under way."""

    def context(self, task: TaskId) -> dict[str, Any]:
        """The topology context of a component, under Storm's names."""
