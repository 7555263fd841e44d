"""A worker as a process: sockets, the loop around `Worker`, heartbeats, and the watch for orphans."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import shutil
import signal
import socket as sockets
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import zmq

from millrace.config import (
    BACKUP_MEMORY,
    CHECKPOINTS,
    FRAME_LIMIT,
    HEARTBEAT_INTERVAL,
    HELLO,
    LEASE,
    LOG_LEVEL,
    WORKER_POLL,
)
from millrace.errors import MasterUnreachable, WireError
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.clock import SystemClock
from millrace.runtime.feeds.feed import SocketFeeds
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.node import this_node
from millrace.runtime.plans.agent import Agent, PlanReader, node_directory
from millrace.runtime.taps.port import TapPort, open_here
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import DataPort, Gate, Keys, SocketPeers, boot_id, private_directory, visit
from millrace.runtime.worker.threads import TaskThreads
from millrace.runtime.worker.worker import Worker

log = logging.getLogger("millrace.worker")
REPORT_SECONDS = 0.25
FRAMES_PER_TURN = 64  # data frames taken in before the tasks get their turn
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
LONGEST_BASE = 60  # characters: the kernel's limit is 107 for a socket's whole path


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What a worker must know to find its master. Shipped with the Spark job."""

    cluster: str
    master: str
    keys: Keys = field(repr=False)
    bind: str = ""  # "": this host only; "auto": the address that faces the master; else an address
    path: tuple[str, ...] = ()  # directories to import users' code from
    settings: dict[str, Any] = field(default_factory=dict)

    def directory(self) -> str:
        """The same for every worker of this cluster on a host, where they meet: also for one that starts when the disk is
        full, which `tempfile` would send elsewhere. The path of a socket must not be long."""
        base = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
        usable = len(base) <= LONGEST_BASE and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK)
        return os.path.join(base if usable else "/tmp", f"millrace-{self.cluster}")


class Pulse(threading.Thread):
    """Heartbeats on a thread of its own, so that a long call of user code does not look like death. It also ends the
    process when the master or the parent is gone: an orphan would go on for ever."""

    def __init__(self, context: zmq.Context[Any], setup: WorkerSetup, slot: int, generation: int,
                 revision: Callable[[], int]) -> None:
        super().__init__(daemon=True, name="pulse")
        self._context, self._setup, self._slot, self._generation, self._revision = context, setup, slot, generation, revision
        self._ended = threading.Event()
        self._parent = os.getppid()
        self.fenced = False

    def run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        visit(socket, self._setup.keys)
        socket.connect(self._setup.master)
        interval, lease = HEARTBEAT_INTERVAL.of(self._setup.settings), LEASE.of(self._setup.settings)
        heard = time.monotonic()
        try:
            while not self._ended.wait(interval):
                socket.send(wire.encode(wire.Heartbeat(self._slot, self._generation, self._revision())))
                while socket.poll(0):
                    heard = time.monotonic()
                    self.fenced |= isinstance(wire.decode_control(socket.recv()), wire.Fenced)
                if os.getppid() != self._parent:
                    end_process("its parent is gone")
                if time.monotonic() - heard > lease:
                    end_process(f"the master at {self._setup.master} has not answered for {lease:g} s")
        finally:
            socket.close()

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=5)


def end_process(why: str) -> None:
    """At once, from any thread: user code may be stuck, and nobody is left to wait for it."""
    print(f"millrace worker {os.getpid()} ends: {why}", file=sys.stderr, flush=True)
    os._exit(3)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies (Linux; elsewhere the pulse notices)."""
    try:
        ctypes.CDLL(None, use_errno=True).prctl(DEATH_SIGNAL, signal.SIGKILL)
    except (OSError, AttributeError) as error:
        log.debug("no death signal here: %s", error)


def address_facing(endpoint: str) -> str:
    """This host's address on the way to an endpoint. Sends nothing."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])


