"""What happens to the master (events) and what it wants done (commands)."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.control.assignment import Assignment
from millrace.model.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker said hello; Spark, or the master's own fencing, had it started."""

    slot: int
    generation: int
    host: str
    boot: str
    executor: str
    ipc: str
    tcp: str


@dataclass(frozen=True, slots=True)
class WorkerLost:
    slot: int
    generation: int
    cause: str


@dataclass(frozen=True, slots=True)
class WorkerReported:
    """A worker has carried out `revision`; `in_flight` is (topology, tuples) and `positions` (topology, task, position)."""

    slot: int
    generation: int
    revision: int
    in_flight: tuple[tuple[int, int], ...]
    positions: tuple[tuple[int, int, int], ...] = ()
    starting: tuple[tuple[int, int], ...] = ()  # (topology, tasks that are not initialized yet)


@dataclass(frozen=True, slots=True)
class Submitted:
    graph: TopologyGraph


@dataclass(frozen=True, slots=True)
class Paused:
    name: str


@dataclass(frozen=True, slots=True)
class Resumed:
    name: str


@dataclass(frozen=True, slots=True)
class Killed:
    """Stop the spouts, let what is in flight finish for up to `wait` seconds, then end the tasks."""

    name: str
    wait: float
    now: float


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time passed."""

    now: float


Event = WorkerJoined | WorkerLost | WorkerReported | Submitted | Paused | Resumed | Killed | Ticked


@dataclass(frozen=True, slots=True)
class Distribute:
    """Send this to every worker."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people; `topology` is empty for what concerns the cluster."""

    text: str
    topology: str = ""
    level: str = "info"


@dataclass(frozen=True, slots=True)
class Ended:
    """The topology's tasks are gone."""

    name: str


Command = Distribute | Say | Ended
