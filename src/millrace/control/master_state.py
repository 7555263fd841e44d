"""The master's decisions: the life of topologies and what to do when workers come and go.

`handle` is the only way to change it: the same events in the same order always give the same commands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from millrace.config import (
    ACKERS,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    GUARANTEE,
    MESSAGE_TIMEOUT,
    SETTINGS,
    WAVE_INTERVAL,
    WAVE_TIMEOUT,
    unknown_settings,
)
from millrace.control.assignment import Assignment, Place, TopologyAssignment, WorkerAddress, parts_of
from millrace.control.backups import backup_shape, backups
from millrace.control.events import (
    ChannelBroke,
    CollectCheckpoints,
    Command,
    Distribute,
    Ended,
    Event,
    Killed,
    ManifestStored,
    Moved,
    Paused,
    Replanned,
    Resumed,
    Say,
    SendWave,
    StoreManifest,
    Submitted,
    Ticked,
    WaveAcked,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
)
from millrace.control.waves import IDLE, INIT, Committed, GivenUp, Restored, Send, Step, Store, Waves
from millrace.errors import StalePlan, TopologyError, UnknownName, UnknownTopology
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ACKER, TaskId, TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import CannotPlace, NewPlan, Scheduler, key_groups_for
from millrace.schedulers.even import Even
from millrace.state.checkpoint import Manifest, fits

WAITING, STARTING, RUNNING, PAUSED, STOPPING = "waiting", "starting", "running", "paused", "stopping"
QUIET_REPORTS = 2  # reports in a row without anything in flight before a topology counts as drained


@dataclass(slots=True)
class WorkerView:
    """A worker as the master sees it."""

    address: WorkerAddress
    executor: str
    node: Node
    revision: int = 0


@dataclass(slots=True)
class TopologyState:
    """One topology. `places` holds only tasks that are on a live worker."""

    number: int
    graph: TopologyGraph
    status: str = WAITING
    version: int = 0
    places: dict[TaskId, Place] = field(default_factory=dict)
    homes: dict[TaskId, int] = field(default_factory=dict)  # where a task was first put: it goes back there
    key_groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    positions: dict[TaskId, int] = field(default_factory=dict)
    losses: int = 0
    ready_at: int = 0  # revision that all workers must have carried out before the spouts start
    paused: bool = False
    deadline: float = 0.0
    quiet: dict[int, int] = field(default_factory=dict)  # slot -> reports in a row with nothing in flight
    starting: dict[int, int] = field(default_factory=dict)  # slot -> tasks there that are not initialized yet
    hosted: dict[str, frozenset[str]] = field(default_factory=dict)  # node -> components that have had a task there
    epoch: int = 0
    waves: Waves | None = None  # None: it has nothing to snapshot
    checkpoint: Manifest | None = None  # the last one committed
    moves: dict[TaskId, int] = field(default_factory=dict)  # asked for, and waiting for the wave under way
    storing: Manifest | None = None  # the one being written
    closing: int = 0  # it is being killed: the wave that must be committed before it ends
    attempt: int = 0  # how often it has gone back in short succession because something was missing,
    broke_at: float = float("-inf")  # and when it last did
    troubled: str = ""  # why the last wave was given up, as people were told

    @property
    def plan(self) -> Plan:
        return Plan(self.version, {task: place.slot for task, place in self.places.items()}, self.key_groups)

    @property
    def active(self) -> bool:
        return self.status == RUNNING

    def note_hosts(self, node_of: Mapping[int, str]) -> None:
        for task, place in self.places.items():
            node = node_of[place.slot]
            if task.component not in self.hosted.get(node, frozenset()):
                self.hosted[node] = self.hosted.get(node, frozenset()) | {task.component}


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
        self._now = 0.0  # as of the last tick
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
            case Ticked():
                return self._ticked(event.now)
            case WaveAcked():
                return self._wave_acked(event)
            case ManifestStored():
                return self._manifest_stored(event)
            case ChannelBroke():
                return self._channel_broke(event)

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
        return [*commands, self._distribute()]

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
        return [*commands, self._distribute()]

    def _move_home(self, topology: TopologyState, slot: int) -> list[Command]:
        """Tasks that had to leave this slot go back, so that it is used again. Spouts and ackers stay where they are:
        what they have in flight is theirs alone."""
        if topology.status not in (RUNNING, PAUSED, STARTING):
            return []
        back = [task for task, place in topology.places.items()
                if topology.homes.get(task) == slot and place.slot != slot and task.component != ACKER
                and topology.graph.component(task.component).kind == "bolt"]
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
            if topology is not None and (topology.waves is None or event.revision >= topology.ready_at):
                task = topology.graph.task(task_number)
                topology.positions[task] = max(position, topology.positions.get(task, 0))
        commands: list[Command] = []
        in_flight, starting = dict(event.in_flight), dict(event.starting)
        for topology in list(self.topologies.values()):
            topology.starting[event.slot] = starting.get(topology.number, 0)
            commands += self._progress(topology, event, in_flight.get(topology.number, 0))
        return commands

    def _progress(self, topology: TopologyState, event: WorkerReported, in_flight: int) -> list[Command]:
        if (topology.status == STARTING and self._all_at(topology.ready_at) and not any(topology.starting.values())
                and not (topology.waves is not None and topology.waves.phase == INIT)):
            topology.status = PAUSED if topology.paused else RUNNING
            return [Say(f"all {len(topology.places)} tasks are up", topology.graph.name), self._distribute()]
        if topology.status in (PAUSED, STOPPING) and event.revision >= topology.ready_at:
            topology.quiet[event.slot] = topology.quiet.get(event.slot, 0) + 1 if in_flight == 0 else 0
            if topology.status == STOPPING and self.drained(topology):
                return self._close(topology)
        return []

    def drained(self, topology: TopologyState) -> bool:
        """Its spouts have stopped and nothing that they sent is left anywhere."""
        return (topology.status in (PAUSED, STOPPING) and bool(self.workers)
                and all(topology.quiet.get(slot, 0) >= QUIET_REPORTS for slot in list(self.workers)))

    def _all_at(self, revision: int) -> bool:
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
        if graph.waves:
            self._prepare_waves(topology, event)
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
        return [Say(f"submitted with {len(graph.tasks())} tasks", graph.name), *unknown, *warned, *placed, self._distribute()]

    def _prepare_waves(self, topology: TopologyState, event: Submitted) -> None:
        """Epochs and waves are numbered on from what the store has, so that no name is ever used twice. A master's author
        number is a time: epochs rise from run to run even where the store was emptied."""
        graph, checkpoint = event.graph, event.checkpoint
        if checkpoint is not None:
            fits(checkpoint, graph)
        topology.epoch, topology.checkpoint = max(self.author, event.after[0]), checkpoint
        topology.waves = Waves(WAVE_INTERVAL.of(graph.config), WAVE_TIMEOUT.of(graph.config), event.after[1])
        if checkpoint is not None:
            topology.waves.committed, topology.waves.committed_epoch = checkpoint.wave, checkpoint.epoch

    def _set_paused(self, name: str, paused: bool) -> list[Command]:
        topology = self.topology(name)
        if topology.status == STOPPING:
            raise TopologyError(f"topology {name!r} is being killed and can be neither paused nor resumed")
        topology.paused = paused
        if topology.status not in (RUNNING, PAUSED):
            return [Say("will be paused" if paused else "will run", name)]
        topology.status = PAUSED if paused else RUNNING
        distribute = self._distribute()
        topology.ready_at, topology.quiet = self.revision, {}
        return [Say("paused" if paused else "resumed", name), distribute]

    def _killed(self, event: Killed) -> list[Command]:
        topology = self.topology(event.name)
        if topology.status == WAITING:
            return self._end(topology, "killed before it had a slot")
        topology.status, topology.deadline, topology.quiet = STOPPING, event.now + event.wait, {}
        distribute = self._distribute()
        topology.ready_at = self.revision
        return [Say(f"spouts stop; up to {event.wait:g} s for what is in flight", event.name), distribute]

    def _ticked(self, now: float) -> list[Command]:
        self._now = now
        late = [topology for topology in self.topologies.values() if topology.status == STOPPING and now >= topology.deadline]
        commands = [command for topology in late for command in self._end(topology, "killed")]
        for topology in list(self.topologies.values()):
            waves = topology.waves
            if waves is not None and topology.status != WAITING and not (topology.status == STARTING and waves.phase == IDLE):
                commands += self._waved(topology, waves.tick(now))
        return commands

    def _end(self, topology: TopologyState, how: str) -> list[Command]:
        del self.topologies[topology.graph.name]
        return [Say(how, topology.graph.name), self._distribute(), Ended(topology.graph.name)]

    def topology(self, name: str) -> TopologyState:
        if name not in self.topologies:
            running = ", ".join(sorted(self.topologies)) or "none"
            raise UnknownTopology(f"no topology named {name!r} is running; running: {running}")
        return self.topologies[name]

    # -- waves -------------------------------------------------------------------------------------------------------

    def _wave_acked(self, event: WaveAcked) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or topology.waves is None:
            return []
        task = topology.graph.task(event.task)
        place = topology.places.get(task)
        if place is None or place.incarnation != event.incarnation:
            return []
        said: list[Command] = []
        if event.error and event.kind == INIT:
            said.append(Say(f"{task} cannot take up the state of wave {event.wave}: {event.error}", topology.graph.name,
                            "error"))
        return said + self._waved(topology, topology.waves.acked(event.kind, event.wave, task, event.record, event.error,
                                                                 self._now))

    def _manifest_stored(self, event: ManifestStored) -> list[Command]:
        topology = self.topologies.get(event.name)
        if topology is None or topology.waves is None or event.epoch != topology.epoch:
            return []
        steps = topology.waves.stored(event.wave, event.error, self._now)
        if steps and not event.error:
            topology.checkpoint, topology.storing = topology.storing, None
        return self._waved(topology, steps)

    def _channel_broke(self, event: ChannelBroke) -> list[Command]:
        topology = self._numbered(event.topology, event.epoch)
        if topology is None or not topology.graph.exactly_once or topology.status == WAITING:
            return []
        recent = self._now - topology.broke_at < MESSAGE_TIMEOUT.of(topology.graph.config)
        topology.attempt, topology.broke_at = topology.attempt + 1 if recent else 1, self._now
        topology.version += 1
        return [Say(f"{event.reason}: back to the last committed wave", topology.graph.name, "warning"),
                *self._go_back(topology), self._distribute()]

    def _numbered(self, number: int, epoch: int) -> TopologyState | None:
        """The topology of that number, if it is in that epoch."""
        return next((topology for topology in self.topologies.values()
                     if topology.number == number and topology.epoch == epoch), None)

    def _waved(self, topology: TopologyState, steps: Sequence[Step]) -> list[Command]:
        commands: list[Command] = []
        for step in steps:
            match step:
                case Send():
                    commands.append(self._send_wave(topology, step))
                case Store():
                    topology.storing = self._manifest(topology, step)
                    commands.append(StoreManifest(topology.storing))
                case Restored():
                    if step.wave:
                        commands.append(Say(f"every task has taken up the state of wave {step.wave}", topology.graph.name))
                case Committed():
                    commands += [CollectCheckpoints(topology.graph.name), *self._after_wave(topology)]
                case GivenUp():
                    commands += self._gave_up(topology, step)
        return commands

    def _send_wave(self, topology: TopologyState, send: Send) -> SendWave:
        tasks: dict[int, list[int]] = {}
        for task in send.tasks:
            if task in topology.places:
                tasks.setdefault(topology.places[task].slot, []).append(topology.graph.number(task))
        return SendWave(topology.number, topology.epoch, send, {slot: tuple(found) for slot, found in sorted(tasks.items())})

    def _manifest(self, topology: TopologyState, store: Store) -> Manifest:
        """What the tasks have told, put together with what has not changed since the last checkpoint."""
        graph, before = topology.graph, topology.checkpoint
        told = {(record.component, record.index): record for record in store.records}
        records = []
        for component in graph.components:
            chains = before.chains(component.name) if before is not None else {}
            kept = before.blocks(component.name) if before is not None else {}
            for index in range(component.par):
                chains.update(told[component.name, index].chains)
                kept.update(told[component.name, index].blocks)
            owners = topology.key_groups.get(component.name, ())
            for index in range(component.par):
                own = {group: chain for group, chain in chains.items() if group < len(owners) and owners[group] == index}
                record = told[component.name, index]
                blobs = {ref.blob for chain in own.values() for ref in chain} | ({record.own.blob} if record.own else set())
                records.append(msgspec.structs.replace(record, chains=own,
                                                       blocks={blob: kept[blob] for blob in blobs if blob in kept}))
        return Manifest(graph.name, store.wave, topology.epoch, graph.key_groups,
                        {component.name: component.par for component in graph.components}, records, self._now)

    def _after_wave(self, topology: TopologyState) -> list[Command]:
        waves = topology.waves
        assert waves is not None
        topology.troubled = ""
        if topology.closing and waves.committed >= topology.closing:
            return self._end(topology, "drained, and its last wave is committed")
        return self._move_now(topology)

    def _gave_up(self, topology: TopologyState, step: GivenUp) -> list[Command]:
        """Said once until a wave is committed again: a store that is away for an hour is one piece of news."""
        news: list[Command] = []
        first, topology.troubled = not topology.troubled, step.reason
        if first:
            news.append(Say(f"wave {step.wave} is given up, and the stream goes on: {step.reason}", topology.graph.name,
                            "warning"))
        return news + self._move_now(topology)

    def _close(self, topology: TopologyState) -> list[Command]:
        """Everything has been worked off. What its sinks have got since the last wave is not visible yet: one more."""
        waves = topology.waves
        if waves is None:
            return self._end(topology, "drained")
        if not topology.closing:
            topology.closing = waves.wave + 1
            waves.due = self._now
            return self._waved(topology, waves.tick(self._now))
        return []

    def _go_back(self, topology: TopologyState) -> list[Command]:
        """To the last committed wave, under the version just begun. Exactly once: every task starts anew in a new epoch.
        At least once: only what was lost or moved takes up its state of then, and spouts send again what came after it."""
        waves = topology.waves
        assert waves is not None
        graph = topology.graph
        if graph.exactly_once:
            topology.epoch += 1
        anew = [task for task in topology.places if graph.exactly_once or self._rewinds(topology, task)]
        for task in anew:
            topology.places[task] = Place(topology.places[task].slot, topology.version)
        if not self._never_repeats(topology):
            topology.positions = dict(topology.checkpoint.positions()) if topology.checkpoint is not None else {}
        topology.quiet, topology.starting, topology.closing = {}, {}, 0
        if topology.status in (RUNNING, PAUSED, STARTING):
            topology.status = STARTING
        topology.ready_at = self.revision + 1
        tasks = [task for task in graph.tasks() if task.component != ACKER]
        said: list[Command] = []
        if topology.status == STOPPING and graph.exactly_once:
            said.append(Say(f"it ends as of wave {waves.committed}: --resume goes on from there", graph.name, "warning"))
        return said + self._waved(topology, waves.restore(tasks, topology.epoch, self._now))

    def _never_repeats(self, topology: TopologyState) -> bool:
        """At most once: a spout goes on from where it was last heard of, whatever state goes back."""
        return bool(GUARANTEE.of(topology.graph.config) == AT_MOST_ONCE)

    def _rewinds(self, topology: TopologyState, task: TaskId) -> bool:
        """A spout that, at least once, sends again what came after the wave."""
        if task.component == ACKER or GUARANTEE.of(topology.graph.config) != AT_LEAST_ONCE:
            return False
        component = topology.graph.component(task.component)
        return component.kind == "spout" and component.movable

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
            return [Say(f"{event.task} is on worker {event.slot} already", event.name)]
        self._check_movable(topology)
        return [Say(f"{event.task} moves from worker {source} to worker {event.slot}", event.name),
                *self._enact(topology, {event.task: event.slot}), self._distribute()]

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
            if gone or set(plan.placement) != set(topology.places):
                raise StalePlan(f"the plan for {name!r} " + (f"puts tasks on workers {gone}, which are not there" if gone else
                                "has other tasks than are running") + ": nothing of it is run. Ask the scheduler again")
        commands: list[Command] = []
        for name, plan in event.plans.items():
            topology = self.topologies[name]
            moves = {task: slot for task, slot in plan.placement.items() if topology.places[task].slot != slot}
            if moves:
                commands.append(Say(f"{_tasks(sorted(moves))} moved to {_slots(moves.values())}: {event.reason}", name))
                commands += self._enact(topology, moves)
        return [*commands, self._distribute()] if commands else []

    def _check_movable(self, topology: TopologyState) -> None:
        if topology.status not in (STARTING, RUNNING, PAUSED):
            raise TopologyError(f"topology {topology.graph.name!r} is {topology.status}: its tasks can be moved only while it "
                                "runs or is paused")

    def _enact(self, topology: TopologyState, moves: Mapping[TaskId, int]) -> list[Command]:
        """Put the tasks there. What has state to take along waits for a wave, so that little is done twice."""
        for task, slot in moves.items():
            topology.homes[task] = slot
        if topology.waves is not None:
            topology.moves.update(moves)
            return self._waved(topology, topology.waves.begin(self._now)) if topology.status != STARTING else []
        topology.version += 1
        for task, slot in moves.items():
            topology.places[task] = Place(slot, topology.version)
        topology.quiet = {}
        return []

    def _move_now(self, topology: TopologyState) -> list[Command]:
        """The wave that moves waited for is over."""
        moves = {task: slot for task, slot in topology.moves.items() if slot in self.workers and task in topology.places}
        topology.moves = {}
        if not moves or topology.status == STOPPING:
            return []
        topology.version += 1
        for task, slot in moves.items():
            topology.places[task] = Place(slot, topology.version)
        return [*self._go_back(topology), self._distribute()]

    def _appoint(self) -> None:
        """Every node has one agent: the same as long as it lives, then the worker with the lowest slot."""
        lowest = {worker.node.name: slot for slot, worker in sorted(self.workers.items(), reverse=True)}
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
        others = {other.graph.name: other.plan for other in self.topologies.values() if other is not topology}
        result = self.first.schedule([topology.graph], self.cluster(), {}, {**others, name: topology.plan})
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
        placed = Say(f"{_tasks(homeless)} placed on {_slots(placement[task] for task in homeless)}", name)
        return [placed, *self._go_back(topology)] if topology.waves is not None else [placed]

    def _distribute(self) -> Distribute:
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
        positions = plain.positions if self._never_repeats(topology) else []  # others have theirs from the checkpoint
        return replace(plain, positions=positions, epoch=topology.epoch, blocks=blocks, holders=holders, attempt=topology.attempt,
                       restore=(topology.waves.committed, topology.waves.committed_epoch))


def check_settings(graph: TopologyGraph) -> None:
    """`TopologyError` for a value that a worker would choke on: better here than in every worker at once."""
    for conf in (graph.config, *(component.config for component in graph.components)):
        for setting in SETTINGS:
            setting.of(conf)


def check_guarantee(graph: TopologyGraph) -> None:
    """`TopologyError` for a guarantee that the topology's spouts cannot keep."""
    backup_shape(graph)
    if graph.exactly_once:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            raise TopologyError(f"{graph.name!r} asks for {EXACTLY_ONCE}, and {', '.join(stuck)} cannot be read again from a "
                                "position: derive it from ReplayableSpout (GeneratorSpout, FileSpout and RedisLogSpout are), "
                                f"or set {GUARANTEE.key} to {AT_LEAST_ONCE}")


