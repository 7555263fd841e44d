"""The master at work: one thread that listens to workers and people and carries out what `MasterState` decides."""

from __future__ import annotations

import logging
import shutil
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import zmq

from millrace.config import CHECKPOINTS
from millrace.control.events import (
    CollectCheckpoints,
    Distribute,
    Ended,
    Event,
    Killed,
    Moved,
    Paused,
    Replanned,
    Rescaled,
    Resumed,
    Say,
    SendWave,
    StoreManifest,
    Submitted,
    Ticked,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.errors import NotEnoughSlots, NotTheAuthor
from millrace.master.batch_log import BatchLog, BatchRecord
from millrace.master.batches import Batching, Enlisted
from millrace.master.checkpoints.checkpointing import Checkpointing, default_store
from millrace.master.load.observed import TopologyObserved
from millrace.master.plans.distribution import Distributing
from millrace.master.requests.handlers import RequestHandlers
from millrace.master.requests.server import RequestSocket
from millrace.master.requests.status import status_of
from millrace.master.scheduling.scheduling import Scheduling
from millrace.master.thread import MasterThread
from millrace.master.workers.port import Connection, WorkerPort
from millrace.model.cluster import Node
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Gate, Keys
from millrace.runtime.worker.process import WorkerSetup
from millrace.schedulers.base import Scheduler
from millrace.state.checkpoint import Manifest

log = logging.getLogger("millrace.master")
EVENTS_KEPT = 200
FINISHED_KEPT = 20


class Master:
    """Thread-safe from outside: everything runs on its own thread, `call` hands work to it."""

    def __init__(self, name: str, host: str = "127.0.0.1", port: int = 0, settings: dict[str, Any] | None = None,
                 scheduler: Scheduler | None = None) -> None:
        self.name = name
        self.settings = {CHECKPOINTS.key: default_store(name), **(settings or {})}
        self.superseded = ""  # by another master: why this one must not decide anything any more
        self.distributing = Distributing(self)
        self.state = MasterState(scheduler)
        self.scheduling = Scheduling(self)
        self.checkpointing = Checkpointing(self)
        self.batching = Batching(self)
        self.observed: dict[str, TopologyObserved] = {}
        self.finished: dict[str, TopologyObserved] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.keys = Keys.make()
        self.cluster = uuid.uuid4().hex[:12]
        self.listeners: list[Callable[[Say], None]] = []
        self.before_kill: dict[str, Callable[[Killed], None]] = {}  # by topology: asked once, tells the event again when ready
        self._generation = 0
        self._thread = MasterThread(self._sources, self._hear, self._tick)
        self._context = zmq.Context()
        self._gate = Gate(self._context, self.keys)
        self._request_socket: RequestSocket | None = None
        try:
            self._open(host, port)
        except BaseException:
            self._close()
            raise

    def _open(self, host: str, port: int) -> None:
        self.worker_port = WorkerPort(self, self._context, host, port)
        self.connections, self.endpoint = self.worker_port.connections, self.worker_port.endpoint
        self._request_socket = RequestSocket.open(self.name)
        self._people = RequestHandlers(self, self._request_socket.listen(self._context))
        self.state.author = self.distributing.publisher.claim()  # not before the name is ours: it ends another master's reign

    def setup(self, bind: str = "", path: tuple[str, ...] = ()) -> WorkerSetup:
        """What workers need to find this master; the launcher ships it."""
        return WorkerSetup(self.cluster, self.endpoint, self.keys, bind, path, self.settings)

    # -- its thread --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the master's thread and return its result, or raise what it raised."""
        return self._thread.call(work)

    def later(self, work: Callable[[], Any]) -> None:
        """Run `work` on the master's thread soon; from any thread, without waiting for it."""
        self._thread.later(work)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is asked on the master's thread, holds. False if time ran out."""
        return self._thread.wait_until(condition, seconds)

    def wait_for_workers(self, count: int, seconds: float) -> None:
        if not self.wait_until(lambda: len(self.state.workers) >= count, seconds):
            raise NotEnoughSlots(f"{len(self.state.workers)} of {count} workers came up within {seconds:g} s. Are there "
                                 f"{count} free task slots on the Spark cluster, and can its hosts reach {self.endpoint}?")

    def stop(self, wait: float = 5.0) -> None:
        """Tell every worker to end, then end."""
        if self._thread.runs:
            try:
                self.call(self.worker_port.stop_workers)
                self.wait_until(lambda: not self.connections, wait)
            finally:
                self._thread.end()
        self._close()
        shutil.rmtree(self.setup().directory(), ignore_errors=True)

    def _close(self) -> None:
        if not self._context.closed:
            self._gate.close()
            self.distributing.publisher.close()
            self.scheduling.close()
            self.checkpointing.close()
            if self._request_socket is not None:
                self._request_socket.close()
            self._context.destroy(linger=500)

    # -- from people and programs, on any thread ---------------------------------------------------------------------

    def submit(self, graph: TopologyGraph, resume: bool | None = None, offsets: str = "") -> None:
        """Start it; `resume`: as in `Checkpointing.submission`. `offsets`: as in `Submitted`."""
        event = replace(self.checkpointing.submission(graph, resume), offsets=offsets)
        try:
            self.call(lambda: self._submit(event))
        except BaseException:
            self.checkpointing.refused(graph.name)
            raise

    def pause(self, name: str) -> None:
        self.call(lambda: self.tell(Paused(name)))

    def unpause(self, name: str) -> None:
        self.call(lambda: self.tell(Resumed(name)))

    def kill(self, name: str, wait: float = 10.0) -> None:
        """Returns at once; `wait_until(lambda: name not in master.state.topologies)` waits for the end."""
        self.call(lambda: self.tell(Killed(name, wait, time.monotonic())))

    def move(self, name: str, task: TaskId, slot: int) -> None:
        """Put one running task on another worker; nothing else is touched."""
        self.call(lambda: self.tell(Moved(name, task, slot)))

    def rescale(self, name: str, par: Mapping[str, int]) -> None:
        """So many tasks of these components, from the next batch on; for topologies that run in batches."""
        self.call(lambda: self.tell(Rescaled(name, dict(par))))

    def set_scheduler(self, name: str, parameters: dict[str, Any], policy: dict[str, Any], estimator: str | None = None,
                      estimator_parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Use this scheduler from now on; returns what is in use then, or raises what is wrong with it."""
        chosen: Future[dict[str, Any]] = self.call(
            lambda: self.scheduling.choose(name, parameters, policy, estimator, estimator_parameters))
        return chosen.result()

    def status(self) -> dict[str, Any]:
        result: dict[str, Any] = self.call(lambda: status_of(self))
        return result

    # -- from an engine that runs batches ----------------------------------------------------------------------------

    @property
    def batches(self) -> dict[str, BatchLog]:
        """What became of the batches, by topology; still there after it ended."""
        return self.batching.logs

    def enlist(self, slot: int, node: Node, executor: str, boot: str = "") -> None:
        """A Spark executor fills this slot from now on. `boot` names its machine, if several nodes may be on one."""
        self.call(lambda: self.batching.enlist(slot, node, executor, boot))

    def dismiss(self, slot: int, cause: str) -> None:
        """It is gone: its tasks go to those that are left."""
        self.call(lambda: self.batching.dismiss(slot, cause))

    def submit_batched(self, event: Submitted) -> None:
        """Start a topology that runs in batches; `checkpointing.submission` makes the event."""
        self.call(lambda: self._submit(event))

    def begin_batch(self, name: str) -> None:
        """A batch runs until `note_batch` is told: whoever drains the topology waits for it."""
        self.call(lambda: self.batching.began(name))

    def committed(self, name: str, manifest: Manifest) -> None:
        """Its positions and its state are what people are shown. The sinks may still have to make visible what they wrote."""
        self.call(lambda: self.batching.committed(name, manifest))

    def take_report(self, report: wire.Report) -> None:
        """What tasks on an enlisted slot have done; generation and revision are filled in here."""
        self.call(lambda: self.batching.take_report(report))

    def note_batch(self, name: str, record: BatchRecord) -> None:
        """The batch is over."""
        self.call(lambda: self.batching.note(name, record))

    def finish(self, name: str, how: str = "its last batch is committed") -> None:
        """No other batch of it will be run."""
        self.call(lambda: self.batching.finish(name, how))

    # -- on the thread -----------------------------------------------------------------------------------------------

    def _sources(self) -> list[Any]:
        return [*self.worker_port.sources(), self._people.socket]

    def _hear(self, found: Mapping[Any, int]) -> None:
        self.worker_port.hear(found)
        if self._people.socket in found:
            self._people.listen()

    def _tick(self) -> None:
        now = time.monotonic()
        self.worker_port.give_up_the_silent(now)
        self.tell(Ticked(now))
        self.checkpointing.tick(now)
        if not self.superseded:
            self.scheduling.tick(now)

    def tell(self, event: Event) -> None:
        """Let the state decide, and do it. Only on the master's thread."""
        if self.superseded and isinstance(event, Submitted | Paused | Resumed | Moved | Replanned | Rescaled):
            raise NotTheAuthor(self.superseded)
        if isinstance(event, Killed) and event.name in self.before_kill:
            self.before_kill.pop(event.name)(event)
            return
        for command in self.state.handle(event):
            if isinstance(command, Distribute):
                self.distributing.distribute(command)
            elif isinstance(command, Say):
                self.say(command)
            elif isinstance(command, SendWave):
                self.worker_port.send_wave(command)
            elif isinstance(command, StoreManifest):
                self.checkpointing.store(command.manifest, command.claim)
            elif isinstance(command, CollectCheckpoints):
                self.checkpointing.collect(command.name, command.epoch)
            elif isinstance(command, Ended):
                self.finished[command.name] = self.observed.pop(command.name)
                self.checkpointing.ended(command.name)
                self.scheduling.forget(command.name)
                for name in list(self.finished)[:-FINISHED_KEPT]:
                    del self.finished[name]
                    self.batching.logs.pop(name, None)
        if isinstance(event, Replanned | Rescaled):
            for name, topology in self.state.topologies.items():
                if name in self.observed and self.observed[name].graph is not topology.graph:
                    self.observed[name].follow(topology.graph)

    def processes(self) -> Mapping[int, Connection | Enlisted]:
        """All that report, by slot."""
        return {**self.connections, **self.batching.enlisted}

    def new_generation(self) -> int:
        self._generation += 1
        return self._generation

    def give_way(self, error: NotTheAuthor) -> None:
        """Another master has taken over, as the coordination store or the checkpoints say."""
        self.superseded = str(error)
        self.say(Say(f"another master has taken over cluster {self.name!r}; this one ends its workers: {error}", level="error"))
        self.worker_port.stop_workers()

    def say(self, said: Say) -> None:
        self.events.append({"time": time.time(), "topology": said.topology, "text": said.text, "level": said.level})
        log.log({"warning": logging.WARNING, "error": logging.ERROR}.get(said.level, logging.INFO), "%s%s",
                f"{said.topology}: " if said.topology else "", said.text)
        for listener in self.listeners:
            listener(said)

    def _submit(self, event: Submitted) -> None:
        self.tell(event)
        name = event.graph.name
        self.batching.logs.pop(name, None)
        self.observed[name] = TopologyObserved(self.state.topologies[name].graph, time.monotonic())

    def take(self, connection: Connection | Enlisted, report: wire.Report) -> None:
        """What a worker, or an engine for it, has reported."""
        by_number = {topology.number: name for name, topology in self.state.topologies.items()}
        for task in report.tasks:
            name = by_number.get(task["topology"])
            if name is not None:
                self.observed[name].take(report.slot, report.at, task)
        for error in report.errors:
            observed = self.observed.get(error["topology"])
            if observed is not None:
                observed.note_error(error)
                if error.get("fatal"):
                    self.say(Say(f"{error['task']} cannot start: {error['error']}", error["topology"], "warning"))
        connection.counters = Counter(report.counters)
        connection.cpu_seconds, connection.memory_mb = report.cpu_seconds, report.memory_mb
        self.tell(WorkerReported(report.slot, report.generation, report.revision, tuple(report.in_flight),
                                 tuple(report.positions), tuple(report.starting)))
