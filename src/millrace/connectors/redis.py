"""Spouts that read Redis lists and streams, and a sink that writes to Redis."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from millrace.api.component import Component
from millrace.api.spout import ReliableSpout
from millrace.connectors.settings import optional_module, setting
from millrace.connectors.sinks import field_names
from millrace.connectors.staged_commands import StagedCommands
from millrace.connectors.staging import StagedSink
from millrace.errors import EncodingError, MillraceError
from millrace.redaction import shown_place

TIMEOUT_SECONDS = 5.0  # a server that does not answer is an error, not a hang
IDLE_SECONDS = 0.01  # after an empty read, the time until the next
LAG_SECONDS = 1.0  # between two requests for the number of entries that wait at the server
LEAVING_SECONDS = 1.0  # for tasks that have ended for good to send their last acks
ROWS_IN_COMMAND = 500  # a Lua script on the server cannot call one with more than 8,000 words
_to_json = msgspec.json.Encoder().encode

RedisCommand = tuple[Any, ...]


def connect(component: Component, conf: dict[str, Any]) -> Any:
    """Connects to the server at `url` and waits for its first answer."""
    redis = optional_module("redis", "redis", component)
    url = setting(component, conf, "url", str)
    try:
        client = redis.Redis.from_url(url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS,
                                      protocol=2)
        client.ping()
    except (redis.exceptions.RedisError, ValueError) as error:
        raise MillraceError(f"{component.component_name}: no Redis answers at {shown_place(url)} ({error}). Start one there, "
                            "or correct the setting 'url'.") from error
    return client


class Asked:
    """A number that is asked for at most once in `LAG_SECONDS`; in between the last answer counts."""

    def __init__(self, ask: Callable[[], int | None]) -> None:
        self._ask, self._next = ask, float("-inf")
        self._answer: int | None = None

    def at(self, now: float) -> int | None:
        if now >= self._next:
            self._next = now + LAG_SECONDS  # also if it raises: a server that is away is not asked more often
            self._answer = None
            self._answer = self._ask()
        return self._answer


class _RedisSpout(ReliableSpout):
    """Base of both spouts: the timing of reads, the backlog, and acks sent together.

    Acks are sent with the next read, so a crash can replay tuples that were just acked, but never loses one. When the
    connection breaks, the reply to an executed command may be lost: `_reconcile` then compares the entries that the server
    holds for this task with those known here. It does the same at the start, when nothing is known, and when there are fewer
    tasks than before: task 0 then gets what the others have left.
    """

    blocking: ClassVar[bool] = True  # every read waits for the server
    divided_by_source: ClassVar[bool] = True

    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def __init__(self) -> None:
        super().__init__()
        self._backlog: deque[Any] = deque()  # read and not yet emitted
        self._done: list[Any] = []  # acked here, not yet at the server
        self._reconciled = False
        self._tasks_known = 0  # the number of tasks for which it has reconciled
        self._rescaled_at: float | None = None  # when it saw that the number is another one
        self._idle_until = float("-inf")
        self._unread = Asked(self._ask_unread)

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._redis = connect(self, storm_conf)
        self._broken = (OSError, optional_module("redis", "redis", self).exceptions.RedisError)
        self._key: str = setting(self, storm_conf, "key", str)
        self._count: int = setting(self, storm_conf, "count", int, 100, least=1)

    def next_tuple(self) -> None:
        if not self._backlog:
            self._fill()
        for _ in range(min(self._count, len(self._backlog))):
            self._emit_entry(self._backlog.popleft())

    def lag(self) -> int | None:
        """This task's share of the entries that no task has read, and those that it has read and not emitted."""
        unread = self._unread.at(self.clock())
        return None if unread is None else unread // self.parallelism + len(self._backlog)

    def close(self) -> None:
        if self._done:
            self._send_done()
        self._redis.close()

    def _ask_unread(self) -> int | None:
        """Asks the server for the number of entries that no task has read; None if it does not know."""
        raise NotImplementedError

    def _fill(self) -> None:
        now = self.clock()
        try:
            # Not in initialize: an earlier incarnation of this task may still be running then.
            if not self._reconciled or self._has_left_entries(now):
                self._reconcile()
                self._reconciled, self._tasks_known, self._rescaled_at = True, self.parallelism, None
            if self._done:
                self._send_done()
            if not self._backlog and now >= self._idle_until:
                self._read()
                if not self._backlog:
                    self._idle_until = now + IDLE_SECONDS
        except self._broken:
            self._reconciled = False
            raise

    def _has_left_entries(self, now: float) -> bool:
        """True if the number of tasks has changed, and those that are gone have had the time to send their acks."""
        if self.parallelism == self._tasks_known:
            self._rescaled_at = None
            return False
        if self._rescaled_at is None:
            self._rescaled_at = now
        return now - self._rescaled_at >= LEAVING_SECONDS

    def _reconcile(self) -> None:
        """Adds entries that the server holds for this task, and that are not known here, to the backlog."""
        raise NotImplementedError

    def _read(self) -> None:
        """Adds new entries to the backlog, if there are any now."""
        raise NotImplementedError

    def _send_done(self) -> None:
        """Sends the acks to the server and empties `_done`."""
        raise NotImplementedError

    def _emit_entry(self, entry: Any) -> None:
        raise NotImplementedError