def weak_points(graph: TopologyGraph) -> list[str]:
    """What the guarantee does not cover, for people to know."""
    found = []
    if graph.exactly_once:
        plain = [bolt.name for bolt in graph.bolts if not graph.downstream(bolt.name) and not bolt.commits]
        if plain:
            found.append(f"not part of the two-phase commit: {', '.join(plain)}; what they write outside, if anything, may be "
                         "written again after a failure")
    elif graph.waves and GUARANTEE.of(graph.config) == AT_LEAST_ONCE:
        stuck = [spout.name for spout in graph.spouts if not spout.movable]
        if stuck:
            found.append(f"{', '.join(stuck)} cannot be read again: state that is lost with a worker goes back to the last "
                         "wave, and what came since is missing from it")
    return found


def ackers_for(graph: TopologyGraph, workers: int) -> int:
    """How many acker tasks a topology gets: as many as it says, or one for each worker; none without tracking."""
    if GUARANTEE.of(graph.config) != AT_LEAST_ONCE:
        return 0
    asked = ACKERS.of(graph.config)
    return workers if asked is None else int(asked)


def _share(node: Node, workers: int, all_workers: int) -> Node:
    """Nodes that are on one machine, as executors may be, share what it has by the number of their workers."""
    if workers == all_workers:
        return node
    share = workers / all_workers
    return Node(node.name, max(1, round(node.cores * share)), node.mhz, max(1, int(node.memory_mb * share)))


def _tasks(tasks: Sequence[TaskId]) -> str:
    return ", ".join(map(str, tasks)) if len(tasks) <= 6 else f"{len(tasks)} tasks"


def _slots(slots: object) -> str:
    found = sorted(set(slots))  # type: ignore[call-overload]
    return f"worker {found[0]}" if len(found) == 1 else f"workers {', '.join(map(str, found))}"
