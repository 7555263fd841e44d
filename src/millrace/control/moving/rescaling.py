"""Changes the number of tasks of running components: tasks are added and get key groups by hand-over, or give theirs away and
end. `control/scaling.py` describes the phases.

Nothing is routed to a task that is added before every worker knows it and it has started, so no worker gets chunks of a sender
that it has never heard of, and no wave misses one. A task that ends has given its key groups away, gets nothing more from
anyone, and has processed what it had; only then is it taken out of the topology.

A change that fails ends with the numbers of tasks that it has reached: every key group has an owner at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from millrace.config import HANDOVER_PREPARE_LIMIT
from millrace.control.assignment import Place
from millrace.control.events import Command, Distribute, Migrated, Rescaled, Say
from millrace.control.migrations import CANCELLED, COMPLETED, ROLLED_BACK, Migration
from millrace.control.moves import GroupId
from millrace.control.moving.handover import HandoverControl
from millrace.control.pauses import doubled_pause
from millrace.control.scaling import BY_SCALING, GROW, HOLD, REGROUP, RETIRE, Scaling
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STOPPING
from millrace.control.waves import IDLE
from millrace.control.wording import counts_named, groups_named, parts_word, tasks_named, workers_named
from millrace.errors import NoRoom, TopologyError
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import SAMPLED, Load
from millrace.model.plan import Plan
from millrace.model.rescaling import rescaled
from millrace.schedulers.base import CannotPlace, NewPlan, SchedulingResult
from millrace.schedulers.redistribution import redistributed

MOST_TRIES = 5  # to hand over key groups, or to let tasks retire
FIRST_PAUSE, LAST_PAUSE = 0.5, 10.0  # seconds between two of them


class RescaledTopologies(Protocol):
    """The part of the master's state that changes of parallelism use."""

    topologies: dict[str, TopologyState]
    revision: int

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; `UnknownTopology` if there is none."""

    def load(self, name: str) -> Load:
        """The load of a topology as of the last window; an empty one if nothing was measured."""

    def placed(self, graph: TopologyGraph, plan: Plan) -> SchedulingResult:
        """Slots for the tasks of the graph that the plan has none for."""

    def all_at(self, revision: int) -> bool:
        """True if every worker has carried out the revision."""

    def admit(self, topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
        """Let further tasks, which start without state, take part in the waves."""

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""


class RescalingControl:
    """Every method returns the commands to carry out. `now` is the time of the last event."""

    def __init__(self, master: RescaledTopologies, handovers: HandoverControl) -> None:
        self._master, self._handovers = master, handovers
        self.now = 0.0

    # -- requests ------------------------------------------------------------------------------------------------------

    def requested(self, event: Rescaled) -> list[Command]:
        """Begin to change the numbers of tasks, for all components named or none."""
        topology = self._master.topology(event.name)
        rescaled(topology.graph, event.par)  # raises if a component cannot have that many tasks
        topology.check_free()
        before = {name: topology.graph.component(name).par for name in event.par}
        wanted = {name: par for name, par in event.par.items()
                  if par != before[name] or _without_groups(topology.key_groups.get(name), par)}
        if not wanted:
            return [Say(f"already has {counts_named(event.par)}", event.name, cause=str(event.cause))]
        self._check_alone(topology)
        self._places_for(topology, _grown(topology.graph, wanted), counts_named(wanted))
        owners = regrouped(topology, wanted, self._master.load(event.name))
        topology.scaling = Scaling({name: before[name] for name in wanted}, wanted, owners, event.cause, self.now,
                                   topology.version, sum(topology.in_flight.values()), entered=self.now, since=self.now)
        changes = ", ".join(f"{name} from {before[name]} to {par}" if par != before[name] else
                            f"{name} to all of its {par}" for name, par in sorted(wanted.items()))
        return [Say(f"scales {changes} tasks", event.name, cause=str(event.cause)), *self._go_on(topology)]

    def _check_alone(self, topology: TopologyState) -> None:
        name = topology.graph.name
        if topology.status not in (RUNNING, PAUSED):
            raise TopologyError(f"topology {name!r} is {topology.status}: it can be scaled only while it runs or is paused. "
                                "Try again when it does")
        if not topology.handover.at_rest:
            raise TopologyError(f"tasks or key groups of {name!r} are being moved: scale it when they have arrived (millrace "
                                "moves shows them)")

    def _places_for(self, topology: TopologyState, graph: TopologyGraph, what: str) -> Mapping[TaskId, int]:
        """Slots for all tasks of the graph; those that run stay where they are."""
        stay = {task: place.slot for task, place in topology.places.items()}
        result = self._master.placed(graph, Plan(topology.version, stay, topology.key_groups))
        if isinstance(result, CannotPlace):
            raise NoRoom(f"{graph.name!r} cannot have {what}, and stays as it is: {result.reason}")
        return result.plans[graph.name].placement if isinstance(result, NewPlan) else stay

    # -- events --------------------------------------------------------------------------------------------------------

    def advance(self) -> list[Command]:
        """Go on with the changes that an event may have helped."""
        return [command for topology in list(self._master.topologies.values()) if topology.scaling is not None
                for command in self._go_on(topology)]

    def ended(self, topology: TopologyState, how: str) -> list[Command]:
        """The record of a change that is under way in a topology that ends."""
        return [] if topology.scaling is None else [self._record(topology, CANCELLED, f"the topology ended: {how}")]

    # -- phases --------------------------------------------------------------------------------------------------------

    def _go_on(self, topology: TopologyState) -> list[Command]:
        """Do everything that need not wait."""
        commands: list[Command] = []
        while (scaling := topology.scaling) is not None:
            if topology.status == STOPPING:
                return [*commands, *self._stop(topology, scaling, "the topology is being killed")]
            if topology.status not in (RUNNING, PAUSED):  # tasks are restored first
                scaling.since = self.now
                return commands
            done, more = self._phase(topology, scaling)
            commands += more
            if not done:
                return commands
        return commands

    def _phase(self, topology: TopologyState, scaling: Scaling) -> tuple[bool, list[Command]]:
        match scaling.phase:
            case "hold":
                return self._hold(topology, scaling)
            case "grow":
                return self._grow(topology, scaling)
            case "regroup":
                return self._regroup(topology, scaling)
            case _:
                return self._retire(topology, scaling)

    def _hold(self, topology: TopologyState, scaling: Scaling) -> tuple[bool, list[Command]]:
        """Wait until no wave is under way, if tasks are to be added."""
        new = _added(topology.graph, scaling.wanted)
        if not new:
            scaling.enter(REGROUP, self.now)
            return True, []
        if topology.waves is not None:
            topology.waves.held = True
            if topology.waves.phase != IDLE:
                return self._too_long(topology, scaling, "a wave was not over")
        try:
            placement = self._places_for(topology, _grown(topology.graph, scaling.wanted), counts_named(scaling.wanted))
        except TopologyError as error:
            return True, self._stop(topology, scaling, str(error))
        topology.graph = _grown(topology.graph, scaling.wanted)
        topology.version += 1
        for task in new:
            topology.places[task] = Place(placement[task], topology.version)
            topology.homes[task] = placement[task]
        scaling.joining = tuple(new)
        scaling.enter(GROW, self.now)
        commands: list[Command] = [
            Say(f"{tasks_named(new)} started on {workers_named(placement[task] for task in new)}", topology.graph.name,
                cause=str(scaling.cause), tasks=tuple(new)), self._master.distribute()]
        scaling.revision = self._master.revision
        return False, commands

    def _grow(self, topology: TopologyState, scaling: Scaling) -> tuple[bool, list[Command]]:
        """Wait until every worker knows the new tasks and they have started, then route tuples to them."""
        if not self._master.all_at(scaling.revision):
            return self._too_long(topology, scaling, "not all workers carried out the plan with the new tasks")
        admitted: list[Command] = []
        if topology.waves is not None and not scaling.admitted:
            scaling.admitted = True
            if not set(scaling.joining) <= set(topology.waves.tasks):  # else a roll-back has started them
                admitted = self._master.admit(topology, scaling.joining)
        up = topology.waves.phase == IDLE if topology.waves is not None else not any(topology.starting.values())
        if not up:
            done, more = self._too_long(topology, scaling, f"{tasks_named(scaling.joining)} did not start")
            return done, [*admitted, *more]
        topology.version += 1
        scaling.enter(REGROUP, self.now)
        if topology.waves is not None:
            topology.waves.held = False
        return True, [*admitted, self._master.distribute()]

    def _regroup(self, topology: TopologyState, scaling: Scaling) -> tuple[bool, list[Command]]:
        """Hand the key groups over to their new owners."""
        if not topology.handover.at_rest:
            return False, []
        left: dict[GroupId, int] = {
            (name, group): owner for name, owners in scaling.owners.items() for group, owner in enumerate(owners)
            if topology.key_groups[name][group] != owner}
        if not left:
            scaling.enter(RETIRE, self.now)
            return True, []
        if self._tried_enough(scaling):
            return True, self._stop(topology, scaling, f"{groups_named(left, topology.graph.splits)} not handed over")
        if not self._tries_again(scaling):
            return False, []
        return False, self._handovers.regroup(topology, left, scaling.cause)

    def _retire(self, topology: TopologyState, scaling: Scaling) -> tuple[bool, list[Command]]:
        """Let the tasks end that are too many."""
        if not topology.handover.at_rest:
            return False, []
        left = _surplus(topology.graph, scaling.wanted)
        if not left:
            return True, self._complete(topology, scaling)
        if self._tried_enough(scaling):
            return True, self._stop(topology, scaling, f"{tasks_named(left)} did not end")
        if not self._tries_again(scaling):
            return False, []
        return False, self._handovers.retire(topology, left, scaling.cause)

    def _tries_again(self, scaling: Scaling) -> bool:
        """True if it is time for another try, which is counted then."""
        if self.now < scaling.not_before:
            return False
        scaling.tries += 1
        scaling.not_before = self.now + doubled_pause(scaling.tries, FIRST_PAUSE, LAST_PAUSE)
        return True

    def _tried_enough(self, scaling: Scaling) -> bool:
        return scaling.tries >= MOST_TRIES and self.now >= scaling.not_before

    def _too_long(self, topology: TopologyState, scaling: Scaling, what: str) -> tuple[bool, list[Command]]:
        limit = HANDOVER_PREPARE_LIMIT.of(topology.graph.config)
        if self.now - scaling.since <= limit:
            return False, []
        return True, self._stop(topology, scaling, f"{what} within {HANDOVER_PREPARE_LIMIT.key} = {limit:g}")

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _complete(self, topology: TopologyState, scaling: Scaling) -> list[Command]:
        seconds = self.now - scaling.began
        moved, names = scaling.key_groups_moved, {move.task.component for move in scaling.handed_over}
        groups = f", {moved} {parts_word(names, topology.graph.splits, moved)} handed over" if moved else ""
        record = self._record(topology, COMPLETED, "")
        if topology.waves is not None:
            topology.waves.request(self.now)  # a resumed run is to have these numbers of tasks
        return [Say(f"now has {counts_named(scaling.wanted)}, in {seconds:.1f} s{groups}", topology.graph.name,
                    cause=str(scaling.cause)), record, *self._handovers.begin(topology), self._master.distribute()]

    def _stop(self, topology: TopologyState, scaling: Scaling, why: str) -> list[Command]:
        """End the change where it is. Tasks that nothing was routed to yet end at once."""
        reason = f"{why}: {scaling.trouble}" if scaling.trouble else why
        dropped = [task for task in scaling.joining if scaling.phase == GROW]
        topology.handover.retiring.clear()
        if dropped:
            topology.remove(dropped)
        if topology.waves is not None and scaling.phase in (HOLD, GROW):
            topology.waves.held = False
        now_has = {name: topology.graph.component(name).par for name in scaling.wanted}
        outcome = ROLLED_BACK if scaling.disturbed or now_has != scaling.before or scaling.handed_over else CANCELLED
        record = self._record(topology, outcome, reason)
        return [Say(f"not scaled to {counts_named(scaling.wanted)}, and has {counts_named(now_has)}: {reason}",
                    topology.graph.name, "warning", reason), record, *self._handovers.begin(topology),
                self._master.distribute()]

    def _record(self, topology: TopologyState, outcome: str, reason: str) -> Migrated:
        """The record of the change, which ends now."""
        scaling, topology.scaling = topology.scaling, None
        assert scaling is not None
        phases = (*scaling.done, (scaling.phase, self.now - scaling.entered))
        return Migrated(Migration(
            topology.graph.name, BY_SCALING, str(scaling.cause), outcome, reason, scaling.from_version, topology.version,
            scaling.began, scaling.switched, self.now, tuple(scaling.handed_over), scaling.in_flight,
            {name: float(par) for name, par in scaling.wanted.items()}, phases))


def regrouped(topology: TopologyState, wanted: Mapping[str, int], load: Load) -> dict[str, tuple[int, ...]]:
    """The owners of the key groups and splits of these components, if they have so many tasks."""
    sampled = 1 if topology.batched else SAMPLED
    return {name: redistributed(groups, wanted[name], load.key_groups.get(name, ()), sampled)
            for name, groups in topology.key_groups.items() if name in wanted}


def _grown(graph: TopologyGraph, wanted: Mapping[str, int]) -> TopologyGraph:
    """The graph with the tasks that are to be added; none ends yet."""
    return graph.with_par({name: max(par, graph.component(name).par) for name, par in wanted.items()})


def _added(graph: TopologyGraph, wanted: Mapping[str, int]) -> list[TaskId]:
    there = set(graph.tasks())
    return [task for task in _grown(graph, wanted).tasks() if task not in there]


def _without_groups(owners: Sequence[int] | None, par: int) -> bool:
    """True if some of these tasks own nothing, as after a change that was given up before all key groups were handed over."""
    return owners is not None and not set(range(par)) <= set(owners)


def _surplus(graph: TopologyGraph, wanted: Mapping[str, int]) -> Sequence[TaskId]:
    """The tasks beyond the numbers wanted."""
    return [task for task in graph.tasks() if task.index >= wanted.get(task.component, task.index + 1)]
