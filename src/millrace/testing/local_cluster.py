"""A whole cluster in one process with a virtual clock: master, workers and channels, but no sockets, threads or Spark.

Only the test advances it, so a failure can be placed between any two steps and is reproducible.

    >>> from millrace.workloads.wordcount import WordCount
    >>> cluster = LocalCluster(workers=2)
    >>> cluster.submit(WordCount, config={"limit": 100})
    >>> cluster.run(seconds=1.0)
    >>> cluster.kill(1)
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from millrace.config import HEARTBEAT_TIMEOUT, RESTART_WAIT, SILENCE_LIMIT
from millrace.control.assignment import WorkerAddress
from millrace.control.events import (
    ChannelBroke,
    CollectCheckpoints,
    DeleteAbandoned,
    Distribute,
    Ended,
    EndWorker,
    Event,
    Killed,
    LeaveOver,
    LongCallsSeen,
    ManifestStored,
    Migrated,
    MoveArmed,
    Moved,
    Rescaled,
    Say,
    SendWave,
    StopWorker,
    StoreManifest,
    Submitted,
    Ticked,
    WaveAcked,
    WorkerJoined,
    WorkerLeaves,
    WorkerLost,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.control.moves import BY_HANDOVER
from millrace.control.submission import Resume
from millrace.control.workers import Patience
from millrace.errors import CheckpointMissing, MillraceError
from millrace.master.load.migration_log import MigrationLog, replay_seconds
from millrace.model.cluster import Node
from millrace.model.graph import TaskId, TopologyGraph, graph_of
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.checkpoints.guarded import write_and_look
from millrace.runtime.checkpoints.local_copies import LocalCopies
from millrace.runtime.checkpoints.paced_work import PacedWork
from millrace.runtime.checkpoints.resumption import StartOnStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.clock import ManualClock
from millrace.runtime.tasks.checkpointing.snapshot import StoreThread
from millrace.runtime.tasks.task import Task
from millrace.runtime.wire import messages as wire
from millrace.runtime.worker.long_calls import LongCalls, RunningJob
from millrace.runtime.worker.threads import job_of
from millrace.runtime.worker.worker import Worker
from millrace.schedulers.base import Scheduler

STEP_SECONDS = 0.001
REPORT_STEPS = 100
REPORT_SECONDS = 0.5


class _MailLink:
    """A FIFO to another worker's mailbox; messages in it are lost when the receiver dies."""

    def __init__(self, cluster: LocalCluster, sender: int, address: WorkerAddress) -> None:
        self._cluster, self._sender, self._address = cluster, sender, address

    def send(self, frames: list[Any]) -> None:
        self._cluster.post(self._sender, self._address, [bytes(frame) for frame in frames])


class _Peers:
    def __init__(self, cluster: LocalCluster, slot: int) -> None:
        self._cluster, self._slot = cluster, slot

    def link(self, address: WorkerAddress) -> _MailLink:
        return _MailLink(self._cluster, self._slot, address)

    def forget(self, slot: int) -> None: ...


