"""The events that users see."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from millrace.control.events import Say
from millrace.redaction import redact

log = logging.getLogger("millrace.master")
EVENTS_KEPT = 1000
LEVELS = {"warning": logging.WARNING, "error": logging.ERROR}


class EventLog(deque[dict[str, Any]]):
    """The newest events, oldest first. A deque, so that any thread can copy it."""

    def __init__(self) -> None:
        super().__init__(maxlen=EVENTS_KEPT)
        self.listeners: list[Callable[[Say], None]] = []

    def add(self, message: Say) -> None:
        """Keep the message, write it to the log and pass it to the listeners."""
        message = replace(message, text=redact(message.text), cause=redact(message.cause))
        self.append({"time": time.time(), "topology": message.topology, "text": message.text, "level": message.level,
                     "cause": message.cause, "tasks": list(map(str, message.tasks))})
        log.log(LEVELS.get(message.level, logging.INFO), "%s%s", f"{message.topology}: " if message.topology else "",
                message.text)
        for listener in list(self.listeners):
            try:
                listener(message)
            except Exception:
                log.exception("a listener failed and gets no more messages")
                self.listeners.remove(listener)
