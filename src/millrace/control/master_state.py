"""The master's state machine: the life of topologies, and the reactions to workers that join or are lost.

`MasterState.handle` is the only way to change it: the same events in the same order always give the same commands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from millrace.config import LEAVE_LIMIT, RESTART_WAIT, settings_without_effect
from millrace.control.assignment import Assignment, Place, WorkerAddress, ranges_of
from millrace.control.batch_control import BatchControl
from millrace.control.events import (
    BatchBegan,
    BatchCommitted,
    BatchesEnded,
    BatchOver,
    ChannelBroke,
    ClusterMeasured,
    Command,
    Distribute,
    ElasticChosen,
    Ended,
    Event,
    Killed,
    LoadEstimated,
    LongCallsSeen,
    ManifestStored,
    Migrated,
    MoveArmed,
    Moved,
    MoveTaken,
    Paused,
    Rebalanced,
    Regrouped,
    Replanned,
    Rescaled,
    Say,
    SchedulerChosen,
    StopWorker,
    Submitted,
    Ticked,
    Unpaused,
    WaveAcked,
    WaveRequested,
    Withdrawn,
    WorkerJoined,
    WorkerLeaves,
    WorkerLost,
    WorkerReported,
)
from millrace.control.migrations import BY_RESTART, Recovery
from millrace.control.moves import BY_ROLLBACK, LOSS, PERSON, Cause
from millrace.control.moving.handover import HandoverControl
from millrace.control.moving.migrating import MigrationControl
from millrace.control.moving.plan_changes import PlanChanges
from millrace.control.moving.rescaling import RescalingControl
from millrace.control.moving.slots import SlotControl
from millrace.control.placement_control import PlacementControl
from millrace.control.plan_parts import parts_of
from millrace.control.submission import (
    ackers_for,
    check_guarantee,
    check_not_running,
    check_settings,
    scaled_note,
    weak_points,
)
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import ENDED, PAUSED, RUNNING, STOPPING, WAITING
from millrace.control.wave_control import WaveControl, check_read
from millrace.control.waves import MOST_TIMEOUTS
from millrace.control.wording import tasks_named
from millrace.control.worker_reports import WorkerReports
from millrace.control.workers import WorkerView, agents_of, cluster_from
from millrace.errors import TopologyError, UnknownTopology
from millrace.model.cluster import Cluster
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import Scheduler, SchedulingResult
from millrace.schedulers.even import Even
from millrace.state.checkpoint import check_fit

QUIET_REPORTS = 2  # consecutive reports with nothing in flight before a topology counts as drained


class MasterState:
    """Workers, topologies and the assignment in force. `author`: this master's number among those that have written plans
    for the cluster. `call_limit`: seconds that user code may take for a chunk; 0: any time. `leave_limit`, `restart_wait`: as
    the settings of these names."""

    def __init__(self, first: Scheduler | None = None, author: int = 0, call_limit: float = 0.0,
                 leave_limit: float = LEAVE_LIMIT.default, restart_wait: float = RESTART_WAIT.default) -> None:
        self.author, self.call_limit = author, call_limit
        self.workers: dict[int, WorkerView] = {}
        self.topologies: dict[str, TopologyState] = {}
        self.measured = ClusterMeasured()
        self.agents: dict[str, int] = {}  # node -> slot of the worker whose agent keeps the node's plan store
        self.revision = 0
        self._placement = PlacementControl(self, first or Even(spread_back=False))
        self._waves = WaveControl(self)
        self._batches = BatchControl(self)
        self._handovers = HandoverControl(self)
        self._slots = SlotControl(self, self._handovers, leave_limit, restart_wait)
        self._migrations = MigrationControl(self, self._handovers, self._slots)
        self._rescalings = RescalingControl(self, self._handovers)
        self._plan_changes = PlanChanges(self, self._handovers, self._migrations, self._rescalings)
        self._reports = WorkerReports(self, self._waves, self._slots)
        self._numbers = 0

    def handle(self, event: Event, now: float | None = None) -> list[Command]:
        """Decide on an event. `now`: its time; None: that of the last tick."""
        if now is not None:
            self._handovers.now = max(now, self._handovers.now)
            self._slots.now = self._migrations.now = self._rescalings.now = self._handovers.now
        return [*self._decide(event), *self._rescalings.advance()]

    def _decide(self, event: Event) -> list[Command]:
        match event:
            case WorkerJoined():
                return [*self._joined(event), *self._migrations.advance()]
            case WorkerLost():
                return self._lost(event)
            case WorkerReported():
                return [*self._reports.reported(event, self._handovers.now), *self._handovers.advance(),
                        *self._migrations.advance()]
            case WorkerLeaves():
                return self._slots.requested(event)
            case SchedulerChosen():
                return self._sent(self._placement.chosen(event))
            case LoadEstimated():
                return self._placement.estimated(event)
            case Submitted():
                return self._submitted(event)
            case Paused():
                return self._set_paused(event.name, True)
            case Unpaused():
                return self._set_paused(event.name, False)
            case Killed():
                return self._killed(event)
            case Moved():
                return self._plan_changes.moved(event)
            case Rebalanced():
                return self._migrations.requested(event)
            case Withdrawn():
                return self._plan_changes.withdrawn(event)
            case Regrouped():
                return self._plan_changes.regrouped(event)
            case Replanned():
                return self._plan_changes.replanned(event)
            case Rescaled():
                return self._plan_changes.rescaled(event)
            case ElasticChosen():
                return self._chosen(event)
            case BatchBegan():
                return self._batches.began(event)
            case BatchCommitted():
                return self._batches.committed(event)
            case BatchOver():
                return self._batches.over(event)
            case BatchesEnded():
                return self._batches.ended(event)
            case Ticked():
                return self._ticked(event.now)
            case WaveRequested():
                return self._waves.requested(event)
            case WaveAcked():
                return [*self._waves.acked(event), *self._migrations.advance()]
            case ManifestStored():
                return [*self._waves.stored(event), *self._migrations.advance()]
            case ChannelBroke():
                return self._waves.broke(event)
            case LongCallsSeen():
                return self._reports.long_calls(event)
            case ClusterMeasured():
                self.measured = event
                return []
            case MoveArmed():
                return self._handovers.armed(event)
            case MoveTaken():
                return self._handovers.taken(event)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _joined(self, event: WorkerJoined) -> list[Command]:
        commands: list[Command] = []
        held = event.slot in self.workers and self._slots.holds(event.slot)
        if event.slot in self.workers and not held:  # Spark restarted the slot before its loss was noticed
            commands += self.give_up_worker(event.slot, "it was restarted")
        if not self.wants(event.slot):
            return [*commands, StopWorker(event.slot)]
        address = WorkerAddress(event.slot, event.generation, event.node.name, event.boot, event.ipc, event.tcp,
                                event.backup_ipc, event.backup_tcp)
        self.workers[event.slot] = WorkerView(address, event.executor, event.node, heard=self._handovers.now)
        commands.append(Say(f"worker {event.slot} joined on {event.node.name}"))
        if held:
            commands += self._start_kept(event.slot)
        self._slots.joined(event.slot)
        unplaced = {name: topology for name, topology in self.topologies.items() if self._placement.unplaced(topology)}
        commands += self._placement.place(list(unplaced.values()), f"worker {event.slot} joined")
        for name, topology in self.topologies.items():
            if name not in unplaced:
                commands += self._plan_changes.move_home(topology, event.slot)
        return [*commands, self.distribute()]

    def _lost(self, event: WorkerLost) -> list[Command]:
        known = self.workers.get(event.slot)
        if known is None or known.address.generation != event.generation:
            return []
        if event.slot in self._slots.away:  # its end is known, and its places are kept
            return []
        intended = self._slots.ended(event.slot)
        hosted = tuple(dict.fromkeys(task for topology in self.topologies.values() for task, place in topology.places.items()
                                     if place.slot == event.slot))
        if intended and self._slots.holds(event.slot):
            return [Say(f"worker {event.slot} has ended, and its tasks wait for its new process", cause=event.cause,
                        tasks=hosted), self.distribute()]
        del self.workers[event.slot]
        text = f"worker {event.slot} has ended" if intended else f"worker {event.slot} lost: {event.cause}"
        commands: list[Command] = [Say(text, level="info" if intended else "warning", cause=event.cause, tasks=hosted)]
        lost: dict[str, list[TaskId]] = {}
        returns: list[tuple[TopologyState, int]] = []
        for name, topology in self.topologies.items():
            there = [task for task, place in topology.places.items() if place.slot == event.slot]
            returns += [(topology, slot) for slot in sorted(topology.handover.returning_to() - {event.slot})]
            stranded, ends = self._leave_topology(topology, event.slot)
            commands += ends
            self._migrations.lost(topology, event.slot, event.generation)
            if there or stranded:
                lost[name] = [*there, *stranded]
        commands += self._lose(lost, text)
        for topology, slot in returns:  # the loss may have ended them
            commands += self._plan_changes.move_home(topology, slot)
        return [*commands, *self._slots.gone(event.slot), self.distribute()]

    def _leave_topology(self, topology: TopologyState, slot: int) -> tuple[list[TaskId], list[Command]]:
        """Forget a worker's part in a topology. The result is that of `HandoverControl.lost`."""
        for by_slot in (topology.quiet, topology.in_flight, topology.starting):
            by_slot.pop(slot, None)
        return self._handovers.lost(topology, slot)

    def _start_kept(self, slot: int) -> list[Command]:
        """Start the tasks again whose places were kept for a restarted worker."""
        commands: list[Command] = []
        for topology in self.topologies.values():
            kept = [task for task, place in topology.places.items() if place.slot == slot]
            stranded, ends = self._leave_topology(topology, slot)
            commands += [*ends, *(self.lose(topology, stranded, f"worker {slot} was restarted") if stranded else [])]
            if kept:
                commands += [Say(f"{tasks_named(kept)} started again on worker {slot}", topology.graph.name,
                                 cause=f"worker {slot} was restarted", tasks=tuple(kept)), *self.start_again(topology, kept)]
        return commands

    def start_again(self, topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
        topology.losses += 1
        topology.version += 1
        topology.places.update((task, Place(topology.places[task].slot, topology.version)) for task in tasks)
        return self._waves.roll_back(topology) if topology.waves is not None else []

    def give_up_worker(self, slot: int, cause: str) -> list[Command]:
        """Count the worker as lost."""
        return self._lost(WorkerLost(slot, self.workers[slot].address.generation, cause))

    def lose(self, topology: TopologyState, tasks: Iterable[TaskId], cause: str) -> list[Command]:
        return self._lose({topology.graph.name: tasks}, cause)

    def _lose(self, lost: Mapping[str, Iterable[TaskId]], cause: str) -> list[Command]:
        """Find new places for lost tasks, of all topologies in one go. `lost`: by topology."""
        for name, tasks in lost.items():
            topology = self.topologies[name]
            sources = {task: topology.places.pop(task).slot for task in tasks}
            topology.losses += 1
            if not topology.batched:
                topology.recovery = Recovery(str(Cause(LOSS, cause)), self._handovers.now, topology.version, sources,
                                             sum(topology.in_flight.values())).after(topology.recovery)
        topologies = [self.topologies[name] for name in lost]
        commands = self._placement.place(topologies, cause)
        return [*commands, *(record for topology in topologies if topology.status in (RUNNING, PAUSED)
                             for record in self._recovered(topology))]

    def _recovered(self, topology: TopologyState) -> list[Command]:
        """The record of a loss whose tasks work again."""
        recovery, topology.recovery = topology.recovery, None
        if recovery is None:
            return []
        strategy, now = BY_RESTART if topology.waves is None else BY_ROLLBACK, self._handovers.now
        return [Migrated(recovery.record(topology.graph.name, topology.version, topology.places, strategy, now))]

    def roll_back(self, topology: TopologyState) -> list[Command]:
        return self._waves.roll_back(topology)

    def begin_wave(self, topology: TopologyState) -> list[Command]:
        return self._waves.begin(topology)

    def admit(self, topology: TopologyState, tasks: Iterable[TaskId]) -> list[Command]:
        return self._waves.admit(topology, tasks)

    def drop_wave(self, topology: TopologyState) -> list[Command]:
        return self._waves.drop(topology)

    def wave_committed(self, topology: TopologyState) -> list[Command]:
        return self._handovers.wave_committed(topology)

    def rolled_back(self, topology: TopologyState) -> list[Command]:
        return self._handovers.rolled_back(topology)

    def all_up(self, topology: TopologyState) -> list[Command]:
        """All tasks are up: let the spouts run, unless the topology is paused."""
        topology.become(PAUSED if topology.paused else RUNNING)
        up = Say(f"all {len(topology.places)} tasks are up", topology.graph.name, cause=topology.restarts_because)
        return [up, *self._recovered(topology), self.distribute()]

    def drained(self, topology: TopologyState) -> bool:
        """True if its spouts have stopped and none of their tuples is in flight."""
        if topology.batched:
            return topology.status == PAUSED and not topology.in_batch
        return topology.status in (PAUSED, STOPPING) and self.at_rest(topology)

    def at_rest(self, topology: TopologyState) -> bool:
        """True if none of its tuples is in flight, by the reports since its spouts began to wait."""
        return bool(self.workers) and all(topology.quiet.get(slot, 0) >= QUIET_REPORTS for slot in list(self.workers))

    def all_at(self, revision: int) -> bool:
        return all(worker.revision >= revision for worker in self.workers.values())

    # -- topologies --------------------------------------------------------------------------------------------------

    def check(self, event: Submitted) -> None:
        """Raise `TopologyError` if the topology cannot be started."""
        check_not_running(event.graph.name, self.topologies)
        check_settings(event.graph)
        check_guarantee(event.graph)
        if event.checkpoint is not None:
            check_fit(event.checkpoint, event.graph)
            check_read(event.checkpoint, event)

    def _submitted(self, event: Submitted) -> list[Command]:
        self.check(event)
        graph = event.graph
        self._numbers += 1
        graph = replace(graph, ackers=ackers_for(graph, max(1, len(self.workers))))
        elastic = event.checkpoint.elastic if event.checkpoint is not None else None
        topology = TopologyState(self._numbers, graph, earlier=event.earlier, elastic=elastic)
        if graph.batched:
            self._batches.prepare(topology, event)
        elif graph.waves:
            self._waves.prepare(topology, event)
        self.topologies[graph.name] = topology
        try:
            placed = self.place(topology, "")
        except Exception:
            del self.topologies[graph.name]  # refused as a whole
            raise
        keys = {key for config in (graph.config, *(component.config for component in graph.components)) for key in config}
        notes = [Say(text, graph.name, "warning") for text in (*settings_without_effect(keys), *weak_points(graph))]
        if event.checkpoint is None and event.after[1]:
            notes.append(Say(f"starts fresh: checkpoints of earlier runs, up to wave {event.after[1]}, are deleted once this "
                             "run has committed its own waves", graph.name))
        if event.checkpoint is not None and (text := scaled_note(graph)):
            notes.append(Say(text, graph.name))
        return [Say(f"submitted with {len(graph.tasks())} tasks", graph.name, cause=PERSON), *notes, *placed, self.distribute()]

    def _set_paused(self, name: str, paused: bool) -> list[Command]:
        topology = self.topology(name)
        if topology.status == STOPPING:
            raise TopologyError(f"topology {name!r} is being killed and can be neither paused nor unpaused")
        topology.paused = paused
        if topology.status not in (RUNNING, PAUSED):
            return [Say("will be paused" if paused else "will run", name, cause=PERSON)]
        topology.become(PAUSED if paused else RUNNING)
        distribute = self.distribute()
        topology.ready_at, topology.quiet = self.revision, {}
        return [Say("paused" if paused else "unpaused", name, cause=PERSON), distribute]

    def _chosen(self, event: ElasticChosen) -> list[Command]:
        topology = self.topology(event.name)
        topology.elastic = event.setting
        if topology.waves is not None:
            topology.waves.request(self._handovers.now)  # a resumed run is to know it
        return []

    def _killed(self, event: Killed) -> list[Command]:
        topology = self.topology(event.name)
        if topology.status == WAITING:
            return self._give_up(topology) if topology.version else self.end(topology, "killed before it had a slot")
        topology.become(STOPPING)
        topology.deadline, topology.quiet, topology.kill_wait = event.now + event.wait, {}, event.wait
        if topology.waves is not None:
            topology.stop_by = topology.deadline + MOST_TIMEOUTS * topology.waves.timeout
        distribute = self.distribute()
        topology.ready_at = self.revision
        what = "the running batch is the last" if topology.batched else "spouts stop"
        limit = f"up to {event.wait:g} s for tuples in flight"
        if topology.waves is not None and topology.graph.exactly_once and event.wait:
            limit = f"tuples in flight are processed and committed, unless none is processed for {event.wait:g} s"
        return [Say(f"{what}; {limit}", event.name, cause="killed"), distribute]

    def _ticked(self, now: float) -> list[Command]:
        late = [topology for topology in self.topologies.values() if topology.status == STOPPING and now >= topology.deadline]
        commands = [command for topology in late for command in self._give_up(topology)]
        self._rescalings.now = now
        return [*commands, *self._waves.tick(now), *self._handovers.tick(now), *self._slots.tick(now),
                *self._migrations.tick(now)]

    def _give_up(self, topology: TopologyState) -> list[Command]:
        """End a killed topology that cannot commit more: its time is up, or its tasks have no slots."""
        how = topology.killed_how
        if topology.batched or (topology.waves is not None and topology.graph.exactly_once):
            topology.uncommitted = how
        return self.end(topology, how)

    def end(self, topology: TopologyState, how: str) -> list[Command]:
        """Remove the topology; `how` is reported to users."""
        topology.become(ENDED)
        del self.topologies[topology.graph.name]
        records = [*self._handovers.ended(topology, how), *self._migrations.ended(topology, how),
                   *self._rescalings.ended(topology, how)]
        self._placement.forget(topology.graph.name)
        freed = self._placement.place_waiting(f"topology {topology.graph.name!r} has ended")
        return [Say(how, topology.graph.name), *records, *freed, self.distribute(), *self._waves.delete_abandoned(topology),
                Ended(topology.graph.name, topology.uncommitted)]

    def topology(self, name: str) -> TopologyState:
        if name not in self.topologies:
            running = ", ".join(sorted(self.topologies)) or "none"
            raise UnknownTopology(f"no topology named {name!r} is running; running: {running}")
        return self.topologies[name]

    # -- placement ---------------------------------------------------------------------------------------------------

    def cluster(self, without: Collection[int] = ()) -> Cluster:
        """The workers that tasks may be placed on: not those that leave, nor these, unless there are no others."""
        closed = self.closed.union(without)
        staying = {slot: worker for slot, worker in self.workers.items() if slot not in closed}
        return cluster_from(staying or self.workers, self.measured.others, self.measured.links)

    @property
    def closed(self) -> frozenset[int]:
        """Slots of workers that are being removed or restarted."""
        return self._slots.closed

    def wants(self, slot: int) -> bool:
        """True if a process for the slot is welcome: it was not removed, and is not being removed."""
        return self._slots.wants(slot)

    def leaving(self, slot: int) -> str:
        """The word for what happens to the worker just now: "removed" or "restarted"; empty if nothing does."""
        return self._slots.leaving(slot)

    def place(self, topology: TopologyState, cause: str) -> list[Command]:
        """Find a slot for every task that has none; other tasks stay where they are."""
        return self._placement.place([topology], cause)

    def load(self, name: str) -> Load:
        """The load of a topology as of the last window; an empty one if nothing was measured."""
        return self._placement.load(name)

    def placed(self, graph: TopologyGraph, plan: Plan, without: Collection[int] = ()) -> SchedulingResult:
        """Slots for the tasks of the graph that the plan has none for, leaving all other tasks where they are. `without`: slots
        that count as gone."""
        return self._placement.placed(graph, plan, without)

    # -- assignments --------------------------------------------------------------------------------------------------

    def distribute(self) -> Distribute:
        """The command that sends out the assignment under a new revision."""
        self.revision += 1
        for topology in self.topologies.values():
            topology.note_revision(self.revision)
        return self.distribution()

    def _sent(self, commands: list[Command]) -> list[Command]:
        """The commands, with one that sends out the assignment that they have changed, if any."""
        return [*commands, self.distribute()] if commands else []

    def distribution(self) -> Distribute:
        """The assignment in force, whole and by node."""
        away = self._slots.away
        self.agents = agents_of({slot: worker for slot, worker in self.workers.items() if slot not in away}, self.agents)
        whole, nodes = self.assignment(), self._nodes()
        for topology, plan in zip(self.topologies.values(), whole.topologies, strict=True):
            topology.note_hosts(nodes)
            topology.note_keepers(plan.holders)
        return Distribute(whole, parts_of(whole, {topology.number: topology.hosted for topology in self.topologies.values()},
                                          {topology.number: topology.keepers for topology in self.topologies.values()}))

    def assignment(self) -> Assignment:
        """The complete assignment of this revision."""
        nodes = self._nodes()
        return Assignment(
            self.revision,
            [worker.address for _, worker in sorted(self.workers.items())],
            [topology.assignment(nodes) for topology in self.topologies.values()],
            ranges_of(topology.number for topology in self.topologies.values()), self.author,
            ranges_of(worker.address.generation for worker in self.workers.values()))

    def _nodes(self) -> dict[int, str]:
        return {slot: worker.node.name for slot, worker in self.workers.items()}
