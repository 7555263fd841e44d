"""Checkpoints in Redis, as durable as that Redis is configured. It must not evict keys (`maxmemory-policy noeviction`).

    millrace:checkpoint:<name>              a hash: `id`, `length`, and the content in fields 0, 1, 2, ...
    millrace:checkpoint-unfinished:<id>     the same while it is being written; expires after an hour
    millrace:checkpoint-names:<first step>  a set: the names that begin with this step, a topology, so that listing them does
                                            not depend on the number of other keys

A hash is written under a temporary key, then renamed and added to the set in one script, which can also compare the content of
another name, the guard. A large one is read in several steps; each also reads the `id`, so that a reader notices if the content
was replaced meanwhile.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from millrace.errors import MillraceError, StoreUnreachable
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.directory import UNFINISHED_SECONDS, check_name, not_there

PREFIX = "millrace:checkpoint:"
UNFINISHED_PREFIX = "millrace:checkpoint-unfinished:"
NAMES_PREFIX = "millrace:checkpoint-names:"
TIMEOUT_SECONDS = 10.0  # for each answer
RETRIES = 2  # of a command whose connection broke
FIELD = 1 << 20  # bytes: reading a small piece fetches less than two of these in excess
STEP = 16  # fields written or read by one command: Redis serves nobody else meanwhile
SCAN_COUNT = 1000
REFUSED = -1  # by the guard

# KEYS: the temporary key, the final key, the set of names, and the guard, if there is one. ARGV: the name, the content that the
# guard must have. Returns 0 if the temporary key does not exist, -1 if the guard has another content.
# The set comes first: a Redis without memory refuses that step, and then nothing has been changed.
_RENAME = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
if KEYS[4] and redis.call('HGET', KEYS[4], '0') ~= ARGV[2] then
  redis.call('UNLINK', KEYS[1])
  return -1
end
redis.call('SADD', KEYS[3], ARGV[1])
redis.call('PERSIST', KEYS[1])
redis.call('RENAME', KEYS[1], KEYS[2])
return 1
"""


