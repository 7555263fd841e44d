"""The rows of one task of a tap: numbered, and kept until the reader commits them."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from millrace.runtime.wire.bodies import encode_extended, encode_rows

READER_SECONDS = 30.0  # without activity until a reader is presumed gone, in case the next one's clock is behind


class TapRows:
    """Row number n is `rows[n - first]`. Rows before `readable` may be read; the others wait for a wave.

    Rows are kept encoded: their size is known, and answers need no encoding.

    `name` scopes the numbers: rows under another name, for example of another incarnation of the task, are unrelated.
    """

    def __init__(self, name: str = "", first: int = 0, rows: Sequence[bytes] = ()) -> None:
        self.name = name or uuid.uuid4().hex
        self.first = self.readable = first
        self.done: list[Any] = []  # origins of committed rows, to be acked
        self._rows: deque[bytes] = deque(rows)
        self._origins: deque[Any] = deque()  # of the newest rows, if they are to be acked
        self._marks: dict[int, tuple[int, int]] = {}  # by wave: the first number after it, and the bytes before that
        # Bytes of all rows added, of those readable, and of those committed.
        self._bytes_in, self._bytes_readable, self._bytes_gone = sum(map(len, self._rows)), 0, 0
        self._reader, self._heard = "", 0.0

    @property
    def end(self) -> int:
        """The number of the next row."""
        return self.first + len(self._rows)

    @property
    def unread(self) -> int:
        """The number of rows that are readable and not committed."""
        return self.readable - self.first

    @property
    def unread_bytes(self) -> int:
        return self._bytes_readable - self._bytes_gone

    def add(self, row: Sequence[Any], extended: bool = True) -> None:
        """Add a row that becomes readable by `show` or a wave. `extended`: it may hold decimals, dates or times."""
        encoded = encode_extended(row) if extended else encode_rows(row)
        self._rows.append(encoded)
        self._bytes_in += len(encoded)

    def add_readable(self, row: Sequence[Any], origin: Any, extended: bool = True) -> None:
        """Add a row that is readable at once; its origin goes to `done` when the row is committed."""
        encoded = encode_extended(row) if extended else encode_rows(row)
        self._rows.append(encoded)
        self._origins.append(origin)
        self.readable += 1
        self._bytes_in += len(encoded)
        self._bytes_readable = self._bytes_in

    def show(self, upto: int | None = None) -> None:
        """Make the rows before this number readable; by default all."""
        self.readable = self.end if upto is None else upto
        waiting = islice(self._rows, self.readable - self.first, None)
        self._bytes_readable = self._bytes_in - sum(map(len, waiting))

    def mark(self, wave: int) -> None:
        """Assign the rows added so far to this wave."""
        self._marks[wave] = self.end, self._bytes_in

    def commit_wave(self, wave: int) -> None:
        """Make the rows up to this wave readable, including those of abandoned waves before it."""
        marked = [mark for known, mark in self._marks.items() if known <= wave]
        self.readable, self._bytes_readable = max([(self.readable, self._bytes_readable), *marked])
        self._marks = {known: mark for known, mark in self._marks.items() if known > wave}

    def read(self, start: int, stop: int, most: int, most_bytes: int) -> tuple[int, list[bytes]]:
        """Rows from `start` on, or from the first one left, and its number. At least one row if there is any, however large."""
        begin = max(start, self.first)
        end = min(stop, self.readable, begin + most)
        rows: list[bytes] = []
        for row in islice(self._rows, begin - self.first, max(begin, end) - self.first):
            most_bytes -= len(row)
            if rows and most_bytes < 0:
                break
            rows.append(row)
        return begin, rows

    def commit(self, upto: int) -> None:
        """Discard the rows before `upto`."""
        count = max(0, min(upto, self.readable) - self.first)
        for _ in range(count):
            self._bytes_gone += len(self._rows.popleft())
        for _ in range(min(count, len(self._origins))):
            self.done.append(self._origins.popleft())
        self.first += count

    def all(self) -> list[bytes]:
        return list(self._rows)

    def claim(self, reader: str, now: float) -> float | None:
        """Claim the rows for a reader. None: it has them. Otherwise the seconds since the current reader, which started later,
        was active. The reader that started last wins: a restarted query need not wait for its previous run to end, and a
        previous run that is still alive can commit nothing."""
        silent = now - self._heard
        if reader < self._reader and silent < READER_SECONDS:
            return silent
        self._reader, self._heard = reader, now
        return None

    def hear(self, reader: str, now: float) -> None:
        """Record that the current reader is active."""
        if self._reader == reader:
            self._heard = now

    def take_done(self) -> list[Any]:
        done, self.done = self.done, []
        return done
