"""Applies changes of plan to running topologies: accepted plans of a scheduler, moved tasks, rescaled components, and tasks
that return to a worker that is back.

On resident workers, tasks are handed over while the stream runs. A topology that runs in batches changes with its next batch.
schedule_generator.py decides when to run a scheduler, plan_acceptance.py whether to accept its plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from millrace.control.assignment import SWITCH, Place
from millrace.control.events import Command, Distribute, Moved, Rebalanced, Regrouped, Replanned, Rescaled, Say, Withdrawn
from millrace.control.moves import (
    BY_HANDOVER,
    PERSON,
    RETURN,
    SCHEDULER,
    Cause,
    tasks_in,
)
from millrace.control.moving.handover import HandoverControl, tasks_of
from millrace.control.moving.migrating import MigrationControl
from millrace.control.moving.rescaling import RescalingControl, regrouped
from millrace.control.strategies import catalogue
from millrace.control.strategies.steps import Replace
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING
from millrace.control.wording import counts_named, groups_named, parts_word, tasks_named, workers_named
from millrace.control.workers import WorkerView
from millrace.errors import StalePlan, TopologyError, UnknownName
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.rescaling import rescaled
from millrace.schedulers.base import CannotPlace, NewPlan, SchedulingResult

CANCELLED_BY_PERSON = "a person cancelled it"


class PlannedTopologies(Protocol):
    """The part of the master's state that plan changes use."""

    topologies: dict[str, TopologyState]
    workers: dict[int, WorkerView]

    @property
    def closed(self) -> frozenset[int]:
        """Slots of workers that are being removed or restarted."""

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; `UnknownTopology` if there is none."""

    def load(self, name: str) -> Load:
        """The load of a topology as of the last window; an empty one if nothing was measured."""

    def placed(self, graph: TopologyGraph, plan: Plan) -> SchedulingResult:
        """Slots for the tasks of the graph that the plan has none for."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


