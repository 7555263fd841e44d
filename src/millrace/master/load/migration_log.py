"""The record of migrations: what workers report about the sinks of each topology, and the migrations with their effect.

A migration is known as soon as it has ended. Its figures are final a little later, because they include the stream after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.control.events import MoveTaken
from millrace.control.migrations import AFTER_SECONDS, BUCKET_SECONDS, Bucket, Flow, Migration, bucket_of, effect_of, timeline
from millrace.errors import UnknownName
from millrace.runtime.wire import messages as wire

BUCKETS_REMEMBERED = 12_000  # of each topology: ten minutes
CHANGES_REMEMBERED = 10_000
SETTLE_SECONDS = AFTER_SECONDS + 1.0  # until all workers have reported the time after a migration
KEPT = 200
DRIFT = 1e-4  # seconds per second that two clocks drift apart, at most
TIMELINE = "timeline"


class WorkerClocks:
    """Translates times of workers, which have clocks of their own, to the master's. The report that was on its way for the
    shortest time tells the difference best."""

    def __init__(self) -> None:
        self._offsets: dict[int, tuple[int, float, float]] = {}  # slot -> generation, offset, when that was seen

    def offset(self, slot: int, generation: int, at: float, now: float) -> float:
        """Seconds to add to times of the worker. `at`: time of a report by its clock, which the master has at `now`."""
        offset, known = now - at, self._offsets.get(slot)
        if known is not None and known[0] == generation:
            offset = min(offset, known[1] + DRIFT * (now - known[2]))
        self._offsets[slot] = generation, offset, now
        return offset

    def between(self, first: tuple[int, float], second: tuple[int, float]) -> float | None:
        """Seconds between two times, each by the clock of a slot's worker; None if one of them has not reported yet."""
        if first[0] not in self._offsets or second[0] not in self._offsets:
            return None
        return second[1] + self._offsets[second[0]][1] - first[1] - self._offsets[first[0]][1]


@dataclass(slots=True)
class SinkBuckets:
    """The sinks of one topology, by the master's clock. `until`: time of the newest report."""

    until: float = 0.0
    _buckets: dict[int, Bucket] = field(default_factory=dict)
    _by_worker: dict[tuple[int, int], Flow] = field(default_factory=dict)  # of workers that are gone, too
    _flow: Flow = field(default_factory=Flow)
    _changes: deque[tuple[float, Flow]] = field(default_factory=lambda: deque(maxlen=CHANGES_REMEMBERED))  # of the flow

    def take(self, worker: tuple[int, int], report: wire.TopologyReport, at: float, offset: float) -> None:
        for bucket in report.buckets:
            number = bucket_of((bucket.number + 0.5) * BUCKET_SECONDS + offset)
            _, tuples, seconds, worst = self._buckets.get(number, Bucket(number, 0))
            self._buckets[number] = Bucket(number, tuples + bucket.tuples, seconds + bucket.seconds, max(worst, bucket.worst))
        if len(self._buckets) > 2 * BUCKETS_REMEMBERED:
            self._buckets = dict(sorted(self._buckets.items())[-BUCKETS_REMEMBERED:])
        self.until = max(self.until, at + offset)
        news = report.flow.since(self._by_worker.get(worker, Flow()))
        self._by_worker[worker] = report.flow
        if any(news):
            self._flow = Flow(*map(sum, zip(self._flow, news)))
            self._changes.append((self.until, self._flow))

    def buckets(self) -> list[Bucket]:
        return sorted(self._buckets.values())

    def flow_between(self, first: float, last: float) -> Flow:
        """The rise of the counters from the last report before the first time to the last one before the second."""
        return self._flow_at(last).since(self._flow_at(first))

    def _flow_at(self, time: float) -> Flow:
        found = Flow()
        for at, flow in self._changes:
            if at > time:
                break
            found = flow
        return found


@dataclass(slots=True)
class _Settling:
    """A migration whose figures are not final. `at`: unix time when it began. `counted`: the times, by the master's clock,
    between which lost, repeated and replayed tuples are put down to it."""

    number: int
    at: float
    migration: Migration
    counted: tuple[float, float]


