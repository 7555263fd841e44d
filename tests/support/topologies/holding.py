"""A bolt that holds the interpreter lock for seconds, as a careless extension module does. Heartbeats stop meanwhile."""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink

NUMBERS = 12
HELD_AT = 4  # every fourth number


class Ordinals(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["number"]

    def generate(self, position: int) -> tuple[int]:
        return (self.ordinal(position),)


class HoldsInterpreter(Bolt):
    outputs: ClassVar[list[str]] = ["number"]

    def process(self, tup: Tuple) -> None:
        if tup.values.number % HELD_AT == 0:
            ctypes.PyDLL(None).usleep(int(self.storm_conf["hold.seconds"] * 1e6))  # a PyDLL does not release the lock
        self.emit(tup.values)


class Holding(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2,
                                        "topology.chunk.tuples": 1, "limit": NUMBERS}
    numbers = Ordinals.spec()
    holds = HoldsInterpreter.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    rows = JsonLinesSink.spec(inputs={holds: Grouping.SHUFFLE})
