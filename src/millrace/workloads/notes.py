"""Keyed state of a declared size, for bolts whose moves are measured: notes of 1,000 bytes that are rewritten now and then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle
from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.keyed.declared import State
from millrace.connectors.settings import setting
from millrace.errors import KeyNotOwned

NOTE_BYTES = 1000
TUPLES_PER_NOTE = 100  # after which a note is rewritten


class NotedBolt(Bolt):
    """Base of bolts with notes. A subclass calls `write_notes` after it has processed tuples, if `noted`; it needs a fields
    grouping.

    | config | meaning |
    | --- | --- |
    | `notes` | bytes of notes in each task (default 0) |
    | `noted_tasks` | only the first so many tasks have notes (default: all) |
    | `tuples_per_note` | tuples after which a task rewrites a note, each note in turn (default 100) |
    """

    notes = State()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        has_notes = self.task_index < setting(self, storm_conf, "noted_tasks", int, self.parallelism, least=0)
        self.noted = setting(self, storm_conf, "notes", int, 0, least=0) // NOTE_BYTES if has_notes else 0
        self._tuples_per_note: int = setting(self, storm_conf, "tuples_per_note", int, TUPLES_PER_NOTE, least=1)
        self._tuples = 0
        self._turns: Iterator[str] | None = None

    def write_notes(self, tuples: int) -> None:
        """Write all notes at the first call, and rewrite those that are due after so many more tuples."""
        if self._turns is None:
            self._fill()
            self._turns = cycle(list(self.notes))
        before, self._tuples = self._tuples, self._tuples + tuples
        for number in range(before // self._tuples_per_note, self._tuples // self._tuples_per_note):
            if (key := next(self._turns)) in self.notes:  # its key group has not moved
                self.notes[key] = _note(number)

    def _fill(self) -> None:
        """Write all notes; an incarnation that has taken over has them already."""
        for number in count():
            if len(self.notes) >= self.noted:
                return
            with suppress(KeyNotOwned):
                self.notes.setdefault(f"note {number}", _note(number))


def _note(number: int) -> bytes:
    return number.to_bytes(8, "little") * (NOTE_BYTES // 8)
