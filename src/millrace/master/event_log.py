"""The events that users see."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from millrace.control.events import Say
from millrace.redaction import redact

log = logging.getLogger("millrace.master")
EVENTS_KEPT = 1000
LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


class EventLog:
    """The newest events, oldest first. Each is also written to the log and passed to the listeners."""

    def __init__(self) -> None:
        self.listeners: list[Callable[[Say], None]] = []
        self._kept: deque[dict[str, Any]] = deque(maxlen=EVENTS_KEPT)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self._kept)

    def add(self, message: Say) -> None:
        message = replace(message, text=redact(message.text), cause=redact(message.cause))
        self._kept.append({"time": time.time(), "topology": message.topology, "text": message.text, "level": message.level,
                           "cause": message.cause, "tasks": list(map(str, message.tasks))})
        log.log(LEVELS.get(message.level, logging.INFO), "%s%s", f"{message.topology}: " if message.topology else "",
                message.text)
        for listener in list(self.listeners):
            try:
                listener(message)
            except Exception:
                log.exception("a listener failed and gets no more messages")
                self.listeners.remove(listener)

    def clear(self) -> None:
        self._kept.clear()
