"""Patience of a tap's reader while the topology is not there: its driver may be restarted and resume it."""

from __future__ import annotations

import logging
import time

from millrace.errors import MillraceError

log = logging.getLogger("millrace.reader")  # without a handler, Python writes warnings to stderr
WAIT_SECONDS = 600.0  # default limit
SAY_SECONDS = 2.0  # shorter absences are not worth a line


class TapWait:
    """One wait at a time: it starts with the first miss, and ends when the tap is found or the limit has passed."""

    def __init__(self, tap: str, cluster: str, limit: float) -> None:
        self._tap, self._cluster, self._limit = tap, cluster, limit
        self._since: float | None = None
        self._said = False

    def missed(self, trouble: str) -> None:
        """Report that the tap cannot be read now; raises `MillraceError` at the limit."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if now - self._since >= self._limit:
            raise MillraceError(f"{self._tap} could not be read for {self._limit:g} s: {trouble}. Is the cluster "
                                f"{self._cluster!r} running? Restart the query from its checkpoint when it is, or let it wait "
                                "longer with .option(\"wait\", seconds)")
        if not self._said and now - self._since >= min(SAY_SECONDS, self._limit / 2):
            self._said = True
            log.warning("the reader of %s waits for the cluster %r, %g s at most: %s", self._tap, self._cluster, self._limit,
                        trouble)

    def found(self) -> None:
        """Report that the tap can be read."""
        if self._since is None:
            return
        if self._said:
            log.warning("the reader of %s continues after %.0f s", self._tap, time.monotonic() - self._since)
        self._since, self._said = None, False
