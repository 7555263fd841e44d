"""Components of the cluster tests with various streams, targets and values."""

from __future__ import annotations

from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.spout import ReliableSpout, Spout
from millrace.api.topology import Stream
from millrace.api.tuple import Tuple
from support.cluster.plain_parts import Counting
from support.cluster.records import EVENTS, SEEN
from support.cluster.refusing_parts import Refusal

# ---- streams and targets ----


class EvenOdd(Bolt):
    """Emits evens on the default stream, odds on another, and every tenth number on an optional third."""

    outputs = ["n", Stream(["n", "text"], "odd"), Stream(["n"], "tenth")]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        if n % 2 == 0:
            self.emit([n])
        else:
            self.emit([n, str(n)], stream="odd")
        if n % 10 == 0:
            self.emit([n], "tenth")


class Origins(Bolt):
    """Records the origin of each tuple: component, stream, field names, values."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append((tup.component, tup.stream, tup.values._fields, tuple(tup.values)))


class ToChosen(Bolt):
    """Sends n to task n mod 3 of `direct_sink`, and reports it on its default stream."""

    outputs = [Stream(["n"], "chosen", direct=True), "n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.targets = sorted(int(task) for task, name in context["task->component"].items() if name == "direct_sink")

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([n], stream="chosen", direct_task=self.targets[n % len(self.targets)])
        self.emit([n])


class NeedsIds(Bolt):
    """Emits with the request for target task ids."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        went = self.emit([tup.values.n], need_task_ids=True)
        EVENTS.append((tup.values.n, went))


class TaskIdSink(Bolt):
    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append((tup.values.n, self.task_id))


class Marker(Bolt):
    """Emits tuples that have no fields at all."""

    outputs = [Stream([], "mark")]

    def process(self, tup: Tuple) -> None:
        self.emit([], stream="mark")


def to_both_ends(values: Any, tasks: int) -> list[int]:
    return sorted({0, tasks - 1})


def by_remainder(values: Any, tasks: int) -> list[int]:
    return [values[0] % tasks]


# ---- values ----


class Nested(Spout):
    """Emits one tuple with values of every kind."""

    outputs = ["n", "value"]
    VALUES = [[1, [2, {"k": None}]], {"a": {"b": [b"x", 1.5, True, 2**70]}}, (1, (2, 3)), "ß", -(2**70), None, b"", 0.0]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def next_tuple(self) -> None:
        if self.next < len(self.VALUES):
            self.emit([self.next, self.VALUES[self.next]], tup_id=self.next)
            self.next += 1


class Grabby(Bolt):
    """Changes the nested values it gets."""

    def process(self, tup: Tuple) -> None:
        SEEN[self.component_name].append(repr(tup.values.value))
        if isinstance(tup.values.value, list):
            tup.values.value.append("grabbed")


class GrabbyRows(Bolt):
    """Empties the list of rows it gets."""

    named_rows = False

    def process_rows(self, rows: list[Any]) -> None:
        SEEN[self.component_name] += [row[0] for row in rows]
        rows.clear()


class ReusesItsList(ReliableSpout):
    """Emits the same list repeatedly, with changed values."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.row, self.next, self.limit = [0], 0, storm_conf["limit"]

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.row[0] = self.next
            self.emit(self.row, tup_id=self.next)
            self.next += 1


class MixedTypes(Bolt):
    """Emits values that no single column can hold: number 3 becomes a text, number 4 exceeds 64 bits."""

    outputs = ["n"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([{3: "three", 4: 2**70}.get(n, n)])


class Texts(Counting):
    """Emits numbers as text; number 5 is half of a surrogate pair, which UTF-8 cannot encode."""

    def next_tuple(self) -> None:
        if self.next < self.limit:
            self.next += 1
            self.emit(["\ud800" if self.next == 6 else str(self.next - 1)], tup_id=self.next - 1)


class MakesBadText(Bolt):
    """Turns number 5 into half of a surrogate pair."""

    outputs = ["text"]

    def process(self, tup: Tuple) -> None:
        self.emit(["\ud800" if tup.values.n == 5 else str(tup.values.n)])


class RefusesBadText(Bolt):
    outputs = ["text"]

    def process(self, tup: Tuple) -> None:
        if tup.values[0] == "\ud800":
            raise Refusal("what is this?")
        self.emit([tup.values[0]])
