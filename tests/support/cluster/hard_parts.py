"""Components that are slow, late or odd, for test_hard_cases.py."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import Bolt, TicklessBatchingBolt
from millrace.api.tuple import Tuple
from millrace.runtime.clock import ManualClock
from support.cluster.records import REFUSED, SEEN

CLOCK: list[ManualClock] = []  # of the cluster under test


class Slow(Bolt):
    """Takes a tenth of a virtual second per tuple."""

    def process(self, tup: Tuple) -> None:
        CLOCK[0].advance(0.1)
        SEEN["slow"].append(tup.values[0])


class BusyBatches(TicklessBatchingBolt):
    """Has its own thread and always a full inbox."""

    blocking = True
    secs_between_batches = 0.05

    def process_batch(self, key: Any, tups: list[Tuple]) -> None:
        SEEN["batches"].append(len(tups))


class StartsAtLast(Bolt):
    """Raises twice in `initialize`, as if a server were not up yet."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["initialize"] += 1
        if REFUSED["initialize"] < 3:
            raise ConnectionError("not yet")
        self.emit([-1])

    def process(self, tup: Tuple) -> None:
        self.emit(list(tup.values))


class Exits(Bolt):
    """Calls sys.exit, in effect, for one value."""

    def process(self, tup: Tuple) -> None:
        if tup.values[0] == 7:
            raise SystemExit(3)
        SEEN["exits"].append(tup.values[0])


class ClearsItsAnchors(Bolt):
    """Reuses one list of anchors."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.anchors: list[Tuple] = []

    def process(self, tup: Tuple) -> None:
        self.anchors.append(tup)
        self.emit(list(tup.values), anchors=self.anchors)
        self.anchors.clear()


class RefusesOnce(Bolt):
    """Fails each tuple the first time."""

    def process(self, tup: Tuple) -> None:
        REFUSED[tup.values[0]] += 1
        if REFUSED[tup.values[0]] == 1:
            raise ValueError("not the first time")
        SEEN["refuses"].append(tup.values[0])
