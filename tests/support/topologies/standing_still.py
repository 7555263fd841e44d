"""A word count whose bolt blocks in the middle of a batch while a file exists."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.tuple import Tuple
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, StatefulWordCount, TallyNumbered

LOOK_SECONDS = 0.02


class HeldTally(TallyNumbered):
    """Creates a file of its own while it waits."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._hold = Path(storm_conf["path"]) / ".hold"

    def process(self, tup: Tuple) -> None:
        super().process(tup)
        if tup.values.index == 0 and self._hold.exists():
            held = self._hold.with_name(f".held-{os.getpid()}")
            held.touch()
            while self._hold.exists():
                time.sleep(LOOK_SECONDS)
            held.unlink(missing_ok=True)


class HeldWordCount(StatefulWordCount):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    lines = NumberedLines.spec(par=2)
    split = SplitNumbered.spec(inputs={lines: Grouping.SHUFFLE}, par=2)
    count = HeldTally.spec(inputs={split: Grouping.fields("word")}, par=3)
    sink = AuditSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=3)


class Hold:
    """The test's side: blocks the batch and releases it."""

    def __init__(self, directory: Path) -> None:
        self._hold = directory / ".hold"

    def begin(self) -> None:
        self._hold.touch()

    def held(self) -> list[int]:
        """The processes that wait."""
        return [int(path.name.rpartition("-")[2]) for path in self._hold.parent.glob(".held-*")]

    def end(self) -> None:
        self._hold.unlink(missing_ok=True)
        for path in self._hold.parent.glob(".held-*"):
            path.unlink(missing_ok=True)
