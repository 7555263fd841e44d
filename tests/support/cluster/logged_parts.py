"""A topology whose sinks keep a log of their own: the time of every chunk, by the cluster's clock, and its tuples."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from support.cluster.wave_parts import Exact, KeyedTally, Numbers

LOG: list[tuple[float, int]] = []


class LoggingSink(Bolt):
    named_rows: ClassVar[bool] = False
    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def process_rows(self, rows: list[Any]) -> None:
        LOG.append((self.clock(), len(rows)))


class Logged(Topology):
    """Exactly once unless configured otherwise."""

    config: ClassVar[dict[str, Any]] = Exact.config
    numbers = Numbers.spec(par=2)
    tally = KeyedTally.spec(inputs={numbers: Grouping.fields("key")}, par=3)
    sink = LoggingSink.spec(inputs={tally: Grouping.SHUFFLE}, par=2)