class PlanChanges:
    """Every method returns the commands to carry out, or raises without changing anything."""

    def __init__(self, master: PlannedTopologies, handovers: HandoverControl, migrations: MigrationControl,
                 rescalings: RescalingControl) -> None:
        self._master, self._handovers, self._migrations, self._rescalings = master, handovers, migrations, rescalings

    # -- events --------------------------------------------------------------------------------------------------------

    def moved(self, event: Moved) -> list[Command]:
        catalogue.check_parameters(catalogue.strategy_named(event.strategy), event.parameters)
        topology, workers = self._master.topology(event.name), self._master.workers
        topology.check_free()
        if event.task not in topology.places:
            siblings = [str(task) for task in sorted(topology.places) if task.component == event.task.component]
            raise UnknownName(f"{event.name!r} has no running task {event.task}; it has "
                              f"{', '.join(siblings) or ', '.join(sorted({task.component for task in topology.places}))}")
        if event.slot not in workers:
            raise UnknownName(f"there is no worker {event.slot}; there are {', '.join(map(str, sorted(workers)))}")
        source = topology.places[event.task].slot
        if event.slot in self._master.closed and source != event.slot:
            raise TopologyError(f"worker {event.slot} is being removed or restarted: move {event.task} to another worker, or "
                                "try again later")
        if fixed := topology.graph.why_fixed(event.task):
            raise TopologyError(f"{event.task} cannot be moved: {fixed}")
        moving = topology.handover.moving(event.task)
        if moving is not None and (source != event.slot or moving.new.slot == event.slot):
            cancel = f", or cancel that by a move to worker {source}" if topology.handover.phase != SWITCH else ""
            raise TopologyError(f"{event.task} is being moved to worker {moving.new.slot}. Try again when it has arrived"
                                f"{cancel}")
        if source == event.slot:
            return [Say(f"{event.task} is already on worker {event.slot}", event.name, cause=PERSON, tasks=(event.task,)),
                    *self._handovers.withdraw(topology, event.task, "you moved it to the worker where it already is")]
        _check_changeable(topology)
        if event.strategy != BY_HANDOVER:
            return self._migrations.requested(Rebalanced(event.name, {event.task: event.slot}, event.strategy,
                                                         event.parameters))
        enacted = self._enact(topology, {event.task: event.slot}, Cause(PERSON))
        when = _when(topology) if event.task in topology.handover.waiting else ""
        return [Say(f"{event.task} moves from worker {source} to worker {event.slot}{when}", event.name, cause=PERSON,
                    tasks=(event.task,)), *enacted, self._master.distribute()]

    def withdrawn(self, event: Withdrawn) -> list[Command]:
        topology = self._master.topology(event.name)
        handover, task, migration = topology.handover, event.task, topology.migration
        if topology.batched:
            raise TopologyError(f"{event.name!r} runs in batches, and a move takes effect with the next one, so there is none "
                                "to cancel. To undo it, move the task back with `millrace move`, or its key groups with "
                                "`millrace regroup`")
        if migration is not None:
            if task not in migration.moves:
                raise TopologyError(f"{task} of {event.name!r} is not being moved; being moved by {migration.strategy}: "
                                    f"{tasks_named(sorted(migration.moves))}")
            if migration.rebalance_began is not None:
                raise TopologyError(f"the migration of {event.name!r} by {migration.strategy} has ended tasks already, so it "
                                    "cannot be cancelled. Move them back when it is over")
            return self._migrations.cancel(topology, CANCELLED_BY_PERSON)
        moving, groups = handover.moving(task), handover.groups_leaving(task)
        waiting = handover.groups_waiting(task, topology.key_groups)
        if moving is None and task not in handover.waiting and not groups and not waiting:
            under_way = {*tasks_in(handover.batch), *handover.waiting, *(TaskId(name, topology.key_groups[name][group])
                                                                         for name, group in handover.regrouping)}
            parts = parts_word([task.component], topology.graph.splits)
            raise TopologyError(f"{task} of {event.name!r} is not being moved, and neither are {parts} of it; being moved: "
                                f"{tasks_named(sorted(under_way)) or 'none'}")
        if handover.phase == SWITCH and (moving is not None or groups):
            if moving is not None:
                raise TopologyError(f"{task} has begun to switch to worker {moving.new.slot}, which cannot be cancelled. Move "
                                    f"it back to worker {moving.old.slot} when it has arrived")
            switching = [(task.component, group) for each in groups for group in each.groups]
            one, named = len(switching) == 1, groups_named(switching, topology.graph.splits)
            raise TopologyError(f"{named} {'has' if one else 'have'} begun to switch, which cannot be cancelled. "
                                f"Give {'it back when it has' if one else 'them back when they have'} arrived")
        return [*self._handovers.withdraw(topology, task, CANCELLED_BY_PERSON),
                *self._handovers.withdraw_groups(topology, task, CANCELLED_BY_PERSON)]

    def regrouped(self, event: Regrouped) -> list[Command]:
        topology = self._master.topology(event.name)
        topology.check_free()
        check_groups(topology, event.component, event.owners)
        _check_changeable(topology)
        before = topology.handover.owners_to_be(event.component, topology.key_groups[event.component])
        changed = {group: owner for group, owner in event.owners.items() if before[group] != owner}
        if not changed:
            parts = parts_word([event.component], topology.graph.splits)
            return [Say(f"{event.component} has these {parts} where they are wanted already", event.name, cause=PERSON)]
        moves = {(event.component, group): owner for group, owner in changed.items()}
        targets = tasks_named(sorted({TaskId(event.component, owner) for owner in changed.values()}))
        named, tasks = groups_named(moves, topology.graph.splits), tasks_of(topology, moves)
        what = f"{named} {'goes' if len(moves) == 1 else 'go'} to {targets}"
        if topology.batched:
            owners = tuple(changed.get(group, owner) for group, owner in enumerate(before))
            _take_plan(topology, topology.graph, topology.plan.placement, {**topology.key_groups, event.component: owners})
            return [Say(f"{what} from the next batch on", event.name, cause=PERSON, tasks=tasks), self._master.distribute()]
        return [Say(f"{what}{_when(topology)}", event.name, cause=PERSON, tasks=tasks),
                *self._handovers.regroup(topology, moves, Cause(PERSON))]

    def replanned(self, event: Replanned) -> list[Command]:
        """Apply all plans or none: they were made together."""
        plans = {name: _caught_up(self._master.topology(name), plan, event.based_on.get(name))
                 for name, plan in event.plans.items()}
        restarted: dict[str, set[int]] = {}
        for name, plan in plans.items():
            self._check_plan(self._master.topology(name), plan)
            if event.strategy != BY_HANDOVER and not self._master.topology(name).batched:
                _, steps = self._migrations.planned(Rebalanced(name, plan.placement, event.strategy, event.parameters))
                restarted[name] = {slot for step in steps if isinstance(step, Replace) for slot in step.restart}
        self._check_apart(plans, restarted)
        commands: list[Command] = []
        for name, plan in plans.items():
            topology = self._master.topologies[name]
            if topology.batched:
                commands += self._replan_batches(topology, plan, event.reason)
                continue
            cause = Cause(SCHEDULER, f"decision {event.decision}, {event.reason}" if event.decision else event.reason)
            commands += self._handovers.overtake(topology, plan)
            moving_tasks, moving_groups = topology.handover.under_way(plan)
            groups = {(move.component, move.key_group): move.new for move in Plan.diff(topology.plan, plan).key_groups
                      if (move.component, move.key_group) not in moving_groups}
            moves = {task: slot for task, slot in plan.placement.items()
                     if topology.places[task].slot != slot and task not in moving_tasks}
            if moves and event.strategy != BY_HANDOVER:
                commands += self._migrations.requested(Rebalanced(name, moves, event.strategy, event.parameters, cause))
            if groups:
                named = groups_named(groups, topology.graph.splits)
                commands += [Say(f"{named} reassigned: {event.reason}", name, cause=str(cause),
                                 tasks=tasks_of(topology, groups)),
                             *self._handovers.regroup(topology, groups, cause)]
            if moves and event.strategy == BY_HANDOVER:
                what = f"{tasks_named(sorted(moves))} moved to {workers_named(moves.values())}"
                commands += [Say(f"{what}: {event.reason}", name, cause=str(cause), tasks=tuple(sorted(moves))),
                             *self._enact(topology, moves, cause)]
        return [*commands, self._master.distribute()] if commands else []

    def rescaled(self, event: Rescaled) -> list[Command]:
        """Change the number of tasks, for all components named or none."""
        topology = self._master.topology(event.name)
        if not topology.batched:
            return self._rescalings.requested(event)
        graph = rescaled(topology.graph, event.par)
        _check_changeable(topology)
        if graph is topology.graph:
            return [Say(f"already has {counts_named(event.par)}", event.name)]
        stay = {task: place.slot for task, place in topology.places.items() if task in set(graph.tasks())}
        result = self._master.placed(graph, Plan(topology.version, stay, topology.key_groups))
        if isinstance(result, CannotPlace):
            raise TopologyError(f"{event.name!r} cannot have {counts_named(event.par)}, and stays as it is: {result.reason}")
        placement = result.plans[event.name].placement if isinstance(result, NewPlan) else stay
        changed = {name: par for name, par in event.par.items() if par != topology.graph.component(name).par}
        owners = regrouped(topology, changed, self._master.load(event.name))
        _take_plan(topology, graph, placement, {**topology.key_groups, **owners})
        return [Say(f"{counts_named(event.par)} from the next batch on", event.name, cause=str(event.cause)),
                self._master.distribute()]

    def move_home(self, topology: TopologyState, slot: int) -> list[Command]:
        """Return tasks to the slot that they had to leave, so that it is used again. Those that cannot be moved, or are on
        their way, stay where they are."""
        if topology.status not in (RUNNING, PAUSED, STARTING):
            return []
        handover = topology.handover
        returning = [task for task, place in topology.places.items()
                     if topology.homes.get(task) == slot and place.slot != slot and topology.graph.movable(task)
                     and task not in handover.waiting and handover.moving(task) is None]
        if not returning:
            return []
        cause = Cause(RETURN, f"worker {slot} is back")
        return [Say(f"worker {slot} is back: {tasks_named(returning)} moved there", topology.graph.name, cause=str(cause),
                    tasks=tuple(returning)),
                *self._enact(topology, dict.fromkeys(returning, slot), cause)]

    # -- checks and changes --------------------------------------------------------------------------------------------

    def _check_plan(self, topology: TopologyState, plan: Plan) -> None:
        """Refuse a plan for workers that are gone, or of moves that cannot be."""
        name = topology.graph.name
        gone = sorted({slot for slot in plan.placement.values() if slot not in self._master.workers
                       or slot in self._master.closed})
        stuck = sorted(task for task, slot in plan.placement.items() if task in topology.places
                       and topology.places[task].slot != slot and not topology.graph.movable(task))
        if stuck:
            raise TopologyError(f"the plan for {name!r} moves {stuck[0]}: {topology.graph.why_fixed(stuck[0])}")
        for component, owners in plan.key_groups.items():
            if owners != topology.key_groups.get(component, owners) and (fixed := topology.graph.why_groups_fixed(component)):
                raise TopologyError(f"the plan for {name!r} reassigns key groups of {component!r}: {fixed}")
        graph = rescaled(topology.graph, plan.parallelism) if topology.batched else topology.graph
        if gone or set(plan.placement) != set(graph.tasks()) or len(topology.places) != len(topology.graph.tasks()):
            lost = ", ".join(map(str, gone))
            mismatch = f"places tasks on lost workers ({lost})" if gone else "does not match the running tasks"
            raise StalePlan(f"the plan for {name!r} {mismatch}: it is discarded. Run the scheduler again")

    def _check_apart(self, plans: Mapping[str, Plan], restarted: Mapping[str, set[int]]) -> None:
        """Refuse plans of which one restarts workers to which another one moves tasks. `restarted`: slots, by topology."""
        for name, plan in plans.items():
            places = self._master.topologies[name].places
            taken = {slot for task, slot in plan.placement.items() if task not in places or places[task].slot != slot}
            for other, slots in restarted.items():
                if other != name and (shared := sorted(slots & taken)):
                    raise TopologyError(f"worker {shared[0]} would be restarted for {other!r}, and tasks of {name!r} are to "
                                        "move there: use a strategy that restarts no worker, for example handover")

    def _enact(self, topology: TopologyState, moves: Mapping[TaskId, int], cause: Cause) -> list[Command]:
        """Move the tasks: with the next batch, or by hand-over."""
        if not topology.batched:
            return self._handovers.request(topology, moves, cause)
        topology.version += 1
        for task, slot in moves.items():
            topology.homes[task] = slot
            topology.places[task] = Place(slot, topology.version)
        return []

    def _replan_batches(self, topology: TopologyState, plan: Plan, reason: str) -> list[Command]:
        changed = Plan.diff(topology.plan, plan)
        if not changed:
            return []
        _take_plan(topology, rescaled(topology.graph, plan.parallelism), plan.placement, plan.key_groups)
        what = [f"{tasks_named(tasks)} {how}" for tasks, how in ((changed.moved, "moved"), (changed.started, "started"),
                                                                 (changed.stopped, "stopped")) if tasks]
        what += [f"{len(changed.key_groups)} key groups reassigned"] if changed.key_groups else []
        return [Say(f"{', '.join(what)}, from the next batch on: {reason}", topology.graph.name, cause=reason,
                    tasks=tuple(sorted({*changed.moved, *changed.started, *changed.stopped})))]


