"""A bolt that never returns from its first call, on the worker's own loop."""

from __future__ import annotations

import time
from pathlib import Path

from millrace import Bolt, Grouping, Spout, Topology, Tuple


class Numbers(Spout):
    outputs = ["number"]

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def next_tuple(self) -> None:
        if self.sent < 3:
            self.emit([self.sent], tup_id=self.sent)
            self.sent += 1


class NeverReturns(Bolt):
    def process(self, tup: Tuple) -> None:
        Path(self.storm_conf["path"], "reached").touch()
        time.sleep(3600)


class Stuck(Topology):
    numbers = Numbers.spec()
    stuck = NeverReturns.spec(inputs={numbers: Grouping.SHUFFLE})
