"""The process of a worker: sockets, the loop around `Worker`, heartbeats, and the check for orphans."""

from __future__ import annotations

import gc
import logging
import math
import os
import signal
import socket as sockets
import sys
import threading
import time
import traceback
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
    OTHER_PROCESSES,
    SPIN_MICROS,
)
from millrace.errors import MasterUnreachable, WireError
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.runtime.checkpoints.local_copies import LocalCopies, limit_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.clock import SystemClock
from millrace.runtime.feeds.feed import SocketFeeds
from millrace.runtime.fragments.exchange import FragmentExchange
from millrace.runtime.leftovers import UsedDirectory, sweep
from millrace.runtime.node import machine_cpu_seconds, this_node
from millrace.runtime.parent import die_with_parent
from millrace.runtime.plans.agent import Agent, PlanReader, node_directory
from millrace.runtime.taps.port import TapPort, open_here
from millrace.runtime.tasks.user_errors import describe
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import DataPort, Gate, Keys, SocketPeers, boot_id, visit
from millrace.runtime.worker.delays import CollectorPauses, LoopTurns
from millrace.runtime.worker.long_calls import LongCalls
from millrace.runtime.worker.loop_wait import LoopWait
from millrace.runtime.worker.threads import TaskThreads
from millrace.runtime.worker.worker import Worker

log = logging.getLogger("millrace.worker")
REPORT_SECONDS = 0.25
MESSAGES_PER_TURN = 64  # data messages received before the tasks get their turn
LONGEST_BASE = 60  # characters: the kernel's limit is 107 for a socket's whole path


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """The setup of a worker, shipped with the Spark job."""

    cluster: str
    master: str
    keys: Keys = field(repr=False)
    bind: str = ""  # "": this host only; "auto": the address that faces the master; else an address
    path: tuple[str, ...] = ()  # directories of user code to import
    settings: dict[str, Any] = field(default_factory=dict, repr=False)  # URLs in it may have passwords

    def directory(self) -> str:
        """The directory shared by all workers of the cluster on a host. Not chosen by `tempfile`, which would choose another
        one when the disk is full. Short, since it is part of socket paths."""
        base = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
        usable = len(base) <= LONGEST_BASE and os.path.isdir(base) and os.access(base, os.W_OK | os.X_OK)
        return os.path.join(base if usable else "/tmp", f"millrace-{self.cluster}")


