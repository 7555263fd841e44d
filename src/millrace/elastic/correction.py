"""Corrections of the queueing model by what was measured.

Tuples travel in chunks, service times are not exponential, and tasks share their worker's loop. So for each station the
measured waiting time is fitted as overhead + factor · W, where W is the model's: at a low utilization W is close to 0, and what
is measured is overhead that further tasks do not lower; at a high one it shows the factor. For the whole topology there is one
factor more, because tuples that come of one are processed side by side, while E[T] adds up their times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from millrace.elastic.network import Network, Station, total_time

KEEP = 0.8  # weight of the past against one more window
PRIOR = 0.1  # weight, in windows, of the model as it is
LEAST_FACTOR, MOST_FACTOR = 0.2, 5.0
LEAST_WHOLE, MOST_WHOLE = 0.01, 5.0
MOST_BUSY = 0.95  # utilization above which nothing is learned


@dataclass(slots=True)
class _Fit:
    """Least squares with forgetting of y = overhead + factor · x, in units of the service time."""

    count: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float) -> None:
        self.count, self.x, self.y = self.count * KEEP + 1, self.x * KEEP + x, self.y * KEEP + y
        self.xx, self.xy = self.xx * KEEP + x * x, self.xy * KEEP + x * y

    def solved(self) -> tuple[float, float]:
        """Overhead and factor, within their bounds. PRIOR draws them to 0 and 1."""
        count, xx, xy = self.count + PRIOR, self.xx + PRIOR, self.xy + PRIOR
        factor = (count * xy - self.x * self.y) / (count * xx - self.x * self.x)
        if self.y < factor * self.x:  # an overhead below 0: the factor alone explains it
            factor = xy / xx
        factor = min(max(factor, LEAST_FACTOR), MOST_FACTOR)
        return max((self.y - factor * self.x) / count, 0.0), factor


class Corrections:
    """Those of one topology. `learn` is called with windows in which all tasks have settled and keep up: while a backlog is
    worked off, the wait is decided by flow control."""

    def __init__(self) -> None:
        self._fits: dict[str, _Fit] = {}
        self._whole: float | None = None

    def applied(self, network: Network) -> Network:
        """The network with the corrections known so far."""
        return replace(network, stations=tuple(map(self._corrected, network.stations)),
                       factor=1.0 if self._whole is None else self._whole)

    def _corrected(self, station: Station) -> Station:
        fit = self._fits.get(station.name)
        if fit is None:
            return station
        overhead, factor = fit.solved()
        return replace(station, overhead=overhead * station.service_time, factor=factor)

    def learn(self, network: Network, times: Mapping[str, float], complete: float | None) -> None:
        """`network`: as measured, without corrections. `times`: seconds from a tuple's arrival at a component until it was
        processed, on average. `complete`: seconds from the spouts to the end of the topology."""
        rates = network.rates()
        loaded = {station.name: utilization(station, rates[station.name]) for station in network.stations}
        if max(loaded.values(), default=0.0) > MOST_BUSY:
            return
        for station in network.stations:
            name, service = station.name, station.service_time
            if name in times and name not in network.offered and rates[name] > 0 and service > 0:
                fit = self._fits.setdefault(name, _Fit())
                fit.add(station.wait(rates[name], station.tasks) / service, max(times[name] / service - 1, 0.0))
        if complete is not None and network.external_rate > 0:
            self._learn_whole(self.applied(network), rates, complete)

    def _learn_whole(self, network: Network, rates: Mapping[str, float], complete: float) -> None:
        times = network.times(network.present)
        modelled = total_time(((rates[name], times[name]) for name in rates if name not in network.offered),
                              network.external_rate)
        if modelled > 0:
            factor = min(max(complete / modelled, LEAST_WHOLE), MOST_WHOLE)
            self._whole = factor if self._whole is None else KEEP * self._whole + (1 - KEEP) * factor


def utilization(station: Station, rate: float) -> float:
    """Share of the time for which its tasks are busy; above 1 they cannot keep up."""
    return rate / (station.tasks * station.service_rate)
