"""Reads a Redis stream for all splits of one task: entries that several of them need are asked for once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from millrace.api.grouping import stable_hash
from millrace.connectors.redis import IDLE_SECONDS, Asked
from millrace.errors import MillraceError

SEQUENCE_BITS = 22
LARGEST_MS, LARGEST_SEQUENCE = (1 << 63 - SEQUENCE_BITS) - 1, (1 << SEQUENCE_BITS) - 1
BLOCKS_KEPT = 4  # splits that are at different places need different blocks

Entry = tuple[bytes, dict[bytes, bytes]]


class Block:
    """Consecutive entries, in ascending order, and what the server knew of the stream when it sent them. Their ids are from
    `start` on and below `end`. `is_last`: there were no others."""

    def __init__(self, start: int, info: dict[str, Any] | None, entries: Sequence[Entry], positions: Sequence[int],
                 is_last: bool, shares: int) -> None:
        self.start, self.info, self.entries, self.positions = start, info, entries, positions
        self.end = positions[-1] + 1 if positions else start
        self.is_last, self._shares = is_last, shares

    @cached_property
    def by_share(self) -> list[list[int]]:
        """The indexes of the entries of each share, by the hash of the id."""
        if self._shares == 1:
            return [list(range(len(self.entries)))]
        indexes: list[list[int]] = [[] for _ in range(self._shares)]
        for index, (id, _) in enumerate(self.entries):
            indexes[stable_hash(id.decode()) % self._shares].append(index)
        return indexes


class LogReader:
    """The connection of one task to a stream, which its splits share, and the blocks read last. A split that is at another
    place than the others, as one that has just come, reads blocks of its own until it has reached theirs.

    `name`: of the component, for errors. `shares`: the number of parts into which the hash of their ids divides the entries."""

    def __init__(self, redis: Any, refused: type[Exception], name: str, key: str, count: int, shares: int,
                 clock: Callable[[], float]) -> None:
        self._redis, self._refused, self._name, self._key = redis, refused, name, key
        self._count, self._shares, self._clock = count, shares, clock
        self._blocks: list[Block] = []  # the one used last at the end
        self._idle_at, self._idle_until = -1, float("-inf")  # the end of the stream, and until when it is not read again
        self._added = Asked(self._ask_added)
        self.users = 0  # the splits that have not been closed

    def block(self, start: int) -> Block | None:
        """The entries from a position on: some, or none at the end of the stream. None shortly after that was reached."""
        for block in reversed(self._blocks):
            if block.start <= start < block.end:
                self._blocks.remove(block)
                self._blocks.append(block)
                return block
        now = self._clock()
        if start == self._idle_at and now < self._idle_until:
            return None
        block = self._read(start)
        if block.is_last:
            self._idle_at, self._idle_until = block.end, now + IDLE_SECONDS
        if block.entries:
            self._blocks = [*self._blocks[1 - BLOCKS_KEPT:], block]
        return block

    def added(self) -> int | None:
        """The number of entries ever added to the stream, as of the last second; None if the server does not tell."""
        return self._added.at(self._clock())

    def look(self, start: int) -> tuple[dict[str, Any] | None, list[Entry]]:
        """The server's information about the stream, or None if it does not exist, and the entries from a position on, read
        atomically."""
        ms, sequence = id_at(start)
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
            raise MillraceError(f"{self._name}: the server does not report how many entries were added to the stream "
                                f"{self._key!r}, so trimmed entries would not be noticed. Use Redis 7 or newer.")
        return info, entries

    def _read(self, start: int) -> Block:
        info, entries = self.look(start)
        usable = list(takewhile(lambda entry: fits(entry[0]), entries)) or entries  # those before one that is an error
        is_last = len(usable) == len(entries) < self._count
        return Block(start, info, usable, [self.position(id) for id, _ in usable], is_last, self._shares)

    def position(self, id: bytes) -> int:
        """The position of an entry. Raises if it cannot hold the id."""
        if not fits(id):
            raise MillraceError(f"{self._name}: the stream {self._key!r} has an entry with the id {id.decode()}, and a "
                                f"position can hold ids up to {LARGEST_MS}-{LARGEST_SEQUENCE}. Let Redis choose the ids, or "
                                "read the stream with RedisStreamSpout.")
        ms, sequence = parts_of_id(id)
        return ms << SEQUENCE_BITS | sequence

    def leave(self) -> None:
        """One split does not read any more."""
        self.users -= 1
        if not self.users:
            self._blocks.clear()
            self._redis.close()  # it connects again if a split comes

    def _ask_added(self) -> int | None:
        try:
            added: int | None = self._redis.xinfo_stream(self._key).get("entries-added")
        except self._refused as error:
            if "no such key" in str(error):
                return 0
            raise
        return added


def fits(id: bytes) -> bool:
    """True if a position can hold the id of the entry."""
    ms, sequence = parts_of_id(id)
    return ms <= LARGEST_MS and sequence <= LARGEST_SEQUENCE


def id_at(position: int) -> tuple[int, int]:
    """A position as the numbers of an id."""
    return position >> SEQUENCE_BITS, position & LARGEST_SEQUENCE


def parts_of_id(id: bytes) -> tuple[int, int]:
    ms, sequence = map(int, id.split(b"-"))
    return ms, sequence