class RedisStore:
    """One database of a Redis server."""

    def __init__(self, url: str) -> None:
        try:
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        except ModuleNotFoundError as error:
            raise MillraceError(f"checkpoints in Redis need the Python package {error.name!r}, which is not installed here: "
                                "pip install millrace[redis]") from error
        self.place = shown_place(url)
        self._errors = redis.exceptions
        try:
            self._client: Any = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, protocol=2,
                retry=Retry(ExponentialBackoff(cap=1.0, base=0.05), RETRIES))
        except ValueError as error:
            raise MillraceError(f"{self.place!r} names no Redis ({error}): write redis://host:port/database") from error
        self._renaming = self._client.register_script(_RENAME)
        with self._translated("answer"):
            self._client.ping()

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        self._write(name, parts)

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        """Compares and writes in one step. The content of a guard fits into one field."""
        check_name(guard)
        return self._write(name, parts, (guard, content))

    def _write(self, name: str, parts: Sequence[bytes | memoryview], guard: tuple[str, bytes] | None = None) -> bool:
        check_name(name)
        id = uuid.uuid4().hex
        unfinished, count = UNFINISHED_PREFIX + id, 0
        views = [memoryview(part).cast("B") for part in parts]
        head = {"id": id, "length": sum(map(len, views))}
        with self._translated(f"write {name}"):
            for fields in _fields(views):
                with self._client.pipeline(transaction=True) as pipe:
                    pipe.hset(unfinished, mapping=head | fields)
                    pipe.expire(unfinished, int(UNFINISHED_SECONDS))
                    pipe.execute()
                count += len(fields)
            if self._client.hlen(unfinished) != len(head) + count:
                raise self._emptied(name)
            return self._rename(unfinished, name, id, guard)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        check_name(name)
        with self._translated(f"read {name}"):
            while True:
                content = self._read(name, offset, length)
                if content is not None:
                    return content

    def names(self, prefix: str) -> list[str]:
        """Scans the names of the prefix's topology; the whole database if the prefix does not name a topology."""
        topology, slash, _ = prefix.partition("/")
        with self._translated(f"list {prefix}*"):
            names = self._names_of(topology) if slash else self._all_names()
            return sorted(name for name in names if name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        by_step: dict[str, list[str]] = {}
        for name in names:
            by_step.setdefault(_names_key(name), []).append(name)
        for key, some in by_step.items():
            with self._translated(f"delete {len(some)} names"):
                for start in range(0, len(some), SCAN_COUNT):
                    self._delete(key, some[start : start + SCAN_COUNT])

    def lock(self, topology: str) -> None:
        """Redis has no locks."""

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = list(names)
        with self._translated(f"look for {len(wanted)} names"), self._client.pipeline(transaction=False) as pipe:
            for name in wanted:
                pipe.exists(PREFIX + name)
            return {name for name, exists in zip(wanted, pipe.execute(), strict=True) if not exists}

    def close(self) -> None:
        self._client.close()

    def _rename(self, unfinished: str, name: str, id: str, guard: tuple[str, bytes] | None = None) -> bool:
        """False if the guard has another content."""
        keys, args = [unfinished, PREFIX + name, _names_key(name)], [name.encode()]
        if guard is not None:
            keys, args = [*keys, PREFIX + guard[0]], [*args, guard[1]]
        done = self._renaming(keys=keys, args=args)
        # The client repeats a command whose connection broke before the answer: then the rename is done already.
        if done == 0 and self._client.hget(PREFIX + name, "id") != id.encode():
            raise self._emptied(name)
        return bool(done != REFUSED)

    def _delete(self, key: str, names: list[str]) -> None:
        with self._client.pipeline(transaction=True) as pipe:
            pipe.unlink(*[PREFIX + name for name in names])
            pipe.srem(key, *names)
            pipe.execute()

    def _names_of(self, topology: str) -> set[str]:
        """The names in the set, without those that were deleted elsewhere or evicted."""
        members = self._client.sscan_iter(NAMES_PREFIX + topology, count=SCAN_COUNT)
        names = list({member.decode(errors="replace") for member in members})
        for start in range(0, len(names), SCAN_COUNT):
            some = names[start : start + SCAN_COUNT]
            if self._client.exists(*[PREFIX + name for name in some]) < len(some):
                return set(names) - self.missing(names)
        return set(names)

    def _all_names(self) -> set[str]:
        keys = self._client.scan_iter(f"{PREFIX}*", count=SCAN_COUNT)
        return {key.decode(errors="replace")[len(PREFIX) :] for key in keys}

    def _read(self, name: str, offset: int, length: int | None) -> bytes | None:
        """None if the content was replaced meanwhile."""
        id, size = self._client.hmget(PREFIX + name, "id", "length")
        if id is None:
            raise not_there(name, self.place)
        end = int(size) if length is None else min(int(size), offset + length)
        if offset >= end:
            return b""
        numbers = range(offset // FIELD, -(-end // FIELD))
        fields: list[bytes] = []
        for start in range(0, len(numbers), STEP):
            current_id, *contents = self._client.hmget(PREFIX + name, "id", *numbers[start : start + STEP])
            if current_id != id:
                return None
            fields += contents
        first = numbers[0] * FIELD
        return b"".join(fields)[offset - first : end - first]

    def _emptied(self, name: str) -> StoreUnreachable:
        return StoreUnreachable(f"the Redis at {self.place} lost part of {name} while it was being written: it was restarted "
                                "or flushed. Write it again")

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except (OSError, self._errors.RedisError) as error:
            if isinstance(error, self._errors.OutOfMemoryError):
                advice = "Give it more memory (maxmemory), or name another store in checkpoint.store"
            else:
                advice = "Check that it runs and admits this host, or name another store in checkpoint.store"
            raise StoreUnreachable(f"the checkpoint store in Redis at {self.place} could not {action}: "
                                   f"{' '.join(str(error).split())[:500]}. {advice}") from error


def _names_key(name: str) -> str:
    return NAMES_PREFIX + name.partition("/")[0]


def _fields(parts: Sequence[memoryview]) -> Iterator[dict[str, bytes]]:
    """Cut the content into numbered fields, `STEP` at a time."""
    fields: dict[str, bytes] = {}
    for number, field in enumerate(_cut(parts)):
        fields[str(number)] = field
        if len(fields) == STEP:
            yield fields
            fields = {}
    if fields:
        yield fields


def _cut(parts: Sequence[memoryview]) -> Iterator[bytes]:
    """Cut the content into fields; at least one, and the last may be empty."""
    rest = bytearray()
    for view in parts:
        while len(rest) + len(view) >= FIELD:
            taken = FIELD - len(rest)
            yield b"".join((rest, view[:taken]))
            rest.clear()
            view = view[taken:]
        rest += view
    yield bytes(rest)