class RedisListSpout(_RedisSpout):
    """Takes strings from the left of a list that others push to on the right (RPUSH).

    | config | meaning |
    | --- | --- |
    | `url` | of the server, e.g. `redis://host:6379/0` |
    | `key` | of the list |
    | `count` | maximum number of entries taken in one round trip (default 100) |

    In an at-least-once topology an entry stays in a list of the task (`<key>:processing:<topology>:<component>:<task index>`)
    until it is acked. A task that starts first emits the entries that its previous incarnation left there; task 0 puts back
    those of tasks that no longer exist. The number of tasks can change while the spout runs. In an at-most-once topology
    entries are simply taken.
    """

    outputs: ClassVar[list[str]] = ["value"]

    def __init__(self) -> None:
        super().__init__()
        self._in_flight: dict[int, bytes] = {}  # by tuple id: the entry as the server has it
        self._last_id = 0
        self._ask = 1

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._tasks = f"{self._key}:processing:{self.topology_name}:{self.component_name}"  # set of task indexes
        self._processing = f"{self._tasks}:{self.task_index}"

    def ack(self, tup_id: Any) -> None:
        entry = self._in_flight.pop(tup_id, None)
        if entry is not None:
            self._done.append(entry)
        super().ack(tup_id)

    def _emit_entry(self, entry: bytes) -> None:
        self._last_id += 1
        if self.tracked:
            self._in_flight[self._last_id] = entry
        self.emit((entry.decode("utf-8", "replace"),), self._last_id)

    def _reconcile(self) -> None:
        if not self.tracked:
            return
        if self.task_index == 0:
            self._put_back_orphans()
        self._redis.sadd(self._tasks, self.task_index)
        known, done = Counter(self._in_flight.values()), Counter(self._done)
        # Equal entries are indistinguishable, so removing one twice would lose another: remove only those that are there.
        self._done.clear()
        for entry in self._redis.lrange(self._processing, 0, -1):
            if known[entry] > 0:
                known[entry] -= 1
            elif done[entry] > 0:
                done[entry] -= 1
                self._done.append(entry)
            else:
                self._backlog.append(entry)

    def _ask_unread(self) -> int | None:
        return int(self._redis.llen(self._key))

    def _put_back_orphans(self) -> None:
        for index in sorted(int(index) for index in self._redis.smembers(self._tasks)):
            if index >= self.parallelism:
                while self._redis.lmove(f"{self._tasks}:{index}", self._key, "RIGHT", "LEFT") is not None:
                    pass
                self._redis.srem(self._tasks, index)

    def _read(self) -> None:
        if not self.tracked:
            self._backlog.extend(self._redis.lpop(self._key, self._count) or ())
            return
        with self._redis.pipeline(transaction=False) as pipe:
            for _ in range(self._ask):
                pipe.lmove(self._key, self._processing, "LEFT", "RIGHT")
            self._backlog.extend(entry for entry in pipe.execute() if entry is not None)
        self._ask = max(1, min(self._count, 2 * len(self._backlog)))  # few commands while the list is empty

    def _send_done(self) -> None:
        with self._redis.pipeline(transaction=False) as pipe:
            for entry in self._done:
                pipe.lrem(self._processing, 1, entry)
            pipe.execute()
        self._done.clear()


