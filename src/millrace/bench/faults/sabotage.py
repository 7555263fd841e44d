"""A word count whose code can be made to hang and whose sink can be made slow, by signals to its processes.

The handlers are installed by the components, in the main thread of a worker's process, where the interpreter runs them.
"""

from __future__ import annotations

import ctypes
import signal
import time
from typing import Any, ClassVar

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.workloads.audit import AuditSink, NumberedLines, SplitNumbered, TallyNumbered

HANG, SLOW = signal.SIGUSR1, signal.SIGUSR2
HANG_SECONDS = 3.0  # twice the heartbeat timeout
SLOW_SECONDS = 4.0
SLOW_ROW_SECONDS = 0.001  # a row of a slow sink

_slow_until = 0.0


def hang(number: int, frame: Any) -> None:
    """Hold the interpreter lock, as a C extension that does not release it: no other thread of the process runs."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(HANG_SECONDS * 1_000_000)))


def slow_down(number: int, frame: Any) -> None:
    global _slow_until
    _slow_until = time.monotonic() + SLOW_SECONDS


class SplitOrHang(SplitNumbered):
    """Splits lines; hangs when its process gets SIGUSR1."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        signal.signal(HANG, hang)


class SlowableSink(AuditSink):
    """Writes words; takes a millisecond for each row for a while after its process gets SIGUSR2."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        signal.signal(SLOW, slow_down)

    def process_rows(self, rows: list[Any]) -> None:
        if time.monotonic() < _slow_until:
            time.sleep(len(rows) * SLOW_ROW_SECONDS)
        super().process_rows(rows)


class SabotagedWordCount(Topology):
    """`StatefulWordCount` with these components."""

    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    lines = NumberedLines.spec(par=2)
    split = SplitOrHang.spec(inputs={lines: Grouping.SHUFFLE}, par=3)
    count = TallyNumbered.spec(inputs={split: Grouping.fields("word")}, par=3)
    sink = SlowableSink.spec(inputs={count: Grouping.LOCAL_OR_SHUFFLE}, par=3)
