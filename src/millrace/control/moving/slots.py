"""Workers that leave on purpose: they are removed, or restarted in a new process.

    EVACUATE  tasks are handed over to other workers, to the places that the first scheduler gives them
    REST      only if tasks cannot be handed over, which is refused for a removal: the spouts of their topologies wait until
              nothing is in flight and, if the topology takes waves, one is committed
    CLEAR     every worker learns the new places; the leaving worker stays until nobody can ask it for anything
    STOP      its process ends
    AWAY      a restarted worker's new process starts. The places of tasks that were not handed over are kept for it
    RETURN    the tasks that were handed over come back

Until STOP the worker can still stay, and does so if the tasks cannot be handed over in time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from millrace.config import LEAVE_LIMIT, RESTART_WAIT
from millrace.control.assignment import SWITCH
from millrace.control.events import Command, Distribute, EndWorker, LeaveOver, Say, StopWorker, WorkerLeaves, WorkerReported
from millrace.control.moves import PERSON, Cause
from millrace.control.moving.handover import HandoverControl
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING
from millrace.control.waves import IDLE
from millrace.control.wording import tasks_named
from millrace.control.workers import WorkerView
from millrace.errors import MillraceError, NotEnoughSlots, TopologyError, UnknownName
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, SchedulingResult

EVACUATE, REST, CLEAR, STOP, AWAY, RETURN = "evacuate", "rest", "clear", "stop", "away", "return"
RETRY_SECONDS = 1.0  # between two requests for the same moves, which may have been cancelled
STOP_SECONDS = 10.0  # that a worker gets to end cleanly
MOVABLE = (RUNNING, PAUSED, STARTING)  # statuses of topologies whose tasks can be moved
CLEAR_REPORTS = 2  # consecutive reports of a worker that hosts nothing
MIGRATION = "migration"  # what restarts a worker, if not a person


class LeftTopologies(Protocol):
    """The part of the master's state that leaving workers use."""

    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]
    revision: int

    def placed(self, graph: TopologyGraph, plan: Plan, without: Collection[int] = ()) -> SchedulingResult:
        """Slots for the tasks of the graph that are on no slot of the cluster. `without`: slots that count as gone."""

    def at_rest(self, topology: TopologyState) -> bool:
        """True if none of its tuples is in flight, by the reports since its spouts began to wait."""

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def give_up_worker(self, slot: int, cause: str) -> list[Command]:
        """Count the worker as lost."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


@dataclass(slots=True)
class Leave:
    """A worker that leaves. `until`: time at which the phase is given up. `moved`: by number of topology, the slots that
    tasks were to be handed over to. `waves`: by number of topology, the wave that must be committed before the worker ends.
    `who` wants it: a person, a migration, or the control of the number of workers."""

    slot: int
    restarts: bool
    until: float
    phase: str = EVACUATE
    who: str = PERSON
    asked: float = float("-inf")  # time of the last request for moves
    moved: dict[int, dict[TaskId, int]] = field(default_factory=dict)
    waves: dict[int, int] = field(default_factory=dict)
    clear_at: int = 0  # revision that everyone must have carried out
    reports: int = 0  # in a row, of a worker that hosts only tasks that stay

    @property
    def what(self) -> str:
        return "restarted" if self.restarts else "removed"

    @property
    def cause(self) -> Cause:
        return Cause(self.who, f"worker {self.slot} is {self.what}")


class SlotControl:
    """Every method that returns commands returns those to carry out. `now` is the time of the last event."""

    def __init__(self, master: LeftTopologies, handovers: HandoverControl, limit: float = LEAVE_LIMIT.default,
                 wait: float = RESTART_WAIT.default) -> None:
        self._master, self._handovers, self._limit, self._wait = master, handovers, limit, wait
        self.now = 0.0
        self._removed: set[int] = set()
        self._leaves: dict[int, Leave] = {}

    @property
    def closed(self) -> frozenset[int]:
        """Slots on which nothing may be placed."""
        return frozenset(slot for slot, leave in self._leaves.items() if leave.phase != RETURN)

    @property
    def away(self) -> frozenset[int]:
        """Slots whose worker has ended and is to come back."""
        return frozenset(slot for slot, leave in self._leaves.items() if leave.phase == AWAY)

    def wants(self, slot: int) -> bool:
        """True if a process for the slot is welcome: it was not removed, and is not being removed."""
        return slot not in self._removed and (slot not in self._leaves or self._leaves[slot].restarts)

    def leaving(self, slot: int) -> str:
        """The word for what happens to the worker just now: "removed" or "restarted"; empty if nothing does."""
        return self._leaves[slot].what if slot in self._leaves else ""

    # -- requests ------------------------------------------------------------------------------------------------------

    def requested(self, event: WorkerLeaves) -> list[Command]:
        self._check(event)
        slot = event.slot
        if slot not in self._master.workers:
            self._removed.add(slot)
            return [Say(f"worker {slot}, which had not started, is removed", cause=event.who), LeaveOver(slot)]
        leave = self._leaves[slot] = Leave(slot, event.restarts, self.now + self._limit, who=event.who)
        return [Say(f"worker {slot} is being {leave.what}: its tasks are handed over first", cause=leave.who,
                    tasks=self._tasks_on(slot)), *self._evacuate(leave)]

    def _check(self, event: WorkerLeaves) -> None:
        slot, workers = event.slot, self._master.workers
        for topology in self._master.topologies.values():
            if topology.migration is not None and slot in topology.slots.union(topology.migration.sources.values()):
                topology.check_free()
        if slot not in workers and (event.restarts or not event.expected):
            raise UnknownName(f"there is no worker {slot}; there are {', '.join(map(str, sorted(workers))) or 'none'}")
        if slot in self._leaves:
            raise MillraceError(f"worker {slot} is being {self.leaving(slot)} already: wait until that is over")
        if event.restarts:
            return
        if not self._others(slot):
            raise NotEnoughSlots(f"worker {slot} cannot be removed: no other worker is there to run the tasks. Add one first "
                                 "(millrace workers add 1), or restart this one (millrace workers restart)")
        for name, topology in self._master.topologies.items():
            for task in self._staying(topology, slot):
                raise TopologyError(f"worker {slot} cannot be removed, because {task} of {name!r} cannot be moved: "
                                    f"{topology.graph.why_fixed(task)}. Or kill the topology first")
            self._check_room(topology, slot)

    def _check_room(self, topology: TopologyState, slot: int) -> None:
        """Refuse a removal after which tasks of the topology would have no place."""
        if topology.status not in MOVABLE or all(place.slot != slot for place in topology.places.values()):
            return
        result = self._master.placed(topology.graph, topology.plan, without=[slot])
        if isinstance(result, CannotPlace):
            left = len(self._others(slot))
            raise NotEnoughSlots(f"worker {slot} cannot be removed: the topologies need all {left + 1} slots, and {left} would "
                                 f"be left. For {topology.graph.name!r}: {result.reason}. Or kill a topology, or add a worker "
                                 "first (millrace workers add 1)")

    def restart(self, slots: Collection[int]) -> list[Command]:
        """Restart these workers at once, for a migration that has taken its tasks from them."""
        for slot in slots:
            self._leaves[slot] = Leave(slot, True, self.now + STOP_SECONDS, STOP, MIGRATION)
        return [StopWorker(slot) for slot in slots]

    # -- events --------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Command]:
        self.now = now
        return [command for leave in list(self._leaves.values()) for command in self._go_on(leave)]

    def _go_on(self, leave: Leave) -> list[Command]:
        if self.now > leave.until:
            return self._too_late(leave)
        if not leave.restarts and leave.phase in (EVACUATE, REST, CLEAR) and not self._others(leave.slot):
            return self._stay(leave, "no other worker is left")
        if leave.phase in (REST, CLEAR) and not self._evacuated(leave):
            return self._evacuate_again(leave)
        if leave.phase == EVACUATE:
            commands = self._evacuate(leave)
            return commands or (self._rest(leave) if self._evacuated(leave) else [])
        if leave.phase == REST:
            return self._rest(leave)
        if leave.phase == CLEAR:
            return self._stop_if_clear(leave)
        return self._return(leave) if leave.phase == RETURN else []

    def reported(self, event: WorkerReported) -> None:
        leave = self._leaves.get(event.slot)
        if leave is not None and leave.phase == CLEAR and event.revision >= leave.clear_at:
            staying = sum(len(self._staying(topology, leave.slot)) for topology in self._master.topologies.values())
            leave.reports = leave.reports + 1 if event.hosted <= staying else 0

    def holds(self, slot: int) -> bool:
        """True if tasks that could not be handed over wait for the worker's new process: their places are kept."""
        leave = self._leaves.get(slot)
        return (leave is not None and leave.restarts and leave.phase in (STOP, AWAY)
                and any(self._staying(topology, slot) for topology in self._master.topologies.values()))

    def ended(self, slot: int) -> bool:
        """The process of a worker has ended. Returns True if that was intended."""
        leave = self._leaves.get(slot)
        if leave is None:
            return False
        intended = leave.phase == STOP
        leave.phase, leave.until = AWAY, self.now + self._wait
        return intended

    def gone(self, slot: int) -> list[Command]:
        """The worker is not one of the cluster any more."""
        leave = self._leaves.get(slot)
        if leave is None:
            return []
        self._wake(leave)
        if leave.restarts:
            return []
        del self._leaves[slot]
        self._removed.add(slot)
        return [Say(f"worker {slot} is removed", cause=leave.who), LeaveOver(slot)]

    def joined(self, slot: int) -> None:
        """A restarted worker is back: let its tasks return."""
        leave = self._leaves.get(slot)
        if leave is not None:
            self._wake(leave)
            leave.phase, leave.until, leave.asked = RETURN, self.now + self._limit, float("-inf")

    # -- phases --------------------------------------------------------------------------------------------------------

    def _evacuate(self, leave: Leave) -> list[Command]:
        """Request the moves that are not under way."""
        if self.now - leave.asked < RETRY_SECONDS:
            return []
        commands: list[Command] = []
        for topology in list(self._master.topologies.values()):
            commands += self._withdraw_arriving(topology, leave)
            targets = self._targets(topology, leave)
            leave.moved.setdefault(topology.number, {}).update(targets)
            commands += self._request(topology, targets, leave)
        return commands

    def _evacuate_again(self, leave: Leave) -> list[Command]:
        """Hand over what had to stay: another worker has joined meanwhile."""
        leave.phase, leave.asked = EVACUATE, float("-inf")
        leave.waves.clear()
        self._wake(leave)
        return [self._master.distribute(), *self._evacuate(leave)]

    def _withdraw_arriving(self, topology: TopologyState, leave: Leave) -> list[Command]:
        """Withdraw the moves to the worker that have not switched."""
        reason = f"worker {leave.slot} is being {leave.what}"
        return [command for task in _arriving(topology, leave.slot)
                for command in self._handovers.withdraw(topology, task, reason)]

    def _targets(self, topology: TopologyState, leave: Leave) -> Mapping[TaskId, int]:
        """The new slots of tasks that are to leave, and are not on their way."""
        stay = self._staying(topology, leave.slot)
        tasks = [task for task, place in topology.places.items() if place.slot == leave.slot and task not in stay
                 and _idle(topology, task)]
        if not tasks or topology.status not in MOVABLE:
            return {}
        result = self._master.placed(topology.graph, topology.plan)
        placement = result.plans[topology.graph.name].placement if isinstance(result, NewPlan) else {}
        return {task: placement[task] for task in tasks if placement.get(task, leave.slot) != leave.slot}

    def _request(self, topology: TopologyState, moves: Mapping[TaskId, int], leave: Leave) -> list[Command]:
        if not moves:
            return []
        leave.asked = self.now
        return self._handovers.request(topology, moves, leave.cause)

    def _evacuated(self, leave: Leave) -> bool:
        """True if only tasks that stay are there, and none is on its way from or to it."""
        for topology in self._master.topologies.values():
            there = sum(place.slot == leave.slot for place in topology.places.values())
            if (there > len(self._staying(topology, leave.slot))
                    or any(leave.slot in (moving.old.slot, moving.new.slot) for moving in topology.handover.batch)):
                return False
        return True

    def _rest(self, leave: Leave) -> list[Command]:
        """Let the topologies come to rest whose tasks stay."""
        leave.phase = REST
        staying = [topology for topology in self._master.topologies.values() if self._staying(topology, leave.slot)]
        awake = [topology for topology in staying if not topology.resting]
        if awake:
            for topology in awake:
                topology.resting = True
            distribute = self._master.distribute()
            for topology in awake:
                topology.ready_at, topology.quiet = self._master.revision, {}
            return [*(Say(f"spouts wait while worker {leave.slot} restarts, because "
                          f"{tasks_named(self._staying(topology, leave.slot))} cannot be handed over", topology.graph.name,
                          cause=leave.who)
                      for topology in awake), distribute]
        if all(self._saved(topology, leave) for topology in staying):
            leave.phase, leave.clear_at, leave.reports = CLEAR, self._master.revision, 0
        return []

    def _saved(self, topology: TopologyState, leave: Leave) -> bool:
        """True if nothing is in flight and, if it takes waves, one was committed since."""
        if not self._master.at_rest(topology):
            return False
        if topology.waves is None:
            return True
        if topology.number not in leave.waves:
            leave.waves[topology.number] = topology.waves.wave + 1
            topology.waves.request(self.now)
        return topology.waves.committed >= leave.waves[topology.number] and topology.waves.phase == IDLE

    def _stop_if_clear(self, leave: Leave) -> list[Command]:
        if leave.reports < CLEAR_REPORTS or not self._master.all_at(leave.clear_at):
            return []
        leave.phase, leave.until = STOP, self.now + STOP_SECONDS
        return [StopWorker(leave.slot)]

    def _return(self, leave: Leave) -> list[Command]:
        """Request the moves back that are not under way; done if none is left."""
        missing = {topology.graph.name: tasks for topology in self._master.topologies.values()
                   if (tasks := self._missing(topology, leave))}
        if not missing:
            del self._leaves[leave.slot]
            return [Say(f"worker {leave.slot} is restarted", cause=leave.who), LeaveOver(leave.slot)]
        if self.now - leave.asked < RETRY_SECONDS:
            return []
        commands: list[Command] = []
        for name, tasks in missing.items():
            topology = self._master.topologies[name]
            moves = {task: leave.slot for task in tasks if _idle(topology, task)}
            commands += self._request(topology, moves, leave)
        return commands

    def _missing(self, topology: TopologyState, leave: Leave) -> list[TaskId]:
        """The tasks that were handed over and are not back."""
        if topology.status not in MOVABLE:
            return []
        arriving = {moving.task for moving in topology.handover.batch}
        return [task for task in _evacuees(topology, leave) if topology.places[task].slot != leave.slot or task in arriving]

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _too_late(self, leave: Leave) -> list[Command]:
        slot = leave.slot
        if leave.phase == STOP:
            leave.until = self.now + self._wait
            reason = f"it did not end within {STOP_SECONDS:g} s"
            return [EndWorker(slot, reason), *self._master.give_up_worker(slot, reason)]
        if leave.phase in (EVACUATE, REST, CLEAR):
            tasks = self._tasks_on(slot)
            left = f"{tasks_named(tasks)} could not be handed over" if tasks else "others did not let go of it"
            return self._stay(leave, f"{left} within {self._limit:g} s")
        del self._leaves[slot]
        self._wake(leave)
        if leave.phase == RETURN:
            away = [task for topology in self._master.topologies.values() for task in self._missing(topology, leave)]
            return [Say(f"worker {slot} is restarted, but {tasks_named(away)} did not return within {self._limit:g} s",
                        level="warning", cause=leave.who, tasks=tuple(away)), LeaveOver(slot)]
        reason = f"worker {slot} has not come back within {self._wait:g} s"
        lost = self._master.give_up_worker(slot, reason) if slot in self._master.workers else []
        return [*lost, LeaveOver(slot, f"{reason}. Its tasks run on other workers; it is used again when it comes")]

    def _stay(self, leave: Leave, why: str) -> list[Command]:
        """Keep the worker, with its tasks."""
        reason, tasks = f"worker {leave.slot} is not {leave.what}: {why}", self._tasks_on(leave.slot)
        del self._leaves[leave.slot]
        self._wake(leave)
        back = [command for topology in list(self._master.topologies.values())
                for command in self._take_back(topology, leave, why)]
        return [Say(reason, level="warning", cause=leave.who, tasks=tasks), *back, self._master.distribute(),
                LeaveOver(leave.slot, f"{reason}. `millrace status` shows the workers and what their tasks do")]

    def _take_back(self, topology: TopologyState, leave: Leave, why: str) -> list[Command]:
        """Let tasks stay that have not left, and return that have."""
        commands: list[Command] = []
        moved = _evacuees(topology, leave)
        for task in moved:
            if topology.places[task].slot == leave.slot and not _idle(topology, task):
                commands += self._handovers.withdraw(topology, task, f"worker {leave.slot} stays")
        away = [task for task in moved if topology.places[task].slot != leave.slot]
        back = Cause(f"worker {leave.slot} stays", why)
        return [*commands, *(self._handovers.request(topology, dict.fromkeys(away, leave.slot), back) if away else [])]

    def _wake(self, leave: Leave) -> None:
        """Let spouts continue that wait for this worker; an assignment follows."""
        others = [other for other in self._leaves.values() if other is not leave and other.phase in (REST, CLEAR, STOP)]
        for topology in self._master.topologies.values():
            topology.resting = topology.resting and any(self._staying(topology, other.slot) for other in others)

    # -- places --------------------------------------------------------------------------------------------------------

    def _others(self, slot: int) -> list[int]:
        return [other for other in self._master.workers if other != slot and other not in self.closed]

    def _tasks_on(self, slot: int) -> tuple[TaskId, ...]:
        """Its tasks, of all topologies."""
        return tuple(dict.fromkeys(task for topology in self._master.topologies.values()
                                   for task, place in topology.places.items() if place.slot == slot))

    def _staying(self, topology: TopologyState, slot: int) -> list[TaskId]:
        """Its tasks there that cannot be handed over; all of them if there is no other worker."""
        alone = not self._others(slot)
        return [task for task, place in topology.places.items()
                if place.slot == slot and (alone or not topology.graph.movable(task))]


def _idle(topology: TopologyState, task: TaskId) -> bool:
    """True if no move of the task is under way or waits."""
    return task not in topology.handover.waiting and topology.handover.moving(task) is None


def _evacuees(topology: TopologyState, leave: Leave) -> list[TaskId]:
    """The tasks whose places the evacuation has chosen, and nobody has changed since. A loss may have taken them elsewhere, but
    it does not change their homes."""
    return [task for task, slot in sorted(leave.moved.get(topology.number, {}).items()) if task in topology.places
            and topology.homes.get(task) in (slot, leave.slot)]


def _arriving(topology: TopologyState, slot: int) -> list[TaskId]:
    """Tasks whose move to the slot can still be withdrawn."""
    waiting = [task for task, wanted in topology.handover.waiting.items() if wanted.slot == slot]
    if topology.handover.phase == SWITCH:
        return waiting
    return waiting + [moving.task for moving in topology.handover.batch if moving.new.slot == slot]