class MigrationLog:
    """The migrations of one cluster, numbered in order."""

    def __init__(self) -> None:
        self._logs: dict[str, SinkBuckets] = {}
        self._clocks = WorkerClocks()
        self._settling: list[_Settling] = []
        self._settled: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._newest: dict[str, _Settling] = {}  # the last one of each topology, which may be final
        self._number = 0

    def remember(self, past: Iterable[Mapping[str, Any]]) -> None:
        """Take over the migrations of earlier masters, oldest first: numbering continues from theirs."""
        for row in past:
            self._settled.append(dict(row))
            self._number = max(self._number, row["id"])

    def take(self, report: wire.Report, names: Mapping[int, str], now: float) -> None:
        """Take a worker's report. `names`: topologies by number."""
        offset = self._clocks.offset(report.slot, report.generation, report.at, now)
        for part in report.topologies:
            if (name := names.get(part.topology)) is not None:
                log = self._logs.setdefault(name, SinkBuckets())
                log.take((report.slot, report.generation), part, report.at, offset)

    def taken(self, message: wire.Taken) -> MoveTaken:
        """The event that a task has taken over. Its pause includes the time in which the state was on its way, which only the
        clocks of both workers tell."""
        pause = message.pause
        if not message.error:
            between = self._clocks.between((message.source, message.stopped_at), (message.slot, message.taken_at))
            pause = max(pause, between or 0.0)
        return MoveTaken(message.topology, message.epoch, message.move, message.delta_bytes, pause, message.error)

    def add(self, migration: Migration, now: float, unix_time: float) -> int:
        """Add a migration that has ended; returns its number."""
        self._number += 1
        counted = self._from(migration), migration.ended + AFTER_SECONDS
        added = _Settling(self._number, unix_time - (now - migration.began), migration, counted)
        self._newest[migration.topology] = added
        self._settling.append(added)
        return self._number

    def _from(self, migration: Migration) -> float:
        """The time from which a migration is charged with what is lost, repeated or replayed: its beginning, or, so soon after
        another one that workers may still report what that one has done, its switch. Arming does not touch the stream."""
        before = self._newest.get(migration.topology)
        if before is None or before.counted[1] <= migration.began:
            return migration.began
        if before in self._settling:
            changes = migration.ended if migration.switched is None else migration.switched
            before.counted = before.counted[0], min(before.counted[1], max(before.migration.ended, changes))
        return before.counted[1]

    def settle(self, now: float) -> list[dict[str, Any]]:
        """The migrations whose figures have become final."""
        return self._end([each for each in self._settling if now - each.migration.ended >= SETTLE_SECONDS])

    def forget(self, topology: str) -> list[dict[str, Any]]:
        """Forget the sinks of a topology that has ended. Returns its migrations that become final by that."""
        final = self._end([each for each in self._settling if each.migration.topology == topology])
        self._logs.pop(topology, None)
        self._newest.pop(topology, None)
        return final

    def _end(self, settled: list[_Settling]) -> list[dict[str, Any]]:
        self._settling = [each for each in self._settling if each not in settled]
        rows = [self._row(each, True) for each in settled]
        self._settled.extend(rows)
        return rows

    def _row(self, settling: _Settling, final: bool = False) -> dict[str, Any]:
        migration, log = settling.migration, self._logs.get(settling.migration.topology, SinkBuckets())
        buckets = log.buckets()
        effect = effect_of(buckets, migration.began, migration.ended, log.until)
        return {"id": settling.number, "at": settling.at, **migration.to_json(effect, log.flow_between(*settling.counted)),
                "final": final, TIMELINE: timeline(buckets, migration.began, migration.ended)}

    # -- requests --

    def past(self, topology: str | None = None) -> list[dict[str, Any]]:
        """The newest migrations, in order, without their timelines. Figures that are not `final` may change."""
        rows = [*self._settled, *map(self._row, self._settling)]
        return [{name: value for name, value in row.items() if name != TIMELINE} for row in sorted(rows, key=_id)
                if topology in (None, row["topology"])]

    def one(self, number: int) -> dict[str, Any]:
        """One migration with its timeline."""
        rows = {row["id"]: row for row in [*self._settled, *map(self._row, self._settling)]}
        if number not in rows:
            known = f"the newest are {min(rows)} to {max(rows)}" if rows else "there has been none"
            raise UnknownName(f"there is no migration {number}; {known}")
        return rows[number]


def _id(row: Mapping[str, Any]) -> int:
    return int(row["id"])
