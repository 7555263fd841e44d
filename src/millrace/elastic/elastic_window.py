"""One window of a topology, as the elastic loop sees it, and load windows joined to longer ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from millrace.elastic.network import Network

ENOUGH = 0.9  # of the period: load windows are not measured to the millisecond
LAG_SECONDS = 0.5  # of the tuples of a spout: with a longer lag, it does not keep up with its source
DRAINING = 1.1  # times what is offered: spouts that emit more work off a backlog


@dataclass(frozen=True, slots=True)
class ElasticWindow:
    """The network with its corrections, the measured latency of the topology, tuples that wait at its sources (`backlog`), and
    tuples per second that its spouts emitted (`carried`). Two reasons why the window does not count: `settling` (tasks were
    started or moved in it) and `busy`, which says what is under way; empty if nothing is."""

    at: float  # unix time
    seconds: float
    network: Network
    measured_ms: float | None = None
    backlog: Mapping[str, int] = field(default_factory=dict)
    carried: Mapping[str, float] = field(default_factory=dict)
    settling: bool = False
    busy: str = ""

    @property
    def rates(self) -> dict[str, float]:
        """The rate that each spout is offered, or emits if that is more: a source that is only drained offers nothing."""
        return {name: max(rate, self.carried.get(name, 0.0)) for name, rate in self.network.offered.items()}

    @property
    def waiting(self) -> int:
        """Tuples that wait at spouts which do not keep up; 0 if all do."""
        rates = self.rates
        return sum(tuples for name, tuples in self.backlog.items() if tuples > LAG_SECONDS * rates.get(name, 0.0))

    @property
    def draining(self) -> bool:
        """True if the spouts emit more than they are offered."""
        return drains(sum(self.carried.values()), self.network.external_rate)


def drains(carried: float, offered: float) -> bool:
    """True if spouts that emit `carried` and are offered `offered` work off a backlog."""
    return carried > DRAINING * offered


class JoinedWindows:
    """Joins load windows until they have the length of a loop's own. The loops of several topologies have the same load
    windows, as short as any of them needs."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._parts: list[ElasticWindow] = []

    def add(self, window: ElasticWindow) -> ElasticWindow | None:
        """The joined window, once it is long enough. Windows with other numbers of tasks are not joined."""
        if self._parts and self._parts[-1].network.present != window.network.present:
            self._parts.clear()
        self._parts.append(window)
        if sum(part.seconds for part in self._parts) < ENOUGH * self._period:
            return None
        parts, self._parts = self._parts, []
        return _joined(parts)


def _joined(parts: list[ElasticWindow]) -> ElasticWindow:
    """One window: rates and latency are means over its time, all else is that of the last part."""
    last = parts[-1]
    if len(parts) == 1:
        return last
    latencies = [(part.measured_ms, part.seconds) for part in parts if part.measured_ms is not None]
    known = sum(seconds for _, seconds in latencies)
    return replace(
        last, seconds=sum(part.seconds for part in parts),
        network=last.network.under(_mean([(part.network.offered, part.seconds) for part in parts])),
        measured_ms=sum(latency * seconds for latency, seconds in latencies) / known if known else None,
        carried=_mean([(part.carried, part.seconds) for part in parts]),
        settling=any(part.settling for part in parts), busy=next((part.busy for part in reversed(parts) if part.busy), ""))


def _mean(rates: list[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """The mean rate of each spout, over windows with their seconds."""
    total = sum(seconds for _, seconds in rates)
    names = dict.fromkeys(name for known, _ in rates for name in known)
    return {name: sum(known.get(name, 0.0) * seconds for known, seconds in rates) / total for name in names}
