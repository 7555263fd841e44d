"""The master's port for workers: its socket, the workers connected to it, and the loss of workers."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from millrace.config import FRAME_LIMIT, HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT, SILENCE_LIMIT
from millrace.control.events import (
    ChannelBroke,
    Event,
    LongCallsSeen,
    MoveArmed,
    SendWave,
    WaveAcked,
    WorkerJoined,
    WorkerLost,
)
from millrace.control.workers import LongCall, Patience
from millrace.errors import WireError
from millrace.master.load.monitor import WorkerMeters
from millrace.master.workers.process_watch import PidWatch
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Keys, Refusals, bind_tcp, boot_id, serve

log = logging.getLogger("millrace.master")
FROM_WORKERS = (wire.Heartbeat, wire.Report, wire.Bye, wire.Fetch, wire.Waved, wire.Armed, wire.Taken, wire.Broken, wire.Answer,
                wire.StoreTried)


class Connection:
    """The master's connection to one worker."""

    def __init__(self, identity: bytes, hello: wire.Hello, generation: int, now: float, watch: PidWatch | None) -> None:
        self.identity, self.hello, self.generation, self.watch = identity, hello, generation, watch
        self.agent: bytes | None = None  # identity of its agent, once that has asked for a plan
        self.pulse = b""  # identity of its heartbeats, once there was one
        self.long_calls = False  # its last heartbeat reported some
        self.meters: WorkerMeters | None = None  # as last reported
        self.heard = now
        self.counters: Counter[str] = Counter()

    def take(self, report: wire.Report) -> None:
        self.counters, self.meters = Counter(report.counters), WorkerMeters.of(report, self.meters)


@dataclass(frozen=True, slots=True)
class WorkerHandlers:
    """Called for messages that the port does not answer itself."""

    admit: Callable[[], wire.Welcome]  # makes a new generation for a worker that joins
    tell: Callable[[Event], None]
    report: Callable[[Connection, wire.Report], None]
    taken: Callable[[wire.Taken], None]
    plan: Callable[[str, wire.Fetch], wire.Agency]  # for the agent of a node
    answer: Callable[[wire.Answer], None]  # of a task, to a question about its state
    tried: Callable[[wire.StoreTried], None]  # of a worker that tried the checkpoint store
    taps: Callable[[wire.AskTaps], wire.Taps]
    feeds: Callable[[wire.AskFeeds], wire.Feeds]


