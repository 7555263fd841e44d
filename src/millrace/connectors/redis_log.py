"""A spout that reads a Redis stream as a log: from any position, repeatedly."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from millrace.api.spout import ReplayableSpout
from millrace.connectors.redis import connect, text_of
from millrace.connectors.redis_log_reader import Block, LogReader, id_at, parts_of_id
from millrace.connectors.settings import optional_module, setting
from millrace.errors import MillraceError

READER = "reader"  # of all splits of a task


class RedisLogSpout(ReplayableSpout):
    """Emits the entries of a stream, without a consumer group. Fields `id` and `data`, a dict of strings.

    | config | meaning |
    | --- | --- |
    | `url` | of the server, e.g. `redis://host:6379/0`; Redis 7 or newer |
    | `key` | of the stream; it need not exist yet |
    | `start` | first entry of the topology: `0`, the first of the stream (default), or `$`, the next new one. A task that
    resumes from a position ignores it; one that dies before its first position is stored starts here again |
    | `count` | maximum number of entries read in one round trip (default 100) |

    The position is the entry's id `<ms>-<seq>` as `ms << 22 | seq`, and must fit into 63 bits: ids of the clock do until 2039,
    with 4 million entries in each millisecond.

    Several tasks share the stream by the hash of the id. Each reads all of it and keeps its share, so the server sends every
    entry once per task. A change of their number redistributes the entries: some are read twice or not at all. With `splits`
    it does not, and the number can change: the splits of a task read the stream together, each from its own position, and one
    that comes from another task reads by itself until it has reached the others.

    It is an error if entries are trimmed (XTRIM) before they were read. A task that resumes from a position alone
    (at-least-once) can detect this only if an entry up to that position is left, and reports an error if none is: so keep the
    last processed entry when you trim. Deleted entries (XDEL) are skipped. The server only reports the number of removed
    entries and the last deleted one: so, from the deletion of an unread entry until the end of the stream is reached,
    excessive trimming is not noticed.
    """

    outputs: ClassVar[list[str]] = ["id", "data"]
    blocking: ClassVar[bool] = True  # every read waits for the server

    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def __init__(self) -> None:
        super().__init__()
        self._seen: int | None = None  # number of entries ever added below _next_position; None: unknown
        self._at_least = False  # _seen may be too low: an unknown number of entries was deleted before they were read
        self._restored: list[Any] | None = None

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._key: str = setting(self, storm_conf, "key", str)
        count = setting(self, storm_conf, "count", int, 100, least=1)
        start = setting(self, storm_conf, "start", str, "0", choices=("0", "$"))
        if READER not in self.shared_by_splits:
            refused = optional_module("redis", "redis", self).exceptions.ResponseError
            self.shared_by_splits[READER] = LogReader(connect(self, storm_conf), refused, self.component_name, self._key, count,
                                                      self.parallelism, self.clock)
        self._reader: LogReader = self.shared_by_splits[READER]
        if start == "$":
            info, _ = self._reader.look(0)
            self._seen = info["entries-added"] if info else 0
            self._next_position = self._reader.position(info["last-generated-id"]) + 1 if info else 0
        self._reader.users += 1

    def snapshot(self) -> Any:
        return None if self._seen is None else [self._seen, self._at_least]

    def restore(self, snapshot: Any) -> None:
        self._restored = snapshot

    def seek(self, position: int) -> None:
        self.unacked_tuples.clear()
        self.failed_tuples.clear()
        self._next_position = position
        self._seen, self._at_least = self._restored or (None, False)
        self._restored = None

    def next_tuple(self) -> None:
        """Reads until something is emitted or nothing is left; skips entries of other tasks or splits."""
        while (block := self._reader.block(self._next_position)) is not None:
            if block.info:
                self._check(block.info)
            emitted = self._take(block)
            if block.is_last and block.info:
                self._seen, self._at_least = block.info["entries-added"], False
            if block.is_last or emitted:
                return

    def lag(self) -> int | None:
        """This task's share of the entries that it has not read; None while it does not know how many there were before."""
        added = self._reader.added()
        return None if added is None or self._seen is None else max(0, added - self._seen) // self.parallelism

    def close(self) -> None:
        self._reader.leave()

    def _check(self, info: dict[str, Any]) -> None:
        """Raises if unread entries were removed, or if that cannot be ruled out."""
        first, removed = info["first-entry"], info["entries-added"] - info["length"]
        if self._seen is None and self._next_position == 0:
            self._seen = removed  # entries removed before the first read do not count
        deleted = parts_of_id(info["max-deleted-entry-id"])
        if deleted > (0, 0) and deleted >= id_at(self._next_position):  # no entry has the id 0-0
            self._at_least = True
        if first and self._reader.position(first[0]) <= self._next_position:
            return  # streams are trimmed from the front, and no unread entry was reached
        if self._reader.position(info["last-generated-id"]) < self._next_position:
            return
        if self._seen is None:
            if removed:
                self._lost("no entry up to there is left, so later ones may be gone too")
            return
        if removed < self._seen:  # the server does not know of all the entries that were read
            self._lost("the stream was deleted and created again")
        if (missing := removed - self._seen) and not self._at_least:
            self._lost(f"{missing} entries from there on were trimmed or deleted before they were read")

    def _lost(self, why: str) -> NoReturn:
        ms, sequence = id_at(self._next_position)
        raise MillraceError(f"{self.component_name}: task {self.task_index} cannot resume the stream {self._key!r} at "
                            f"{ms}-{sequence}: {why}. Restore them, or start the topology under a new name; and trim the "
                            "stream less.")

    def _take(self, block: Block) -> bool:
        """Emits this task's entries of the block; True if there were some."""
        first, seen, emitted = bisect_left(block.positions, self._next_position), self._seen, False
        mine = block.by_share[self.task_index]
        for index in mine[bisect_left(mine, first):]:
            id, data = block.entries[index]
            try:
                self.emit((id.decode(), {text_of(name): text_of(value) for name, value in data.items()}),
                          block.positions[index])
                emitted = True
            finally:  # a tuple that cannot be emitted is reported and skipped
                self._next_position = block.positions[index] + 1
                self._seen = None if seen is None else seen + index + 1 - first
        self._next_position = block.end
        self._seen = None if seen is None else seen + len(block.entries) - first
        return emitted
