"""Components of the cluster tests that raise exceptions that do not derive from `Exception`."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.sink import TwoPhaseSink
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Numbers, Reliable
from support.cluster.records import EVENTS, REFUSED


class PanicException(BaseException):
    """As Rust libraries raise it: pyo3 derives it from BaseException."""


KINDS: dict[str, type[BaseException]] = {
    kind.__name__: kind for kind in (asyncio.CancelledError, PanicException, SystemExit, KeyboardInterrupt, GeneratorExit)}


def raise_for(component: Any, n: int) -> None:
    """Raise the exception named by the setting `kind` for the numbers in `poison`, `refusals` times each (absent: always)."""
    conf = component.storm_conf
    if n in conf.get("poison", ()) and REFUSED[n] < conf.get("refusals", 1_000_000):
        REFUSED[n] += 1
        raise KINDS[conf["kind"]](f"not {n}")


class Fatal(Bolt):
    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        raise_for(self, tup.values.n)
        self.emit([tup.values.n])


class FatalBlocking(Fatal):
    blocking = True


class FatalRows(Bolt):
    outputs = ["n"]

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            raise_for(self, row.n)
        self.emit_rows([[row.n] for row in rows])


class FatalArrow(Bolt):
    outputs = ["n"]
    blocking = True

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        for n in batch.column("n").to_pylist():
            raise_for(self, n)
        self.emit_arrow(batch)


def fatal_choice(values: Any, tasks: int) -> list[int]:
    """A grouping that raises for 5."""
    if values[0] == 5:
        raise asyncio.CancelledError("not 5")
    return [values[0] % tasks]


class FatalCallbacks(Reliable):
    """Raises in each kind of callback: the first `next_tuple`, and the first ack or fail of every tenth tuple."""

    blocking = True

    def next_tuple(self) -> None:
        if not REFUSED["next_tuple"]:
            REFUSED["next_tuple"] += 1
            raise SystemExit("not yet")
        super().next_tuple()

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        if tup_id % 10 == 0:
            raise PanicException("no acks")

    def fail(self, tup_id: Any) -> None:
        super().fail(tup_id)
        if tup_id % 10 == 0:
            raise asyncio.CancelledError("no fails")


class FatalPosition(Numbers):
    """Raises whenever it is asked for its position."""

    def position(self) -> int:
        REFUSED["position"] += 1
        raise PanicException("nowhere")


class FatalStart(Fatal):
    """Starts at the second attempt, and raises at every tick and at its end."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        REFUSED["starts"] += 1
        if REFUSED["starts"] == 1:
            raise SystemExit("no start")

    def process_tick(self, tup: Tuple) -> None:
        EVENTS.append(("tick",))
        raise asyncio.CancelledError("no tick")

    def close(self) -> None:
        EVENTS.append(("close",))
        raise PanicException("no end")


class FatalSink(TwoPhaseSink):
    """Raises at the first call of each of its methods; later ones succeed."""

    staged: list[int]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.staged, self.prepared = [], dict[int, list[int]]()

    def process(self, tup: Tuple) -> None:
        self._once("process")
        self.staged.append(tup.values[0])

    def prepare(self, wave: int) -> None:
        self._once("prepare")
        self.prepared[wave], self.staged = self.staged, []

    def commit(self, wave: int) -> None:
        self._once("commit")
        for prepared in [known for known in sorted(self.prepared) if known <= wave]:
            VISIBLE.extend(self.prepared.pop(prepared))

    def recover(self, wave: int, epoch: int) -> None:
        self._once("recover")

    def snapshot(self) -> Any:
        self._once("snapshot")
        return 1

    def restore(self, snapshot: Any) -> None:
        self._once("restore")

    def _once(self, call: str) -> None:
        REFUSED[call] += 1
        if REFUSED[call] == 1:
            raise asyncio.CancelledError(f"no {call}")


VISIBLE: list[int] = []  # rows that FatalSink has published
