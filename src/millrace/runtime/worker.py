"""The worker: hosts tasks, carries out assignments, moves chunks. One loop, no socket: those are in process.py.

Whoever drives it calls `assign`, `receive` and `step`; it sends through the `Peers` it was given.
"""

from __future__ import annotations

import logging
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from millrace.api.component import Tuple
from millrace.api.frame import Feed
from millrace.config import (
    DRAIN_LIMIT,
    FRAME_LIMIT,
    MESSAGE_TIMEOUT,
    RECOVERY_GRACE,
)
from millrace.control.acking import Ledger
from millrace.control.assignment import Assignment, WorkerAddress, change
from millrace.control.stamp import Stamp
from millrace.control.waves import INIT
from millrace.errors import MillraceError, StateNotKept, UnknownName
from millrace.model.graph import ACKER, Input, TaskId
from millrace.runtime import wire
from millrace.runtime.bolt_task import BoltTask
from millrace.runtime.channel import Channel, Delivery, Inlet, Link
from millrace.runtime.clock import Clock
from millrace.runtime.feed import NoFeeds
from millrace.runtime.routing import make_route
from millrace.runtime.spout_task import SpoutTask
from millrace.runtime.task import Task, describe
from millrace.runtime.timers import Timers
from millrace.runtime.topology_run import TopologyRun
from millrace.runtime.vault import Vault

log = logging.getLogger("millrace.worker")
ERRORS_KEPT = 20
STASH_LIMIT = 4096  # chunks kept for tasks that a newer plan, not yet seen here, has put on this worker
STASH_SECONDS = 10.0  # after that the plan is not coming: the topology has been killed, or the task moved on
PROBE_SECONDS = 1.0  # how often the senders of full channels ask whether anything got lost on the way
CHECK_SECONDS = 0.1  # how often spouts look for overdue roots and moved tasks for the end of their inbox


class Peers(Protocol):
    """The ways to the other workers."""

    def link(self, address: WorkerAddress) -> Link: ...

    def forget(self, slot: int) -> None: ...


class Feeds(Protocol):
    """Where frame spouts get their feeds from. `tell` takes a metric of the task."""

    def open(self, name: str, tell: Callable[[str, Any], None]) -> Feed: ...


class Nowhere:
    """The link to a worker that cannot be reached."""

    def send(self, frames: list[Any]) -> None: ...


class Threads(Protocol):
    """Threads for tasks that block. `done` is called back on the loop."""

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None: ...

    def end(self, key: Any) -> None: ...


def _shown(values: Any) -> str:
    try:
        return f"{values!r:.300}"
    except ValueError:  # an integer of more digits than Python turns into text
        return "values that are too large to show"


def _tail(trace: list[str]) -> str:
    return "".join(trace)[-4000:].encode("utf-8", "backslashreplace").decode()


