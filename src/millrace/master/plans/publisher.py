"""Brings plans from the master to the coordination store, without ever making the master wait for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from millrace.config import EMBEDDED
from millrace.control.assignment import Stamp
from millrace.errors import NotTheAuthor
from millrace.runtime.plans.coordination import CoordinationStore, EmbeddedStore, open_store

log = logging.getLogger("millrace.master")
AGAIN_SECONDS = 1.0


class Publisher:
    """`failed` is told, on a thread of this class, when the store is away and when it is back (with no error), and when
    another master has become the author. Only the newest plan counts: one that could not be written in time is skipped."""

    def __init__(self, url: str, cluster: str, failed: Callable[[Exception | None], None]) -> None:
        self.store: CoordinationStore = EmbeddedStore()  # until `claim` opens the one that is meant
        self.embedded = url == EMBEDDED
        self._url, self._cluster = url, cluster
        self._failed = failed
        self._newest: tuple[Stamp, Mapping[str, bytes]] | None = None  # what is not written yet
        self._last: tuple[Stamp, Mapping[str, bytes]] | None = None  # what is, or is being written
        self._work = threading.Condition()
        self._ended = False
        self._thread: threading.Thread | None = None

    def claim(self) -> int:
        """Become the author of the cluster's plans, whoever has been: the last thing to do before being a master."""
        self.store = open_store(self._url, self._cluster)
        author = self.store.claim()
        if not self.embedded:
            self.store.watch("", self._look_again)
            self._thread = threading.Thread(target=self._run, daemon=True, name="millrace publisher")
            self._thread.start()
        return author

    def _look_again(self) -> None:
        """Somebody has written a plan, or the store was away: writing ours again changes nothing, or tells that another
        master is the author now. One that has nothing to plan would never find out."""
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
            except Exception as error:  # mostly that it is away; without this thread no plan would get anywhere
                self._put_back(todo)
                if not away:
                    self._failed(error)
                away = True
                continue
            if away:
                self._failed(None)
            away = False

    def _next(self, pause: float | None) -> tuple[Stamp, Mapping[str, bytes]] | None:
        """The newest plan that is not written yet, after a pause if the store was away; None at the end."""
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
