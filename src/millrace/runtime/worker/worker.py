"""The worker: hosts tasks, carries out assignments and gives every task its turn. One loop, no sockets: process.py has those.

Its driver calls `assign`, `arrivals.receive` and `step`; it sends through the `Peers` that it is constructed with.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from millrace.config import FRAME_LIMIT, MESSAGE_TIMEOUT, RECOVERY_GRACE
from millrace.control.assignment import Assignment, Stamp, numbers_in
from millrace.control.ledger import Ledger
from millrace.control.plan_diff import plan_diff
from millrace.control.waves import INIT
from millrace.model.graph import ACKER, TaskId
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.clock import Clock
from millrace.runtime.feeds.feed import NoFeeds
from millrace.runtime.flow.channel import Inlet
from millrace.runtime.flow.links import Links, Peers
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.tasks.checkpointing.snapshot import STORE_THREADS
from millrace.runtime.tasks.handover.retirement import Retirement
from millrace.runtime.tasks.host import FeedOpener, TaskTopology, Threads
from millrace.runtime.tasks.spout import SpoutTask
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.user_errors import ErrorLog
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.arrivals import Arrivals
from millrace.runtime.worker.known_workers import KnownWorkers
from millrace.runtime.worker.reports import Reports
from millrace.runtime.worker.state_lookup import look_up
from millrace.runtime.worker.timers import Timers
from millrace.runtime.worker.topology_run import TopologyRun
from millrace.runtime.worker.wiring import LinkWiring

PROBE_SECONDS = 1.0  # between probes of channels for lost chunks
CHECK_SECONDS = 0.1  # between checks for overdue roots, unacked chunks and drained tasks


class Worker:
    """The tasks of one slot. `generation` is the master's number for this run of the slot: messages of older generations are
    refused."""

    def __init__(self, slot: int, generation: int, clock: Clock, peers: Peers, threads: Threads,
                 settings: dict[str, Any] | None = None, author: int = 0, checkpoints: CheckpointAccess | None = None,
                 tell_master: Callable[[Any], None] = lambda message: None) -> None:
        self.slot, self.generation, self.clock, self.threads = slot, generation, clock, threads
        self.author, self.tell_master = author, tell_master
        self.checkpoints = checkpoints or CheckpointAccess()
        self.feeds: FeedOpener = NoFeeds()  # replaced where there are sockets
        settings = settings or {}
        self.frame_limit: int = FRAME_LIMIT.of(settings)
        self.grace: float = RECOVERY_GRACE.of(settings)
        self.stamp = Stamp(0, 0)  # of the plan in effect
        self.topologies: dict[int, TopologyRun] = {}
        self.counters: Counter[str] = Counter()
        self.errors = ErrorLog(self.counters)
        self.links = Links(peers, self.counters)
        self.known = KnownWorkers()
        self.arrivals = Arrivals(clock, self.topologies, self.known, self.counters)
        self.reports = Reports(self)
        self._wiring = LinkWiring(self.links)
        self._early_waves: dict[int, wire.Wave] = {}  # by topology: INITs that arrived before their plan
        self._ready: deque[Task] = deque()
        self._turn = 0
        self.turn_began = clock.now()  # of the task that got the last turn on the loop
        self._credits: dict[int, dict[tuple[int, int, int, int, int], tuple[int, int, int]]] = {}
        self.timers = Timers(clock)
        self.timers.every(CHECK_SECONDS, self._check)
        self.timers.every(PROBE_SECONDS, self._probe)

    # -- assignments -------------------------------------------------------------------------------------------------

    def assign(self, assignment: Assignment) -> None:
        """Carry out an assignment: start, retire and drop tasks, and rewire them. Ignores older assignments, those of another
        master, and those from before this worker joined or after it was fenced: a plan store may contain any of them."""
        if (assignment.stamp <= self.stamp or assignment.author != self.author
                or not assignment.is_for(self.slot, self.generation)):
            return
        self.known.learn(assignment)
        self.links.reach(self.known.addresses)
        self.checkpoints.reach(self.known.addresses)
        self.arrivals.learn(assignment)
        self._end_old_epochs(assignment)
        for run in self.topologies.values():
            run.handovers.settle()
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
        arriving = [task for run in self.topologies.values() for task in run.handovers.begin(
            partial(self.make_task, run), self.slot, self.known.generation_of)]
        for run in self.topologies.values():
            for task in run.everyone():
                self.connect(task)
        for new in started:
            if new is not None:
                self.turn_began = self.clock.now()
                new.life.begin()
                self.arrivals.unstash(new)
        for task in arriving:
            assert task.arrival is not None
            task.arrival.begin()
        self._forget_killed(assignment)
        self._resume(lost)
        self.stamp = assignment.stamp

    @property
    def revision(self) -> int:
        return self.stamp.revision

    def _end_old_epochs(self, assignment: Assignment) -> None:
        """End all tasks of a topology that rolled back, without draining: they belong to the previous epoch."""
        for plan in assignment.topologies:
            run = self.topologies.get(plan.number)
            if run is None or plan.epoch <= run.epoch:
                continue
            for task in run.everyone():
                self._count_rewound(task, plan.restore[0])
            for task in run.tasks.values():
                self.end(task)
            run.tasks.clear()
            run.handovers.end_all()

    def _count_rewound(self, task: Task, wave: int) -> None:
        """Count the tuples of a spout that its next incarnation, which begins at that wave, emits again."""
        if task.begins_waves:
            task.meters.replayed += task.waves.emitted_since(wave)

    def _update_topologies(self, assignment: Assignment) -> list[TopologyRun]:
        """Apply the new plans. Returns the topologies that have lost a worker since the last assignment."""
        lost = []
        for plan in assignment.topologies:
            run = self.topologies.get(plan.number)
            if run is None:
                self.topologies[plan.number] = TopologyRun(self, plan)
                continue
            if plan.graph == run.graph:
                run.update(plan)
            else:
                run.replan(plan)
            if plan.losses > run.losses:
                run.losses = plan.losses
                lost.append(run)
        return lost

    def _forget_killed(self, assignment: Assignment) -> None:
        """Forget killed topologies: their tasks have been dropped, and draining ones end now."""
        alive = set(numbers_in(assignment.alive))
        for run in [run for number, run in self.topologies.items() if number not in alive]:
            del self.topologies[run.number]
            self.checkpoints.forget(run.graph.name)
            run.handovers.end_all()

    def _resume(self, lost: list[TopologyRun]) -> None:
        """After a new plan: give every task a turn, and deliver messages that arrived before the plan."""
        deadline = self.clock.now() + self.grace
        for run in self.topologies.values():
            run.tracker.settle()
            for task in run.tasks.values():
                if isinstance(task, SpoutTask):
                    task.set_active(run.active)
                if not task.blocked:
                    self.ready(task)
            for task in run.everyone():
                if isinstance(task, BoltTask):
                    task.inbox.end_lost()
                elif isinstance(task, SpoutTask) and run in lost:
                    task.tracking.worker_lost(deadline)
            for task in run.handovers:
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
        arrived = run.handovers.arrives(name, incarnation)
        task = arrived or self.make_task(run, name, incarnation)
        run.tasks[task.number] = task
        return task if arrived is None else None

    def make_task(self, run: TopologyRun, name: TaskId, incarnation: int) -> Task:
        kind = SpoutTask if run.graph.component(name.component).kind == "spout" else BoltTask
        return kind(self, run, name, incarnation)

    def connect(self, task: Task) -> None:
        """Give the task the channels of the plan. One whose code runs on its thread keeps those it has until that returns: what
        it emits meanwhile is for them."""
        handovers = self.topologies[task.topology.number].handovers
        task.unwired = task.busy and bool(handovers.moves)
        if not task.unwired:
            handovers.mark(task)
            self._wiring.wire(task)
            task.rewired()

    def start_timers(self, task: BoltTask, due: Mapping[str, float]) -> None:
        for name, seconds, call in (("tick", task.due.tick_seconds(), task.due.tick),
                                    ("timer", task.component._timer_seconds(), task.due.timer)):
            if seconds:
                first = due.get(name, seconds)
                task.due.starts(name, first, seconds)
                self.timers.every(seconds, call, while_=lambda: not task.ended, first=first)

    def send_state(self, slot: int, part: wire.StatePart, body: bytes) -> None:
        link = self.links.to(slot)
        if link is not None:
            link.send([wire.encode(part), body])

    def _retire(self, number: int, name: TaskId) -> None:
        """A task or acker is elsewhere now: it hands over, or ends because it is not the one that the plan means."""
        run = self.topologies[number]
        if name.component == ACKER:
            run.ackers.pop(name.index, None)
            run.tracker.retire(name.index)
            return
        task = run.take(name)
        if task is not None and not run.handovers.leaves(task):
            if isinstance(task.departure, Retirement):  # it has nothing in flight
                pass
            elif run.rewinds or run.graph.exactly_once:
                self._count_rewound(task, run.restore[0])
            elif isinstance(task, SpoutTask):
                task.leave()  # counts what its next incarnation emits again
            self.reports.ended(task)
            self.end(task)

    def _drop(self, number: int, name: TaskId) -> None:
        run = self.topologies.get(number)
        if run is None:
            return
        if name.component == ACKER:
            run.ackers.pop(name.index, None)
            run.tracker.ledgers.pop(name.index, None)  # which also ends its timer
            return
        task = run.take(name)
        if task is not None:
            self.end(task)

    def end(self, task: Task) -> None:
        """End a task for good and close its component."""
        task.ended = True
        task.topology.meters.task_ended(task.meters)
        task.abandon()
        if task.definition.blocking:
            self.threads.run(task, task.close, lambda: None)  # queued behind user code that is still running
            self.threads.end(task)
        else:
            task.close()

    # -- messages from and to the master -----------------------------------------------------------------------------

    def on_wave(self, wave: wire.Wave) -> None:
        """Pass a wave request to its tasks. A request of an earlier epoch is obsolete. Of a later epoch, an INIT is kept until
        the plan arrives; the master repeats anything else."""
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
                task.waves.on_request(wave.mark, wave.sweep)

    def on_query(self, query: wire.Query) -> None:
        """Look up the current value of a key in a task's state, where the task's code runs."""
        run = self.topologies.get(query.topology)
        task = run.tasks.get(query.task) if run is not None else None
        answer = wire.Answer(self.slot, self.generation, query.number, False)
        if task is not None and task.definition.blocking:
            self.threads.run(task, partial(look_up, query, task, answer), partial(self.tell_master, answer))
        else:
            look_up(query, task, answer)
            self.tell_master(answer)

    def on_trial(self, trial: wire.TryStore) -> None:
        """Try the checkpoint store, on a thread: it may be slow."""
        answer = wire.StoreTried(self.slot, self.generation, trial.token)

        def join() -> None:
            answer.error = self.checkpoints.join_trial(trial.token, str(self.slot))

        self.threads.run(STORE_THREADS[0], join, partial(self.tell_master, answer))

    def broken(self, task: Task, reason: str) -> None:
        """Report that tuples are missing and that only a rollback can recover them."""
        task.topology.broken = reason
        self._report_broken(task.topology)

    def is_lost(self, slot: int, generation: int) -> bool:
        return self.known.is_lost(slot, generation)

    def _report_broken(self, run: TaskTopology) -> None:
        self.tell_master(wire.Broken(self.slot, self.generation, run.number, run.epoch, run.broken))

    # -- credits -----------------------------------------------------------------------------------------------------

    def consumed(self, task: BoltTask, inlet: Inlet) -> None:
        """Credit the sender of a chunk that has been consumed."""
        inlet.consumed += 1
        if inlet.outlet is not None:
            inlet.outlet.credit(inlet.consumed, *task.inbox.allowance())
        else:
            self.credit(task, inlet)

    def credit(self, task: BoltTask, inlet: Inlet) -> None:
        """Credit a task of another worker; all credits leave together at the end of the turn."""
        key = (task.topology.number, inlet.source, inlet.incarnation, task.number, task.incarnation)
        self._credits.setdefault(inlet.worker, {})[key] = (inlet.consumed, *task.inbox.allowance())

    # -- the loop ------------------------------------------------------------------------------------------------------

    def ready(self, task: Task) -> None:
        if not task.queued:
            task.queued = True
            self._ready.append(task)

    def step(self) -> bool:
        """One turn: every task that is ready, or gets ready by another's output, does one chunk's worth; then acks and credits
        leave together. No task does more, so what arrives meanwhile does not wait for long. False if no task was ready."""
        self.timers.fire()
        self._turn = turn = self._turn + 1
        ready, now = self._ready, self.clock.now
        worked = bool(ready)
        while ready and ready[0].turn != turn:
            task = ready.popleft()
            task.queued, task.turn = False, turn
            self.turn_began = began = now()
            task.step(began)
        self.flush()
        return worked

    def flush(self) -> None:
        for run in self.topologies.values():
            run.tracker.flush()
        if self._credits:
            credits, self._credits = self._credits, {}
            for slot, counts in credits.items():
                pairs = [(*key, *credit) for key, credit in counts.items()]
                self.links.send(slot, wire.Credits(self.slot, self.generation, pairs))

    def wait_seconds(self) -> float:
        """Seconds that the loop may sleep if nothing arrives; 0 while there is work."""
        if self._ready:
            return 0.0
        return self.timers.wait_seconds()

    # -- timers --------------------------------------------------------------------------------------------------------

    def ready_at(self, task: Task, at: float) -> None:
        self.timers.at(at, lambda: self.ready(task))

    def _check(self) -> None:
        now = self.clock.now()
        for run in self.topologies.values():
            unacked_before = now - 2 * MESSAGE_TIMEOUT.of(run.graph.config)
            for task in run.everyone():
                if isinstance(task, SpoutTask):
                    task.tracking.check_overdue(now)
                elif isinstance(task, BoltTask) and task.acks.unacked:
                    task.acks.expire(unacked_before)
            run.handovers.check()
        self.arrivals.forget_old()

    def _probe(self) -> None:
        for run in self.topologies.values():
            if run.broken:  # the master has not reacted yet
                self._report_broken(run)
            run.handovers.tell_again()
            for task in run.everyone():
                for channel in dict.fromkeys((*task.channels.values(), *task.cuts.values())):
                    channel.probe()

    # -- reports and end -----------------------------------------------------------------------------------------------

    def report(self) -> wire.Report:
        return self.reports.make()

    def last_report(self) -> wire.Report:
        """The report of a worker that ends while tasks run: their next incarnations emit again what is not committed."""
        for run in self.topologies.values():
            for task in run.tasks.values() if run.rewinds or run.graph.exactly_once else ():
                self._count_rewound(task, task.waves.committed)
        return self.report()

    def close(self) -> None:
        """End every task cleanly."""
        for run in self.topologies.values():
            for task in run.everyone():
                self.end(task)
        self.topologies.clear()
