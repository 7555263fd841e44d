"""Unexpected errors in parts of the master without which topologies can run, such as measuring load or warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf
from typing import Any

from millrace.control.events import Say

log = logging.getLogger("millrace.master")
RETRY_SECONDS = 1.0


class Failures:
    """Runs such parts. One that raises does not stop the others, and is tried again. The same error is reported once: the part
    may fail in every window."""

    def __init__(self, say: Callable[[Say], None]) -> None:
        self._say = say
        self._failed: dict[str, float] = {}  # by part: when it failed last
        self._reported: dict[str, str] = {}  # its last error

    def guard(self, part: str, now: float, work: Callable[[], Any]) -> None:
        """Run the work, unless the part has just failed. `part`: what users are told has failed."""
        if now < self._failed.get(part, -inf) + RETRY_SECONDS:
            return
        try:
            work()
        except Exception as error:
            self._failed[part] = now
            text = f"{type(error).__name__}: {error}"
            if text != self._reported.get(part):
                self._reported[part] = text
                log.exception("%s failed", part)
                self._say(Say(f"{part} failed because of an unexpected error: {text}. It will be tried again, and topologies "
                              "run on. The log has its traceback", level="error"))
