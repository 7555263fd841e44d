"""Offsets of a tap's rows, and reading what lies between two of them. Nothing of Spark.

    offset      {"0": {"tap": whose numbers, "next": the first row that has not been read}, ...}, by task index

A task that starts anew after a loss keeps its rows under another name, and numbers from 0. What it lost of the rows before
comes again, under that name: an old range is then read as nothing. Exactly-once, a task keeps name and numbers.

A tap has one reader. It commits rows when the batch that read them is done for good, as Spark's log of commits says: no batch
that is run again asks for them. So rows of a range that are gone were committed by someone else, and that is an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millrace.errors import MillraceError, UnknownName
from millrace.runtime.taps.client import ANSWER_SECONDS, Silence, TapLinks, ask_places
from millrace.runtime.taps.messages import Seen, TapPlace
from millrace.runtime.wire.transport import Keys

Offset = dict[str, dict[str, Any]]
READ_SECONDS = 60.0  # without a single row before a read is given up: enough for a task to come back elsewhere
RETRY_SECONDS = 0.2


class TapRange(NamedTuple):
    """Rows `start` to `stop` - 1 that the task keeps under `name`."""

    task: int
    name: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TapAddress:
    """What a reader must know to find a tap wherever it is. Its repr shows no key: this travels with Spark's jobs."""

    master: str
    keys: Keys = field(repr=False)
    topology: str
    component: str
    exactly_once: bool
    reader: str = ""  # who reads: it is heard from while its executors do


class RowsGone(MillraceError):
    """Someone else has committed rows that are to be read."""

    def __init__(self, what: str, tap: str) -> None:
        super().__init__(f"{what} of {tap} were committed by another reader. A tap has one: give each query a Tap of its own, "
                         "and do not start two from copies of one checkpoint")


def first_offset(seen: Mapping[int, tuple[str, Seen]]) -> Offset:
    """From what is kept on: what is older has been read by someone."""
    return {str(task): {"tap": name, "next": found.first} for task, (name, found) in sorted(seen.items())}


def last_offset(start: Offset, seen: Mapping[int, tuple[str, Seen]]) -> Offset:
    """To the end of what can be read. A task that does not answer, or that began anew and has nothing yet, stays where the
    reader is with it: an offset that changes makes Spark run a batch."""
    offset = dict(start)
    for task, (name, found) in seen.items():
        before = start.get(str(task))
        if before is not None and before["tap"] == name:
            offset[str(task)] = {"tap": name, "next": max(before["next"], found.readable)}
        elif found.readable > found.first:
            offset[str(task)] = {"tap": name, "next": found.readable}
    return offset


def ranges_between(start: Offset, end: Offset) -> list[TapRange]:
    """What a batch has to read, one range for each task that has something new."""
    ranges = []
    for task, till in end.items():
        since = start.get(task)
        begin = since["next"] if since is not None and since["tap"] == till["tap"] else 0
        if begin < till["next"]:
            ranges.append(TapRange(int(task), till["tap"], begin, till["next"]))
    return ranges


def taken_by_another(wanted: list[TapRange], seen: Mapping[int, tuple[str, Seen]]) -> str:
    """Which of these rows are gone though their task is there: only a reader can have committed them, and this one has not.
    Empty if none are."""
    for each in wanted:
        name, found = seen.get(each.task, ("", Seen(0, 0)))
        if name == each.name and found.first > each.start:
            return f"rows {each.start} to {min(found.first, each.stop) - 1} of task {each.task}"
    return ""


def look_at(links: TapLinks, places: Mapping[int, TapPlace], committed: Offset,
            reader: str = "") -> dict[int, tuple[str, Seen]]:
    """What each task has, after `reader` has told what is committed. Those that do not answer are left out, and asked the next
    time. HasAnotherReader."""
    found: dict[int, tuple[str, Seen]] = {}
    for task, place in places.items():
        till = committed.get(str(task))
        try:
            seen = links.look(place, till["next"] if till is not None and till["tap"] == place.name else 0, reader)
        except Silence:
            continue
        if seen is not None:
            found[task] = place.name, seen
    return found


def read_range(address: TapAddress, wanted: TapRange) -> Iterator[list[Any]]:
    """The rows of a range, all of them, piece by piece, wherever the task is by then. RowsGone."""
    with TapLinks(address.keys) as links:
        number, deadline = wanted.start, time.monotonic() + READ_SECONDS
        patience = ANSWER_SECONDS  # of a large row on a slow way nothing is seen until it is here whole
        while number < wanted.stop:
            trouble = ""
            try:
                place = ask_places(address.master, address.keys, address.topology, address.component).get(wanted.task)
                if place is None:
                    trouble = "the task is on no worker"
                elif place.name != wanted.name:
                    return  # its forerunner's rows that were not committed come again, under the new name
                else:
                    for rows in _pieces(links, place, address, wanted._replace(start=number), patience):
                        yield rows
                        number, deadline = number + len(rows), time.monotonic() + READ_SECONDS
            except Silence as error:
                trouble, patience = str(error), min(2 * patience, READ_SECONDS / 2)
            except UnknownName as error:
                if not address.exactly_once:
                    return  # it has ended: nothing of what was not committed was acked
                trouble = str(error)
            if number < wanted.stop:
                _wait(address, wanted, trouble or "these rows are not there yet", deadline)


def _pieces(links: TapLinks, place: TapPlace, address: TapAddress, wanted: TapRange, patience: float) -> Iterator[list[Any]]:
    """As long as something comes."""
    number = wanted.start
    while number < wanted.stop:
        found = links.read(place, number, wanted.stop, address.reader, patience)
        if found is None:
            return
        first, rows = found
        if first > number:
            raise RowsGone(f"rows {number} to {min(first, wanted.stop) - 1} of task {wanted.task}",
                           f"{address.topology}.{address.component}")
        if not rows:
            return
        yield rows
        number += len(rows)


def _wait(address: TapAddress, wanted: TapRange, trouble: str, deadline: float) -> None:
    if time.monotonic() >= deadline:
        raise MillraceError(f"rows {wanted.start} to {wanted.stop - 1} of {address.component}[{wanted.task}] of "
                            f"{address.topology!r} could not be read within {READ_SECONDS:g} s: {trouble}. Is the topology "
                            "running? Start the query again from its checkpoint when it is")
    time.sleep(RETRY_SECONDS)