def _caught_up(topology: TopologyState, plan: Plan, based_on: int | None) -> Plan:
    """The plan with the moves that were carried out while it was made. Refused if anything else has changed meanwhile."""
    _check_changeable(topology)
    caught_up = topology.handover.caught_up(plan, based_on, topology.plan) if based_on is not None else None
    if caught_up is None:
        raise StalePlan(f"{topology.graph.name!r} is now at version {topology.version}, and the plan was made for version "
                        f"{based_on}: it is discarded. Run the scheduler again")
    return caught_up


def check_groups(topology: TopologyState, component: str, owners: Mapping[int, int]) -> None:
    """Raise `UnknownName` or `TopologyError` unless these key groups can be given to these tasks."""
    definition = topology.graph.component(component)  # UnknownName if there is none
    if component not in topology.key_groups:
        keyed = ", ".join(sorted(topology.key_groups)) or "none"
        what, why = (("splits", "it is declared without them") if definition.kind == "spout" else
                     ("key groups", "no fields grouping leads to it"))
        raise TopologyError(f"{component!r} has no {what}, because {why}; components that have some: {keyed}")
    parts = parts_word([component], topology.graph.splits)
    if fixed := topology.graph.why_groups_fixed(component):
        raise TopologyError(f"{parts} of {component!r} cannot go to other tasks: {fixed}")
    count = len(topology.key_groups[component])
    for group, owner in owners.items():
        if not 0 <= group < count:
            raise UnknownName(f"{component!r} has no {parts.removesuffix('s')} {group}; it has 0 to {count - 1}")
        if not 0 <= owner < definition.par:
            raise UnknownName(f"{component!r} has no task {owner}; it has 0 to {definition.par - 1}")


def _when(topology: TopologyState) -> str:
    """The words for a hand-over that begins later, because the topology is starting; empty if it is not."""
    return " when the topology runs" if topology.status == STARTING else ""


def _check_changeable(topology: TopologyState) -> None:
    topology.check_free()
    if topology.status not in (STARTING, RUNNING, PAUSED):
        raise TopologyError(f"topology {topology.graph.name!r} is {topology.status}: its tasks can be moved or rescaled only "
                            "while it runs or is paused")


def _take_plan(topology: TopologyState, graph: TopologyGraph, placement: Mapping[TaskId, int],
               key_groups: Mapping[str, tuple[int, ...]]) -> None:
    """Use the plan from the next batch on. Tasks that stay keep their incarnation."""
    topology.version += 1
    before = topology.places
    topology.places = {task: before[task] if task in before and before[task].slot == slot else Place(slot, topology.version)
                       for task, slot in placement.items()}
    topology.homes = {task: place.slot if place.incarnation == topology.version else topology.homes.get(task, place.slot)
                      for task, place in topology.places.items()}
    topology.graph, topology.key_groups = graph, dict(key_groups)
