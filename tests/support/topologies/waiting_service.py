"""A stream whose bolt waits for a service: more tasks help, on any machine."""

from __future__ import annotations

import time
from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout

SERVICE_SECONDS = 0.01


class Calls(GeneratorSpout):
    """Numbers, at the rate that the test sets."""

    outputs = ["n"]

    def generate(self, position: int) -> tuple[int]:
        return (self.ordinal(position),)


class Service(Bolt):
    """Waits as if for an answer of another machine."""

    outputs = ["n"]
    blocking = True

    def process(self, tup: Tuple) -> None:
        time.sleep(SERVICE_SECONDS)
        self.emit([tup.values.n])


class End(Bolt):
    def process(self, tup: Tuple) -> None:
        pass


class WaitingService(Topology):
    config: dict[str, Any] = {"topology.chunk.tuples": 1}
    calls = Calls.spec()
    service = Service.spec(inputs=[calls], par=1)
    end = End.spec(inputs=[service])
