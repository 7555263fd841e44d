"""The components of the dataflows: a source of events, tasks that take their time, and a sink that records each event.

A task waits on a thread of its own, as an executor does in Storm. A wait on the worker's loop would stop all other tasks of the
worker. A bolt that kept events and sent them later, by a timer, would take further events meanwhile: they would wait inside the
bolt and not in its inbox, where DCR drains them and CCR captures them. A sleeping thread costs nothing.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import stable_hash
from millrace.api.keyed.declared import CounterState
from millrace.api.tuple import Tuple
from millrace.config import KEY_GROUP_COUNT
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.settings import setting
from millrace.workloads.audit import AuditSink
from millrace.workloads.dataflows.shapes import TASK_SECONDS
from millrace.workloads.notes import NotedBolt

EVENT_FIELDS = ["task", "position", "key", "trail"]
EVENT_KEYS = 1024
GROUP_STRIDE = 79  # between the key groups of successive keys: the golden section of 128
TRAIL_MARK = "/"  # between the tasks of a trail
_pack = struct.Struct("<HQHI").pack


class Events(GeneratorSpout):
    """Emits numbered events by the clock: event k is due k / `rate` seconds after the begin of the timetable. A pause or a
    roll-back does not move the timetable: what became due meanwhile is sent at once afterwards.

    | config | meaning |
    | --- | --- |
    | `begin` | begin of the timetable in seconds since the epoch; absent: the first call of each incarnation |
    | `keys` | number of keys, which the events have in turn (default 1,024) |

    and the settings of GeneratorSpout.
    """

    outputs: ClassVar[list[str]] = EVENT_FIELDS
    wall_clock: Callable[[], float] = staticmethod(time.time)  # replaced in tests

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._keys = event_keys(setting(self, storm_conf, "keys", int, EVENT_KEYS, least=1))
        begin = setting(self, storm_conf, "begin", float, None)
        if begin is not None:
            self._pace_start, self._pace_base = self.clock() - (self.wall_clock() - begin), 0

    def generate(self, position: int) -> tuple[Any, ...]:
        return self.task_index, position, self._keys[self.ordinal(position) % len(self._keys)], ""

    def seek(self, position: int) -> None:
        begin = self._pace_start
        super().seek(position)
        self._pace_start = begin

    def activate(self) -> None:
        """Continue by the same timetable."""

    def deactivate(self) -> None:
        """The timetable goes on."""

    def _due(self) -> int:
        early = self._pace_start is not None and self.clock() < self._pace_start
        return 0 if early else super()._due()


@cache
def event_keys(number: int) -> tuple[str, ...]:
    """The keys of events in their order. They are chosen so that successive events go to key groups far apart, and thus to each
    task in turn for any number of tasks: chance would overload one now and then, as no shuffle grouping does."""
    groups = KEY_GROUP_COUNT.default
    keys: defaultdict[int, deque[str]] = defaultdict(deque)  # by key group: those not yet used
    candidates = (f"key {candidate}" for candidate in count())
    chosen = []
    for group in (ordinal * GROUP_STRIDE % groups for ordinal in range(number)):
        while not keys[group]:
            candidate = next(candidates)
            keys[stable_hash(candidate) % groups].append(candidate)
        chosen.append(keys[group].popleft())
    return tuple(chosen)


class TimedBolt(Bolt):
    """Base of the tasks: waits for each event, counts it, and emits it with its own name added to the trail.

    | config | meaning |
    | --- | --- |
    | `task_seconds` | seconds for each event (default 0.1) |
    """

    outputs: ClassVar[list[str]] = EVENT_FIELDS
    blocking: ClassVar[bool] = True
    named_rows: ClassVar[bool] = False
    wait: Callable[[float], None] = staticmethod(time.sleep)  # replaced in tests

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._seconds: float = setting(self, storm_conf, "task_seconds", float, TASK_SECONDS, least=0)

    def process(self, tup: Tuple) -> None:
        task, position, key, trail = tup.values
        if self._seconds:
            self.wait(self._seconds)
        self.count_event(key)
        self.emit((task, position, key, f"{trail}{TRAIL_MARK}{self.component_name}"))

    def count_event(self, key: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define count_event(key)")


class TimedTask(TimedBolt):
    """Counts the events of each instance, in a snapshot of its own. Config: that of TimedBolt."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def snapshot(self) -> Any:
        return self.count

    def restore(self, snapshot: Any) -> None:
        self.count = snapshot

    def count_event(self, key: str) -> None:
        self.count += 1


class KeyedTimedTask(TimedBolt, NotedBolt):
    """Counts the events of each key in keyed state, and has notes. Config: that of TimedBolt and NotedBolt."""

    counts = CounterState()

    def count_event(self, key: str) -> None:
        self.counts[key] += 1
        if self.noted:
            self.write_notes(1)


class EventSink(AuditSink):
    """Writes 16 bytes for each event: task, position and the CRC-32 of its trail. Settings: see PartFileSink."""

    def encode(self, rows: list[Any]) -> bytes:
        return b"".join([_pack(task, position, 0, trail_crc(trail)) for task, position, _, trail in rows])


def trail_crc(trail: str) -> int:
    return zlib.crc32(trail.encode())
