"""The master at work: one thread that listens to workers and people and carries out what `MasterState` decides."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import zmq

from millrace.config import CHECKPOINTS, COORDINATION, FRAME_LIMIT, HEARTBEAT_TIMEOUT
from millrace.control.events import (
    ChannelBroke,
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
    WaveAcked,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
)
from millrace.control.master_state import MasterState
from millrace.control.stamp import Stamp
from millrace.errors import MillraceError, NotEnoughSlots, NotTheAuthor, WireError
from millrace.master.batches import BatchLog, BatchRecord
from millrace.master.batching import Batching, Enlisted
from millrace.master.checkpointing import Checkpointing, default_store
from millrace.master.desk import Desk
from millrace.master.feeds import feeds_for
from millrace.master.observed import TopologyObserved
from millrace.master.people import People
from millrace.master.pids import PidWatch
from millrace.master.publisher import Publisher
from millrace.master.scheduling import Scheduling
from millrace.master.status import status_of
from millrace.master.taps import taps_for
from millrace.model.cluster import Node
from millrace.model.graph import TaskId, TopologyGraph
from millrace.runtime import wire
from millrace.runtime.process import WorkerSetup
from millrace.runtime.transport import Gate, Keys, Refusals, bind_tcp, boot_id, serve
from millrace.schedulers.base import Scheduler
from millrace.state.checkpoint import Manifest

log = logging.getLogger("millrace.master")
TICK_SECONDS = 0.1
EVENTS_KEPT = 200
ERRORS_KEPT = 50
FINISHED_KEPT = 20
FROM_WORKERS = (wire.Heartbeat, wire.Report, wire.Bye, wire.Fetch, wire.Waved, wire.Broken, wire.Answer)


class Waiter:
    """Someone who waits for a condition on the master's state."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition
        self.future: Future[bool] = Future()
        self.over = False

    def ask(self) -> None:
        try:
            if not self.over and self._condition():
                self.resolve(True)
        except Exception as error:
            self.over = True
            self.future.set_exception(error)

    def resolve(self, answer: bool) -> None:
        if not self.over:
            self.over = True
            self.future.set_result(answer)


class Connection:
    """A worker as the master is connected to it."""

    def __init__(self, identity: bytes, hello: wire.Hello, generation: int, now: float, watch: PidWatch | None) -> None:
        self.identity, self.hello, self.generation, self.watch = identity, hello, generation, watch
        self.agent: bytes | None = None  # where its agent is, once that has asked
        self.cpu_seconds = self.memory_mb = 0.0
        self.heard = now
        self.counters: Counter[str] = Counter()


