"""Publishes plans to the coordination store, without making the master wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from millrace.config import EMBEDDED
from millrace.control.assignment import Stamp
from millrace.errors import NotTheAuthor
from millrace.runtime.plans.coordination import CoordinationStore, EmbeddedStore, open_coordination

log = logging.getLogger("millrace.master")
AGAIN_SECONDS = 1.0


class PlanPublisher:
    """Calls `failed`, on its own thread, when the store is down, when it is available again (with None), and when another
    master has become the author. Only the newest plan counts: an older one that could not be written in time is skipped."""

    def __init__(self, url: str, cluster: str, secret: bytes, failed: Callable[[Exception | None], None]) -> None:
        self.store: CoordinationStore = EmbeddedStore()  # until `claim` opens the configured one
        self.embedded = url == EMBEDDED
        self._url, self._cluster, self._secret = url, cluster, secret
        self._failed = failed
        self._newest: tuple[Stamp, Mapping[str, bytes]] | None = None  # the plan to write
        self._last: tuple[Stamp, Mapping[str, bytes]] | None = None  # the plan written last, or being written
        self._work = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None

    def claim(self) -> int:
        """Become the author of the cluster's plans, in place of any other master: the last step before acting as master."""
        self.store = open_coordination(self._url, self._cluster, self._secret)
        author = self.store.claim()
        if not self.embedded:
            self.store.watch("", self._look_again)
            self._thread = threading.Thread(target=self._run, daemon=True, name="millrace publisher")
            self._thread.start()
        return author

    def _look_again(self) -> None:
        """Republish the last plan after a change in the store or an outage. Either nothing changes, or the write shows that
        another master has taken over, which an idle master would not notice otherwise."""
        with self._work:
            self._newest = self._newest or self._last
            self._work.notify()

    def publish(self, stamp: Stamp, parts: Mapping[str, bytes]) -> None:
        if self.embedded:
            self.store.publish(stamp, parts)
            return
        with self._work:
            self._newest = stamp, parts
            self._work.notify()

    def _run(self) -> None:
        away = False
        while (todo := self._next(AGAIN_SECONDS if away else None)) is not None:
            try:
                self.store.publish(*todo)
            except NotTheAuthor as error:
                self._failed(error)
                return
            except Exception as error:  # usually the store is down; this thread must live on, or no plan would ever be written
                self._put_back(todo)
                if not away:
                    self._failed(error)
                away = True
                continue
            if away:
                self._failed(None)
            away = False

    def _next(self, pause: float | None) -> tuple[Stamp, Mapping[str, bytes]] | None:
        """Wait for a plan to write, after a pause if the store was down. None: the publisher is closed."""
        with self._work:
            if pause is not None:
                self._work.wait_for(lambda: self._ended, timeout=pause)
            self._work.wait_for(lambda: self._ended or self._newest is not None)
            self._last, self._newest = self._newest, None
            return None if self._ended else self._last

    def _put_back(self, todo: tuple[Stamp, Mapping[str, bytes]]) -> None:
        with self._work:
            self._newest = self._newest or todo

    def close(self) -> None:
        with self._work:
            self._ended = True
            self._work.notify()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.store.close()
