"""The moves of one topology: those that wait, and the batch that is handed over. `handover.py` decides about them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.config import HANDOVER_BATCH, HANDOVER_MB
from millrace.control.assignment import ARM, SWITCH, Move, Place, SplitStart
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.plan import Plan

MB = 1_000_000
RESTING, REFRESH = "resting", "refresh"  # the other phases are those of a `Move`
PHASES = (ARM, REFRESH, SWITCH)
PLANS_KEPT = 16  # of those that moves have changed: two for each batch


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a move or another change: a person, a scheduler or the elastic loop with its decision, the loss of a worker,
    its return, or that it stays."""

    who: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.who}: {self.why}" if self.why else self.who


PERSON, SCHEDULER, ELASTIC, LOSS, RETURN = "person", "scheduler", "elastic", "loss", "return"
BY_PERSON = Cause(PERSON)
BY_HANDOVER, BY_ROLLBACK = "handover", "rollback"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A move that waits."""

    slot: int
    cause: Cause


GroupId = tuple[str, int]  # component and key group


@dataclass(frozen=True, slots=True)
class Regrouping:
    """A key group that waits for its new owner."""

    owner: int
    cause: Cause


@dataclass(slots=True)
class Moving:
    """One move of the batch. `armed`: the wave whose state its new incarnation has; -1: none yet."""

    number: int
    task: TaskId
    target: TaskId  # the task itself, unless only key groups move
    old: Place
    new: Place
    cause: Cause
    groups: tuple[int, ...] = ()
    armed: int = -1
    trouble: str = ""  # why it could not be armed so far
    taken: bool = False
    sources: tuple[tuple[TaskId, int], ...] = ()
    copied_bytes: int = 0
    delta_bytes: int = 0
    pause: float = 0.0  # seconds in which no incarnation worked
    retires: bool = False  # the task ends, and nobody takes over
    splits: bool = False  # the groups are splits of a spout
    starts: dict[int, SplitStart] = field(default_factory=dict)  # as in `Move`, once the old owner has stopped
    ready: bool = False  # the new owner can read them

    @property
    def tasks(self) -> tuple[TaskId, ...]:
        """The tasks that take part in it."""
        return (self.task,) if self.target == self.task else (self.task, self.target)

    @property
    def at_stake(self) -> tuple[TaskId, ...]:
        """The tasks that are lost if it fails after it has switched. By then, splits do not need their old owner any more."""
        return (self.target,) if self.splits else self.tasks

    def touches(self, slot: int, switched: bool) -> bool:
        """True if the move fails when the worker of this slot is lost."""
        return slot == self.new.slot or (slot == self.old.slot and not (self.splits and switched))

    def arm_splits(self, starts: Mapping[int, SplitStart]) -> None:
        """Note that the old owner has stopped reading its splits, or, without `starts`, that the new one can read them."""
        self.starts = dict(starts) or self.starts
        self.ready = self.ready or not starts
        self.armed = 0 if self.starts and self.ready else -1

    def is_in(self, plan: Plan) -> bool:
        """True if the plan wants this move."""
        if self.groups:
            return all(plan.key_groups[self.task.component][group] == self.target.index for group in self.groups)
        return plan.placement[self.task] == self.new.slot

    def stays_in(self, plan: Plan) -> bool:
        """True if the plan wants everything to stay where it is."""
        if self.groups:
            return all(plan.key_groups[self.task.component][group] == self.task.index for group in self.groups)
        return plan.placement[self.task] == self.old.slot

    def involved(self, graph: TopologyGraph, places: Mapping[TaskId, Place]) -> dict[int, set[TaskId]]:
        """The tasks, by slot, that must work for the move to switch: both incarnations or owners, the senders, whose marks are
        awaited, and everything downstream, because full channels there keep the old incarnation from working off its input."""
        by_slot: dict[int, set[TaskId]] = {self.old.slot: {self.task}}
        by_slot.setdefault(self.new.slot, set()).add(self.target)
        for task in (*graph.upstream(self.task.component), *graph.all_downstream(self.task.component)):
            if task in places:
                by_slot.setdefault(places[task].slot, set()).add(task)
        return by_slot


@dataclass(slots=True)
class Handover:
    """The moves of one topology: those that wait, and the batch that is carried out."""

    waiting: dict[TaskId, Wanted] = field(default_factory=dict)
    regrouping: dict[GroupId, Regrouping] = field(default_factory=dict)
    retiring: dict[TaskId, Cause] = field(default_factory=dict)  # tasks that wait to end because there are too many
    batch: list[Moving] = field(default_factory=list)
    phase: str = RESTING
    stateful: bool = False  # some task of the batch has state
    base: tuple[int, int, int] = (0, 0, 0)  # the wave whose state the new incarnations copy, as in `Move`
    since: float = 0.0  # time when the phase began
    stopped_at: float = 0.0  # time when a task that must work for the switch was last seen in a long call
    began: float = 0.0  # time when the batch began
    from_version: int = 0  # of the plan before the batch
    in_flight: int = 0  # tuples when the batch began to switch, or began
    last_number: int = 0
    cold: bool = False  # new incarnations copy state only after the switch
    limit: float | None = None  # seconds from the switch after which old incarnations end; None: the setting
    groups_next: bool = False  # it is the turn of key groups, because tasks have moved last
    superseded: dict[int, Plan] = field(default_factory=dict)  # by version: the newest that moves alone have changed

    def supersede(self, plan: Plan) -> None:
        """Note the plan in force, which a move is about to change."""
        self.superseded[plan.version] = plan
        for version in sorted(self.superseded)[:-PLANS_KEPT]:
            del self.superseded[version]

    def caught_up(self, plan: Plan, based_on: int, current: Plan) -> Plan | None:
        """The plan as its author would have made it, had they known of the moves that began or ended since the version that it
        is based on. None if more has changed since then."""
        if based_on == current.version:
            return plan
        if not all(version in self.superseded for version in range(based_on, current.version)):
            return None
        difference = Plan.diff(self.superseded[based_on], plan)
        changed = {task: plan.placement[task] for task in difference.moved}
        for moving in self.batch:
            if moving.cause.who != SCHEDULER and not moving.groups:  # it was asked for later than the plan
                changed[moving.task] = moving.new.slot
        owners = {name: list(groups) for name, groups in current.key_groups.items()}
        for move in difference.key_groups:
            owners[move.component][move.key_group] = move.new
        placement = {task: changed.get(task, current.placement.get(task, slot)) for task, slot in plan.placement.items()}
        return Plan(plan.version, placement, {name: tuple(groups) for name, groups in owners.items()})

    def moving(self, task: TaskId) -> Moving | None:
        """The move of a task, as a whole, that is under way."""
        return next((moving for moving in self.batch if moving.task == task and not moving.groups and not moving.retires), None)

    def under_way(self, plan: Plan) -> tuple[set[TaskId], set[GroupId]]:
        """The tasks and the key groups whose moves are under way as the plan wants them."""
        wanted = [moving for moving in self.batch if moving.is_in(plan)]
        return ({moving.task for moving in wanted if not moving.groups},
                {(moving.task.component, group) for moving in wanted for group in moving.groups})

    def groups_leaving(self, task: TaskId) -> list[Moving]:
        """The moves of key groups of a task to others that are under way."""
        return [moving for moving in self.batch if moving.task == task and moving.groups]

    def groups_waiting(self, task: TaskId, owners: Mapping[str, Sequence[int]]) -> list[GroupId]:
        """The key groups of a task that wait to go to others."""
        return [(name, group) for name, group in self.regrouping if TaskId(name, owners[name][group]) == task]

    def owners_to_be(self, component: str, owners: Sequence[int]) -> list[int]:
        """The owners of a component's key groups when nothing moves or waits any more."""
        to_be = list(owners)
        for moving in self.batch:
            for group in moving.groups if moving.task.component == component else ():
                to_be[group] = moving.target.index
        for (name, group), wanted in self.regrouping.items():
            if name == component:
                to_be[group] = wanted.owner
        return to_be

    def returning_to(self) -> set[int]:
        """The slots that tasks return to, or wait to."""
        return {*(moving.new.slot for moving in self.batch if moving.cause.who == RETURN and not moving.taken),
                *(wanted.slot for wanted in self.waiting.values() if wanted.cause.who == RETURN)}

    def next_number(self) -> int:
        self.last_number += 1
        return self.last_number

    @property
    def leaving_for_good(self) -> list[TaskId]:
        """The tasks that retire, or wait to."""
        return [*self.retiring, *(moving.task for moving in self.batch if moving.retires)]

    @property
    def copies(self) -> bool:
        """True while new incarnations copy state: that of a wave must not be deleted before they have it, however many waves
        are committed meanwhile."""
        return self.stateful and self.phase in (ARM, REFRESH)

    @property
    def at_rest(self) -> bool:
        """True if nothing moves or waits to be moved."""
        return self.phase == RESTING and not self.waiting and not self.regrouping and not self.retiring

    @property
    def progress(self) -> float:
        """The share of the batch that is done, from 0 to 1; each phase counts the same."""
        if not self.batch:
            return 0.0
        done = [moving.taken if self.phase == SWITCH else moving.armed >= self.base[0] for moving in self.batch]
        return (PHASES.index(self.phase) + sum(done) / len(done)) / len(PHASES)

    def moves(self, places: Mapping[TaskId, Place]) -> list[Move]:
        """The moves as workers see them. Marks of senders that were lost meanwhile are not awaited."""
        phase = SWITCH if self.phase == SWITCH else ARM
        return [Move(moving.number, moving.task, moving.old, moving.new, phase, self.base, [
            (source, incarnation) for source, incarnation in moving.sources
            if source in places and places[source].incarnation == incarnation], moving.groups, moving.target, self.cold,
            moving.retires, moving.starts if phase == SWITCH else {}) for moving in self.batch]


