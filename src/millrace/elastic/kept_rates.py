"""Offered rates of the past, kept for forecasts in equal steps of time.

A season that has more windows than can be kept twice is kept in longer steps, of which each has the mean rate of its windows: a
day in quarters of an hour.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from millrace.elastic.models import PastRates
from millrace.errors import BadParameter

STEPS_KEPT = 360
STEPS_PER_SEASON = 96  # of a season that is too long for its windows to be kept


class KeptRates:
    """Those of one topology. `period`: seconds of a window. `season`: seconds after which the load repeats its pattern, 0 for
    none; `BadParameter` if it is too short to be seen."""

    def __init__(self, period: float, season: float = 0.0) -> None:
        if 0 < season < 2 * period:
            raise BadParameter(f"season = {season:g} is shorter than two windows of {period:g} s, in which it cannot be seen. "
                               f"Possible: season={2 * period:g}, or a shorter period")
        self._step = period if 2 * season <= STEPS_KEPT * period else season / STEPS_PER_SEASON
        self._steps: deque[dict[str, float]] = deque(maxlen=STEPS_KEPT)
        self._tuples: dict[str, float] = {}  # since the last step
        self._counted = 0.0  # seconds in which they were offered
        self._elapsed = 0.0  # seconds since the last step should have ended

    def add(self, seconds: float, offered: Mapping[str, float]) -> None:
        """Add a window with its rates."""
        for name, rate in offered.items():
            self._tuples[name] = self._tuples.get(name, 0.0) + rate * seconds
        self._counted += seconds
        self._elapsed += seconds
        while self._counted > 0 and self._elapsed >= self._step - seconds / 2:
            self._elapsed -= self._step
            self._steps.append({name: tuples / self._counted for name, tuples in self._tuples.items()})
            if self._elapsed < self._step - seconds / 2:
                self._tuples, self._counted = {}, 0.0

    @property
    def past(self) -> PastRates:
        names = dict.fromkeys(name for rates in self._steps for name in rates)
        return PastRates(self._step, {name: tuple(rates.get(name, 0.0) for rates in self._steps) for name in names},
                         max(self._elapsed, 0.0))
