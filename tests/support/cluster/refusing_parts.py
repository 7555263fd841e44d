"""Components of the cluster tests that raise, for poison or during their start."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Pass
from support.cluster.records import EVENTS, REFUSED

# ---- poison ----


class Refusal(Exception):
    pass


def refuse(bolt: Bolt, n: int) -> None:
    """Raise for the numbers in the setting `poison`, `refusals` times each (absent: always)."""
    if n in bolt.storm_conf.get("poison", ()) and REFUSED[n] < bolt.storm_conf.get("refusals", 1_000_000):
        REFUSED[n] += 1
        raise Refusal(f"not {n}")


class Picky(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        refuse(self, tup.values.n)
        self.emit([tup.values.n])


class PickyBlocking(Picky):
    blocking = True


class PickyRows(Bolt):
    outputs = ["n"]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            refuse(self, row.n)
        for row in rows:
            self.emit([row.n])


class PickyArrow(Bolt):
    outputs = ["n"]

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        for n in batch.column("n").to_pylist():
            refuse(self, n)
        self.emit_arrow(batch)


class Lenient(Picky):
    """Leaves a tuple that raised neither acked nor failed."""

    auto_fail = False


# ---- starting ----


class CannotStart(Bolt):
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        raise Refusal("no start")

    def process(self, tup: Tuple) -> None:
        EVENTS.append(("processed without initialize", tup.values.n))


class CannotBeMade(CannotStart):
    def __init__(self) -> None:
        raise Refusal("no instance")


class StartsLater(Pass):
    """Starts at the third attempt."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["starts"] += 1
        if REFUSED["starts"] < 3:
            raise Refusal("not yet")


class Reborn(Bolt):
    """Is recreated after each exception; each instance knows its number."""

    exit_on_exception = True
    outputs = ["instance", "n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["instances"] += 1
        self.instance = REFUSED["instances"]
        if self.instance > storm_conf.get("instances", 1_000_000):
            raise Refusal("no more of me")

    def process(self, tup: Tuple) -> None:
        refuse(self, tup.values.n)
        self.emit([self.instance, tup.values.n])


class RebornBlocking(Reborn):
    blocking = True


class RebornRows(Reborn):
    process = None  # type: ignore[assignment]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            refuse(self, row.n)
        for row in rows:
            self.emit([self.instance, row.n])
