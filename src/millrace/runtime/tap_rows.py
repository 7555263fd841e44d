"""What one task of a tap keeps: rows with numbers that only rise, until whoever reads them has committed them."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any


class TapRows:
    """Row number n is `rows[n - first]`. Those before `readable` may be read; the others wait for a wave.

    `name` says whose numbers these are: rows that are kept under another name, or anew by another incarnation of the task,
    have nothing to do with them.
    """

    def __init__(self, name: str = "", first: int = 0, rows: Sequence[Any] = ()) -> None:
        self.name = name or uuid.uuid4().hex
        self.first = self.readable = first
        self.done: list[Any] = []  # origins of rows that are committed, to be acked
        self._rows: deque[Any] = deque(rows)
        self._origins: deque[Any] = deque()  # of the newest rows, if they are to be acked at all
        self._marks: dict[int, int] = {}  # by wave: the first number after it

    @property
    def end(self) -> int:
        """The number that the next row gets."""
        return self.first + len(self._rows)

    @property
    def unread(self) -> int:
        """Rows that may be read and are not committed."""
        return self.readable - self.first

    def add(self, row: Any) -> None:
        """It can be read after `show` or a wave."""
        self._rows.append(row)

    def add_readable(self, row: Any, origin: Any) -> None:
        """It can be read at once, and comes back in `done` when it is committed."""
        self._rows.append(row)
        self._origins.append(origin)
        self.readable += 1

    def show(self) -> None:
        self.readable = self.end

    def mark(self, wave: int) -> None:
        """What is here by now belongs to this wave."""
        self._marks[wave] = self.end

    def commit_wave(self, wave: int) -> None:
        """What is marked up to this wave can be read; a wave that was given up is covered by the next."""
        marked = [number for known, number in self._marks.items() if known <= wave]
        self.readable = max([self.readable, *marked])
        self._marks = {known: number for known, number in self._marks.items() if known > wave}

    def read(self, start: int, stop: int, most: int) -> tuple[int, list[Any]]:
        """Rows from `start` on, or from the first that is still here, and its number."""
        begin = max(start, self.first)
        end = min(stop, self.readable, begin + most)
        return begin, list(islice(self._rows, begin - self.first, max(begin, end) - self.first))

    def commit(self, upto: int) -> None:
        """Rows before `upto` have been read for good."""
        count = max(0, min(upto, self.readable) - self.first)
        for _ in range(count):
            self._rows.popleft()
        for _ in range(min(count, len(self._origins))):
            self.done.append(self._origins.popleft())
        self.first += count

    def all(self) -> list[Any]:
        return list(self._rows)

    def take_done(self) -> list[Any]:
        done, self.done = self.done, []
        return done
