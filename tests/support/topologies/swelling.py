"""A line whose middle bolt emits some tuples that are larger than a frame, to every task of the sink."""

from __future__ import annotations

from typing import ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from support.topologies.fatal import Countdown

FRAME_BYTES, LIMIT = 1 << 16, 200
LARGE = (7, 42, 130)


class Swelling(Bolt):
    outputs: ClassVar[list[str]] = ["task", "n", "text"]

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([-1, n, "x" * (2 * FRAME_BYTES if n in LARGE else 1)])


class Named(Bolt):
    """Adds its own number to its input, of which it drops the text."""

    outputs: ClassVar[list[str]] = ["who", "n"]

    def process(self, tup: Tuple) -> None:
        self.emit([f"copy {self.task_index}", tup.values.n])


class NamedLetters(Bolt):
    outputs: ClassVar[list[str]] = ["who", "n"]

    def process(self, tup: Tuple) -> None:
        _, n, text = tup.values[3]
        assert text.endswith("... (131077 bytes)"), text[-40:]  # five are the header of the text
        self.emit(["letter", n])


class SwellingLine(Topology):
    source = Countdown.spec()
    swelling = Swelling.spec(inputs={source: Grouping.SHUFFLE})
    named = Named.spec(inputs={swelling: Grouping.ALL}, par=2)
    letters = NamedLetters.spec(inputs={swelling.dead_letters: Grouping.SHUFFLE})
    sink = JsonLinesSink.spec(inputs={named: Grouping.SHUFFLE, letters: Grouping.SHUFFLE})
