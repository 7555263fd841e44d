"""The worker: hosts tasks, carries out assignments, gives every task its turn. One loop, no socket: those are in process.py.

Whoever drives it calls `assign`, `arrivals.receive` and `step`; it sends through the `Peers` it was given.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from millrace.api.dataframe import Feed
from millrace.config import DRAIN_LIMIT, FRAME_LIMIT, MESSAGE_TIMEOUT, RECOVERY_GRACE
from millrace.control.assignment import Assignment, Stamp
from millrace.control.ledger import Ledger
from millrace.control.plan_diff import plan_diff
from millrace.control.waves import INIT
from millrace.errors import StateNotKept
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.checkpoints.access import Vault
from millrace.runtime.clock import Clock
from millrace.runtime.feeds.feed import NoFeeds
from millrace.runtime.flow.channel import Inlet
from millrace.runtime.flow.links import Links, Peers
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.user_errors import ErrorLog
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.arrivals import Arrivals
from millrace.runtime.worker.state_queries import look_up
from millrace.runtime.worker.timers import Timers
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.runtime.worker.wiring import LinkWiring

PROBE_SECONDS = 1.0  # how often the senders of full channels ask whether anything got lost on the way
CHECK_SECONDS = 0.1  # how often spouts look for overdue roots and moved tasks for the end of their inbox


class Feeds(Protocol):
    """Where DataFrame spouts get their feeds from. `tell` takes a metric of the task."""

    def open(self, name: str, tell: Callable[[str, Any], None]) -> Feed: ...


class Threads(Protocol):
    """Threads for tasks that block. `done` is called back on the loop."""

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None: ...

    def end(self, key: Any) -> None: ...


class Worker:
    """`generation` is the master's number for this run of the slot: messages of older generations are refused."""

    def __init__(self, slot: int, generation: int, clock: Clock, peers: Peers, threads: Threads,
                 settings: dict[str, Any] | None = None, author: int = 0, vault: Vault | None = None,
                 tell_master: Callable[[Any], None] = lambda message: None) -> None:
        self.slot, self.generation, self.clock, self.threads = slot, generation, clock, threads
        self.author, self.tell_master = author, tell_master
        self.vault = vault or Vault()
        self.feeds: Feeds = NoFeeds()  # whoever has sockets puts others here
        settings = settings or {}
        self.frame_limit: int = FRAME_LIMIT.of(settings)
        self.grace: float = RECOVERY_GRACE.of(settings)
        self.drain_limit: float = DRAIN_LIMIT.of(settings)
        self.stamp = Stamp(0, 0)  # of the plan that has been carried out
        self.topologies: dict[int, TopologyRun] = {}
        self.counters: Counter[str] = Counter()
        self.errors = ErrorLog(self.counters)
        self.links = Links(peers, self.counters)
        self.arrivals = Arrivals(clock, self.topologies, self.counters)
        self._wiring = LinkWiring(self.links)
        self._early_waves: dict[int, wire.Wave] = {}  # by topology: INITs that came before the plan
        self._ready: deque[Task] = deque()
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
        self.links.reach(assignment.workers)
        self.vault.reach(assignment.workers)
        self.arrivals.learn(assignment)
        self._leave_epochs(assignment)
        running = {(run.number, task.name): task.incarnation for run in self.topologies.values()
                   for task in run.tasks.values()}
        running.update({(run.number, TaskId(ACKER, index)): incarnation for run in self.topologies.values()
                        for index, incarnation in run.ackers.items()})
        todo = plan_diff(running, assignment, self.slot)
        lost = self._update_topologies(assignment)
        for number, name in todo.drop:
            self._drop(number, name)
        for number, name in todo.retire:
            self._retire(number, name)
        started = [self._start(number, name, incarnation) for number, name, incarnation in todo.start]
        for run in self.topologies.values():
            for task in run.everyone():
                self._wiring.wire(task)
        for new in started:
            if new is not None:
                new.begin()
                self.arrivals.unstash(new)
        self._forget_gone(assignment)
        self._go_on(lost)
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
            for task in run.everyone():
                self._end(task)
            run.tasks.clear()
            run.retired.clear()

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
        return lost

    def _forget_gone(self, assignment: Assignment) -> None:
        """Topologies that were killed: their tasks have been dropped, those that still drained end now."""
        alive = set(assignment.alive)
        for run in [run for number, run in self.topologies.items() if number not in alive]:
            del self.topologies[run.number]
            self.vault.forget(run.graph.name)
            for task in run.retired:
                self._end(task)

    def _go_on(self, lost: list[TopologyRun]) -> None:
        """The plan has been carried out: everyone gets a turn, and what came too early finds its place."""
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
            for task in run.retired:
                self.ready(task)
        early_waves, self._early_waves = self._early_waves, {}
        for number, wave in early_waves.items():
            if number in self.topologies:
                self.on_wave(wave)
        self.arrivals.settle()

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
            run.retired.append(task)
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

    # -- word from the master, and to it -----------------------------------------------------------------------------

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
        answer = wire.Answer(self.slot, self.generation, query.number, False)
        if task is not None and task.definition.blocking:
            self.threads.run(task, partial(look_up, query, task, answer), partial(self.tell_master, answer))
        else:
            look_up(query, task, answer)
            self.tell_master(answer)

    def broken(self, task: Task, reason: str) -> None:
        """Tuples are missing, and nothing but a roll-back brings them again."""
        task.topology.broken = reason
        self._tell_broken(task.topology)

    def _tell_broken(self, run: TopologyRun) -> None:
        self.tell_master(wire.Broken(self.slot, self.generation, run.number, run.epoch, run.broken))

    # -- credits -----------------------------------------------------------------------------------------------------

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """A chunk has been worked off: its sender may send another."""
        inlet.consumed += 1
        if inlet.outlet is not None:
            inlet.outlet.credit(inlet.consumed)
        else:
            self.credit(task, inlet)

    def credit(self, task: BoltTask, inlet: Inlet) -> None:
        """To a task of another worker: it leaves with the others at the end of the turn."""
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
                self.links.send(slot, wire.Credits(self.slot, self.generation, pairs))

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
            for old in list(run.retired):
                if isinstance(old, BoltTask):
                    old.forget_held(held_before)
                self._end_if_drained(old, now)
        self.arrivals.forget_old()

    def _end_if_drained(self, task: Task, now: float) -> None:
        """It stays for its time even when idle: those upstream may not have the new plan yet. One that could not start will
        never work off its inbox: what is there is replayed elsewhere."""
        if (task.idle() or not task.started) and now >= (task.retiring or 0.0):
            task.topology.retired.remove(task)
            self._end(task)

    def _probe(self) -> None:
        for run in self.topologies.values():
            if run.broken:  # the master has not heard of it
                self._tell_broken(run)
            for task in run.everyone():
                self._ask_after(task)

    def _ask_after(self, task: Task) -> None:
        for channel in task.channels.values():
            if channel.full and channel.link is not None:
                channel.link.send([wire.encode(wire.Probe(
                    self.slot, self.generation, task.topology.number, task.number, task.incarnation, channel.target,
                    channel.target_incarnation, channel.seq))])

    # -- telling -------------------------------------------------------------------------------------------------------

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
            in_flight[run.number] += sum(not task.idle() for task in run.retired)
        return wire.Report(self.slot, self.generation, self.revision, self.clock.now(), tasks, positions,
                           list(in_flight.items()), list(starting.items()), self.errors.take(),
                           {**self.counters, **self.vault.counters})

    def _look_for_state(self, task: Task) -> None:
        """Keyed state that nothing snapshots: the topology was thought to have none."""
        state = task.keeper.state
        if state is not None and not task.topology.graph.waves and not task.warned and any(map(len, state.states.values())):
            task.warned = True
            self.errors.add(task, StateNotKept(
                f"{task.name} keeps keyed state, and nothing in its class mentions it, so no wave saves it: declare it in the "
                "class, for example `state = State()`"), [], None)

    def close(self) -> None:
        """End every task in good order."""
        for run in self.topologies.values():
            for task in run.everyone():
                self._end(task)
        self.topologies.clear()
