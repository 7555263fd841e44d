"""What one task of a tap keeps: rows with numbers that only rise, until whoever reads them has committed them."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from millrace.runtime.wire.messages import encode_rows

READER_SECONDS = 30.0  # of silence until a reader is taken for gone, should the next one's clock be behind its clock


class TapRows:
    """Row number n is `rows[n - first]`. Those before `readable` may be read; the others wait for a wave.

    Rows are kept as they are sent: what they weigh is known, and an answer is put together without encoding anything.

    `name` says whose numbers these are: rows that are kept under another name, or anew by another incarnation of the task,
    have nothing to do with them.
    """

    def __init__(self, name: str = "", first: int = 0, rows: Sequence[bytes] = ()) -> None:
        self.name = name or uuid.uuid4().hex
        self.first = self.readable = first
        self.done: list[Any] = []  # origins of rows that are committed, to be acked
        self._rows: deque[bytes] = deque(rows)
        self._origins: deque[Any] = deque()  # of the newest rows, if they are to be acked at all
        self._marks: dict[int, tuple[int, int]] = {}  # by wave: the first number after it, and the bytes before that
        # Bytes of all rows that came, of those that can be read by now, and of those that are committed.
        self._bytes_in, self._bytes_readable, self._bytes_gone = sum(map(len, self._rows)), 0, 0
        self._reader, self._heard = "", 0.0

    @property
    def end(self) -> int:
        """The number that the next row gets."""
        return self.first + len(self._rows)

    @property
    def unread(self) -> int:
        """Rows that may be read and are not committed."""
        return self.readable - self.first

    @property
    def unread_bytes(self) -> int:
        return self._bytes_readable - self._bytes_gone

    def add(self, row: Sequence[Any]) -> None:
        """It can be read after `show` or a wave."""
        encoded = encode_rows(row)
        self._rows.append(encoded)
        self._bytes_in += len(encoded)

    def add_readable(self, row: Sequence[Any], origin: Any) -> None:
        """It can be read at once, and comes back in `done` when it is committed."""
        self.add(row)
        self._origins.append(origin)
        self.readable += 1
        self._bytes_readable = self._bytes_in

    def show(self) -> None:
        self.readable, self._bytes_readable = self.end, self._bytes_in

    def mark(self, wave: int) -> None:
        """What is here by now belongs to this wave."""
        self._marks[wave] = self.end, self._bytes_in

    def commit_wave(self, wave: int) -> None:
        """What is marked up to this wave can be read; a wave that was given up is covered by the next."""
        marked = [mark for known, mark in self._marks.items() if known <= wave]
        self.readable, self._bytes_readable = max([(self.readable, self._bytes_readable), *marked])
        self._marks = {known: mark for known, mark in self._marks.items() if known > wave}

    def read(self, start: int, stop: int, most: int, most_bytes: int) -> tuple[int, list[bytes]]:
        """Rows from `start` on, or from the first that is still here, and its number. At least one if there is any, however
        large."""
        begin = max(start, self.first)
        end = min(stop, self.readable, begin + most)
        found: list[bytes] = []
        for row in islice(self._rows, begin - self.first, max(begin, end) - self.first):
            most_bytes -= len(row)
            if found and most_bytes < 0:
                break
            found.append(row)
        return begin, found

    def commit(self, upto: int) -> None:
        """Rows before `upto` have been read for good."""
        count = max(0, min(upto, self.readable) - self.first)
        for _ in range(count):
            self._bytes_gone += len(self._rows.popleft())
        for _ in range(min(count, len(self._origins))):
            self.done.append(self._origins.popleft())
        self.first += count

    def all(self) -> list[bytes]:
        return list(self._rows)

    def claim(self, reader: str, now: float) -> float | None:
        """These are for this reader from now on. None: so be it. Otherwise one that began later has them, which was heard from
        so many seconds ago. The last one wins: that of a query that was started again need not wait until someone has noticed
        that its first run is over, and an old one that is still there commits nothing."""
        silent = now - self._heard
        if reader < self._reader and silent < READER_SECONDS:
            return silent
        self._reader, self._heard = reader, now
        return None

    def hear(self, reader: str, now: float) -> None:
        """Whoever has them is still at it."""
        if self._reader == reader:
            self._heard = now

    def take_done(self) -> list[Any]:
        done, self.done = self.done, []
        return done