class _NoThreads:
    """Stands for threads: work of blocking tasks is done in the cluster's next step, and that of the store after
    `store_seconds`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.waiting: deque[tuple[Any, float, Callable[[], None], Callable[[], None]]] = deque()
        self._storing: deque[tuple[float, Callable[[], None], Callable[[], None]]] = deque()

    def run(self, key: Any, work: Callable[[], None], done: Callable[[], None]) -> None:
        if isinstance(key, StoreThread):
            self._storing.append((self._cluster.clock.now() + self._cluster.store_seconds, work, done))
        else:
            self.waiting.append((key, self._cluster.clock.now(), work, done))

    def end(self, key: Any) -> None: ...

    def running(self) -> list[RunningJob]:
        return [job_of(key, 0, since) for key, since, _, _ in self.waiting]

    def work(self) -> None:
        for _ in range(0 if self._cluster.calls_hang else len(self.waiting)):
            key, since, work, done = self.waiting.popleft()
            if key.name in self._cluster.hanging:
                self.waiting.append((key, since, work, done))
            else:
                work()
                done()
        while not self._cluster.store_hangs and self._storing and self._storing[0][0] <= self._cluster.clock.now():
            _, work, done = self._storing.popleft()
            work()
            done()


class MemoryStore:
    """A checkpoint store in memory. `broken` is raised by every call while it is set."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.broken: Exception | None = None

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        self._check()
        self.blobs[name] = b"".join(parts)

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        return write_and_look(self, name, parts, guard, content)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._check()
        if name not in self.blobs:
            raise CheckpointMissing(f"the test's store has no {name}")
        return self.blobs[name][offset:None if length is None else offset + length]

    def names(self, prefix: str) -> list[str]:
        self._check()
        return sorted(name for name in self.blobs if name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        self._check()
        for name in names:
            self.blobs.pop(name, None)

    def missing(self, names: Iterable[str]) -> set[str]:
        self._check()
        return set(names) - self.blobs.keys()

    def lock(self, topology: str) -> None:
        """Do nothing: this store has no locks."""

    def close(self) -> None: ...


class LocalCluster:
    """A cluster of `workers` slots on `nodes` hosts. A step takes a virtual millisecond; workers report every hundred steps,
    and sooner if components take virtual time: they may advance the `clock`.
    Pass the `store` on to the next cluster to simulate a restarted driver. `copies`: directory of the workers' local copies."""

    def __init__(self, workers: int = 2, nodes: int = 1, scheduler: Scheduler | None = None,
                 settings: dict[str, Any] | None = None, store: MemoryStore | None = None, copies: Path | None = None) -> None:
        self.store, self._copies = store or MemoryStore(), copies
        self.store_seconds = 0.0  # duration of writing or reading a snapshot
        self.store_hangs = False  # while it is set, calls of the store do not return
        self.calls_hang = False  # while it is set, calls of blocking components do not return
        self.hanging: set[TaskId] = set()  # blocking tasks whose calls do not return
        self.in_call: set[int] = set()  # slots whose loop is in a call that does not return: only their heartbeats go on
        self._hanging: deque[StoreManifest] = deque()
        self.lose: Callable[[Any], bool] = lambda message: False  # chooses control messages, either way, to lose
        self._from_workers: deque[Any] = deque()
        self.clock = ManualClock(1000.0)
        self.master = MasterState(scheduler, restart_wait=RESTART_WAIT.of(settings or {}))
        self.workers: dict[int, Worker] = {}
        self._checkpoints: dict[str, Checkpoints] = {}  # by topology that takes waves
        self.said: list[str] = []
        self.events: list[Say] = []  # the same, with causes
        self.migrations = MigrationLog()
        self.ended: list[str] = []
        self.uncommitted: list[str] = []  # by topology that ended: what was not committed
        self.left: dict[int, str] = {}  # by slot that was removed or restarted: the error, or empty
        self.start_seconds = 0.05  # until the new process of a worker that has ended joins
        self._starting: dict[int, float] = {}  # by slot: the time when its new process joins
        self._removed: set[int] = set()
        self.delivered = 0
        self.drop: Callable[[int, int, list[bytes]], bool] = lambda sender, receiver, frames: False
        self.deaf: set[int] = set()  # slots that plans do not reach for now
        self.cut: set[int] = set()  # slots whose reports do not reach the master: they will be presumed dead
        self.holding: set[int] = set()  # slots whose code holds the interpreter lock: they do nothing, and are silent
        self._threads: dict[int, _NoThreads] = {}
        self._calls: dict[int, LongCalls] = {}
        self._mail: dict[tuple[int, int], deque[list[bytes]]] = {}
        self._nodes, self._settings, self._generation, self._steps = nodes, settings or {}, 0, 0
        self._heard: dict[int, float] = {}
        self._patience = Patience(HEARTBEAT_TIMEOUT.of(self._settings), SILENCE_LIMIT.of(self._settings))
        self._reported = self.clock.now()
        for slot in range(workers):
            self.start(slot)

    # -- called by tests -----------------------------------------------------------------------------------------------

    def submit(self, topology: Any, resume: Resume = None, **options: Any) -> TopologyGraph:
        graph = topology if isinstance(topology, TopologyGraph) else graph_of(topology, **options)
        if not graph.waves:
            self.tell(Submitted(graph))
            return graph
        checkpoints = Checkpoints(self.store, graph.name)
        start = StartOnStore(graph, checkpoints, "the store", uuid.uuid4().hex)
        self.master.check(start.outlook(resume))
        try:
            event = start.submission(resume)
            self._checkpoints[graph.name] = checkpoints
            self.tell(event)
        except BaseException:
            if graph.name not in self.master.topologies:
                checkpoints.give_back()
            raise
        return graph

    def start(self, slot: int) -> None:
        """Start a worker on the slot, as Spark does, even after a loss."""
        self._generation += 1
        threads = self._threads[slot] = _NoThreads(self)
        copies = LocalCopies(self._copies / f"copies-{slot}", 2**30) if self._copies is not None else None
        worker = Worker(slot, self._generation, self.clock, _Peers(self, slot), threads, self._settings,
                        checkpoints=CheckpointAccess(lambda: self.store, copies=copies, pace=PacedWork(lambda seconds: None)),
                        tell_master=self._from_workers.append)
        self.workers[slot] = worker
        self._calls[slot] = LongCalls(threads, lambda: worker.turn_began, self.clock.now)
        self._mail[(slot, self._generation)] = deque()
        self._heard[slot] = self.clock.now()
        self.tell(WorkerJoined(slot, self._generation, self.node(slot), self.node(slot).name, f"executor{slot}", "", ""))

    def node(self, slot: int) -> Node:
        """The node of a slot; slots are assigned to nodes round-robin."""
        return Node(f"node{slot % self._nodes}", 4, 1000.0, 4096)

    def kill(self, slot: int, noticed: bool = True) -> None:
        """Kill a worker with everything it holds. `noticed`: the master knows at once."""
        worker = self.workers.pop(slot)
        self._mail.pop((slot, worker.generation))
        if noticed:
            self.tell(WorkerLost(slot, worker.generation, "killed by the test"))

    def hear(self, slot: int) -> None:
        """Deliver the current plan to a slot that was deaf."""
        self.deaf.discard(slot)
        self.workers[slot].assign(self.master.distribution().parts[self.node(slot).name])

    def move(self, name: str, task: TaskId, slot: int, strategy: str = BY_HANDOVER) -> None:
        self.tell(Moved(name, task, slot, strategy))

    def scale(self, name: str, **par: int) -> None:
        """Give components of a topology other numbers of tasks."""
        self.tell(Rescaled(name, par))

    def remove(self, slot: int) -> None:
        """Remove a worker on purpose; `left` has it when that is over."""
        self.tell(WorkerLeaves(slot))
        self._removed.add(slot)

    def restart(self, slot: int) -> None:
        """Restart a worker on purpose; `left` has it when that is over."""
        self.tell(WorkerLeaves(slot, restarts=True))

    def stop(self, name: str, wait: float = 10.0) -> None:
        self.tell(Killed(name, wait, self.clock.now()))

    def tell(self, event: Event) -> None:
        for command in self.master.handle(event, self.clock.now()):
            if isinstance(command, Distribute):
                for slot, worker in list(self.workers.items()):
                    if slot not in self.deaf and (part := command.parts.get(self.node(slot).name)) is not None:
                        worker.assign(part)
            elif isinstance(command, Say):
                self.said.append(f"{command.topology}: {command.text}" if command.topology else command.text)
                self.events.append(command)
            elif isinstance(command, Migrated):
                topology = self.master.topologies.get(command.migration.topology)
                timeout = replay_seconds(topology.graph) if topology is not None else 0.0
                self.migrations.add(command.migration, self.clock.now(), self.clock.wall(), timeout=timeout)
            elif isinstance(command, Ended):
                self.ended.append(command.name)
                self.migrations.forget(command.name)
                self.uncommitted.append(command.uncommitted)
            elif isinstance(command, StopWorker):
                if command.slot in self.workers and not self.lose(wire.Stop()):
                    self._from_workers.append(wire.Bye(command.slot, self.workers[command.slot].generation))
            elif isinstance(command, EndWorker):
                self._start_later(command.slot)
            elif isinstance(command, LeaveOver):
                self.left[command.slot] = command.error
            elif isinstance(command, SendWave):
                self._send_wave(command)
            elif isinstance(command, StoreManifest):
                self._store(command)
            elif isinstance(command, CollectCheckpoints):
                with suppress(MillraceError):  # as in the master: the next wave retries
                    self._of(command.name).collect(epoch=command.epoch)
            elif isinstance(command, DeleteAbandoned):
                with suppress(MillraceError):
                    self._of(command.name).delete_abandoned(command.epoch, command.wave, command.needed)

    def _send_wave(self, command: SendWave) -> None:
        send = command.send
        mark = wire.WaveMark(send.kind, send.wave, send.wave_epoch, send.whole, send.overtakes, send.captures, send.dropped)
        for slot, tasks in command.tasks.items():
            wave = wire.Wave(command.topology, command.epoch, mark, send.sweep, list(tasks))
            if slot in self.workers and not self.lose(wave):
                self.workers[slot].on_wave(wave)

    def _store(self, command: StoreManifest) -> None:
        if self.store_hangs:
            self._hanging.append(command)
            return
        manifest, error = command.manifest, ""
        try:
            checkpoints = self._of(manifest.topology)
            (checkpoints.claim if command.claim else checkpoints.commit)(manifest)
        except MillraceError as failure:
            error = str(failure)
        self._from_workers.append(ManifestStored(manifest.topology, manifest.epoch, manifest.wave, error))

    def _of(self, topology: str) -> Checkpoints:
        return self._checkpoints.get(topology) or Checkpoints(self.store, topology)

    def _listen(self) -> None:
        """Pass on the messages of workers since the last step, and the outcome of manifests."""
        while self._hanging and not self.store_hangs:
            self._store(self._hanging.popleft())
        for _ in range(len(self._from_workers)):
            message = self._from_workers.popleft()
            if isinstance(message, ManifestStored):
                self.tell(message)
            elif isinstance(message, wire.Bye):
                self._end(message.slot, message.generation, heard=not self.lose(message))
            elif self.lose(message) or message.slot in self.cut or not self._is_alive(message):
                continue
            elif isinstance(message, wire.Waved):
                self.tell(WaveAcked(message.topology, message.epoch, message.kind, message.wave, message.task,
                                    message.incarnation, message.record, message.error))
            elif isinstance(message, wire.Armed):
                self.tell(MoveArmed(message.topology, message.epoch, message.move, message.wave, message.copied_bytes,
                                    message.error, message.starts))
            elif isinstance(message, wire.Taken):
                self.tell(self.migrations.taken(message))
            elif isinstance(message, wire.Broken):
                self.tell(ChannelBroke(message.topology, message.epoch, message.reason))

    def _end(self, slot: int, generation: int, heard: bool) -> None:
        """End a worker as its process does when the master stops it. Unless it was removed, a new one is started. `heard`: the
        master knows of its end."""
        worker = self.workers.get(slot)
        if worker is None or worker.generation != generation:  # it was killed meanwhile
            return
        if heard:
            self._take(worker.last_report())
        worker.close()
        self._start_later(slot)
        if heard:
            self.tell(WorkerLost(slot, generation, "it stopped"))

    def _start_later(self, slot: int) -> None:
        """Let the process of a worker be gone. Unless it was removed, a new one is started."""
        if (worker := self.workers.pop(slot, None)) is None:
            return
        del self._mail[(slot, worker.generation)]
        if slot not in self._removed:
            self._starting[slot] = self.clock.now() + self.start_seconds

    def give_up(self, slot: int) -> None:
        """Start no new process of a worker that has ended."""
        del self._starting[slot]

    def _is_alive(self, message: Any) -> bool:
        known = self.master.workers.get(message.slot)
        return known is not None and known.address.generation == message.generation

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.clock.advance(STEP_SECONDS)
            self._steps += 1
            for slot in sorted(self.workers):
                self._step_worker(slot)
            self._listen()
            for slot in [slot for slot, at in self._starting.items() if at <= self.clock.now()]:
                del self._starting[slot]
                self.start(slot)
            if self._steps % REPORT_STEPS == 0 or self.clock.now() - self._reported >= REPORT_SECONDS:
                self._report()

    def run(self, seconds: float) -> None:
        self.step(round(seconds / STEP_SECONDS))

    def run_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Step until the condition holds; raises `AssertionError` with the master's messages if it does not in that virtual
        time."""
        for _ in range(round(seconds / STEP_SECONDS)):
            if condition():
                return
            self.step()
        raise AssertionError(f"not reached in {seconds} virtual seconds; the master said: {self.said}")

    def tasks(self, component: str) -> list[Task]:
        """The running tasks of a component on all workers, by index."""
        tasks = [task for worker in self.workers.values() for run in worker.topologies.values()
                 for task in run.tasks.values() if task.name.component == component]
        return sorted(tasks, key=lambda task: task.name)

    def where(self, topology: str) -> dict[TaskId, int]:
        return {task: place.slot for task, place in self.master.topologies[topology].places.items()}

    # -- inside --------------------------------------------------------------------------------------------------------

    def post(self, sender: int, address: WorkerAddress, frames: list[bytes]) -> None:
        box = self._mail.get((address.slot, address.generation))
        if box is not None and not self.drop(sender, address.slot, frames):
            box.append(frames)

    def _step_worker(self, slot: int) -> None:
        worker = self.workers.get(slot)
        if worker is None or slot in self.holding or slot in self.in_call:
            return
        self._calls[slot].turned = self.clock.now()
        box = self._mail[(slot, worker.generation)]
        for _ in range(len(box)):
            self.delivered += 1
            worker.arrivals.receive(box.popleft())
        self._threads[slot].work()
        worker.step()

    def _report(self) -> None:
        now = self._reported = self.clock.now()
        for slot, worker in list(self.workers.items()):
            if slot in self.holding:
                continue
            if slot not in self.cut:
                if now - self._heard[slot] > self._patience.timeout:
                    self._patience.spoke_again(now - self._heard[slot])
                self._heard[slot] = now
                self._note_calls(slot, worker.generation)
            if slot in self.in_call:
                continue
            report = worker.report()
            if slot not in self.cut:
                self._take(report)
        for slot, known in list(self.master.workers.items()):
            if now - self._heard[slot] > self._patience.limit(slot in self.holding):
                self.tell(WorkerLost(slot, known.address.generation, "no heartbeat"))
        self.tell(Ticked(now))
        self.migrations.settle(now)

    def _take(self, report: wire.Report) -> None:
        names = {topology.number: name for name, topology in self.master.topologies.items()}
        self.migrations.take(report, names, self.clock.now())
        self.tell(WorkerReported(report.slot, report.generation, report.revision, tuple(report.in_flight),
                                 tuple(report.positions), tuple(report.starting), report.executed(), report.hosted,
                                 tuple(report.reached)))

    def _note_calls(self, slot: int, generation: int) -> None:
        calls, known = tuple(self._calls[slot].seen()), self.master.workers.get(slot)
        if calls or (known is not None and known.long_calls):
            self.tell(LongCallsSeen(slot, generation, calls))
