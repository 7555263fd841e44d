"""Components of the cluster tests that misuse the API."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace.api.bolt import Bolt
from millrace.api.spout import Spout
from millrace.api.topology import Stream
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Reliable, Sink
from support.cluster.records import EVENTS, SEEN
from support.cluster.refusing_parts import Refusal

# ---- raising in unusual places ----


class RaisesAfterEmit(Spout):
    """Raises after every fifth tuple, until `limit`."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next, self.limit = 0, storm_conf["limit"]

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit([self.next - 1], tup_id=self.next - 1)
            if self.next % 5 == 0:
                raise Refusal("tired")


class RaisesInCallbacks(Reliable):
    """Raises at the first ack or fail of every tenth tuple."""

    def ack(self, tup_id: Any) -> None:
        super().ack(tup_id)
        if tup_id % 10 == 0:
            raise Refusal("do not tell me")

    def fail(self, tup_id: Any) -> None:
        super().fail(tup_id)
        if tup_id % 10 == 0:
            raise Refusal("do not tell me")


class TickRaises(Bolt):
    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(tup.values.n)

    def process_tick(self, tup: Tuple) -> None:
        EVENTS.append(("tick", tup.values[0], self.is_tick(tup)))
        raise Refusal("no ticks please")


class CloseRaises(Sink):
    def close(self) -> None:
        EVENTS.append(("closed", self.component_name))
        raise Refusal("cannot close")


# ---- invalid calls ----


class Intruder(Bolt):
    """Sends directly to a task of `sink`, which does not read the direct stream."""

    outputs = ["n", Stream(["n"], "chosen", direct=True)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.sink = next(int(task) for task, name in context["task->component"].items() if name == "sink")

    def process(self, tup: Tuple) -> None:
        if tup.values.n == 5:
            self.emit([tup.values.n], stream="chosen", direct_task=self.sink)
        self.emit([tup.values.n])


class BadEmits(Bolt):
    """Emits invalid tuples for some numbers, and `n` for the others."""

    outputs = ["n", Stream(["n"], "chosen", direct=True)]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n == 1:
            self.emit([n, n])
        elif n == 2:
            self.emit([object()])
        elif n == 3:
            self.emit([n], stream="nowhere")
        elif n == 4:
            self.emit([n], direct_task=1)
        elif n == 5:
            self.emit([n], stream="chosen")
        elif n == 6:
            self.emit([n], stream="chosen", direct_task=12345)
        elif n == 7:
            self.emit("7")
        elif n == 8:
            self.emit_arrow(pa.record_batch([pa.array([n])], names=["m"]))
        else:
            self.emit([n])


class BadAcks(Bolt):
    """Acks, fails and anchors to objects that are not tuples."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        self.ack("no such tuple")
        self.ack("1.2:3")
        self.fail(f"{tup.id}9999")
        self.ack(None)  # type: ignore[arg-type]
        self.emit([tup.values.n], anchors=tup)
        SEEN[self.component_name].append(tup.values.n)


class BadReports(Bolt):
    """Reports values that cannot be serialized, and raises errors that cannot be printed."""

    def process(self, tup: Tuple) -> None:
        if tup.values.n == 0:
            self.report_metric("strange", object())
        if tup.values.n == 1:
            raise Refusal("\ud800")
        SEEN[self.component_name].append(tup.values.n)


def divides(values: Any, tasks: int) -> list[int]:
    return [7 // (values[0] - 5) % tasks]


def out_of_range(values: Any, tasks: int) -> list[int]:
    return [tasks if values[0] == 5 else 0]