def tasks_in(moves: Iterable[Moving]) -> tuple[TaskId, ...]:
    """The tasks that these moves concern, in order."""
    return tuple(sorted({task for moving in moves for task in moving.tasks}))


def at_stake(moves: Iterable[Moving]) -> tuple[TaskId, ...]:
    """The tasks that are lost if these moves fail after they have switched, in order."""
    return tuple(sorted({task for moving in moves for task in moving.at_stake}))


def connected(batch: Sequence[Moving], tasks: Iterable[TaskId]) -> list[Moving]:
    """The moves of a batch that have switched and have not been taken, and that one of these tasks takes part in, or another
    task of such a move, and so on. None of these tasks has the state that the plan says it has."""
    reached = set(tasks)
    while True:
        moves = [moving for moving in batch if not moving.taken and reached.intersection(moving.at_stake)]
        if reached.issuperset(at_stake(moves)):
            return moves
        reached.update(at_stake(moves))


def causes_of(moves: Iterable[Moving]) -> str:
    """The causes of these moves, each once."""
    return "; ".join(dict.fromkeys(str(moving.cause) for moving in moves))


@dataclass(slots=True)
class BatchLimits:
    """The number of tasks and the bytes of state that may still join a batch. The first to join may have any size."""

    tasks: float
    bytes: float
    empty: bool = True

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> BatchLimits:
        return cls(HANDOVER_BATCH.of(config) or math.inf, HANDOVER_MB.of(config) * MB or math.inf)

    def admit(self, size: int, tasks: int = 1) -> bool:
        """Let tasks or a key group of this size join, if there is room."""
        if tasks > self.tasks or (size > self.bytes and not self.empty):
            return False
        self.tasks, self.bytes, self.empty = self.tasks - tasks, self.bytes - size, False
        return True


