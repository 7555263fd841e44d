"""Components whose code raises exceptions that do not derive from Exception, and one that breaks the engine's own objects."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink

LIMIT, POISON = 300, (7, 142)
KINDS = {"cancelled": asyncio.CancelledError, "exit": SystemExit, "interrupt": KeyboardInterrupt}


class Countdown(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["n"]

    def generate(self, position: int) -> tuple[int]:
        return (self.ordinal(position),)


class RaisesAny(Bolt):
    """Raises for poison, by the setting `kind`."""

    outputs: ClassVar[list[str]] = ["who", "n"]

    def process(self, tup: Tuple) -> None:
        if tup.values.n in POISON:
            raise KINDS[self.storm_conf["kind"]](f"not {tup.values.n}")
        self.emit([self.component_name, tup.values.n])


class RaisesAnyBlocking(RaisesAny):
    blocking = True


class Letters(Bolt):
    """The sender and the value of dead letters."""

    outputs: ClassVar[list[str]] = ["who", "n"]

    def process(self, tup: Tuple) -> None:
        self.emit([f"letter of {tup.values[0]}", tup.values[3][0]])


class RaisingLine(Topology):
    source = Countdown.spec()
    loop = RaisesAny.spec(inputs={source: Grouping.SHUFFLE}, par=2)
    thread = RaisesAnyBlocking.spec(inputs={source: Grouping.SHUFFLE}, par=2)
    letters = Letters.spec(inputs={loop.dead_letters: Grouping.SHUFFLE, thread.dead_letters: Grouping.SHUFFLE})
    sink = JsonLinesSink.spec(inputs={loop: Grouping.SHUFFLE, thread: Grouping.SHUFFLE, letters: Grouping.SHUFFLE})


def expected() -> list[tuple[str, int]]:
    """The rows of the sink if nothing is lost or repeated."""
    return sorted((who if n not in POISON else f"letter of {who}", n) for who in ("loop", "thread") for n in range(LIMIT))


class Breaks(Bolt):
    """Breaks its task, whose next step fails outside of user code."""

    def process(self, tup: Tuple) -> None:
        task: Any = self._handle
        task.meters = SimpleNamespace(gaps=0, repeats=0, replayed=0)  # without those that a step needs


class BreaksOnItsThread(Breaks):
    blocking = True


class BrokenLoop(Topology):
    source = Countdown.spec()
    sink = Breaks.spec(inputs={source: Grouping.SHUFFLE})


class BrokenThread(Topology):
    source = Countdown.spec()
    sink = BreaksOnItsThread.spec(inputs={source: Grouping.SHUFFLE})
