"""DS2 (Kalavri et al., OSDI 2018): the numbers of tasks that keep up with the sources, in one traversal.

A task's true processing rate is counted over the time in which it was busy, and its true output rate too; the selectivity of an
edge is the latter over the former. Each station needs what arrives from upstream, if that keeps up, over its true processing
rate.
"""

from __future__ import annotations

import math

from millrace.elastic.network import Network
from millrace.elastic.queueing import RATE_ROUNDING


def parallelism(network: Network, utilization: float = 1.0) -> dict[str, int]:
    """Tasks of each station, of which each is busy for at most `utilization` of the time. The bounds of stations are not
    looked at."""
    rates = network.rates()
    return {station.name: max(1, math.ceil(rates[station.name] / (station.service_rate * utilization) * (1 - RATE_ROUNDING)))
            for station in network.stations}
