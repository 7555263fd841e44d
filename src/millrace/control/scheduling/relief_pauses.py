"""Pauses between requests to relieve an overload that the scheduler does not relieve.

An overload that stays would have the scheduler asked at every window, with the same answer. After a request that led to no plan
in force it is asked again only after a pause, which doubles up to the scheduler's period, or at once if something else is
overloaded or the workers have changed.
"""

from __future__ import annotations

import math
from collections.abc import Set
from dataclasses import dataclass

from millrace.control.pauses import doubled_pause

FIRST_WINDOWS = 2.0  # the first pause, in windows


@dataclass(slots=True)
class ReliefPauses:
    """The requests since a plan was carried out. Times are of the master's clock."""

    _requests: int = 0
    _asked_at: float = -math.inf
    _overloaded: frozenset[str] = frozenset()  # everything that was overloaded at one of the requests
    _slots: frozenset[int] = frozenset()

    def over(self, now: float, overloaded: Set[str], slots: Set[int], window: float, period: float) -> bool:
        """True if the scheduler may be asked to relieve what is overloaded. `window`: seconds of a window; `period`: seconds
        between the scheduler's regular runs."""
        if overloaded - self._overloaded or slots != self._slots:
            return True
        pause = doubled_pause(self._requests, FIRST_WINDOWS * window, period)
        return now - self._asked_at >= pause - window / 2  # windows do not end to the millisecond

    def asked(self, now: float, overloaded: Set[str], slots: Set[int]) -> None:
        if not overloaded or overloaded - self._overloaded or slots != self._slots:
            self.end()
        self._requests += 1
        self._asked_at, self._slots = now, frozenset(slots)
        self._overloaded |= overloaded

    def end(self) -> None:
        """A plan is carried out, or another scheduler is in use: an overload is news again."""
        self._requests, self._overloaded = 0, frozenset()
