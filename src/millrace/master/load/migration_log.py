"""The record of migrations: what workers report about the sinks of each topology, and the migrations with their effect.

A migration is known as soon as it has ended. Its figures are final a little later, because they include the stream after it;
the metrics that tell how the stream recovers, when it is stable again, or another migration begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millrace.config import AT_LEAST_ONCE, GUARANTEE, MESSAGE_TIMEOUT
from millrace.control.events import MoveTaken
from millrace.control.migration_metrics import STABLE_SECONDS, metrics_of
from millrace.control.migrations import (
    AFTER_SECONDS,
    BUCKET_SECONDS,
    CANCELLED,
    Bucket,
    Flow,
    Migration,
    bucket_of,
    effect_of,
    timeline,
)
from millrace.errors import UnknownName
from millrace.model.graph import ACKER, TopologyGraph
from millrace.runtime.wire import messages as wire

BUCKETS_REMEMBERED = 12_000  # of each topology: ten minutes
CHANGES_REMEMBERED = 10_000
SETTLE_SECONDS = AFTER_SECONDS + 1.0  # until all workers have reported the time after a migration
WATCH_SECONDS = 120.0  # after a migration in which the stream is watched
WATCH_PERIOD = 1.0  # between two looks at it
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
            known = self._buckets.get(number, Bucket(number, 0))
            self._buckets[number] = known.plus(bucket._replace(entered=bucket.entered + offset))
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
        found = Flow() if len(self._changes) < CHANGES_REMEMBERED else self._changes[0][1]
        for at, flow in self._changes:
            if at > time:
                break
            found = flow
        return found


@dataclass(slots=True)
class _Settling:
    """A migration whose figures are not complete. `at`: unix time when it began. `counted`: the times, by the master's clock,
    between which lost, repeated and replayed tuples are put down to it. `until`: the end of the time in which it is watched;
    `settled`: the end of the time in which tuples may be replayed. `row`: the record, once all other figures are final."""

    number: int
    at: float
    migration: Migration
    new_pids: Sequence[int]
    counted: tuple[float, float]
    settled: float
    until: float
    looked_at: float = 0.0
    row: dict[str, Any] | None = None


class MigrationLog:
    """The migrations of one cluster, numbered in order. `stable_seconds`: as in `metrics_of`; `watch_seconds`: the longest time
    after a migration in which the stream is watched."""

    def __init__(self, stable_seconds: float = STABLE_SECONDS, watch_seconds: float = WATCH_SECONDS) -> None:
        self._stable, self._watch = stable_seconds, watch_seconds
        self._logs: dict[str, SinkBuckets] = {}
        self._clocks = WorkerClocks()
        self._settling: list[_Settling] = []
        self._watched: list[_Settling] = []  # final, but not complete
        self._settled: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._newest: dict[str, _Settling] = {}  # the last one of each topology, which may be final
        self._number = 0

    def remember(self, past: Iterable[Mapping[str, Any]]) -> None:
        """Take over the migrations of earlier masters, oldest first: numbering continues from theirs."""
        for row in past:
            self._settled.append({**row, "complete": True} if "complete" in row else dict(row))  # nobody watches it any more
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
        return MoveTaken(message.topology, message.epoch, message.move, message.delta_bytes, pause, message.error,
                         message.copied_bytes)

    def add(self, migration: Migration, now: float, unix_time: float, new_pids: Sequence[int] = (),
            timeout: float = 0.0) -> int:
        """Add a migration that has ended; returns its number. `timeout`: seconds after which tuples are replayed that were lost
        with its tasks."""
        self._number += 1
        settled = migration.ended + AFTER_SECONDS + (timeout if migration.rebalanced is not None else 0.0)
        added = _Settling(self._number, unix_time - (now - migration.began), migration, new_pids,
                          (self._from(migration), settled), settled, migration.ended + self._watch)
        if _disturbs(migration):
            self._stop_watching(migration)
        self._newest[migration.topology] = added
        self._settling.append(added)
        return self._number

    def _from(self, migration: Migration) -> float:
        """The time from which a migration is charged with what is lost, repeated or replayed: its beginning, or, so soon after
        another one that workers may still report what that one has done, its switch. Arming does not touch the stream."""
        before = self._newest.get(migration.topology)
        if before is None or before.counted[1] <= migration.began:
            return migration.began
        if before in self._settling or before in self._watched:
            changes = migration.ended if migration.switched is None else migration.switched
            before.counted = before.counted[0], min(before.counted[1], max(before.migration.ended, changes))
        return before.counted[1]

    def _stop_watching(self, migration: Migration) -> None:
        """Watch earlier ones of its topology no longer than until this one began: what comes then is not theirs."""
        for each in (*self._settling, *self._watched):
            if each.migration.topology == migration.topology:
                each.until = min(each.until, max(each.migration.ended, migration.began))

    def settle(self, now: float) -> list[dict[str, Any]]:
        """The migrations whose figures have become final or complete."""
        final = self._end([each for each in self._settling if now - each.migration.ended >= SETTLE_SECONDS])
        due = [each for each in self._watched if now - each.looked_at >= WATCH_PERIOD]
        complete = self._complete([each for each in due if self._is_complete(each, now)])
        return [*final, *(row for row in complete if not any(row is other for other in final))]

    def forget(self, topology: str) -> list[dict[str, Any]]:
        """Forget the sinks of a topology that has ended. Returns its migrations that become final or complete by that."""
        self._end([each for each in self._settling if each.migration.topology == topology])
        complete = self._complete([each for each in self._watched if each.migration.topology == topology])
        self._logs.pop(topology, None)
        self._newest.pop(topology, None)
        return complete

    def _end(self, settled: list[_Settling]) -> list[dict[str, Any]]:
        self._settling = [each for each in self._settling if each not in settled]
        for each in settled:
            each.row = self._row(each, True)
        rows = [each.row for each in settled if each.row is not None]
        self._settled.extend(rows)
        self._watched.extend(settled)
        return rows

    def _is_complete(self, watched: _Settling, now: float) -> bool:
        watched.looked_at = now
        reported = now - (SETTLE_SECONDS - AFTER_SECONDS)  # by all workers
        return reported >= watched.until or (reported >= watched.settled
                                             and self._recovering(watched)["stabilise_ms"] is not None)

    def _complete(self, watched: list[_Settling]) -> list[dict[str, Any]]:
        self._watched = [each for each in self._watched if each not in watched]
        rows = []
        for each in watched:
            assert each.row is not None
            each.row.update(self._recovering(each), complete=True)
            each.row[TIMELINE] = self._long_timeline(each.migration, each.row)
            rows.append(each.row)
        return rows

    def _long_timeline(self, migration: Migration, row: Mapping[str, Any]) -> list[tuple[float, float, float | None]]:
        """The timeline until the stream had recovered."""
        recovered = max((row[name] or 0.0 for name in ("catchup_ms", "recovery_ms", "stabilise_ms")), default=0.0)
        buckets = self._logs.get(migration.topology, SinkBuckets()).buckets()
        return timeline(buckets, migration.began, max(migration.ended, migration.began + recovered / 1000))

    def _recovering(self, settling: _Settling) -> dict[str, Any]:
        """The figures that are not final before the stream has recovered."""
        migration, log = settling.migration, self._logs.get(settling.migration.topology, SinkBuckets())
        metrics = metrics_of(migration, log.buckets(), min(log.until, settling.until), self._stable)
        return {**asdict(metrics), **log.flow_between(*settling.counted)._asdict()}

    def _row(self, settling: _Settling, final: bool = False) -> dict[str, Any]:
        migration, log = settling.migration, self._logs.get(settling.migration.topology, SinkBuckets())
        buckets = log.buckets()
        effect = effect_of(buckets, migration.began, migration.ended, log.until)
        return {"id": settling.number, "at": settling.at, **migration.to_json(effect, log.flow_between(*settling.counted)),
                **self._recovering(settling), "new_pids": list(settling.new_pids), "final": final, "complete": False,
                TIMELINE: timeline(buckets, migration.began, migration.ended)}

    def _rows(self) -> list[dict[str, Any]]:
        """All that are kept, in order."""
        now = {each.number: self._recovering(each) for each in self._watched}
        rows = [*({**row, **now.get(row["id"], {})} for row in self._settled), *map(self._row, self._settling)]
        return sorted(rows, key=_id)

    # -- requests --

    def past(self, topology: str | None = None) -> list[dict[str, Any]]:
        """The newest migrations, in order, without their timelines. Figures that are not `final` may change; metrics and counts
        of tuples, until they are `complete`."""
        return [{name: value for name, value in row.items() if name != TIMELINE} for row in self._rows()
                if topology in (None, row["topology"])]

    def one(self, number: int) -> dict[str, Any]:
        """One migration with its timeline."""
        rows = {row["id"]: row for row in self._rows()}
        if number not in rows:
            known = f"the newest are {min(rows)} to {max(rows)}" if rows else "there has been none"
            raise UnknownName(f"there is no migration {number}; {known}")
        return rows[number]


def _id(row: Mapping[str, Any]) -> int:
    return int(row["id"])


def _disturbs(migration: Migration) -> bool:
    """True unless it has left the stream alone: it was cancelled, or moved only ackers."""
    return migration.outcome != CANCELLED and any(move.task.component != ACKER for move in migration.moved)


def replay_seconds(graph: TopologyGraph) -> float:
    """Seconds after which a topology replays tuples that were lost; 0 if acks do not tell it."""
    return float(MESSAGE_TIMEOUT.of(graph.config)) if GUARANTEE.of(graph.config) == AT_LEAST_ONCE else 0.0
