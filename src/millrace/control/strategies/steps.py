"""Steps of migrations, and the change of placement that they carry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from millrace.model.graph import TaskId, TopologyGraph


@dataclass(frozen=True, slots=True)
class Hold:
    """Let the spouts wait from now on. `captures`: the next wave captures the input of all tasks."""

    captures: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Let the spouts continue."""


@dataclass(frozen=True, slots=True)
class Delay:
    """Wait for some time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Until:
    """Wait until so many seconds have passed since the request."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Commit a wave. `drains`: nothing is in flight after it. If it captures, every task takes part at once, and saves its
    input instead of processing it."""

    drains: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """End tasks; nobody has them until they are placed again."""

    tasks: tuple[TaskId, ...]


@dataclass(frozen=True, slots=True)
class Replace:
    """Start tasks at new places, with the state of the last wave. `restart`: slots whose workers are restarted first, with
    all their tasks. `init_resend`: seconds between two requests to restore that state, of which the first goes out when the
    tasks end; 0: it goes out as soon as they have started."""

    moves: Mapping[TaskId, int]
    restart: frozenset[int] = frozenset()
    init_resend: float = 0.0


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand tasks over. `cold`: their state is copied only after they have switched. `limit`: seconds that the old incarnation
    gets to process what it has queued; then it ends, and the new one starts with the state of the last wave. None: those of the
    setting, after which it counts as lost."""

    moves: Mapping[TaskId, int]
    cold: bool = False
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """Restart these workers, if no task is on them."""

    slots: frozenset[int]


Step = Hold | Release | Delay | Until | Checkpoint | Remove | Replace | HandOver | Restart


class PlacementChange(NamedTuple):
    """A change of placement. `before`, `after`: the slot of every task; `nodes`: slot -> node. `at`: the time of the request,
    in seconds since the cycles began in which N-Storm's workers read plans."""

    graph: TopologyGraph
    before: Mapping[TaskId, int]
    after: Mapping[TaskId, int]
    nodes: Mapping[int, str]
    at: float = 0.0

    @property
    def moves(self) -> dict[TaskId, int]:
        """The tasks that move, with their new slots."""
        return {task: slot for task, slot in sorted(self.after.items()) if self.before.get(task) != slot}

    @property
    def touched(self) -> frozenset[int]:
        """The slots that give or take a task."""
        return frozenset({slot for task, new in self.moves.items() for slot in (self.before[task], new)})

    @property
    def used(self) -> frozenset[int]:
        """The slots of the topology, before or after."""
        return frozenset({*self.before.values(), *self.after.values()})

    @property
    def vacated(self) -> frozenset[int]:
        """The slots on which no task of the topology is left."""
        return frozenset(self.before.values()) - frozenset(self.after.values())


Parameters = Mapping[str, float]


def step_name(step: Step) -> str:
    """The name of a step, as records and users see it."""
    return type(step).__name__.lower()
