"""The usual service rates of a topology's components, which bound what a sudden slowness may cost.

A service that times out makes a task a thousand times slower, and a model would answer with a thousand times the tasks.
The rate that they are given is never below a quarter of the usual one. A slowness that lasts becomes usual within an hour or
two.
"""

from __future__ import annotations

import math
from dataclasses import replace

from millrace.elastic.network import Network

HALVED = 600.0  # seconds in which the usual rate falls to a half, if a task is slower
SLOWEST = 0.25  # of the usual rate


class UsualRates:
    """Those of one topology."""

    def __init__(self) -> None:
        self._rates: dict[str, float] = {}

    def bounded(self, seconds: float, network: Network) -> Network:
        """The network after one more window, with no station slower than a quarter of its usual rate."""
        keep = 0.5 ** (seconds / HALVED)
        for station in network.stations:
            if math.isfinite(station.service_rate):
                self._rates[station.name] = max(station.service_rate, keep * self._rates.get(station.name, 0.0))
        return replace(network, stations=tuple(
            replace(station, service_rate=max(station.service_rate, SLOWEST * self._rates.get(station.name, 0.0)))
            for station in network.stations))