class Pulse(threading.Thread):
    """Sends heartbeats from its own thread, so that a long call of user code does not look like death; they report such calls.
    Ends the process when the master or the parent is gone: an orphan would run forever. May not end before the worker does,
    which would seem dead."""

    def __init__(self, context: zmq.Context[Any], setup: WorkerSetup, slot: int, generation: int,
                 revision: Callable[[], int], calls: LongCalls) -> None:
        super().__init__(daemon=True, name="pulse")
        self._calls = calls
        self._context, self._setup, self._slot, self._generation, self._revision = context, setup, slot, generation, revision
        self._ended = threading.Event()
        self._parent = os.getppid()
        self.fenced = False

    def run(self) -> None:
        try:
            self._beat()
        except BaseException as error:
            if not self._ended.is_set():  # otherwise the worker ends, and closes what this thread uses
                traceback.print_exc()
                end_process(f"its heartbeat thread failed: {type(error).__name__}: {error}")

    def _beat(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        visit(socket, self._setup.keys)
        socket.connect(self._setup.master)
        interval, lease = HEARTBEAT_INTERVAL.of(self._setup.settings), LEASE.of(self._setup.settings)
        heard, pause = time.monotonic(), 0.0  # the first at once: code may hold the interpreter lock right from the start
        try:
            while not self._ended.wait(pause):
                pause = interval
                socket.send(wire.encode(wire.Heartbeat(self._slot, self._generation, self._revision(),
                                                        self._calls.seen())))
                while socket.poll(0):
                    heard = time.monotonic()
                    self._take(wire.decode_control(socket.recv()))
                if self.fenced and self._calls.loop_seconds() > lease:
                    end_process(f"it was fenced, and its loop has not turned for {lease:g} s")
                if os.getppid() != self._parent:
                    end_process("its parent is gone")
                if time.monotonic() - heard > lease:
                    end_process(f"the master at {self._setup.master} has not answered for {lease:g} s")
        finally:
            socket.close()

    def _take(self, message: wire.ControlMessage) -> None:
        if isinstance(message, wire.Fenced):
            self.fenced = True
            if message.reason:
                end_process(message.reason)

    def stop(self) -> None:
        self._ended.set()
        self.join(timeout=5)


def end_process(reason: str) -> None:
    """End the process at once, from any thread: user code may be stuck, and nobody is left to wait for it."""
    print(f"millrace worker {os.getpid()} ends: {reason}", file=sys.stderr, flush=True)
    os._exit(3)


def ignore_interrupts() -> None:
    """Ignore SIGINT: Ctrl-C is for the driver, which stops the workers cleanly. A KeyboardInterrupt is user code's own then."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def address_facing(endpoint: str) -> str:
    """This host's address on the route to an endpoint. Sends nothing."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    with sockets.socket(sockets.AF_INET, sockets.SOCK_DGRAM) as probe:
        probe.connect((host.strip("[]"), int(port)))
        return str(probe.getsockname()[0])


class WorkerProcess:
    """Runs one slot until the master stops it. A worker that was wrongly presumed dead restarts as a new generation."""

    def __init__(self, setup: WorkerSetup, slot: int, executor: str = "") -> None:
        self.setup, self.slot, self.executor = setup, slot, executor
        self.context = zmq.Context()
        self.boot = boot_id()
        self.node = this_node(setup.settings, executor)
        self.threads = TaskThreads()
        self._process = psutil.Process()
        self._deducts = OTHER_PROCESSES.of(setup.settings) == "deduct"
        self._turns, self._pauses = LoopTurns(time.monotonic()), CollectorPauses()  # of all generations
        self._former = 0  # the generation under which this process was fenced
        bind = address_facing(setup.master) if setup.bind == "auto" else setup.bind
        self._bind = bind
        self._gate = Gate(self.context, setup.keys) if bind else None
        self._directory = UsedDirectory(Path(setup.directory()))
        sweep(self._directory.path.parent)
        # Kept across generations: fragments held for others stay valid when the worker is fenced.
        self._exchange = FragmentExchange(
            self.context, f"b{slot}-{uuid.uuid4().hex[:12]}", self._directory.path, bind, setup.keys, self.boot,
            self.threads.post, int(BACKUP_MEMORY.of(setup.settings) * 2**20), died=self.threads.died)
        self._copies: LocalCopies | None = None
        self._taps = TapPort(self.context, Path(setup.directory()) / f"t{slot}-{uuid.uuid4().hex[:12]}.ipc", bind, setup.keys,
                             self.boot)
        open_here(self._taps)

    def run(self) -> str:
        """Run until stopped; return how it ended."""
        self._pauses.open()
        try:
            while self._run_generation() == "fenced":
                log.warning("worker %d was fenced by the master: restarting as a new generation", self.slot)
            return "stopped"
        finally:
            self._pauses.close()
            open_here(None)
            self._taps.close()
            self._exchange.close()
            self.threads.close()
            if self._copies is not None:
                self._copies.close()
            if self._gate is not None:
                self._gate.close()
            self.context.destroy(linger=200)
            self._directory.leave()  # the master may be on another host, and not remove it

    def _run_generation(self) -> str:
        directory = self._directory.path
        port = DataPort(self.context, f"w{self.slot}-{uuid.uuid4().hex[:12]}", directory, self._bind, self.setup.keys,
                        FRAME_LIMIT.of(self.setup.settings))
        control = self.context.socket(zmq.DEALER)
        visit(control, self.setup.keys)
        control.connect(self.setup.master)
        peers = SocketPeers(self.context, self.setup.keys, self.boot)
        try:
            welcome = self._hello(control, port)
            if welcome is None:
                return "stopped"
            self._former = welcome.generation
            if limit := limit_of(welcome.settings, one_host=not self._bind):
                self._copies = LocalCopies(Path(directory, f"copies-{self.slot}"), limit)
            checkpoints = CheckpointAccess(lambda: open_store(CHECKPOINTS.of(welcome.settings)), self._exchange, self._copies)
            worker = Worker(self.slot, welcome.generation, SystemClock(), peers, self.threads, welcome.settings, welcome.author,
                            checkpoints, lambda message: control.send(wire.encode(message)))
            worker.feeds = SocketFeeds(self.context, directory, self._bind, self.setup.keys, self.boot, worker.counters,
                                       FRAME_LIMIT.of(self.setup.settings))
            calls = LongCalls(self.threads, lambda: worker.turn_began)
            pulse = Pulse(self.context, self.setup, self.slot, welcome.generation, lambda: worker.revision, calls)
            node_path = node_directory(directory, self.node.name)
            agent = Agent(self.context, self.setup.master, self.setup.keys, welcome.cluster, self.setup.settings, self.slot,
                          welcome.generation, self.node.name, node_path, self.threads.died, welcome.author)
            plans = PlanReader(self.context, node_path)
            waiter = LoopWait(SPIN_MICROS.of(self.setup.settings) / 1e6)
            pulse.start()
            agent.start()
            error = ""
            try:
                return self._loop(worker, control, port, pulse, plans, agent, calls, waiter)
            except BaseException as failure:
                error = describe(failure)
                log.exception("worker %d ends with an error", self.slot)
                raise
            finally:
                agent.stop()
                plans.close()
                pulse.stop()
                worker.close()
                waiter.close()
                checkpoints.close()
                control.send(wire.encode(wire.Bye(self.slot, welcome.generation, error)))
        finally:
            peers.close()
            port.close()
            control.close(linger=500)

    def _hello(self, control: zmq.Socket[Any], port: DataPort) -> wire.Welcome | None:
        """Register with the master. None if the slot was given to another process while this one was cut off."""
        control.send(wire.encode(wire.Hello(self.slot, os.getpid(), self.node, self.boot, self.executor, port.ipc,
                                            port.tcp, self._exchange.endpoints.ipc, self._exchange.endpoints.tcp,
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
                                f"{seconds:g} s: it is not reachable from this host, or the key is wrong")

    def _loop(self, worker: Worker, control: zmq.Socket[Any], port: DataPort, pulse: Pulse, plans: PlanReader,
              agent: Agent, calls: LongCalls, waiter: LoopWait) -> str:
        for source in [control, plans.news, *port.sockets, self.threads.wake_fd]:
            waiter.poller.register(source, zmq.POLLIN)
        self._taps.listen_with(waiter.poller)
        next_report, looked, turns = 0.0, -math.inf, self._turns
        reported = worker.stamp
        turns.restart(time.monotonic())
        while True:
            wait = min(REPORT_SECONDS, agent.worker_poll, worker.wait_seconds())
            ready = waiter.wait(wait)
            now = calls.turned = time.monotonic()
            turns.begin(now, slept=wait > 0)
            if plans.news in ready or now >= looked + agent.worker_poll:
                looked = now
                plan = plans.newer()
                if plan is not None:
                    worker.assign(plan)
            if control in ready and self._control(worker, control) == "stop":
                self._report(worker.last_report(), worker, control)
                return "stopped"
            if pulse.fenced:
                return "fenced"
            for data in port.sockets:
                if data in ready:
                    self._receive(worker, data)
            if self.threads.wake_fd in ready:
                self.threads.finish()
            self._taps.answer(ready)
            worked = worker.step() or bool(ready)
            now = time.monotonic()
            turns.end(now, worked)
            if now >= next_report or worker.stamp != reported:  # the master waits for workers to carry out a plan
                next_report, reported = now + REPORT_SECONDS, worker.stamp
                worker.counters["refused_connections"] = port.count_refusals()
                worker.counters["agent_errors"] = agent.errors + plans.errors
                self._report(worker.report(), worker, control)
                turns.begin(now, slept=False)  # tasks wait for a report as they do for a turn
                turns.end(time.monotonic(), worked=True)

    def _report(self, report: wire.Report, worker: Worker, control: zmq.Socket[Any]) -> None:
        report.cpu_seconds, report.memory_mb = time.process_time(), self._process.memory_info().rss / 2**20
        report.loop_seconds, report.turns = self._turns.busy_seconds, self._turns.durations.take()
        report.collector_pauses = self._pauses.take()
        report.machine_cpu_seconds = machine_cpu_seconds() if self._deducts else 0.0
        try:
            control.send(wire.encode(report))
        except TypeError as error:  # it contains a value of user code that cannot be encoded
            worker.counters["unreportable"] += 1
            log.error("a report could not be sent: %s", error)

    def _control(self, worker: Worker, control: zmq.Socket[Any]) -> str:
        """Handle the messages of the master; "stop" if it sent that."""
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
            elif isinstance(message, wire.TryStore):
                worker.on_trial(message)
        return ""

    def _receive(self, worker: Worker, data: zmq.Socket[Any]) -> None:
        receive = worker.arrivals.receive
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = data.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            receive(frames)


def log_to_stderr(setup: WorkerSetup) -> None:
    """Log components' messages and Millrace's warnings to the worker's stderr, which Spark keeps (with a local master, that is
    the terminal)."""
    root = logging.getLogger("millrace")
    if not root.handlers:  # a process that Spark reuses has one already
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
    root.setLevel(LOG_LEVEL.of(setup.settings).upper())
    for name in ("millrace.worker", "millrace.master"):
        logging.getLogger(name).setLevel(logging.WARNING)


def run_worker(setup: WorkerSetup, slot: int, executor: str = "") -> str:
    """Run a worker in this process until it ends."""
    ignore_interrupts()
    die_with_parent()
    log_to_stderr(setup)
    for directory in reversed(setup.path):
        if directory not in sys.path:
            sys.path.insert(0, directory)
    # Tuples hardly ever form cycles: the default would search for cycles every 700 allocations (measured: a tenth of all CPU
    # even at 50,000).
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 50, 100)
    return WorkerProcess(setup, slot, executor).run()
