"""Offsets of a tap's rows, and reading the rows between two offsets. Knows nothing of Spark.

    offset      {"0": {"tap": name of the rows, "next": the first row that has not been read}, ...}, by task index

A task that restarts after a loss keeps its rows under a new name and numbers them from 0. Lost rows are replayed under that
name, so an old range is then empty. In an exactly-once topology a task keeps name and numbers.

A tap has one reader. It commits rows once Spark has committed the batch that read them, so no rerun asks for them again.
If rows of a range are gone, another reader has committed them, which is an error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from millrace.errors import MillraceError, UnknownName
from millrace.runtime.taps.client import ANSWER_SECONDS, NoAnswer, TapLinks, ask_places
from millrace.runtime.taps.messages import Seen, TapPlace
from millrace.runtime.taps.waiting import WAIT_SECONDS, TapWait
from millrace.runtime.wire.transport import Keys

Offset = dict[str, dict[str, Any]]
LONGEST_ANSWER_SECONDS = 30.0
RETRY_SECONDS = 0.2


class TapRange(NamedTuple):
    """Rows `start` to `stop` - 1 that the task keeps under `name`."""

    task: int
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TapAddress:
    """Locates a tap. Its repr hides the keys, since it is shipped with Spark's jobs."""

    master: str
    keys: Keys = field(repr=False)
    topology: str
    component: str
    exactly_once: bool
    reader: str = ""  # the reader that reads of its executors keep alive
    cluster: str = ""
    wait: float = WAIT_SECONDS  # without any row before a read fails: enough for the topology's driver to be restarted

    @property
    def label(self) -> str:
        return f"{self.topology}.{self.component}"


class RowsGone(MillraceError):
    """Another reader has committed rows that were to be read."""

    def __init__(self, what: str, tap: str) -> None:
        super().__init__(f"{what} of {tap} were committed by another reader. A tap has one reader: give each query its own "
                         "Tap, and do not start two from copies of one checkpoint")


def first_offset(seen: Mapping[int, tuple[str, Seen]]) -> Offset:
    """The offset of the first rows kept; older rows have been read."""
    return {str(task): {"tap": name, "next": rows.first} for task, (name, rows) in sorted(seen.items())}


def last_offset(start: Offset, seen: Mapping[int, tuple[str, Seen]]) -> Offset:
    """The offset after the last readable rows. It stays the same for a task that does not answer, or that restarted and has
    nothing yet: a changed offset makes Spark run a batch."""
    offset = dict(start)
    for task, (name, rows) in seen.items():
        before = start.get(str(task))
        if before is not None and before["tap"] == name:
            offset[str(task)] = {"tap": name, "next": max(before["next"], rows.readable)}
        elif rows.readable > rows.first:
            offset[str(task)] = {"tap": name, "next": rows.readable}
    return offset


def ranges_between(start: Offset, end: Offset) -> list[TapRange]:
    """The ranges that a batch has to read, one for each task with new rows."""
    ranges = []
    for task, till in end.items():
        since = start.get(task)
        begin = since["next"] if since is not None and since["tap"] == till["tap"] else 0
        if begin < till["next"]:
            ranges.append(TapRange(int(task), till["tap"], begin, till["next"]))
    return ranges


def taken_by_another(wanted: list[TapRange], seen: Mapping[int, tuple[str, Seen]]) -> str:
    """Describe wanted rows that are gone although their task is there: another reader must have committed them. Empty if there
    are none."""
    for rows in wanted:
        name, kept = seen.get(rows.task, ("", Seen(0, 0)))
        if name == rows.name and kept.first > rows.start:
            return f"rows {rows.start} to {min(kept.first, rows.stop) - 1} of task {rows.task}"
    return ""


def look_at(links: TapLinks, places: Mapping[int, TapPlace], committed: Offset,
            reader: str = "") -> dict[int, tuple[str, Seen]]:
    """Report the commits of `reader` to each task, and return the readable range of each. Tasks that do not answer are omitted
    until the next call. Raises HasAnotherReader."""
    answers: dict[int, tuple[str, Seen]] = {}
    for task, place in places.items():
        till = committed.get(str(task))
        try:
            seen = links.look(place, till["next"] if till is not None and till["tap"] == place.name else 0, reader)
        except NoAnswer:
            continue
        if seen is not None:
            answers[task] = place.name, seen
    return answers


def read_range(address: TapAddress, wanted: TapRange,
               find: Callable[[], TapAddress | None] = lambda: None) -> Iterator[list[Any]]:
    """Read all rows of a range, piece by piece, even if the task moves meanwhile. `find` returns the tap's present address, if
    it is known here: a restarted driver has other keys, and may have another port. Raises RowsGone."""
    number, wait = wanted.start, TapWait(f"{address.label}[{wanted.task}]", address.cluster, address.wait)
    answer_seconds = ANSWER_SECONDS  # grows: a large row on a slow connection arrives all at once
    links = TapLinks(address.keys)
    try:
        while number < wanted.stop:
            trouble = ""
            try:
                place = ask_places(address.master, address.keys, address.topology, address.component).get(wanted.task)
                if place is None:
                    trouble = "the task is on no worker"
                elif place.name != wanted.name:
                    return  # uncommitted rows of the previous incarnation are replayed under the new name
                else:
                    for rows in _pieces(links, place, address, wanted._replace(start=number), answer_seconds):
                        yield rows
                        number += len(rows)
                        wait.found()
            except NoAnswer as error:
                trouble, answer_seconds = str(error), min(2 * answer_seconds, LONGEST_ANSWER_SECONDS)
            except UnknownName as error:
                if not address.exactly_once:
                    return  # the topology has ended, and uncommitted rows were not acked
                trouble = str(error)
            if number < wanted.stop:
                wait.missed(trouble or f"rows {number} to {wanted.stop - 1} are not there yet")
                time.sleep(RETRY_SECONDS)
                found = find() if trouble else None
                if found is not None and (found.master, found.keys) != (address.master, address.keys):
                    links.close()
                    address, links, answer_seconds = replace(found, reader=address.reader), TapLinks(found.keys), ANSWER_SECONDS
    finally:
        links.close()


def _pieces(links: TapLinks, place: TapPlace, address: TapAddress, wanted: TapRange,
            answer_seconds: float) -> Iterator[list[Any]]:
    """Read pieces until there are no more rows for now."""
    number = wanted.start
    while number < wanted.stop:
        piece = links.read(place, number, wanted.stop, address.reader, answer_seconds)
        if piece is None:
            return
        first, rows = piece
        if first > number:
            raise RowsGone(f"rows {number} to {min(first, wanted.stop) - 1} of task {wanted.task}", address.label)
        if not rows:
            return
        yield rows
        number += len(rows)
