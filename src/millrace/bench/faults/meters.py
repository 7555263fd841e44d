"""The figures of a run of faults: gaps at the sink, and the time to recover from each kind of fault."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


class LongestGap:
    """The longest time in which a number did not change. Call `look` repeatedly; the time between `pause` and `unpause` does
    not count."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._value: float | None = None
        self._since: float | None = None

    def look(self, value: float, now: float) -> None:
        if self._since is None:
            return
        if value != self._value:
            self.longest = max(self.longest, now - self._since)
            self._value, self._since = value, now

    def pause(self, now: float) -> None:
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since = None

    def unpause(self, now: float) -> None:
        self._since = now


@dataclass(slots=True)
class FaultFigures:
    """Counts and times by kind of fault. Times are of faults that had an effect and were recovered from before the next one."""

    effective: Counter[str] = field(default_factory=Counter)
    without_effect: Counter[str] = field(default_factory=Counter)
    gaps: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds
    recoveries: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # seconds

    def recovered(self, kind: str, gap: float, seconds: float) -> None:
        self.gaps[kind].append(gap)
        self.recoveries[kind].append(seconds)

    def by_kind(self, kinds: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The `kinds` of `bench faults --json`; a time is null if no fault of the kind was recovered from alone."""
        return {kind: {"n": self.effective[kind], "gap_p50_ms": _ms(self.gaps[kind], median),
                       "gap_max_ms": _ms(self.gaps[kind], max), "recovery_p50_ms": _ms(self.recoveries[kind], median)}
                for kind in kinds}


def _ms(seconds: list[float], figure: Any) -> int | None:
    return round(figure(seconds) * 1000) if seconds else None
