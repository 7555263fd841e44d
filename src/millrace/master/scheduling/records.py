"""The history of a cluster while its master runs: opened when it is first needed, unless the user wants none or named one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millrace.config import HISTORY, HISTORY_RETENTION
from millrace.control.events import Say
from millrace.control.scheduling.schedule_generator import Decision
from millrace.elastic.elastic_decision import ElasticDecision
from millrace.errors import MillraceError
from millrace.master.load.history import History, default_history_url
from millrace.model.sample import WindowSample

KEEP_NOTHING = "none"


class Records:
    """Called on the master's thread. `opened`: called with the history once it is open, to read what earlier masters of the
    cluster have left there."""

    def __init__(self, cluster: str, settings: Mapping[str, Any], say: Callable[[Say], None],
                 opened: Callable[[History], None]) -> None:
        self._cluster, self._say, self._opened = cluster, say, opened
        self._url: str | None = HISTORY.of(settings)
        self._retention: float = HISTORY_RETENTION.of(settings) * 3600
        self._history: History | None = None

    def open_if_named(self) -> None:
        """Open the history that the user has named; raises if it cannot be reached: the master must not start then."""
        if self._url not in (None, KEEP_NOTHING):
            self._open()

    def open(self) -> History | None:
        """The history, which is opened if it is not yet; None if none is kept."""
        if self._history is None and self._url is None:
            try:
                self._open()
            except MillraceError as error:
                self._url = KEEP_NOTHING
                self._say(Say(f"no history is kept: {error}", level="warning"))
        return self._history

    def window(self, sample: WindowSample) -> None:
        self._write(lambda history: history.record_window(sample))

    def decision(self, decision: Decision) -> None:
        self._write(lambda history: history.record_decision(decision.to_json()))

    def elastic_decision(self, decision: ElasticDecision) -> None:
        self._write(lambda history: history.record_elastic_decision(decision.to_json()))

    def migration(self, row: Mapping[str, Any]) -> None:
        self._write(lambda history: history.record_migration(row))

    def choice(self, row: Mapping[str, Any]) -> None:
        """Record the scheduler in use, for the next master."""
        self._write(lambda history: history.record_choice(row))

    def status(self) -> dict[str, Any] | None:
        """The state of the history; None if none is kept, or it has not started yet."""
        return self._history.status() if self._history is not None else None

    def close(self) -> None:
        if self._history is not None:
            self._history.close()

    def _write(self, record: Callable[[History], None]) -> None:
        """Record something, if a history is kept."""
        if (history := self.open()) is not None:
            record(history)

    def _open(self) -> None:
        self._history = History(self._url or default_history_url(), self._cluster, self._retention)
        self._opened(self._history)