class WorkerProcess:
    """Runs one slot until the master says stop. A worker that was given up wrongly starts over as a new generation."""

    def __init__(self, setup: WorkerSetup, slot: int, executor: str = "") -> None:
        self.setup, self.slot, self.executor = setup, slot, executor
        self.context = zmq.Context()
        self.boot = boot_id()
        self.node = this_node(setup.settings, executor)
        self.threads = TaskThreads()
        self._process = psutil.Process()
        self._former = 0  # generation as which this process was given up
        bind = address_facing(setup.master) if setup.bind == "auto" else setup.bind
        self._bind = bind
        self._gate = Gate(self.context, setup.keys) if bind else None
        # Of the process, not of one life: what it holds for others is good though it was given up for a while.
        self._exchange = FragmentExchange(
            self.context, f"b{slot}-{uuid.uuid4().hex[:12]}", private_directory(setup.directory()), bind, setup.keys, self.boot,
            self.threads.post, int(BACKUP_MEMORY.of(setup.settings) * 2**20))
        self._taps = TapPort(self.context, Path(setup.directory()) / f"t{slot}-{uuid.uuid4().hex[:12]}.ipc", bind, setup.keys,
                             self.boot)
        open_here(self._taps)

    def run(self) -> str:
        """Returns how it ended."""
        try:
            while self._life() == "fenced":
                log.warning("worker %d had been given up: starting over", self.slot)
            return "stopped"
        finally:
            open_here(None)
            self._taps.close()
            self._exchange.close()
            self.threads.close()
            if self._gate is not None:
                self._gate.close()
            self.context.destroy(linger=200)
            self._clear()

    def _clear(self) -> None:
        """The last one on a host takes the directory away: where the master is not, nobody else will."""
        directory = Path(self.setup.directory())
        if not any(directory.glob("w*.ipc")):
            shutil.rmtree(directory, ignore_errors=True)

    def _life(self) -> str:
        directory = private_directory(self.setup.directory())
        nonce = uuid.uuid4().hex[:12]
        port = DataPort(self.context, f"w{self.slot}-{nonce}", directory, self._bind, self.setup.keys,
                        FRAME_LIMIT.of(self.setup.settings))
        control = self.context.socket(zmq.DEALER)
        visit(control, self.setup.keys)
        control.connect(self.setup.master)
        peers = SocketPeers(self.context, self.setup.keys, self.boot)
        try:
            welcome = self._hello(control, nonce, port)
            if welcome is None:
                return "stopped"
            self._former = welcome.generation
            checkpoints = CheckpointAccess(lambda: open_store(CHECKPOINTS.of(welcome.settings)), self._exchange)
            worker = Worker(self.slot, welcome.generation, SystemClock(), peers, self.threads, welcome.settings, welcome.author,
                            checkpoints, lambda message: control.send(wire.encode(message)))
            worker.feeds = SocketFeeds(self.context, directory, self._bind, self.setup.keys, self.boot, worker.counters,
                                       FRAME_LIMIT.of(self.setup.settings))
            pulse = Pulse(self.context, self.setup, self.slot, welcome.generation, lambda: worker.revision)
            meeting = node_directory(directory, self.node.name)
            agent = Agent(self.context, self.setup.master, self.setup.keys, welcome.cluster, self.setup.settings, self.slot,
                          welcome.generation, self.node.name, meeting)
            plans = PlanReader(self.context, meeting)
            pulse.start()
            agent.start()
            try:
                return self._loop(worker, control, port, pulse, plans, agent)
            finally:
                agent.stop()
                plans.close()
                pulse.stop()
                worker.close()
                checkpoints.close()
                control.send(wire.encode(wire.Bye(self.slot, welcome.generation)))
        finally:
            peers.close()
            port.close()
            control.close(linger=500)

    def _hello(self, control: zmq.Socket[Any], nonce: str, port: DataPort) -> wire.Welcome | None:
        """None if there is nothing to do here: the slot was given to another process while this one was cut off."""
        control.send(wire.encode(wire.Hello(self.slot, nonce, os.getpid(), self.node, self.boot, self.executor,
                                            port.ipc, port.tcp, self._exchange.endpoints.ipc, self._exchange.endpoints.tcp,
                                            self._former)))
        seconds: float = HELLO.of(self.setup.settings)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if control.poll(int(left * 1000) + 1):
                message = wire.decode_control(control.recv())
                if isinstance(message, wire.Welcome):
                    return message
                if isinstance(message, wire.Stop):
                    return None
        raise MasterUnreachable(f"the Millrace master at {self.setup.master} did not answer worker {self.slot} within "
                                f"{seconds:g} s: it is not reachable from this host, or the key is not its own")

    def _loop(self, worker: Worker, control: zmq.Socket[Any], port: DataPort, pulse: Pulse, plans: PlanReader,
              agent: Agent) -> str:
        poller = zmq.Poller()
        for source in [control, plans.news, *port.sockets, self.threads.wake_fd]:
            poller.register(source, zmq.POLLIN)
        self._taps.listen_with(poller)
        next_report = next_look = 0.0
        look_seconds: float = WORKER_POLL.of(self.setup.settings)
        while True:
            wait = min(REPORT_SECONDS, look_seconds, worker.wait_seconds())
            found = dict(poller.poll(int(wait * 1000 + 0.999)))
            now = time.monotonic()
            if plans.news in found or now >= next_look:
                next_look = now + look_seconds
                plan = plans.newer()
                if plan is not None:
                    worker.assign(plan)
            if control in found and self._control(worker, control) == "stop":
                return "stopped"
            if pulse.fenced:
                return "fenced"
            for data in port.sockets:
                if data in found:
                    self._take_in(worker, data)
            if self.threads.wake_fd in found:
                self.threads.finish()
            self._taps.answer(found)
            worker.step()
            now = time.monotonic()
            if now >= next_report:
                next_report = now + REPORT_SECONDS
                worker.counters["refused_connections"] = port.count_refusals()
                worker.counters["agent_errors"] = agent.errors + plans.errors
                self._report(worker, control)

    def _report(self, worker: Worker, control: zmq.Socket[Any]) -> None:
        report = worker.report()
        report.cpu_seconds, report.memory_mb = time.process_time(), self._process.memory_info().rss / 2**20
        try:
            control.send(wire.encode(report))
        except TypeError as error:  # something of the user's got into it that cannot travel
            worker.counters["unreportable"] += 1
            log.error("a report could not be sent: %s", error)

    def _control(self, worker: Worker, control: zmq.Socket[Any]) -> str:
        """Everything the master sent; "stop" if it said so."""
        while control.poll(0):
            try:
                message = wire.decode_control(control.recv())
            except WireError as error:
                worker.counters["malformed"] += 1
                log.warning("dropped: %s", error)
                continue
            if isinstance(message, wire.Stop):
                return "stop"
            if isinstance(message, wire.Wave):
                worker.on_wave(message)
            elif isinstance(message, wire.Query):
                worker.on_query(message)
        return ""

    def _take_in(self, worker: Worker, data: zmq.Socket[Any]) -> None:
        receive = worker.arrivals.receive
        for _ in range(FRAMES_PER_TURN):
            try:
                frames = data.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            receive(frames)


def log_to_stderr(setup: WorkerSetup) -> None:
    """What components log, and Millrace's own warnings, go to the worker's stderr, where Spark keeps them (on a local
    master that is the terminal)."""
    root = logging.getLogger("millrace")
    if not root.handlers:  # a process that Spark uses again has one already
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
    root.setLevel(LOG_LEVEL.of(setup.settings).upper())
    for own in ("millrace.worker", "millrace.master"):
        logging.getLogger(own).setLevel(logging.WARNING)


def run_worker(setup: WorkerSetup, slot: int, executor: str = "") -> str:
    """The whole life of a worker in this process."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver: it stops the workers in good order
    die_with_parent()
    log_to_stderr(setup)
    for directory in reversed(setup.path):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    # Tuples come and go by the thousand and hardly ever form cycles: the default would look for some every 700 of them
    # (measured: a tenth of all CPU even at 50,000).
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    return WorkerProcess(setup, slot, executor).run()
