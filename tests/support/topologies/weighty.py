"""A word count whose counting takes a few milliseconds for each word while a file exists, as a bolt does that asks a slow
service: the load comes and goes without any use of CPU."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, TallyNumbered
from support.topologies.audited import StatefulStream

WEIGHT = "weight"  # the file
LOOK_SECONDS = 0.05  # between two looks at it
WORD_SECONDS = 0.003


class WeightyTally(TallyNumbered):
    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._file, self._looked, self._heavy = Path(storm_conf["path"]) / WEIGHT, float("-inf"), False

    def process(self, tup: Tuple) -> None:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            self._looked, self._heavy = time.monotonic(), self._file.exists()
        if self._heavy:
            time.sleep(WORD_SECONDS)
        super().process(tup)


class WeightyWordCount(Topology):
    config: ClassVar[dict[str, Any]] = {"path": str(Path(tempfile.gettempdir()) / "millrace-audit"),
                                        "topology.guarantee": "exactly-once",
                                        # A chunk is short in comparison with a window of the load monitor.
                                        "topology.chunk.tuples": 10, "topology.channel.secs": 0.05}
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    count = WeightyTally.spec(inputs={split: Grouping.fields("word")}, par=4)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class WeightyStream(StatefulStream):
    topology = WeightyWordCount

    def weigh(self, heavy: bool) -> None:
        """Let words be slow from now on, or quick again."""
        file = self.directory / WEIGHT
        if heavy:
            file.touch()
        else:
            file.unlink()