def batch_of(graph: TopologyGraph, waiting: Iterable[TaskId], limits: BatchLimits, sizes: Mapping[TaskId, int]) -> list[TaskId]:
    """The tasks to move next: as many as the limits allow, and none together with a direct upstream of it. `sizes`: bytes of
    state."""
    order = {component.name: position for position, component in enumerate(graph.components)}
    batch: list[TaskId] = []
    components: set[str] = set()
    for task in sorted(waiting, key=lambda task: (order[task.component], task.index)):
        near = {read.source for read in graph.component(task.component).inputs}
        if near & components or not limits.admit(sizes.get(task, 0)):
            continue
        batch.append(task)
        components.add(task.component)
    return batch


def retiring_batch(graph: TopologyGraph, waiting: Iterable[TaskId], limits: BatchLimits) -> list[TaskId]:
    """The tasks that retire next: those of one component, the last ones first, as many as the limits allow."""
    order = {component.name: position for position, component in enumerate(graph.components)}
    tasks = sorted(waiting, key=lambda task: (order[task.component], -task.index))
    return [task for task in tasks if task.component == tasks[0].component and limits.admit(0)]


def group_batch(graph: TopologyGraph, owners: Mapping[str, Sequence[int]], waiting: Mapping[GroupId, Regrouping],
                limits: BatchLimits, sizes: Mapping[GroupId, int]) -> dict[tuple[str, int, int], list[int]]:
    """The key groups to move next, by component, old and new owner: as many as the limits allow, and none together with those
    of a direct upstream. All groups from one task to another count as one task. Splits of spouts, which come first, move apart
    from key groups: they need no wave. `sizes`: bytes of state."""
    components: set[str] = set()
    kinds: set[str] = set()
    batch: dict[tuple[str, int, int], list[int]] = {}
    order = {component.name: position for position, component in enumerate(graph.components)}
    for (name, group), wanted in sorted(waiting.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        route, definition = (name, owners[name][group], wanted.owner), graph.component(name)
        if {read.source for read in definition.inputs} & components or kinds - {definition.kind} \
                or not limits.admit(sizes.get((name, group), 0), tasks=0 if route in batch else 1):
            continue
        components.add(name)
        kinds.add(definition.kind)
        batch.setdefault(route, []).append(group)
    return batch