class Worker:
    """`generation` is the master's number for this run of the slot: messages of older generations are refused."""

    def __init__(self, slot: int, generation: int, clock: Clock, peers: Peers, threads: Threads,
                 settings: dict[str, Any] | None = None, author: int = 0, vault: Vault | None = None,
                 tell_master: Callable[[Any], None] = lambda message: None) -> None:
        self.slot, self.generation, self.clock, self.peers, self.threads = slot, generation, clock, peers, threads
        self.author, self.tell_master = author, tell_master
        self.vault = vault or Vault()
        self.feeds: Feeds = NoFeeds()  # whoever has sockets puts others here
        settings = settings or {}
        self.frame_limit: int = FRAME_LIMIT.of(settings)
        self.grace: float = RECOVERY_GRACE.of(settings)
        self.drain_limit: float = DRAIN_LIMIT.of(settings)
        self.stamp = Stamp(0, 0)  # of the plan that has been carried out
        self.topologies: dict[int, TopologyRun] = {}
        self.addresses: dict[int, WorkerAddress] = {}
        self.links: dict[int, Link] = {}
        self.counters: Counter[str] = Counter()
        self.errors: deque[dict[str, Any]] = deque(maxlen=ERRORS_KEPT)
        self._highest = 0  # number of the topology that was submitted last, as far as is known here
        self._alive: set[int] = set()  # of all topologies, also those that have no task here
        self._early: deque[tuple[float, Any]] = deque()  # acks and roots for a topology that is not known here yet
        self._early_waves: dict[int, wire.Wave] = {}  # by topology: INITs that came before the plan
        self._newest = 0  # generation of the worker that joined last, as far as is known here
        self._ready: deque[Task] = deque()
        self._retired: list[Task] = []
        self._gone: list[TopologyRun] = []
        self._stash: dict[tuple[int, int, int], list[tuple[wire.Chunk, Any, float]]] = {}
        self._credits: dict[int, dict[tuple[int, int, int, int, int], int]] = {}
        self.timers = Timers(clock)
        self.timers.every(CHECK_SECONDS, self._check)
        self.timers.every(PROBE_SECONDS, self._probe)

    # -- assignments -------------------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        """Make what runs here what the assignment says. Ignored: older ones than the last, those of another master, and
        those made before this worker joined or after it was given up. A plan store may hold any of them."""
        if (assignment.stamp <= self.stamp or assignment.author != self.author
                or not assignment.is_for(self.slot, self.generation)):
            return
        self._update_addresses(assignment.workers)
        self._leave_epochs(assignment)
        running = {(run.number, task.name): task.incarnation for run in self.topologies.values()
                   for task in run.tasks.values()}
        running.update({(run.number, TaskId(ACKER, index)): incarnation for run in self.topologies.values()
                        for index, incarnation in run.ackers.items()})
        todo = change(running, assignment, self.slot)
        lost = self._update_topologies(assignment)
        for number, name in todo.drop:
            self._drop(number, name)
        for number, name in todo.retire:
            self._retire(number, name)
        started = [self._start(number, name, incarnation) for number, name, incarnation in todo.start]
        for run in self.topologies.values():
            for task in [*run.tasks.values(), *(t for t in self._retired if t.topology is run)]:
                self._wire(task)
        for new in started:
            if new is not None:
                new.begin()
                self._unstash(new)
        self._after_assignment(lost)
        self.stamp = assignment.stamp

    @property
    def revision(self) -> int:
        return self.stamp.revision

    def _leave_epochs(self, assignment: Assignment) -> None:
        """A topology that goes back to a wave: everything of the epoch before ends at once, without draining."""
        for given in assignment.topologies:
            run = self.topologies.get(given.number)
            if run is None or given.epoch <= run.epoch:
                continue
            for task in [*run.tasks.values(), *(task for task in self._retired if task.topology is run)]:
                self._end(task)
            run.tasks.clear()
            self._retired = [task for task in self._retired if task.topology is not run]

    def _update_addresses(self, workers: list[WorkerAddress]) -> None:
        fresh = {address.slot: address for address in workers}
        for slot, address in list(self.addresses.items()):
            if fresh.get(slot) != address:
                self.links.pop(slot, None)
                self.peers.forget(slot)
        self.addresses = fresh
        self.vault.reach(workers)
        self._newest = max([self._newest, *(address.generation for address in workers)])

    def _update_topologies(self, assignment: Assignment) -> list[TopologyRun]:
        """Take over the new plans. Returns the topologies that have lost a worker since the last assignment."""
        lost = []
        for given in assignment.topologies:
            run = self.topologies.get(given.number)
            if run is None:
                self.topologies[given.number] = TopologyRun(self, given)
                continue
            run.update(given)
            if given.losses > run.losses:
                run.losses = given.losses
                lost.append(run)
        self._alive = set(assignment.alive)
        self._highest = max(self._highest, *assignment.alive, 0)
        self._gone = [run for number, run in self.topologies.items() if number not in self._alive]
        return lost

    def _after_assignment(self, lost: list[TopologyRun]) -> None:
        for run in self._gone:
            self.topologies.pop(run.number, None)
            self.vault.forget(run.graph.name)
            for task in [task for task in self._retired if task.topology is run]:
                self._retired.remove(task)
                self._end(task)
        deadline = self.clock.now() + self.grace
        for run in self.topologies.values():
            run.tracker.settle()
            for task in run.tasks.values():
                if isinstance(task, SpoutTask):
                    if run in lost:
                        task.worker_lost(deadline)
                    task.set_active(run.active)
                if not task.blocked:
                    self.ready(task)
        for task in self._retired:
            self.ready(task)
        early_waves, self._early_waves = self._early_waves, {}
        for number, wave in early_waves.items():
            if number in self.topologies:
                self.on_wave(wave)
        early, self._early = self._early, deque()
        for since, message in early:
            self._on_tracking(message, since)

    # -- tasks -------------------------------------------------------------------------------------------------------

    def _start(self, number: int, name: TaskId, incarnation: int) -> Task | None:
        run = self.topologies[number]
        if name.component == ACKER:
            run.ackers[name.index] = incarnation
            ledger = run.tracker.ledgers[name.index] = Ledger()
            self.timers.every(MESSAGE_TIMEOUT.of(run.graph.config), lambda: ledger.age() and None,
                        while_=lambda: run.tracker.ledgers.get(name.index) is ledger)
            return None
        return self.make_task(run, name, incarnation)

    def make_task(self, run: TopologyRun, name: TaskId, incarnation: int) -> Task:
        kind = SpoutTask if run.graph.component(name.component).kind == "spout" else BoltTask
        task = kind(self, run, name, incarnation)
        run.tasks[task.number] = task
        return task

    def _unstash(self, task: Task) -> None:
        """Give a new task what has already come for it."""
        for chunk, body, _ in self._stash.pop((task.topology.number, task.number, task.incarnation), []):
            self._on_chunk(chunk, body)

    def start_failed(self, task: Task, error: BaseException) -> None:
        """Called by a task whose component could not be made or initialized; it will try again."""
        self.counters["start_failed"] += 1
        self.errors.append({"topology": task.topology.graph.name, "task": str(task.name), "fatal": True,
                            "error": describe(error), "traceback": _tail(traceback.format_exception(error))})
        log.error("%s of %s could not start: %s", task.name, task.topology.graph.name, describe(error))

    def start_timers(self, task: BoltTask) -> None:
        tick, timer = task.tick_seconds(), task.component._timer_seconds()
        if tick:
            self.timers.every(tick, task.tick, while_=lambda: not task.ended)
        if timer:
            self.timers.every(timer, task.on_timer, while_=lambda: not task.ended)

    def _retire(self, number: int, name: TaskId) -> None:
        """The task moved elsewhere: it works off its inbox, for a while, and gets nothing new."""
        run = self.topologies[number]
        if name.component == ACKER:
            run.ackers.pop(name.index, None)
            run.tracker.retire(name.index)
            return
        task = run.tasks.pop(run.graph.number(name), None)
        if isinstance(task, SpoutTask):  # only those that can be read again are moved
            self._end(task)
        elif task is not None:
            task.retiring = self.clock.now() + self.drain_limit
            self._retired.append(task)
            self.ready(task)

    def _drop(self, number: int, name: TaskId) -> None:
        run = self.topologies.get(number)
        if run is None:
            return
        if name.component == ACKER:
            run.tracker.ledgers.pop(name.index, None)  # its timer looks for it there
            return
        task = run.tasks.pop(run.graph.number(name), None)
        if task is not None:
            self._end(task)

    def _end(self, task: Task) -> None:
        task.ended = True
        task.abandon()
        if task.definition.blocking:
            self.threads.run(task, task.close, lambda: None)  # its thread may be in user code: after that, then
            self.threads.end(task)
        else:
            task.close()

    # -- waves -------------------------------------------------------------------------------------------------------

    def on_wave(self, wave: wire.Wave) -> None:
        """The master's word to some tasks here. Of an epoch before: it has been overtaken. Of one to come: an INIT waits for
        the plan, anything else comes again."""
        run = self.topologies.get(wave.topology)
        if run is None or run.epoch < wave.epoch:
            if wave.mark.kind == INIT:
                self._early_waves[wave.topology] = wave
            return
        if run.epoch > wave.epoch:
            return
        for number in wave.tasks:
            task = run.tasks.get(number)
            if task is not None:
                task.asked(wave.mark, wave.sweep)

    def on_query(self, query: wire.Query) -> None:
        """What a task has under a key, as of now; looked up where the task's own code runs."""
        run = self.topologies.get(query.topology)
        task = run.tasks.get(query.task) if run is not None else None
        if task is None or not task.definition.blocking:
            self.tell_master(self._looked_up(task, query))
            return
        found: list[wire.Answer] = []
        self.threads.run(task, lambda: found.append(self._looked_up(task, query)), lambda: self.tell_master(found[0]))

    def _looked_up(self, task: Task | None, query: wire.Query) -> wire.Answer:
        answer = wire.Answer(self.slot, self.generation, query.number, False)
        if task is None or task.keeper.state is None:
            answer.error = "the task is not here any more, or has no keyed state: ask again"
            return answer
        try:
            state = task.keeper.state
            value = state.lookup(query.state, query.key) if query.state else {"keys": state.keys(), "dirty": state.dirty()}
            wire.encode(value)
        except MillraceError as error:
            answer.error = str(error)
        except KeyError:
            answer.error = f"nothing is kept under {query.key!r} in {query.state!r}; its states: {', '.join(state.states)}"
        except (TypeError, ValueError, OverflowError) as error:
            answer.error = f"its value, a {type(value).__name__}, cannot be sent: {error}"
        else:
            answer.value, answer.found = value, True
        return answer

    def broken(self, task: Task, reason: str) -> None:
        """Tuples are missing, and nothing but a roll-back brings them again."""
        task.topology.broken = reason
        self._tell_broken(task.topology)

    def _tell_broken(self, run: TopologyRun) -> None:
        self.tell_master(wire.Broken(self.slot, self.generation, run.number, run.epoch, run.broken))

    # -- wiring ------------------------------------------------------------------------------------------------------

    def _wire(self, task: Task) -> None:
        """Give the task its channels under the current plan; channels whose target has not moved are kept."""
        run = task.topology
        channels: dict[int, Channel] = {}
        routes: dict[str, list[tuple[Input, str, list[Channel]]]] = {output.name: [] for output in task.outputs}
        for component, given in run.graph.downstream(task.name.component):
            targets = []
            for index in range(component.par):
                target = TaskId(component.name, index)
                number = run.graph.number(target)
                if number not in channels:
                    channels[number] = self._channel(task, target, number)
                targets.append(channels[number])
            routes[given.stream].append((given, component.name, targets))
        for output in task.outputs:
            output.routes = [make_route(given.grouping, targets, output.fields, run.key_groups.get(component, ()))
                             for given, component, targets in routes[output.name] if given.grouping.kind != "direct"]
            output.targets = {channel.target for given, _, targets in routes[output.name] for channel in targets
                              if given.grouping.kind == "direct"}
        task.rewire(channels)
        if isinstance(task, BoltTask):
            self._forget_inlets(task)

    def _forget_inlets(self, task: BoltTask) -> None:
        """Of each source the last two incarnations: the one that moved away may still be draining."""
        newest: dict[int, list[int]] = {}
        for source, incarnation in sorted(task.inlets, reverse=True):
            newest.setdefault(source, []).append(incarnation)
        for source, incarnations in newest.items():
            for incarnation in incarnations[2:]:
                del task.inlets[source, incarnation]

    def _channel(self, task: Task, target: TaskId, number: int) -> Channel:
        run = task.topology
        place = run.places.get(target)
        incarnation = place.incarnation if place is not None else -1
        channel = task.channels.get(number)
        if channel is None or channel.target_incarnation != incarnation:
            moved, channel = channel, Channel(task, number, incarnation, target, run.window)
            channel.tuples = moved.tuples if moved is not None else 0  # the traffic of the two tasks, wherever they are
        if place is None:
            channel.full = True  # nowhere to go: wait until there is a slot for it
        elif place.slot == self.slot:
            self._connect_local(channel, task, number)
        elif channel.slot != place.slot or channel.link is not self.links.get(place.slot):
            channel.slot, channel.link = place.slot, self._link(place.slot)
        return channel

    def _connect_local(self, channel: Channel, task: Task, number: int) -> None:
        local = task.topology.tasks.get(number)
        if channel.local is None and isinstance(local, BoltTask):
            channel.local = local
            channel.inlet = self._inlet(local, task.number, task.incarnation, self.slot, channel)

    def _inlet(self, task: BoltTask, source: int, incarnation: int, slot: int, outlet: Channel | None) -> Inlet:
        inlet = task.inlets.get((source, incarnation))
        if inlet is None:
            graph = task.topology.graph
            component = graph.component(graph.task(source).component)
            if all(given.source != component.name for given in task.definition.inputs):
                raise UnknownName(f"{task.name} takes nothing from {component.name}")
            streams = tuple(stream.name for stream in component.outputs)
            inlet = task.inlets[(source, incarnation)] = Inlet(source, incarnation, component.name, streams, slot,
                                                                     outlet)
        return inlet

    def _link(self, slot: int) -> Link | None:
        link = self.links.get(slot)
        address = self.addresses.get(slot)
        if link is None and address is not None:
            try:
                link = self.peers.link(address)
            except MillraceError as error:  # what is sent there is lost, and replayed if it is tracked
                log.error("%s", error)
                self.counters["unreachable"] += 1
                link = Nowhere()
            self.links[slot] = link
        return link

    def send_to(self, slot: int, message: wire.DataMessage) -> None:
        link = self._link(slot)
        if link is not None:
            link.send([wire.encode(message)])

    # -- what comes in -------------------------------------------------------------------------------------------------

    def receive(self, frames: list[Any]) -> None:
        """A message of another worker. Anything malformed or stale is counted and dropped."""
        try:
            message = wire.decode_data(frames[0] if frames else b"")
        except wire.WireError as error:
            self.counters["malformed"] += 1
            log.warning("dropped: %s", error)
            return
        known = self.addresses.get(message.worker)
        if message.generation < known.generation if known is not None else message.generation <= self._newest:
            self.counters["fenced"] += 1  # given up; one that is not known but newer than all others has just come
            return
        if isinstance(message, wire.Chunk):
            if len(frames) != 2:
                self.counters["malformed"] += 1
                return
            self._on_chunk(message, frames[1])
        elif isinstance(message, wire.Credits):
            for credit in message.consumed:
                self._on_credit(*credit)
        elif isinstance(message, wire.Probe):
            self._on_probe(message)
        else:
            self._on_tracking(message, self.clock.now())

    def _on_tracking(self, message: Any, since: float) -> None:
        run = self.topologies.get(message.topology)
        if run is None:
            self._keep_early(message, since)
        elif isinstance(message, wire.Acks):
            run.tracker.on_acks(message.pairs, message.version)
        elif isinstance(message, wire.Roots):
            run.tracker.on_roots(message.owner, message.pairs, message.version)
        elif isinstance(message, wire.Fails):
            run.tracker.on_fails(message.roots, message.version)
        elif isinstance(message, wire.Handover):
            run.tracker.on_handover(message.acker, message.sums, message.failed, message.version)
        elif isinstance(message, wire.Verdicts):
            self.on_verdicts(run, message.owner, message.owner_incarnation, message.finished, message.failed)

    def _keep_early(self, message: Any, since: float) -> None:
        """For a topology that has nothing here, as far as is known: a plan that brings it an acker may be on its way."""
        may_come = message.topology in self._alive or message.topology > self._highest
        if may_come and self.clock.now() - since < STASH_SECONDS and len(self._early) < STASH_LIMIT:
            self._early.append((since, message))
        else:
            self.counters["stale"] += 1

    def on_verdicts(self, run: TopologyRun, number: int, incarnation: int, finished: list[int], failed: list[int]) -> None:
        """What became of roots, for the spout task that sent them, if it is still the same."""
        task = run.tasks.get(number)
        if isinstance(task, SpoutTask) and task.incarnation == incarnation:
            task.told(finished, failed)

    def _on_chunk(self, chunk: wire.Chunk, body: Any) -> None:
        task = self._target(chunk)
        if task is None:
            self._not_here(chunk, body)
            return
        try:
            inlet = self._inlet(task, chunk.source, chunk.source_incarnation, chunk.worker, None)
            delivery = Delivery(inlet, chunk.stream, body, chunk.count, chunk.form, False, chunk.edge, tuple(chunk.roots),
                                chunk.attempt, self.clock.now() - chunk.age)
        except (KeyError, IndexError):
            self.counters["malformed"] += 1  # a source or stream that the topology does not have
            return
        if chunk.seq != inlet.next_seq:
            if chunk.seq < inlet.next_seq:
                task.meters.repeats += 1
                return
            self._skip(task, inlet, chunk.seq)
        inlet.next_seq = chunk.seq + 1
        task.deliver(delivery)

    def _on_probe(self, probe: wire.Probe) -> None:
        task = self._target(probe)
        if task is None:
            return
        try:
            inlet = self._inlet(task, probe.source, probe.source_incarnation, probe.worker, None)
        except UnknownName:
            self.counters["malformed"] += 1
            return
        self._skip(task, inlet, probe.seq)
        self._credit(task, inlet)

    def _skip(self, task: BoltTask, inlet: Inlet, seq: int) -> None:
        """Chunks before `seq` that are not here were lost: counted, and credited, or their sender would wait for ever."""
        lost = max(0, seq - inlet.next_seq)
        task.meters.gaps += lost
        inlet.consumed += lost
        inlet.next_seq += lost
        if lost and task.topology.graph.exactly_once:
            self.broken(task, f"{lost} chunks on their way to {task.name} were lost")

    def _target(self, chunk: wire.Chunk | wire.Probe) -> BoltTask | None:
        run = self.topologies.get(chunk.topology)
        task = run.tasks.get(chunk.target) if run is not None else None
        if run is not None and isinstance(chunk, wire.Chunk) and chunk.epoch < run.epoch:
            return None
        if task is None or task.incarnation != chunk.target_incarnation:
            task = next((old for old in self._retired if old.number == chunk.target and old.topology is run
                         and old.incarnation == chunk.target_incarnation), None)
        return task if isinstance(task, BoltTask) else None

    def _not_here(self, chunk: wire.Chunk, body: Any) -> None:
        """For a task that a newer plan puts here: keep it. For one that is no longer here: drop it, it is counted and,
        if tracked, replayed."""
        run = self.topologies.get(chunk.topology)
        if run is not None:
            known = chunk.version <= run.version
        else:
            known = chunk.topology <= self._highest and chunk.topology not in self._alive
        if known or sum(map(len, self._stash.values())) >= STASH_LIMIT:
            self.counters["stale"] += 1
            return
        key = (chunk.topology, chunk.target, chunk.target_incarnation)
        self._stash.setdefault(key, []).append((chunk, body, self.clock.now()))

    def _on_credit(self, topology: int, source: int, source_incarnation: int, target: int, incarnation: int,
                   consumed: int) -> None:
        run = self.topologies.get(topology)
        tasks = [run.tasks.get(source)] if run is not None else []
        for task in tasks + [old for old in self._retired if old.number == source and old.topology is run]:
            if task is None or task.incarnation != source_incarnation:
                continue
            channel = task.channels.get(target)
            if channel is not None and channel.target_incarnation == incarnation and channel.slot is not None:
                channel.credit(consumed)

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """A chunk has been worked off: its sender may send another."""
        inlet.consumed += 1
        if inlet.outlet is not None:
            inlet.outlet.credit(inlet.consumed)
        else:
            self._credit(task, inlet)

    def _credit(self, task: BoltTask, inlet: Inlet) -> None:
        key = (task.topology.number, inlet.source, inlet.incarnation, task.number, task.incarnation)
        self._credits.setdefault(inlet.worker, {})[key] = inlet.consumed

    # -- the loop ------------------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        if not task.queued:
            task.queued = True
            self._ready.append(task)

    def in_thread(self, task: Task, work: Callable[[], None], done: Callable[[], None]) -> None:
        self.threads.run(task, work, done)

    def step(self) -> None:
        """One turn: every task that is ready does one chunk's worth, then acks and credits leave together."""
        self.timers.fire()
        for _ in range(len(self._ready)):
            task = self._ready.popleft()
            task.queued = False
            task.step(self.clock.now())
        self.flush()

    def flush(self) -> None:
        for run in self.topologies.values():
            run.tracker.flush()
        if self._credits:
            credits, self._credits = self._credits, {}
            for slot, counts in credits.items():
                pairs = [(*key, consumed) for key, consumed in counts.items()]
                self.send_to(slot, wire.Credits(self.slot, self.generation, pairs))

    def wait_seconds(self) -> float:
        """How long the loop may sleep if nothing comes in; 0 while there is work."""
        if self._ready:
            return 0.0
        return self.timers.wait_seconds()

    # -- timers --------------------------------------------------------------------------------------------------------

    def ready_at(self, task: Task, at: float) -> None:
        self.timers.at(at, lambda: self.ready(task))

    def _check(self) -> None:
        now = self.clock.now()
        for run in self.topologies.values():
            held_before = now - 2 * MESSAGE_TIMEOUT.of(run.graph.config)
            for task in run.tasks.values():
                if isinstance(task, SpoutTask):
                    task.check_overdue(now)
                elif isinstance(task, BoltTask) and task.held:
                    task.forget_held(held_before)
        for key in [key for key, kept in self._stash.items() if now - kept[-1][2] > STASH_SECONDS]:
            self.counters["stale"] += len(self._stash.pop(key))
        for task in self._retired:
            if isinstance(task, BoltTask):
                task.forget_held(now - 2 * MESSAGE_TIMEOUT.of(task.topology.graph.config))
        for task in [task for task in self._retired if (task.idle() or not task.started) and now >= (task.retiring or 0.0)]:
            # It stays for its time even when idle: those upstream may not have the new plan yet. One that could not start
            # will never work off its inbox: what is there is replayed elsewhere.
            self._retired.remove(task)
            self._end(task)

    def _probe(self) -> None:
        for run in self.topologies.values():
            if run.broken:  # the master has not heard of it
                self._tell_broken(run)
        for task in [*(task for run in self.topologies.values() for task in run.tasks.values()), *self._retired]:
            for channel in task.channels.values():
                if channel.full and channel.link is not None:
                    channel.link.send([wire.encode(wire.Probe(
                        self.slot, self.generation, task.topology.number, task.number, task.incarnation, channel.target,
                        channel.target_incarnation, channel.seq))])

    # -- telling -------------------------------------------------------------------------------------------------------

    def report_error(self, task: Task, error: BaseException, trace: list[str], tup: Tuple | None) -> None:
        entry = {"topology": task.topology.graph.name, "task": str(task.name),
                 "error": describe(error), "traceback": _tail(trace)}
        if tup is not None:
            entry["tuple"] = f"{tup.component}/{tup.stream} {_shown(tup.values)}"
        self.errors.append(entry)
        log.debug("error in %s: %s", task.name, entry["error"])

    def dead_letter(self, task: Task, letter: Sequence[Any]) -> None:
        self.counters["dead_letters"] += 1
        log.info("dead letter from %s: %s", task.name, _shown(letter[3:]))

    def report(self) -> wire.Report:
        """Everything the master wants to know, since the last report where it does not only rise."""
        tasks, positions = [], []
        in_flight = {number: 0 for number in self.topologies}
        starting = Counter(task.topology.number for run in self.topologies.values() for task in run.tasks.values()
                           if not task.started)
        for run in self.topologies.values():
            for task in list(run.tasks.values()):
                tasks.append({"topology": run.number, "task": task.number, "incarnation": task.incarnation,
                              "queue_length": task.queue_length, **task.meters.report(),
                              "traffic": {number: channel.tuples for number, channel in task.channels.items()}})
                self._look_for_state(task)
                in_flight[run.number] += task.queue_length + task.waiting() + (0 if task.idle() else 1)
                if isinstance(task, SpoutTask) and (position := task.position()) is not None:
                    positions.append((run.number, task.number, position))
        for task in self._retired:
            in_flight[task.topology.number] = in_flight.get(task.topology.number, 0) + (0 if task.idle() else 1)
        errors = list(self.errors)
        self.errors.clear()
        return wire.Report(self.slot, self.generation, self.revision, self.clock.now(), tasks, positions,
                           list(in_flight.items()), list(starting.items()), errors, {**self.counters, **self.vault.counters})

    def _look_for_state(self, task: Task) -> None:
        """Keyed state that nothing snapshots: the topology was thought to have none."""
        state = task.keeper.state
        if state is not None and not task.topology.graph.waves and not task.warned and any(map(len, state.states.values())):
            task.warned = True
            self.report_error(task, StateNotKept(
                f"{task.name} keeps keyed state, and nothing in its class mentions it, so no wave saves it: declare it in the "
                "class, for example `state = State()`"), [], None)

    def close(self) -> None:
        """End every task in good order."""
        for run in self.topologies.values():
            for task in list(run.tasks.values()):
                self._end(task)
        for task in self._retired:
            self._end(task)
        self.topologies.clear()
        self._retired.clear()
