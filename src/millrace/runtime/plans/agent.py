"""The agent of a node: copies the node's part of the plan from the coordination store to the node's plan store.

Every worker runs this thread; the master appoints one worker of a node as its agent, and another when that worker dies. The
agent only decides whether a plan is newer than the one it has; the workers compute the differences.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import zmq

from millrace.config import AGENT_POLL, COORDINATION, EMBEDDED, WORKER_POLL
from millrace.control.assignment import Assignment, Stamp
from millrace.errors import ForeignPlan, MillraceError
from millrace.runtime.plans.coordination import CoordinationStore, open_coordination
from millrace.runtime.plans.plan_store import PlanStore
from millrace.runtime.plans.round_trips import LinkProbe
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.transport import Keys, private_directory, visit

log = logging.getLogger("millrace.worker")
LOOK_SECONDS = 0.5  # between checks whether the thread should end
NOTHING = Stamp(0, 0)


def node_directory(base: Path, node: str) -> Path:
    """The directory shared by the workers of one node. Named by a number, since socket paths must be short."""
    return private_directory(str(base / f"node-{zlib.crc32(node.encode()):08x}"))


def news_path(directory: Path) -> Path:
    return directory / "plan.ipc"


def news_endpoint(directory: Path) -> str:
    return f"ipc://{news_path(directory)}"


class Agent(threading.Thread):
    """Runs in every worker; acts only while the worker is the agent. `errors` counts failures, which the next poll retries.
    `worker_poll`: seconds between the worker's polls of the plan store, which the master may change."""

    def __init__(self, context: zmq.Context[Any], master: str, keys: Keys, cluster: str, settings: dict[str, Any],
                 slot: int, generation: int, node: str, directory: Path, died: Callable[[BaseException], None],
                 author: int = 0) -> None:
        super().__init__(daemon=True, name="agent")
        self._context, self._master, self._keys, self._cluster = context, master, keys, cluster
        self._slot, self._generation, self._node, self._directory, self._died = slot, generation, node, directory, died
        self._author = author  # the master's number
        self._poll_seconds: float = AGENT_POLL.of(settings)
        self.worker_poll: float = WORKER_POLL.of(settings)
        self._url: str = COORDINATION.of(settings)
        self._store: PlanStore | None = None
        self._plans: CoordinationStore | None = None
        self._news: zmq.Socket[Any] | None = None
        self._ended = threading.Event()
        self._wake_fd, self._signal_fd = os.pipe()
        os.set_blocking(self._wake_fd, False)
        os.set_blocking(self._signal_fd, False)
        self._last_error = ""  # the last one logged
        self._links = LinkProbe(context, keys)
        self.errors = 0

    @property
    def is_agent(self) -> bool:
        return self._store is not None

    def run(self) -> None:
        try:
            self._run()
        except BaseException as error:  # without its agent a node gets no more plans
            self._died(error)

    def _run(self) -> None:
        control = self._context.socket(zmq.DEALER)
        control.linger = 0
        visit(control, self._keys)
        control.connect(self._master)
        poller = zmq.Poller()
        poller.register(control, zmq.POLLIN)
        poller.register(self._wake_fd, zmq.POLLIN)
        try:
            while not self._ended.is_set():
                self._guarded(lambda: self._ask(control))
                asked = time.monotonic()
                while not self._ended.is_set() and (left := asked + self._poll_seconds - time.monotonic()) > 0:
                    ready = dict(poller.poll(int(min(left, LOOK_SECONDS) * 1000) + 1))
                    if control in ready:
                        self._guarded(lambda: self._answer(control.recv()))
                    if self._wake_fd in ready:
                        os.read(self._wake_fd, 4096)
                        self._guarded(self._read_plans)
        finally:
            self._links.close()
            self._resign()
            control.close()

    def _guarded(self, work: Any) -> None:
        """Count and log any error, such as a full disk or an unreachable store: if the agent ended, its node would be cut
        off."""
        try:
            work()
        except Exception as error:
            self.errors += 1
            text = f"{type(error).__name__}: {error}"
            if text != self._last_error:
                self._last_error = text
                log.warning("the agent of %s could not fetch the plan and keeps trying: %s", self._node, text)

    def _ask(self, control: zmq.Socket[Any]) -> None:
        """Poll the master, in case a push was lost."""
        newest = self._newest()
        control.send(wire.encode(wire.Fetch(self._slot, self._generation, *newest, self._links.take())))
        self._open_news()
        self._open_plans()

    def _newest(self) -> Stamp:
        plan = self._store.newest() if self._store is not None else None
        return plan[0] if plan is not None else NOTHING

    def _answer(self, frame: bytes) -> None:
        message = wire.decode_control(frame)
        if not isinstance(message, wire.Agency):
            return
        self._poll_seconds = message.agent_poll or self._poll_seconds
        self.worker_poll = message.worker_poll or self.worker_poll
        if not message.agent:
            self._resign()
            return
        if self._store is None:
            self._become_agent()
        if message.part:
            self._write(Stamp(message.author, message.revision), message.part)
        if message.endpoints:
            self._links.begin(message.target, message.endpoints)

    def _become_agent(self) -> None:
        log.info("worker %d is the agent of %s", self._slot, self._node)
        self._store = PlanStore(self._directory)
        self._open_news()
        self._open_plans()

    def _open_news(self) -> None:
        """Bind the news socket, again if its file is gone: an agent that was replaced without noticing removes it when it
        resigns."""
        if self.is_agent and not (self._news is not None and news_path(self._directory).exists()):
            self._close_news()
            news = self._context.socket(zmq.PUB)
            news.linger = 0
            try:
                news.bind(news_endpoint(self._directory))
            except zmq.ZMQError:
                news.close()
                raise
            self._news = news

    def _open_plans(self) -> None:
        """Open an external coordination store, if there is one. The next poll retries if it is unreachable."""
        if self._url != EMBEDDED and self.is_agent:
            if self._plans is None:
                self._plans = open_coordination(self._url, self._cluster, self._keys.secret)
                self._plans.watch(self._node, self._wake)
            self._read_plans()

    def _resign(self) -> None:
        if self._plans is not None:
            self._plans.close()
        self._plans = self._store = None
        self._close_news()

    def _close_news(self) -> None:
        if self._news is not None:
            self._news.close()
        self._news = None

    def _read_plans(self) -> None:
        try:
            plan = self._plans.read(self._node) if self._plans is not None else None
        except ForeignPlan as error:
            if error.author < self._author:
                return  # left by an earlier run: this one has not published yet
            raise
        if plan is not None:
            self._write(*plan)

    def _write(self, stamp: Stamp, part: bytes) -> None:
        """Write a newer plan into the plan store and notify the node's workers."""
        if self._store is not None and self._store.write(stamp, part):
            self._last_error = ""
            if self._news is not None:
                self._news.send(b"")

    def _wake(self) -> None:
        with suppress(BlockingIOError):  # a pipe full of wake-ups: one is enough
            os.write(self._signal_fd, b".")

    def stop(self) -> None:
        self._ended.set()
        self._wake()
        self.join(timeout=5)
        if not self.is_alive():  # else it waits for an unreachable store and still uses them
            os.close(self._wake_fd)
            os.close(self._signal_fd)


class PlanReader:
    """Reads the node's plan store for a worker. `news` becomes readable when there may be a newer plan."""

    def __init__(self, context: zmq.Context[Any], directory: Path) -> None:
        self._store = PlanStore(directory)
        self._seen: Stamp | None = None
        self._last_error = ""
        self.errors = 0
        self.news = context.socket(zmq.SUB)
        self.news.subscribe(b"")
        self.news.connect(news_endpoint(directory))

    def newer(self) -> Assignment | None:
        """The newest plan of the node, if this worker has not seen it. An unusable store must not end the worker, which can
        continue with its plan: `errors` counts, and the next call tries again."""
        while self.news.poll(0):
            self.news.recv()
        try:
            newer = self._store.newer_than(self._seen)
            if newer is None:
                return None
            stamp, part = newer
            plan = wire.decode_part(part)
            self._seen = stamp
            return plan
        except MillraceError as error:
            self.errors += 1
            if str(error) != self._last_error:
                self._last_error = str(error)
                log.warning("the plan cannot be read: %s", error)
            return None

    def close(self) -> None:
        self.news.close(linger=0)