class Master:
    """Thread-safe from outside: everything runs on its own thread, `call` hands work to it."""

    def __init__(self, name: str, host: str = "127.0.0.1", port: int = 0, settings: dict[str, Any] | None = None,
                 scheduler: Scheduler | None = None) -> None:
        self.name = name
        self.settings = {CHECKPOINTS.key: default_store(name), **(settings or {})}
        self.superseded = ""  # by another master: why this one must not decide anything any more
        self._publisher = Publisher(COORDINATION.of(self.settings), name, self._publishing_failed)
        self.state = MasterState(scheduler)
        self.scheduling = Scheduling(self)
        self.checkpointing = Checkpointing(self)
        self.batching = Batching(self)
        self.observed: dict[str, TopologyObserved] = {}
        self.finished: dict[str, TopologyObserved] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)
        self.connections: dict[int, Connection] = {}
        self.refused = self.malformed = 0
        self.keys = Keys.make()
        self.cluster = uuid.uuid4().hex[:12]
        self.listeners: list[Callable[[Say], None]] = []
        self.before_kill: dict[str, Callable[[Killed], None]] = {}  # by topology: asked once, tells the event again when ready
        self._heartbeat_timeout: float = HEARTBEAT_TIMEOUT.of(self.settings)
        self._generation = 0
        self._ticked = time.monotonic()
        self._waiters: list[Waiter] = []
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._context = zmq.Context()
        self._gate = Gate(self._context, self.keys)
        self._desk: Desk | None = None
        self._thread: threading.Thread | None = None
        self._told_to_stop = self._stopping = False
        self._boot = boot_id()
        try:
            self._open(host, port)
        except BaseException:
            self._close_sockets()
            raise

    def _open(self, host: str, port: int) -> None:
        self._workers = self._context.socket(zmq.ROUTER)
        self._workers.linger = 500
        self._workers.router_mandatory = True
        self._workers.sndhwm = 0
        self._workers.maxmsgsize = FRAME_LIMIT.of(self.settings) + 65536
        serve(self._workers, self.keys)
        self._refusals = Refusals(self._workers)
        self.endpoint = bind_tcp(self._workers, host, port)
        self._desk = Desk.open(self.name)
        self._people = People(self, self._desk.listen(self._context))
        self.state.author = self._publisher.claim()  # not before the name is ours: it ends another master's reign
        self._wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._signal_fd, False)

    def setup(self, bind: str = "", path: tuple[str, ...] = ()) -> WorkerSetup:
        """What workers need to find this master; the launcher ships it."""
        return WorkerSetup(self.cluster, self.endpoint, self.keys, bind, path, self.settings)

    # -- from other threads ------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True, name="millrace master")
        self._thread.start()

    def call(self, work: Callable[[], Any]) -> Any:
        """Run `work` on the master's thread and return its result, or raise what it raised."""
        if self._stopping or self._thread is None:
            raise MillraceError("the master is not running")
        if threading.current_thread() is self._thread:  # a condition that someone waits for, or a listener
            return work()
        future: Future[Any] = Future()
        self._calls.put((work, future))
        self._wake()
        while True:
            try:
                return future.result(timeout=1.0)
            except FutureTimeout:
                if not self._thread.is_alive():
                    raise MillraceError("the master has stopped") from None

    def later(self, work: Callable[[], Any]) -> None:
        """Run `work` on the master's thread soon; from any thread, without waiting for it."""
        self._calls.put((work, Future()))
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    def submit(self, graph: TopologyGraph, resume: bool = False, offsets: str = "") -> None:
        """Start it; `resume`: from its last committed wave. `offsets`: as in `Submitted`."""
        event = replace(self.checkpointing.submission(graph, resume), offsets=offsets)
        self.call(lambda: self._submit(event))

    def pause(self, name: str) -> None:
        self.call(lambda: self.tell(Paused(name)))

    def resume(self, name: str) -> None:
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

    # -- from other threads, about anything --------------------------------------------------------------------------

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition, which is asked on the master's thread, holds. False if time ran out."""
        waiter = Waiter(condition)
        self.later(lambda: self._waiters.append(waiter))  # the list is the master's own
        try:
            return bool(waiter.future.result(timeout=seconds))
        except FutureTimeout:
            return False
        finally:
            waiter.over = True

    def wait_for_workers(self, count: int, seconds: float) -> None:
        if not self.wait_until(lambda: len(self.state.workers) >= count, seconds):
            raise NotEnoughSlots(f"{len(self.state.workers)} of {count} workers came up within {seconds:g} s. Are there "
                                 f"{count} free task slots on the Spark cluster, and can its hosts reach {self.endpoint}?")

    def stop(self, wait: float = 5.0) -> None:
        """Tell every worker to end, then end."""
        if self._thread is not None and not self._stopping:
            try:
                self.call(self._send_stop)
                self.wait_until(lambda: not self.connections, wait)
            finally:
                self._stopping = True
                self._wake()
                self._thread.join(timeout=10)
        self._close_sockets()
        shutil.rmtree(self.setup().directory(), ignore_errors=True)

    def _close_sockets(self) -> None:
        if not self._context.closed:
            self._gate.close()
            self._publisher.close()
            self.scheduling.close()
            self.checkpointing.close()
            if self._desk is not None:
                self._desk.close()
            self._context.destroy(linger=500)

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        next_tick = 0.0
        while not self._stopping:
            poller = zmq.Poller()
            for source in [self._workers, self._people.socket, self._refusals.monitor, self._wake_fd]:
                poller.register(source, zmq.POLLIN)
            watches = {connection.watch.fd: slot for slot, connection in self.connections.items() if connection.watch}
            for fd in watches:
                poller.register(fd, zmq.POLLIN)
            found = dict(poller.poll(int(TICK_SECONDS * 1000)))
            try:
                self._take_turn(found, watches)
                if time.monotonic() >= next_tick:
                    next_tick = time.monotonic() + TICK_SECONDS
                    self._tick()
            except Exception:
                log.exception("the master goes on after an unexpected error")
            self._ask_waiters()
        for waiter in self._waiters:
            waiter.ask()
            waiter.resolve(False)

    def _ask_waiters(self) -> None:
        for waiter in self._waiters:
            waiter.ask()
        if any(waiter.over for waiter in self._waiters):
            self._waiters = [waiter for waiter in self._waiters if not waiter.over]

    def _take_turn(self, found: dict[Any, int], watches: dict[int, int]) -> None:
        for fd in watches.keys() & found.keys():
            slot = watches[fd]
            self._lose(slot, f"its process ({self.connections[slot].hello.pid}) ended")
        if self._workers in found:
            self._listen_to_workers()
        if self._people.socket in found:
            self._people.listen()
        if self._refusals.monitor in found:
            self.refused = self._refusals.count()
        if self._wake_fd in found:
            os.read(self._wake_fd, 4096)
        while not self._calls.empty():
            work, future = self._calls.get()
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

    def _tick(self) -> None:
        now = time.monotonic()
        away, self._ticked = now - self._ticked, now
        for slot, connection in list(self.connections.items()):
            if away > self._heartbeat_timeout / 2:  # it was the master that stood still: their heartbeats are on the way
                connection.heard = now
            if now - connection.heard > self._heartbeat_timeout:
                self._lose(slot, f"no heartbeat for {now - connection.heard:.1f} s")
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
                self._distribute(command)
            elif isinstance(command, Say):
                self.say(command)
            elif isinstance(command, SendWave):
                self._send_wave(command)
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

    def ask_worker(self, slot: int, message: Any) -> None:
        self._send(self.connections[slot], wire.encode(message))

    def _send_wave(self, command: SendWave) -> None:
        send = command.send
        mark = wire.WaveMark(send.kind, send.wave, send.wave_epoch, send.whole)
        for slot, tasks in command.tasks.items():
            connection = self.connections.get(slot)
            if connection is not None:  # otherwise it is about to be given up
                self._send(connection, wire.encode(wire.Wave(command.topology, command.epoch, mark, send.sweep, list(tasks))))

    def _distribute(self, command: Distribute) -> None:
        """To the coordination store, and if that is in this process, straight on to the agents."""
        stamp = command.assignment.stamp
        parts = {node: wire.encode(part) for node, part in command.parts.items()}
        self._publisher.publish(stamp, parts)
        for node, slot in self.state.agents.items():
            connection = self.connections.get(slot)
            if connection is not None and connection.agent is not None:
                self._reply(connection.agent, self._agency(node, slot, stamp, parts.get(node, b"")))

    def _agency(self, node: str, slot: int, stamp: Stamp, part: bytes) -> wire.Agency:
        return wire.Agency(self.state.agents.get(node) == slot, *stamp, part if self._publisher.embedded else b"")

    def _on_fetch(self, identity: bytes, connection: Connection, fetch: wire.Fetch) -> None:
        connection.agent = identity
        node = connection.hello.node.name
        is_agent = self.state.agents.get(node) == fetch.slot
        found = self._publisher.store.read(node) if self._publisher.embedded and is_agent else None
        if found is not None and found[0] > Stamp(fetch.author, fetch.revision):
            self._reply(identity, self._agency(node, fetch.slot, *found))
        else:
            self._reply(identity, self._agency(node, fetch.slot, Stamp(0, 0), b""))

    def give_way(self, error: NotTheAuthor) -> None:
        """Another master has taken over, as the coordination store or the checkpoints say."""
        self._on_publishing_failed(error)

    def _publishing_failed(self, error: Exception | None) -> None:
        """On the publisher's thread."""
        with suppress(MillraceError):  # the master is ending
            self.call(lambda: self._on_publishing_failed(error))

    def _on_publishing_failed(self, error: Exception | None) -> None:
        if isinstance(error, NotTheAuthor):
            self.superseded = str(error)
            self.say(Say(f"another master has taken over cluster {self.name!r}; this one ends its workers: {error}",
                         level="error"))
            self._send_stop()
        elif error is not None:
            self.say(Say(f"plans wait, and everything runs on as it is: {error}", level="warning"))
        else:
            self.say(Say("the coordination store is back: the newest plan is written"))

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

    # -- workers -----------------------------------------------------------------------------------------------------

    def _listen_to_workers(self) -> None:
        for _ in range(1000):
            try:
                identity, frame = self._workers.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                self.malformed += 1
                log.warning("dropped a control message that is not two frames")
                continue
            try:
                message = wire.decode_control(frame)
            except WireError as error:
                self.malformed += 1
                log.warning("dropped: %s", error)
                continue
            self._on_message(identity, message)

    def _on_message(self, identity: bytes, message: wire.ControlMessage) -> None:
        if isinstance(message, wire.Hello):
            self._on_hello(identity, message)
            return
        if isinstance(message, wire.AskTaps):
            self._reply(identity, taps_for(self, message))
            return
        if isinstance(message, wire.AskFeeds):
            self._reply(identity, feeds_for(self, message))
            return
        if not isinstance(message, FROM_WORKERS):
            return
        connection = self.connections.get(message.slot)
        if connection is None or connection.generation != message.generation:
            if isinstance(message, wire.Heartbeat):
                self._reply(identity, wire.Fenced())
            return
        connection.heard = time.monotonic()
        if isinstance(message, wire.Heartbeat):
            self._reply(identity, wire.Beat(message.generation))
        elif isinstance(message, wire.Fetch):
            self._on_fetch(identity, connection, message)
        elif isinstance(message, wire.Report):
            connection.identity = identity  # another one after its connection broke and was made again
            self.take(connection, message)
        elif isinstance(message, wire.Waved):
            self.tell(WaveAcked(message.topology, message.epoch, message.kind, message.wave, message.task,
                                message.incarnation, message.record, message.error))
        elif isinstance(message, wire.Broken):
            self.tell(ChannelBroke(message.topology, message.epoch, message.reason))
        elif isinstance(message, wire.Answer):
            self.checkpointing.answered(message)
        else:
            self._lose(message.slot, "it stopped", quiet=self._told_to_stop)

    def _on_hello(self, identity: bytes, hello: wire.Hello) -> None:
        cut_off = hello.slot in self.connections and hello.former  # and Spark has another process there now
        if cut_off or self._told_to_stop:
            self._reply(identity, wire.Stop())
            return
        if hello.slot in self.connections:
            self._lose(hello.slot, "Spark started the slot again")
        same_host = bool(self._boot) and hello.boot == self._boot
        watch = PidWatch.open(hello.pid) if same_host else None
        connection = Connection(identity, hello, self.new_generation(), time.monotonic(), watch)
        self.connections[hello.slot] = connection
        self._send(connection, wire.encode(wire.Welcome(self._generation, self.settings, self.state.author, self.name)))
        self.tell(WorkerJoined(hello.slot, self._generation, hello.node, hello.boot, hello.executor, hello.data_ipc,
                               hello.data_tcp, hello.backup_ipc, hello.backup_tcp))

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
                observed.errors = [*observed.errors, error][-ERRORS_KEPT:]
                if error.get("fatal"):
                    self.say(Say(f"{error['task']} cannot start: {error['error']}", error["topology"], "warning"))
        connection.counters = Counter(report.counters)
        connection.cpu_seconds, connection.memory_mb = report.cpu_seconds, report.memory_mb
        self.tell(WorkerReported(report.slot, report.generation, report.revision, tuple(report.in_flight),
                                 tuple(report.positions), tuple(report.starting)))

    def _lose(self, slot: int, cause: str, quiet: bool = False) -> None:
        connection = self.connections.pop(slot)
        if connection.watch is not None:
            connection.watch.close()
        if not quiet:
            self.tell(WorkerLost(slot, connection.generation, cause))

    def _send_stop(self) -> None:
        self._told_to_stop = True
        for connection in self.connections.values():
            self._send(connection, wire.encode(wire.Stop()))

    def _send(self, connection: Connection, frame: bytes) -> None:
        try:
            self._workers.send_multipart([connection.identity, frame], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it is gone; its heartbeats, or its process, will say so
            log.debug("worker %d cannot be reached: %s", connection.hello.slot, error)

    def _reply(self, identity: bytes, message: Any) -> None:
        try:
            self._workers.send_multipart([identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("no way back to a worker: %s", error)
