"""The audited word count with keyed state and a spout that has splits."""

from __future__ import annotations

from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, StatefulWordCount, TallyNumbered
from support.topologies.audited import StatefulStream

SPLITS = 6


class SplitWordCount(Topology):
    config: ClassVar[dict[str, Any]] = StatefulWordCount.config
    lines = NumberedLines.spec(par=1, config={"splits": SPLITS})
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=2)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=2)


class SplitStream(StatefulStream):
    topology = SplitWordCount

    def scale(self, par: int) -> None:
        self.master.rescale(self.name, {"lines": par})
        self.until(lambda: self.state.scaling is None)
        assert self.state.graph.component("lines").par == par, self.story()
