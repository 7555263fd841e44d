"""A spout that reads a Redis stream as a log: from any position, repeatedly."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from millrace.api.grouping import stable_hash
from millrace.api.spout import ReplayableSpout
from millrace.connectors.redis import IDLE_SECONDS, Asked, connect, text_of
from millrace.connectors.settings import optional_module, setting
from millrace.errors import MillraceError

SEQUENCE_BITS = 22
LARGEST_MS, LARGEST_SEQUENCE = (1 << 63 - SEQUENCE_BITS) - 1, (1 << SEQUENCE_BITS) - 1

Entry = tuple[bytes, dict[bytes, bytes]]


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
    entry once per task. A change of their number redistributes the entries: some are read twice or not at all.

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
        self._idle_until = float("-inf")
        self._added = Asked(self._ask_added)

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._key: str = setting(self, storm_conf, "key", str)
        self._count: int = setting(self, storm_conf, "count", int, 100, least=1)
        start = setting(self, storm_conf, "start", str, "0", choices=("0", "$"))
        self._redis = connect(self, storm_conf)
        self._refused = optional_module("redis", "redis", self).exceptions.ResponseError
        if start == "$":
            info, _ = self._look()
            self._seen = info["entries-added"] if info else 0
            self._next_position = self._position_of(info["last-generated-id"]) + 1 if info else 0

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
        """Reads until something is emitted or nothing is left; skips other tasks' entries."""
        now = self.clock()
        if now < self._idle_until:
            return
        while True:
            info, entries = self._look()
            if info:
                self._check(info)
            emitted = self._take(entries)
            if len(entries) < self._count:
                self._idle_until = now + IDLE_SECONDS
                if info:
                    self._seen, self._at_least = info["entries-added"], False
                return
            if emitted:
                return

    def lag(self) -> int | None:
        """This task's share of the entries that it has not read; None while it does not know how many there were before."""
        added = self._added.at(self.clock())
        return None if added is None or self._seen is None else max(0, added - self._seen) // self.parallelism

    def close(self) -> None:
        self._redis.close()

    def _ask_added(self) -> int | None:
        try:
            added: int | None = self._redis.xinfo_stream(self._key).get("entries-added")
        except self._refused as error:
            if "no such key" in str(error):
                return 0
            raise
        return added

    def _look(self) -> tuple[dict[str, Any] | None, list[Entry]]:
        """The server's information about the stream, or None if it does not exist, and the next entries, read atomically."""
        ms, sequence = self._place()
        if ms and not sequence:
            ms, sequence = ms - 1, LARGEST_SEQUENCE + 1  # ids that do not fit are an error and must not be skipped
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.xinfo_stream(self._key)
            pipe.xrange(self._key, min=f"{ms}-{sequence}", count=self._count)
            info, entries = pipe.execute(raise_on_error=False)
        if isinstance(info, self._refused) and "no such key" in str(info):
            return None, []
        for reply in (info, entries):
            if isinstance(reply, Exception):
                raise reply
        if "entries-added" not in info:
            raise MillraceError(f"{self.component_name}: the server does not report how many entries were added to the "
                                f"stream {self._key!r}, so trimmed entries would not be noticed. Use Redis 7 or newer.")
        return info, entries

    def _check(self, info: dict[str, Any]) -> None:
        """Raises if unread entries were removed, or if that cannot be ruled out."""
        first, removed = info["first-entry"], info["entries-added"] - info["length"]
        if self._seen is None and self._next_position == 0:
            self._seen = removed  # entries removed before the first read do not count
        deleted = _numbers(info["max-deleted-entry-id"])
        if deleted > (0, 0) and deleted >= self._place():  # no entry has the id 0-0
            self._at_least = True
        if first and self._position_of(first[0]) <= self._next_position:
            return  # streams are trimmed from the front, and no unread entry was reached
        if self._position_of(info["last-generated-id"]) < self._next_position:
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
        ms, sequence = self._place()
        raise MillraceError(f"{self.component_name}: task {self.task_index} cannot resume the stream {self._key!r} at "
                            f"{ms}-{sequence}: {why}. Restore them, or start the topology under a new name; and trim the "
                            "stream less.")

    def _take(self, entries: list[Entry]) -> bool:
        """Emits this task's entries; True if there were some."""
        emitted = False
        for id, data in entries:
            position = self._position_of(id)
            if self._seen is not None:
                self._seen += 1
            try:
                if self.parallelism == 1 or stable_hash(id.decode()) % self.parallelism == self.task_index:
                    self.emit((id.decode(), {text_of(name): text_of(value) for name, value in data.items()}), position)
                    emitted = True
            finally:  # a tuple that cannot be emitted is reported and skipped
                self._next_position = position + 1
        return emitted

    def _place(self) -> tuple[int, int]:
        """The next position as the numbers of an id."""
        return self._next_position >> SEQUENCE_BITS, self._next_position & LARGEST_SEQUENCE

    def _position_of(self, id: bytes) -> int:
        ms, sequence = _numbers(id)
        if ms > LARGEST_MS or sequence > LARGEST_SEQUENCE:
            raise MillraceError(f"{self.component_name}: the stream {self._key!r} has an entry with the id {id.decode()}, and "
                                f"a position can hold ids up to {LARGEST_MS}-{LARGEST_SEQUENCE}. Let Redis choose the ids, or "
                                "read the stream with RedisStreamSpout.")
        return ms << SEQUENCE_BITS | sequence


def _numbers(id: bytes) -> tuple[int, int]:
    ms, sequence = map(int, id.split(b"-"))
    return ms, sequence