class RedisStreamSpout(_RedisSpout):
    """Reads a stream in a consumer group; the consumer's name is the task's index. Fields `id` and `data`.

    | config | meaning |
    | --- | --- |
    | `url` | of the server, e.g. `redis://host:6379/0` |
    | `key` | of the stream |
    | `group` | created if it does not exist |
    | `start` | for a group that is created: `0`, from the first entry (default), or `$`, only new entries |
    | `count` | maximum number of entries read in one round trip (default 100) |

    A task that starts first emits the unacked entries of its consumer; task 0 takes over those of consumers whose task no
    longer exists. The number of tasks can change while the spout runs. `data` is a dict of texts.
    """

    outputs: ClassVar[list[str]] = ["id", "data"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._group: str = setting(self, storm_conf, "group", str)
        start = setting(self, storm_conf, "start", str, "0")
        try:
            self._redis.xgroup_create(self._key, self._group, id=start, mkstream=True)
        except self._broken as error:
            if "BUSYGROUP" not in str(error):  # another task, or an earlier run, created it
                raise

    def ack(self, tup_id: Any) -> None:
        if tup_id in self.unacked_tuples:
            self._done.append(tup_id)
        super().ack(tup_id)

    def _emit_entry(self, entry: tuple[str, dict[str, str]]) -> None:
        self.emit(entry, entry[0])

    def _reconcile(self) -> None:
        if not self.tracked:
            return
        if self.task_index == 0:
            self._claim_orphans()
        known, last = {*self.unacked_tuples, *self._done}, "0"
        while entries := self._entries(last):
            last = entries[-1][0]
            self._done += [id for id, data in entries if not data]  # deleted from the stream
            self._backlog.extend((id, data) for id, data in entries if data and id not in known)

    def _ask_unread(self) -> int | None:
        """The lag of the group, which Redis 7 knows unless entries were deleted from the middle of the stream."""
        group = next(group for group in self._redis.xinfo_groups(self._key) if group["name"].decode() == self._group)
        lag: int | None = group.get("lag")
        return lag

    def _claim_orphans(self) -> None:
        for consumer in self._redis.xinfo_consumers(self._key, self._group):
            name = consumer["name"].decode()
            if not name.isdecimal() or int(name) < self.parallelism:
                continue
            while held := self._redis.xpending_range(self._key, self._group, "-", "+", self._count, name):
                self._redis.xclaim(self._key, self._group, str(self.task_index), 0,
                                   [entry["message_id"] for entry in held], justid=True)
            self._redis.xgroup_delconsumer(self._key, self._group, name)

    def _read(self) -> None:
        self._backlog.extend(self._entries(">"))

    def _entries(self, after: str) -> list[tuple[str, dict[str, str]]]:
        """New entries (`>`), or the unacked entries of this consumer after an id."""
        reply = self._redis.xreadgroup(self._group, str(self.task_index), {self._key: after}, count=self._count,
                                       noack=not self.tracked)
        return [(id.decode(), {text_of(name): text_of(value) for name, value in (data or {}).items()})
                for _, entries in reply or () for id, data in entries]

    def _send_done(self) -> None:
        self._redis.xack(self._key, self._group, *self._done)
        self._done.clear()


class RedisSink(StagedSink):
    """Writes rows to Redis: each chunk in one round trip and one transaction, so that it is written completely or not at all.

    | config | meaning |
    | --- | --- |
    | `url` | of the server, e.g. `redis://host:6379/0` |
    | `key` | of the list, hash or stream |
    | `mode` | `list`: pushes each row as JSON on the right; `hash`: sets the field named by the first value to the
    second; `counter`: adds the second value, a whole number, to the field named by the first; `stream`: adds an entry
    with the row's fields |

    `process_rows` returns when the server has answered. A chunk that is sent again after a failure is written again: `hash` is
    not affected, the other modes are. Texts, bytes and numbers are stored as they are, other values as JSON.

    In an exactly-once topology the commands wait in lists on the same server (`millrace:staged:...`). The commit of a wave
    executes each of them together with its removal, some thousand values at a time, so that other clients do not wait long. A
    command that the server refuses (a key of another type) fails the commit each time. Durability depends on the server: set
    `appendonly yes`. Not for Redis Cluster, where the lists and `key` are on different servers. Two topologies with the same
    name must not write to the same database of a server: each would treat the other's staged commands as its own.
    """

    blocking: ClassVar[bool] = True
    staging: StagedCommands | None = None

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        writers = {"list": self._list, "hash": self._hash, "counter": self._counter, "stream": self._stream}
        self._key: str = setting(self, storm_conf, "key", str)
        self._commands = writers[setting(self, storm_conf, "mode", str, choices=writers)]
        self._redis = connect(self, storm_conf)
        if self.exactly_once:
            self.staging = StagedCommands(self._redis, self._key, self)

    def process_rows(self, rows: list[Any]) -> None:
        if not rows:
            return
        commands = self._commands(rows)
        if self.staging is not None:
            self.staging.add(commands)
            return
        with self._redis.pipeline(transaction=True) as pipe:
            for name, *arguments in commands:
                pipe.execute_command(name, self._key, *arguments)
            pipe.execute()

    def close(self) -> None:
        super().close()
        self._redis.close()

    # Rows as commands without their key, which comes after the name.

    def _list(self, rows: list[Any]) -> list[RedisCommand]:
        names = field_names(rows[0])
        values = [_to_json(dict(zip(names, row, strict=True))) for row in rows]
        return [("RPUSH", *values[i:i + ROWS_IN_COMMAND]) for i in range(0, len(values), ROWS_IN_COMMAND)]

    def _hash(self, rows: list[Any]) -> list[RedisCommand]:
        pairs = list({_stored(row[0]): _stored(row[1]) for row in rows}.items())
        return [("HSET", *[word for pair in pairs[i:i + ROWS_IN_COMMAND] for word in pair])
                for i in range(0, len(pairs), ROWS_IN_COMMAND)]

    def _counter(self, rows: list[Any]) -> list[RedisCommand]:
        sums: Counter[Any] = Counter()
        for row in rows:
            if not isinstance(row[1], int):
                raise EncodingError(f"{self.component_name}: mode 'counter' adds whole numbers; the second value of "
                                    f"{row!r} is of type {type(row[1]).__name__}")
            sums[_stored(row[0])] += row[1]
        if beyond := [name for name, amount in sums.items() if not -(2**63) <= amount < 2**63]:
            # Checked now: the server would refuse the staged command at the commit, every time.
            raise EncodingError(f"{self.component_name}: mode 'counter' adds 64-bit numbers; the sum for {beyond[0]!r} "
                                f"is {sums[beyond[0]]}")
        return [("HINCRBY", name, amount) for name, amount in sums.items()]

    def _stream(self, rows: list[Any]) -> list[RedisCommand]:
        names = field_names(rows[0])
        return [("XADD", "*", *[word for pair in zip(names, map(_stored, row), strict=True) for word in pair]) for row in rows]


def text_of(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _stored(value: Any) -> Any:
    return value if isinstance(value, str | bytes | int | float) and not isinstance(value, bool) else _to_json(value)
