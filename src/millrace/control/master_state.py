"""The master's decisions: the life of topologies and what to do when workers come and go.

`handle` is the only way to change it: the same events in the same order always give the same commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from millrace.config import unknown_settings
from millrace.control.assignment import Assignment, Place, TopologyAssignment, WorkerAddress, parts_of
from millrace.control.backups import backups
from millrace.control.checks import ackers_for, check_guarantee, check_settings, weak_points
from millrace.control.events import (
    BatchBegan,
    BatchCommitted,
    BatchesEnded,
    BatchOver,
    ChannelBroke,
    Command,
    Distribute,
    Ended,
    Event,
    Killed,
    ManifestStored,
    Moved,
    Paused,
    Replanned,
    Rescaled,
    Resumed,
    Say,
    Submitted,
    Ticked,
    WaveAcked,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
)
from millrace.control.recovery import Recovery, never_repeats
from millrace.control.resuming import owners_in
from millrace.control.topology_state import (
    PAUSED,
    RUNNING,
    STARTING,
    STOPPING,
    WAITING,
    TopologyState,
    WorkerView,
)
from millrace.errors import StalePlan, TopologyError, UnknownName, UnknownTopology
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.model.plan import Plan, rescaled_key_groups
from millrace.model.rescaling import rescaled
from millrace.schedulers.base import CannotPlace, NewPlan, Scheduler, SchedulingResult, key_groups_for
from millrace.schedulers.even import Even
from millrace.state.checkpoint import fits

QUIET_REPORTS = 2  # reports in a row without anything in flight before a topology counts as drained


class MasterState:
    """Workers, topologies and the assignment in force. `author`: the number of this master among those that have written
    plans for the cluster."""

    def __init__(self, first: Scheduler | None = None, author: int = 0) -> None:
        self.author = author
        self.first = first or Even(spread_back=False)  # places a topology, and re-places what was lost
        self.workers: dict[int, WorkerView] = {}
        self.topologies: dict[str, TopologyState] = {}
        self.agents: dict[str, int] = {}  # node -> slot of the worker whose agent keeps the node's plan store
        self.revision = 0
        self._recovery = Recovery(self)
        self._numbers = 0

    def handle(self, event: Event) -> list[Command]:
        match event:
            case WorkerJoined():
                return self._joined(event)
            case WorkerLost():
                return self._lost(event)
            case WorkerReported():
                return self._reported(event)
            case Submitted():
                return self._submitted(event)
            case Paused():
                return self._set_paused(event.name, True)
            case Resumed():
                return self._set_paused(event.name, False)
            case Killed():
                return self._killed(event)
            case Moved():
                return self._moved(event)
            case Replanned():
                return self._replanned(event)
            case Rescaled():
                return self._rescaled(event)
            case BatchBegan():
                self._batched(event.name).in_batch = True
                return []
            case BatchCommitted():
                return self._batch_committed(event)
            case BatchOver():
                self._batched(event.name).in_batch = False
                return []
            case BatchesEnded():
                return self.end(self._batched(event.name), event.how)
            case Ticked():
                return self._ticked(event.now)
            case WaveAcked():
                return self._recovery.acked(event)
            case ManifestStored():
                return self._recovery.stored(event)
            case ChannelBroke():
                return self._recovery.broke(event)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _joined(self, event: WorkerJoined) -> list[Command]:
        commands: list[Command] = []
        if event.slot in self.workers:  # Spark started the slot again before anyone noticed that it was gone
            old = self.workers[event.slot].address
            commands += self._lost(WorkerLost(event.slot, old.generation, "it was started again"))
        address = WorkerAddress(event.slot, event.generation, event.node.name, event.boot, event.ipc, event.tcp,
                                event.backup_ipc, event.backup_tcp)
        self.workers[event.slot] = WorkerView(address, event.executor, event.node)
        commands.append(Say(f"worker {event.slot} joined on {event.node.name}"))
        for topology in self.topologies.values():
            if self._unplaced(topology):
                commands += self._place(topology)
            else:
                commands += self._move_home(topology, event.slot)
        return [*commands, self.distribute()]

    def _lost(self, event: WorkerLost) -> list[Command]:
        known = self.workers.get(event.slot)
        if known is None or known.address.generation != event.generation:
            return []
        del self.workers[event.slot]
        commands: list[Command] = [Say(f"worker {event.slot} lost: {event.cause}", level="warning")]
        for topology in self.topologies.values():
            gone = [task for task, place in topology.places.items() if place.slot == event.slot]
            topology.quiet.pop(event.slot, None)
            topology.starting.pop(event.slot, None)
            if gone:
                topology.losses += 1
                for task in gone:
                    del topology.places[task]
                commands += self._place(topology)
        return [*commands, self.distribute()]

    def _move_home(self, topology: TopologyState, slot: int) -> list[Command]:
        """Tasks that had to leave this slot go back, so that it is used again. Spouts and ackers stay where they are:
        what they have in flight is theirs alone. Between two batches nothing is."""
        if topology.status not in (RUNNING, PAUSED, STARTING):
            return []
        back = [task for task, place in topology.places.items()
                if topology.homes.get(task) == slot and place.slot != slot and task.component != ACKER
                and (topology.batched or topology.graph.component(task.component).kind == "bolt")]
        if not back:
            return []
        return [Say(f"worker {slot} is back: {_tasks(back)} moved there", topology.graph.name),
                *self._enact(topology, dict.fromkeys(back, slot))]

    def _reported(self, event: WorkerReported) -> list[Command]:
        worker = self.workers.get(event.slot)
        if worker is None or worker.address.generation != event.generation:
            return []
        worker.revision = max(worker.revision, event.revision)
        by_number = {topology.number: topology for topology in self.topologies.values()}
        for number, task_number, position in event.positions:
            topology = by_number.get(number)
            if topology is None or topology.batched:  # the positions of a batch are those of its manifest
                continue
            if topology.waves is None or event.revision >= topology.ready_at:
                task = topology.graph.task(task_number)
                topology.positions[task] = max(position, topology.positions.get(task, 0))
        commands: list[Command] = []
        in_flight, starting = dict(event.in_flight), dict(event.starting)
        for topology in list(self.topologies.values()):
            topology.starting[event.slot] = starting.get(topology.number, 0)
            commands += self._progress(topology, event, in_flight.get(topology.number, 0))
        return commands

    def _progress(self, topology: TopologyState, event: WorkerReported, in_flight: int) -> list[Command]:
        if topology.batched:
            return []
        if (topology.status == STARTING and topology.waves is None and self.all_at(topology.ready_at)
                and not any(topology.starting.values())):
            return self.all_up(topology)
        if topology.status in (PAUSED, STOPPING) and event.revision >= topology.ready_at:
            topology.quiet[event.slot] = topology.quiet.get(event.slot, 0) + 1 if in_flight == 0 else 0
            if topology.status == STOPPING and self.drained(topology):
                return self._recovery.close(topology)
        return []

    def all_up(self, topology: TopologyState) -> list[Command]:
        topology.status = PAUSED if topology.paused else RUNNING
        return [Say(f"all {len(topology.places)} tasks are up", topology.graph.name), self.distribute()]

    def drained(self, topology: TopologyState) -> bool:
        """Its spouts have stopped and nothing that they sent is left anywhere."""
        if topology.batched:
            return topology.status == PAUSED and not topology.in_batch
        return (topology.status in (PAUSED, STOPPING) and bool(self.workers)
                and all(topology.quiet.get(slot, 0) >= QUIET_REPORTS for slot in list(self.workers)))

    def all_at(self, revision: int) -> bool:
        return all(worker.revision >= revision for worker in self.workers.values())

    # -- topologies --------------------------------------------------------------------------------------------------

    def _submitted(self, event: Submitted) -> list[Command]:
        graph = event.graph
        if graph.name in self.topologies:
            raise TopologyError(f"a topology named {graph.name!r} is running already: kill it first, or give this one "
                                "another name")
        check_settings(graph)
        check_guarantee(graph)
        self._numbers += 1
        graph = replace(graph, ackers=ackers_for(graph, max(1, len(self.workers))))
        topology = TopologyState(self._numbers, graph)
        if graph.batched:
            self._prepare_batches(topology, event)
        elif graph.waves:
            self._recovery.prepare(topology, event)
        self.topologies[graph.name] = topology
        try:
            placed = self._place(topology)
        except Exception:
            del self.topologies[graph.name]  # refused as a whole: nothing of it stays
            raise
        unknown = [Say(f"setting {key!r} is not one of Millrace's and has no effect", graph.name, "warning")
                   for key in unknown_settings(graph.config)]
        warned = [Say(text, graph.name, "warning") for text in weak_points(graph)]
        if event.checkpoint is None and event.after != (0, 0):
            text = (f"begins anew, though the store has checkpoints of it up to wave {event.after[1]}: with --resume it would "
                    "go on from them. They go when it has committed waves of its own")
            warned.append(Say(text, graph.name, "warning"))
        return [Say(f"submitted with {len(graph.tasks())} tasks", graph.name), *unknown, *warned, *placed, self.distribute()]

    def _set_paused(self, name: str, paused: bool) -> list[Command]:
        topology = self.topology(name)
        if topology.status == STOPPING:
            raise TopologyError(f"topology {name!r} is being killed and can be neither paused nor resumed")
        topology.paused = paused
        if topology.status not in (RUNNING, PAUSED):
            return [Say("will be paused" if paused else "will run", name)]
        topology.status = PAUSED if paused else RUNNING
        distribute = self.distribute()
        topology.ready_at, topology.quiet = self.revision, {}
        return [Say("paused" if paused else "resumed", name), distribute]

    def _killed(self, event: Killed) -> list[Command]:
        topology = self.topology(event.name)
        if topology.status == WAITING:
            return self.end(topology, "killed before it had a slot")
        topology.status, topology.deadline, topology.quiet = STOPPING, event.now + event.wait, {}
        distribute = self.distribute()
        topology.ready_at = self.revision
        what = "the batch that runs is the last" if topology.batched else "spouts stop"
        return [Say(f"{what}; up to {event.wait:g} s for what is in flight", event.name), distribute]

    def _ticked(self, now: float) -> list[Command]:
        late = [topology for topology in self.topologies.values() if topology.status == STOPPING and now >= topology.deadline]
        commands = [command for topology in late for command in self.end(topology, _killed_how(topology))]
        return commands + self._recovery.tick(now)

    def end(self, topology: TopologyState, how: str) -> list[Command]:
        del self.topologies[topology.graph.name]
        return [Say(how, topology.graph.name), self.distribute(), Ended(topology.graph.name)]

    def topology(self, name: str) -> TopologyState:
        if name not in self.topologies:
            running = ", ".join(sorted(self.topologies)) or "none"
            raise UnknownTopology(f"no topology named {name!r} is running; running: {running}")
        return self.topologies[name]

    # -- batches -----------------------------------------------------------------------------------------------------

    def _batched(self, name: str) -> TopologyState:
        topology = self.topology(name)
        if not topology.batched:
            raise TopologyError(f"{name!r} runs on resident workers: it has no batches")
        return topology

    def _prepare_batches(self, topology: TopologyState, event: Submitted) -> None:
        """Each batch is a wave. As for other waves, epochs rise from run to run: no name in the store is used twice."""
        if event.checkpoint is not None:
            fits(event.checkpoint, event.graph)
            topology.positions = event.checkpoint.positions()
            topology.key_groups = owners_in(event.checkpoint, event.graph)
        topology.epoch, topology.checkpoint = max(self.author, event.after[0]) + 1, event.checkpoint

    def _batch_committed(self, event: BatchCommitted) -> list[Command]:
        topology = self._batched(event.name)
        topology.checkpoint = event.manifest
        topology.epoch, topology.positions = event.manifest.epoch, event.manifest.positions()
        return []

    def _rescaled(self, event: Rescaled) -> list[Command]:
        """More tasks or fewer, all of what is asked for or nothing. As few key groups as possible change hands."""
        topology = self.topology(event.name)
        graph = rescaled(topology.graph, event.par)
        self._check_movable(topology)
        if graph is topology.graph:
            return [Say(f"has {_counts(event.par)} already", event.name)]
        stay = {task: place.slot for task, place in topology.places.items() if task in set(graph.tasks())}
        result = self._placed(graph, Plan(topology.version, stay, topology.key_groups))
        if isinstance(result, CannotPlace):
            raise TopologyError(f"{event.name!r} cannot have {_counts(event.par)}, and stays as it is: {result.reason}")
        placement = result.plans[event.name].placement if isinstance(result, NewPlan) else stay
        owners = {name: rescaled_key_groups(groups, graph.component(name).par) if name in event.par else groups
                  for name, groups in topology.key_groups.items()}
        self._take_plan(topology, graph, placement, owners)
        return [Say(f"{_counts(event.par)} from the next batch on", event.name), self.distribute()]

    def _take_plan(self, topology: TopologyState, graph: TopologyGraph, placement: Mapping[TaskId, int],
                   key_groups: Mapping[str, tuple[int, ...]]) -> None:
        """The next batch runs by it. Tasks that stay keep their incarnation."""
        topology.version += 1
        before = topology.places
        topology.places = {task: before[task] if task in before and before[task].slot == slot else Place(slot, topology.version)
                           for task, slot in placement.items()}
        topology.homes = {task: place.slot if place.incarnation == topology.version else topology.homes.get(task, place.slot)
                          for task, place in topology.places.items()}
        topology.graph, topology.key_groups = graph, dict(key_groups)

    # -- moves -------------------------------------------------------------------------------------------------------

    def _moved(self, event: Moved) -> list[Command]:
        topology = self.topology(event.name)
        if event.task not in topology.places:
            of = [str(task) for task in sorted(topology.places) if task.component == event.task.component]
            raise UnknownName(f"{event.name!r} has no running task {event.task}; it has "
                              f"{', '.join(of) or ', '.join(sorted({task.component for task in topology.places}))}")
        if event.slot not in self.workers:
            raise UnknownName(f"there is no worker {event.slot}; there are {', '.join(map(str, sorted(self.workers)))}")
        source = topology.places[event.task].slot
        if not topology.graph.movable(event.task):
            raise TopologyError(f"{event.task} is a spout whose source cannot be read again: what it has in flight is its own "
                                "alone, so it stays where it is. A ReplayableSpout can be moved")
        if source == event.slot:
            topology.moves.pop(event.task, None)  # it was to leave with the next wave
            return [Say(f"{event.task} is on worker {event.slot} already", event.name)]
        self._check_movable(topology)
        return [Say(f"{event.task} moves from worker {source} to worker {event.slot}", event.name),
                *self._enact(topology, {event.task: event.slot}), self.distribute()]

    def _replanned(self, event: Replanned) -> list[Command]:
        """All plans or none: they were made together. A plan that was made for another one than that in force, or for
        workers that are gone, must not be run."""
        for name, plan in event.plans.items():
            topology = self.topology(name)
            self._check_movable(topology)
            if event.based_on.get(name) != topology.version:
                raise StalePlan(f"{name!r} is at version {topology.version} by now, and the plan was made for version "
                                f"{event.based_on.get(name)}: nothing of it is run. Ask the scheduler again")
            gone = sorted({slot for slot in plan.placement.values() if slot not in self.workers})
            stuck = sorted(task for task, slot in plan.placement.items() if task in topology.places
                           and topology.places[task].slot != slot and not topology.graph.movable(task))
            if stuck:
                raise TopologyError(f"the plan for {name!r} moves {stuck[0]}, a spout whose source cannot be read again")
            graph = rescaled(topology.graph, plan.parallelism) if topology.batched else topology.graph
            if gone or set(plan.placement) != set(graph.tasks()) or len(topology.places) != len(topology.graph.tasks()):
                raise StalePlan(f"the plan for {name!r} " + (f"puts tasks on workers {gone}, which are not there" if gone else
                                "has other tasks than are running") + ": nothing of it is run. Ask the scheduler again")
        commands: list[Command] = []
        for name, plan in event.plans.items():
            topology = self.topologies[name]
            if topology.batched:
                commands += self._replanned_batches(topology, plan, event.reason)
                continue
            moves = {task: slot for task, slot in plan.placement.items() if topology.places[task].slot != slot}
            if moves:
                commands.append(Say(f"{_tasks(sorted(moves))} moved to {_slots(moves.values())}: {event.reason}", name))
                commands += self._enact(topology, moves)
        return [*commands, self.distribute()] if commands else []

    def _replanned_batches(self, topology: TopologyState, plan: Plan, reason: str) -> list[Command]:
        changed = Plan.diff(topology.plan, plan)
        if not changed:
            return []
        self._take_plan(topology, rescaled(topology.graph, plan.parallelism), plan.placement, plan.key_groups)
        what = [f"{_tasks(tasks)} {how}" for tasks, how in ((changed.moved, "moved"), (changed.started, "begun"),
                                                            (changed.stopped, "ended")) if tasks]
        what += [f"{len(changed.key_groups)} key groups given to other tasks"] if changed.key_groups else []
        return [Say(f"{', '.join(what)}, from the next batch on: {reason}", topology.graph.name)]

    def _check_movable(self, topology: TopologyState) -> None:
        if topology.status not in (STARTING, RUNNING, PAUSED):
            raise TopologyError(f"topology {topology.graph.name!r} is {topology.status}: its tasks can be moved only while it "
                                "runs or is paused, and so can their number be changed")

    def _enact(self, topology: TopologyState, moves: Mapping[TaskId, int]) -> list[Command]:
        """Put the tasks there. What has state to take along waits for a wave, so that little is done twice."""
        for task, slot in moves.items():
            topology.homes[task] = slot
        if topology.waves is not None:
            return self._recovery.move(topology, moves)
        topology.version += 1
        for task, slot in moves.items():
            topology.places[task] = Place(slot, topology.version)
        topology.quiet = {}
        return []

    def _appoint(self) -> None:
        """Every node has one agent: the same as long as it lives, then the worker with the lowest slot."""
        lowest = {worker.node.name: slot for slot, worker in sorted(self.workers.items(), reverse=True)
                  if worker.address.ipc}  # an executor has no address, and no agent
        still = {node: slot for node, slot in self.agents.items()
                 if slot in self.workers and self.workers[slot].node.name == node}
        self.agents = {**lowest, **still}

    # -- placement ---------------------------------------------------------------------------------------------------

    def cluster(self) -> Cluster:
        workers = sorted(self.workers.items())
        nodes = {worker.node.name: worker for _, worker in workers}
        on_machine = Counter(worker.address.boot for _, worker in workers)
        on_node = Counter(worker.node.name for _, worker in workers)
        shares = [_share(worker.node, on_node[name], on_machine[worker.address.boot]) for name, worker in sorted(nodes.items())]
        return Cluster(tuple(shares), tuple(Slot(worker.node.name, worker.executor, slot) for slot, worker in workers))

    def _unplaced(self, topology: TopologyState) -> Sequence[TaskId]:
        return [task for task in topology.graph.tasks() if task not in topology.places]

    def _place(self, topology: TopologyState) -> list[Command]:
        """Find a slot for every task that has none; nothing else moves."""
        name = topology.graph.name
        homeless = self._unplaced(topology)
        result = self._placed(topology.graph, topology.plan)
        if isinstance(result, CannotPlace):
            topology.status = WAITING if topology.status != STOPPING else STOPPING
            return [Say(f"waits: {result.reason}", name, "warning")]
        if not isinstance(result, NewPlan):
            return []
        placement = result.plans[name].placement
        topology.version += 1
        for task in homeless:
            topology.places[task] = Place(placement[task], topology.version)
            topology.homes.setdefault(task, placement[task])
        topology.key_groups = dict(topology.key_groups or key_groups_for(topology.graph, None))
        if topology.status == WAITING:
            topology.status, topology.ready_at = STARTING, self.revision + 1
        if topology.batched and topology.status == STARTING:  # there is nothing to start before its next batch
            topology.status = PAUSED if topology.paused else RUNNING
        placed = Say(f"{_tasks(homeless)} placed on {_slots(placement[task] for task in homeless)}", name)
        return [placed, *self._recovery.go_back(topology)] if topology.waves is not None else [placed]

    def _placed(self, graph: TopologyGraph, plan: Plan) -> SchedulingResult:
        """Where its tasks that have no slot should go, beside all that runs."""
        others = {name: other.plan for name, other in self.topologies.items() if name != graph.name}
        return self.first.schedule([graph], self.cluster(), {}, {**others, graph.name: plan})

    def distribute(self) -> Distribute:
        self.revision += 1
        return self.distribution()

    def distribution(self) -> Distribute:
        """What is in force, whole and by node."""
        self._appoint()
        whole = self.assignment()
        node_of = {slot: worker.node.name for slot, worker in self.workers.items()}
        for topology in self.topologies.values():
            topology.note_hosts(node_of)
        return Distribute(whole, parts_of(whole, {topology.number: topology.hosted for topology in self.topologies.values()}))

    def assignment(self) -> Assignment:
        """The whole truth, as of this revision."""
        return Assignment(
            self.revision,
            [worker.address for _, worker in sorted(self.workers.items())],
            [self._topology_assignment(topology) for topology in self.topologies.values()],
            [topology.number for topology in self.topologies.values()], self.author)

    def _topology_assignment(self, topology: TopologyState) -> TopologyAssignment:
        plain = TopologyAssignment(topology.number, topology.graph, topology.version, topology.active,
                                   sorted(topology.places.items()), topology.key_groups, sorted(topology.positions.items()),
                                   topology.losses)
        if topology.waves is None:
            return plain
        slots = {task: place.slot for task, place in topology.places.items()}
        blocks, holders = backups(topology.graph, slots, {slot: worker.node.name for slot, worker in self.workers.items()})
        positions = plain.positions if never_repeats(topology.graph) else []  # others have theirs from the checkpoint
        return replace(plain, positions=positions, epoch=topology.epoch, blocks=blocks, holders=holders,
                       restore=_restore_point(topology))


def _killed_how(topology: TopologyState) -> str:
    if topology.batched:
        wave = topology.checkpoint.wave if topology.checkpoint is not None else 0
    elif topology.waves is None:
        return "killed"
    else:
        wave = topology.waves.committed
    return f"killed as of wave {wave}: what came after it is not committed, --resume goes on from there"


def _restore_point(topology: TopologyState) -> tuple[int, int, int]:
    found = topology.checkpoint
    return (found.wave, found.wave_epoch, found.epoch) if found is not None else (0, 0, 0)


def _share(node: Node, workers: int, all_workers: int) -> Node:
    """Nodes that are on one machine, as executors may be, share what it has by the number of their workers."""
    if workers == all_workers:
        return node
    share = workers / all_workers
    return Node(node.name, max(1, round(node.cores * share)), node.mhz, max(1, int(node.memory_mb * share)))


def _counts(par: Mapping[str, int]) -> str:
    return ", ".join(f"{tasks} {'task' if tasks == 1 else 'tasks'} of {name}" for name, tasks in sorted(par.items()))


def _tasks(tasks: Sequence[TaskId]) -> str:
    return ", ".join(map(str, tasks)) if len(tasks) <= 6 else f"{len(tasks)} tasks"


def _slots(slots: object) -> str:
    found = sorted(set(slots))  # type: ignore[call-overload]
    return f"worker {found[0]}" if len(found) == 1 else f"workers {', '.join(map(str, found))}"
