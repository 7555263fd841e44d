"""A stream of which one key has nearly all tuples, for workers that are processes."""

from __future__ import annotations

import time
from typing import Any

from millrace import Bolt, Grouping, Topology, Tuple
from millrace.connectors.generator import GeneratorSpout


class Clicks(GeneratorSpout):
    outputs = ["page", "clicks"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return "home" if position % 20 else f"page {position % 700}", 1


class Visits(Bolt):
    """Waits for each tuple, as for a service."""

    blocking = True

    def process(self, tup: Tuple) -> None:
        time.sleep(0.0001)


class HotPage(Topology):
    clicks = Clicks.spec()
    visits = Visits.spec(inputs={clicks: Grouping.fields("page")}, par=3)