class WorkerPort:
    """Runs on the master's thread. The owner of the context closes the socket with it."""

    endpoint = ""
    _handlers: WorkerHandlers
    _socket: zmq.Socket[Any]
    _refusals: Refusals

    def __init__(self, settings: Mapping[str, Any], keys: Keys) -> None:
        self.connections: dict[int, Connection] = {}  # by slot
        self.refused = self.malformed = 0
        self.patience = Patience(HEARTBEAT_TIMEOUT.of(settings), SILENCE_LIMIT.of(settings))
        self._ping_seconds: float = HEARTBEAT_INTERVAL.of(settings)
        self._presumed_dead: dict[int, Connection] = {}  # by slot: presumed dead although its process answered
        self._frame_limit: int = FRAME_LIMIT.of(settings)
        self._keys = keys
        self._ticked = time.monotonic()
        self._told_to_stop = False
        self._boot = boot_id()

    def open(self, context: zmq.Context[Any], host: str, port: int, handlers: WorkerHandlers) -> None:
        """Listen for workers."""
        self._handlers = handlers
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 500
        self._socket.router_mandatory = True
        self._socket.sndhwm = 0
        self._socket.maxmsgsize = self._frame_limit + 65536
        # A worker's I/O thread answers these pings even if code holds the interpreter lock. A connection without answers, of a
        # process that is stopped or a host that is cut off, is closed, and sending on it fails.
        self._socket.heartbeat_ivl = max(1, round(self._ping_seconds * 1000))
        self._socket.heartbeat_timeout = max(1, round(self.patience.timeout * 1000))
        serve(self._socket, self._keys)
        self._refusals = Refusals(self._socket)
        self.endpoint = bind_tcp(self._socket, host, port)

    # -- incoming messages -------------------------------------------------------------------------------------------

    def sources(self) -> list[Any]:
        return [self._socket, self._refusals.monitor, *self._watches()]

    def hear(self, ready: Mapping[Any, int]) -> None:
        watches = self._watches()
        for fd in watches.keys() & ready.keys():
            slot = watches[fd]
            self._lose(slot, f"its process ({self.connections[slot].hello.pid}) ended")
        if self._socket in ready:
            self._listen()
        if self._refusals.monitor in ready:
            self.refused = self._refusals.count()

    def _watches(self) -> dict[int, int]:
        """File descriptor -> slot, for processes whose end is noticed at once."""
        return {connection.watch.fd: slot for slot, connection in self.connections.items() if connection.watch}

    def _listen(self) -> None:
        for _ in range(1000):
            try:
                identity, frame = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                self.malformed += 1
                log.warning("dropped a control message that does not have two frames")
                continue
            try:
                message = wire.decode_control(frame)
            except WireError as error:
                self.malformed += 1
                log.warning("dropped a control message: %s", error)
                continue
            try:
                self._on_message(identity, message)
            except Exception as error:
                self._failed_message(message, error)

    def _failed_message(self, message: wire.ControlMessage, error: Exception) -> None:
        """Drop a report whose content makes no sense: the next one has all of it. For any other message give up the worker,
        which waits for what should have followed; it joins again."""
        if not isinstance(message, FROM_WORKERS) or message.slot not in self.connections:
            raise error
        log.error("a %s of worker %d could not be handled", type(message).__name__, message.slot, exc_info=error)
        if isinstance(message, wire.Report):
            self.malformed += 1
            return
        self._lose(message.slot, f"its {type(message).__name__} could not be handled: {type(error).__name__}: {error}")

    def _on_message(self, identity: bytes, message: wire.ControlMessage) -> None:
        if isinstance(message, wire.Hello):
            self._on_hello(identity, message)
        elif isinstance(message, wire.AskTaps):
            self.reply(identity, self._handlers.taps(message))
        elif isinstance(message, wire.AskFeeds):
            self.reply(identity, self._handlers.feeds(message))
        elif isinstance(message, FROM_WORKERS):
            connection = self.connections.get(message.slot)
            if connection is not None and connection.generation == message.generation:
                self._hear_of(connection)
                self._on_workers_message(identity, connection, message)
            elif isinstance(message, wire.Heartbeat):
                self.reply(identity, wire.Fenced())

    def _on_workers_message(self, identity: bytes, connection: Connection, message: wire.ControlMessage) -> None:
        match message:
            case wire.Heartbeat():
                connection.pulse = identity
                self._note_calls(connection, tuple(message.long_calls))
                self.reply(identity, wire.Beat(message.generation))
            case wire.Fetch():
                connection.agent = identity
                self.reply(identity, self._handlers.plan(connection.hello.node.name, message))
            case wire.Report():
                connection.identity = identity  # a new one if the worker has reconnected
                self._handlers.report(connection, message)
            case wire.Waved():
                self._handlers.tell(WaveAcked(message.topology, message.epoch, message.kind, message.wave, message.task,
                                              message.incarnation, message.record, message.error))
            case wire.Armed():
                self._handlers.tell(MoveArmed(message.topology, message.epoch, message.move, message.wave,
                                              message.copied_bytes, message.error, message.starts))
            case wire.Taken():
                self._handlers.taken(message)
            case wire.Broken():
                self._handlers.tell(ChannelBroke(message.topology, message.epoch, message.reason))
            case wire.Answer():
                self._handlers.answer(message)
            case wire.StoreTried():
                self._handlers.tried(message)
            case wire.Bye():
                self._lose(message.slot, message.error or "it stopped", quiet=self._told_to_stop and not message.error)

    # -- joining and loss --------------------------------------------------------------------------------------------

    def _on_hello(self, identity: bytes, hello: wire.Hello) -> None:
        cut_off = hello.slot in self.connections and hello.former  # Spark has started another process for the slot
        if cut_off or self._told_to_stop:
            self.reply(identity, wire.Stop())
            return
        if hello.slot in self.connections:
            self._lose(hello.slot, "Spark restarted the slot")
        returned = self._presumed_dead.pop(hello.slot, None)
        if returned is not None and returned.generation == hello.former:
            self.patience.spoke_again(time.monotonic() - returned.heard)
        same_host = bool(self._boot) and hello.boot == self._boot
        watch = PidWatch.open(hello.pid) if same_host else None
        welcome = self._handlers.admit()
        self.connections[hello.slot] = Connection(identity, hello, welcome.generation, time.monotonic(), watch)
        self.send(hello.slot, welcome)
        self._handlers.tell(WorkerJoined(hello.slot, welcome.generation, hello.node, hello.boot, hello.executor, hello.data_ipc,
                                         hello.data_tcp, hello.backup_ipc, hello.backup_tcp))

    def drop_silent(self, now: float) -> None:
        """Drop workers that were silent for too long; called at each tick."""
        elapsed, self._ticked = now - self._ticked, now
        for slot, connection in list(self.connections.items()):
            if elapsed > self.patience.timeout / 2:  # the master itself was suspended: heartbeats wait to be read
                connection.heard = now
            silence = now - connection.heard
            if silence > self.patience.timeout:
                self._judge(slot, connection, silence)

    def _judge(self, slot: int, connection: Connection, silence: float) -> None:
        answers = self._answers(connection)
        if silence <= self.patience.limit(answers):
            return
        if answers:
            self._presumed_dead[slot] = connection
            self._lose(slot, f"no heartbeat for {silence:.1f} s, though its process answers on the network: its code holds the "
                             "interpreter lock")
        else:
            self._lose(slot, f"no heartbeat for {silence:.1f} s")

    def _answers(self, connection: Connection) -> bool:
        """True if the connection of its heartbeats stands: the process answers pings, whatever its code does."""
        return self.reply(connection.pulse, wire.Beat(connection.generation))

    def _note_calls(self, connection: Connection, calls: tuple[LongCall, ...]) -> None:
        if calls or connection.long_calls:
            connection.long_calls = bool(calls)
            self._handlers.tell(LongCallsSeen(connection.hello.slot, connection.generation, calls))

    def _hear_of(self, connection: Connection) -> None:
        now = time.monotonic()
        silence, connection.heard = now - connection.heard, now
        if silence > self.patience.timeout:
            self.patience.spoke_again(silence)

    def _lose(self, slot: int, cause: str, quiet: bool = False) -> None:
        connection = self.connections.pop(slot)
        if connection.watch is not None:
            connection.watch.close()
        if not quiet:
            self._handlers.tell(WorkerLost(slot, connection.generation, cause))

    # -- outgoing messages -------------------------------------------------------------------------------------------

    def stop_workers(self) -> None:
        """Stop the connected workers, and every worker that joins from now on."""
        self._told_to_stop = True
        for slot in self.connections:
            self.send(slot, wire.Stop())

    def stop_worker(self, slot: int) -> None:
        """Let one worker end cleanly."""
        if slot in self.connections:
            self.send(slot, wire.Stop())

    def end_worker(self, slot: int, reason: str) -> None:
        """End the process of a worker that is given up; its heartbeat thread does that, even if the loop is stuck."""
        if slot in self.connections:
            self.reply(self.connections[slot].pulse, wire.Fenced(reason))
            self._lose(slot, reason, quiet=True)

    def send_wave(self, command: SendWave) -> None:
        send = command.send
        mark = wire.WaveMark(send.kind, send.wave, send.wave_epoch, send.whole, send.overtakes, send.captures, send.dropped)
        for slot, tasks in command.tasks.items():
            if slot in self.connections:  # otherwise its loss is about to be handled
                self.send(slot, wire.Wave(command.topology, command.epoch, mark, send.sweep, list(tasks)))

    def send(self, slot: int, message: Any) -> None:
        try:
            self._socket.send_multipart([self.connections[slot].identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # its loss is noticed by missing heartbeats or the end of its process
            log.debug("worker %d cannot be reached: %s", slot, error)

    def send_to_agent(self, slot: int, agency: wire.Agency) -> None:
        """Send to the agent in this slot, if it has asked before."""
        connection = self.connections.get(slot)
        if connection is not None and connection.agent is not None:
            self.reply(connection.agent, agency)

    def reply(self, identity: bytes, message: Any) -> bool:
        """Send a message; False if its connection is gone."""
        try:
            self._socket.send_multipart([identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("cannot reply to a worker: %s", error)
            return False
        return True
