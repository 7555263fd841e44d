"""Where workers come to: the master's socket for them, who is connected, and who is given up."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import zmq

from millrace.config import FRAME_LIMIT, HEARTBEAT_TIMEOUT
from millrace.control.events import ChannelBroke, SendWave, WaveAcked, WorkerJoined, WorkerLost
from millrace.errors import WireError
from millrace.master.requests.readers import taps_for
from millrace.master.workers.feeds import feeds_for
from millrace.master.workers.process_watch import PidWatch
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Refusals, bind_tcp, boot_id, serve

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
FROM_WORKERS = (wire.Heartbeat, wire.Report, wire.Bye, wire.Fetch, wire.Waved, wire.Broken, wire.Answer)


class Connection:
    """A worker as the master is connected to it."""

    def __init__(self, identity: bytes, hello: wire.Hello, generation: int, now: float, watch: PidWatch | None) -> None:
        self.identity, self.hello, self.generation, self.watch = identity, hello, generation, watch
        self.agent: bytes | None = None  # where its agent is, once that has asked
        self.cpu_seconds = self.memory_mb = 0.0
        self.heard = now
        self.counters: Counter[str] = Counter()


class WorkerPort:
    """Everything here runs on the master's thread. Whoever opened the context closes the socket with it."""

    def __init__(self, master: Master, context: zmq.Context[Any], host: str, port: int) -> None:
        self._master = master
        self.connections: dict[int, Connection] = {}  # by slot
        self.refused = self.malformed = 0
        self.heartbeat_timeout: float = HEARTBEAT_TIMEOUT.of(master.settings)
        self._ticked = time.monotonic()
        self._told_to_stop = False
        self._boot = boot_id()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.linger = 500
        self._socket.router_mandatory = True
        self._socket.sndhwm = 0
        self._socket.maxmsgsize = FRAME_LIMIT.of(master.settings) + 65536
        serve(self._socket, master.keys)
        self._refusals = Refusals(self._socket)
        self.endpoint = bind_tcp(self._socket, host, port)

    # -- what comes --------------------------------------------------------------------------------------------------

    def sources(self) -> list[Any]:
        return [self._socket, self._refusals.monitor, *self._watches()]

    def hear(self, found: Mapping[Any, int]) -> None:
        watches = self._watches()
        for fd in watches.keys() & found.keys():
            slot = watches[fd]
            self._lose(slot, f"its process ({self.connections[slot].hello.pid}) ended")
        if self._socket in found:
            self._listen()
        if self._refusals.monitor in found:
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
        elif isinstance(message, wire.AskTaps):
            self.reply(identity, taps_for(self._master, message))
        elif isinstance(message, wire.AskFeeds):
            self.reply(identity, feeds_for(self._master, message))
        elif isinstance(message, FROM_WORKERS):
            connection = self.connections.get(message.slot)
            if connection is not None and connection.generation == message.generation:
                connection.heard = time.monotonic()
                self._on_workers_message(identity, connection, message)
            elif isinstance(message, wire.Heartbeat):
                self.reply(identity, wire.Fenced())

    def _on_workers_message(self, identity: bytes, connection: Connection, message: wire.ControlMessage) -> None:
        master = self._master
        match message:
            case wire.Heartbeat():
                self.reply(identity, wire.Beat(message.generation))
            case wire.Fetch():
                connection.agent = identity
                self.reply(identity, master.distributing.answer(connection.hello.node.name, message))
            case wire.Report():
                connection.identity = identity  # another one after its connection broke and was made again
                master.take(connection, message)
            case wire.Waved():
                master.tell(WaveAcked(message.topology, message.epoch, message.kind, message.wave, message.task,
                                      message.incarnation, message.record, message.error))
            case wire.Broken():
                master.tell(ChannelBroke(message.topology, message.epoch, message.reason))
            case wire.Answer():
                master.checkpointing.answered(message)
            case wire.Bye():
                self._lose(message.slot, "it stopped", quiet=self._told_to_stop)

    # -- who is there ------------------------------------------------------------------------------------------------

    def _on_hello(self, identity: bytes, hello: wire.Hello) -> None:
        cut_off = hello.slot in self.connections and hello.former  # and Spark has another process there now
        if cut_off or self._told_to_stop:
            self.reply(identity, wire.Stop())
            return
        if hello.slot in self.connections:
            self._lose(hello.slot, "Spark started the slot again")
        master, same_host = self._master, bool(self._boot) and hello.boot == self._boot
        watch = PidWatch.open(hello.pid) if same_host else None
        generation = master.new_generation()
        self.connections[hello.slot] = Connection(identity, hello, generation, time.monotonic(), watch)
        self.send(hello.slot, wire.Welcome(generation, master.settings, master.state.author, master.name))
        master.tell(WorkerJoined(hello.slot, generation, hello.node, hello.boot, hello.executor, hello.data_ipc,
                                 hello.data_tcp, hello.backup_ipc, hello.backup_tcp))

    def give_up_the_silent(self, now: float) -> None:
        """At each tick."""
        away, self._ticked = now - self._ticked, now
        for slot, connection in list(self.connections.items()):
            if away > self.heartbeat_timeout / 2:  # it was the master that stood still: their heartbeats are on the way
                connection.heard = now
            if now - connection.heard > self.heartbeat_timeout:
                self._lose(slot, f"no heartbeat for {now - connection.heard:.1f} s")

    def _lose(self, slot: int, cause: str, quiet: bool = False) -> None:
        connection = self.connections.pop(slot)
        if connection.watch is not None:
            connection.watch.close()
        if not quiet:
            self._master.tell(WorkerLost(slot, connection.generation, cause))

    # -- what goes ---------------------------------------------------------------------------------------------------

    def stop_workers(self) -> None:
        """Those that are there, and whoever comes from now on."""
        self._told_to_stop = True
        for slot in self.connections:
            self.send(slot, wire.Stop())

    def send_wave(self, command: SendWave) -> None:
        send = command.send
        mark = wire.WaveMark(send.kind, send.wave, send.wave_epoch, send.whole)
        for slot, tasks in command.tasks.items():
            if slot in self.connections:  # otherwise it is about to be given up
                self.send(slot, wire.Wave(command.topology, command.epoch, mark, send.sweep, list(tasks)))

    def send(self, slot: int, message: Any) -> None:
        try:
            self._socket.send_multipart([self.connections[slot].identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # it is gone; its heartbeats, or its process, will say so
            log.debug("worker %d cannot be reached: %s", slot, error)

    def reply(self, identity: bytes, message: Any) -> None:
        try:
            self._socket.send_multipart([identity, wire.encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            log.debug("no way back to a worker: %s", error)
