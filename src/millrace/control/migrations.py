"""The record of a migration: its moves and phases, and its effect as the sinks of the topology have seen it.

A sink counts the tuples that it has processed in buckets of `BUCKET_SECONDS`. All figures are computed from the buckets of all
sinks of the topology together, so no gap is known more exactly than to one bucket.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, NamedTuple

from millrace.control.assignment import SWITCH, Place
from millrace.control.moves import BY_HANDOVER, BY_PERSON, Handover, Moving, causes_of
from millrace.model.graph import TaskId

BUCKET_SECONDS = 0.05
BEFORE_SECONDS = 10.0  # of the stream before a migration, with which it is compared
AFTER_SECONDS = 1.0  # of the stream after it
SLICE_BUCKETS = 5  # least length of the slices in which a loss of throughput is measured
USUAL_BUCKETS = 20  # least length of the slices in which the usual gap is measured
LEVELS = (20, 40, 60, 80, 100)  # percent of the throughput before that are missing
POINTS = 1000  # most in a timeline
ROUNDING = 1e-9

BY_RESTART = "restart"  # the strategy after a loss in a topology without waves; the others are those of moves
HAND_OVER, REPLACE, CHECKPOINT, HOLD = "handover", "replace", "checkpoint", "hold"  # names of steps
COMPLETED, CANCELLED, ROLLED_BACK = "done", "cancelled", "rolled back"  # outcomes


class Bucket(NamedTuple):
    """Tuples that the sinks have processed in one bucket. `seconds`: their latencies, summed up; `worst`: the longest.
    `entered`: when the oldest was sent by its spout for the first time; -inf if it was saved with a wave, and that time is not
    known. `replayed`: those that were sent again; `rewound`: those of them that another incarnation of their spout had sent
    before, for which `entered` is not known."""

    number: int
    tuples: int
    seconds: float = 0.0
    worst: float = 0.0
    entered: float = inf
    replayed: int = 0
    rewound: int = 0

    def plus(self, other: Bucket) -> Bucket:
        """Both together, under this one's number."""
        return Bucket(self.number, self.tuples + other.tuples, self.seconds + other.seconds, max(self.worst, other.worst),
                      min(self.entered, other.entered), self.replayed + other.replayed, self.rewound + other.rewound)


class Flow(NamedTuple):
    """Counters of a topology's channels and spouts, which only rise: chunks lost and repeated, tuples replayed."""

    lost: int = 0
    repeated: int = 0
    replayed: int = 0

    def since(self, before: Flow) -> Flow:
        return Flow(*(max(0, now - then) for now, then in zip(self, before)))


# -- records --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskMove:
    """One task of a migration, from a slot to a slot; or some of its key groups, which went to another task. `pause`: seconds
    in which nobody worked on what moved; None if that was not measured."""

    task: TaskId
    source: int
    target: int
    pause: float | None = None
    precopied_bytes: int = 0
    delta_bytes: int = 0
    groups: tuple[int, ...] = ()
    to_task: TaskId | None = None  # None: the task itself
    splits: bool = False  # the groups are splits of a spout

    def to_json(self) -> dict[str, Any]:
        return {"task": str(self.task), "groups": list(self.groups), "splits": self.splits,
                "to_task": str(self.to_task or self.task),
                "from": self.source, "to": self.target, "pause_ms": in_ms(self.pause),
                "precopied_bytes": self.precopied_bytes, "delta_bytes": self.delta_bytes}


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of a migration on the stream. None: not known, because nothing was measured then."""

    longest_gap_ms: float | None = None
    usual_gap_ms: float | None = None
    throughput_ratio: float | None = None
    degraded_s: Mapping[int, float | None] = field(default_factory=lambda: dict.fromkeys(LEVELS))
    latency_before_ms: float | None = None
    peak_latency_ms: float | None = None
    latency_after_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Migration:
    """A migration that has ended. Times are of the master's clock; `switched` is None if it never came to that. `in_flight`:
    tuples when it switched, or when it began. `steps`: the strategy's steps with their seconds. `rebalanced`: when tasks began
    to end for it, and when all of them had started again; None if it stopped none. `restarted`: slots whose workers it
    restarted."""

    topology: str
    strategy: str
    cause: str
    outcome: str
    reason: str
    from_version: int
    to_version: int
    began: float
    switched: float | None
    ended: float
    moved: tuple[TaskMove, ...]
    in_flight: int = 0
    parameters: Mapping[str, float] = field(default_factory=dict)
    steps: tuple[tuple[str, float], ...] = ()
    rebalanced: tuple[float, float] | None = None
    restarted: tuple[int, ...] = ()
    went_back: float | None = None  # when all tasks went back to a wave: what has left the sinks until then is undone

    @property
    def waits(self) -> bool:
        """True if spouts waited before tasks ended, so that tuples in flight were processed or captured."""
        return self.rebalanced is not None and any(name == HOLD for name, _ in self.steps)

    @property
    def checkpoints(self) -> bool:
        """True if a wave was committed for it before tasks ended: nothing that is read again after it had entered before it
        was requested."""
        return self.rebalanced is not None and any(name == CHECKPOINT for name, _ in self.steps)

    def to_json(self, effect: Effect, flow: Flow) -> dict[str, Any]:
        """Durations of the phases are in milliseconds; `done` is the time until the end, however it ended. `switch` is None if
        it never came to that."""
        armed = (self.ended if self.switched is None else self.switched) - self.began
        switch = self.ended - self.switched if self.switched is not None else None
        phases = {"arm": in_ms(armed), "switch": in_ms(switch), "done": in_ms(self.ended - self.began)}
        seen = asdict(effect)
        seen["degraded_s"] = {str(level): seconds for level, seconds in effect.degraded_s.items()}
        return {"topology": self.topology, "strategy": self.strategy, "cause": self.cause, "outcome": self.outcome,
                "reason": self.reason, "from_version": self.from_version, "to_version": self.to_version, "phases_ms": phases,
                "parameters": dict(self.parameters), "steps_ms": [[name, in_ms(seconds)] for name, seconds in self.steps],
                "moved": [move.to_json() for move in self.moved], **seen, "in_flight": self.in_flight, "lost": flow.lost,
                "replayed": flow.replayed, "repeated": flow.repeated}


def handed_over(topology: str, version: int, handover: Handover, moves: Iterable[Moving], now: float, outcome: str = COMPLETED,
                reason: str = "") -> Migration:
    """The record of moves that have ended. `handover`: as it was until then."""
    moves = list(moves)
    return Migration(
        topology, BY_HANDOVER, causes_of(moves), outcome, reason,
        handover.from_version, version, handover.began, handover.since if handover.phase == SWITCH else None, now,
        tuple(TaskMove(moving.task, moving.old.slot, moving.new.slot, moving.pause if moving.taken else None,
                       moving.copied_bytes, moving.delta_bytes, moving.groups, moving.target, moving.splits)
              for moving in moves),
        handover.in_flight, steps=((HAND_OVER, now - handover.began),))


@dataclass(frozen=True, slots=True)
class Recovery:
    """Tasks that are placed anew after a loss, until they work again. `sources`: their slots before."""

    cause: str
    began: float
    from_version: int
    sources: Mapping[TaskId, int]
    in_flight: int

    def after(self, earlier: Recovery | None) -> Recovery:
        """This one together with an earlier one that has not ended."""
        if earlier is None:
            return self
        return replace(earlier, cause=f"{earlier.cause}; {self.cause}", sources={**self.sources, **earlier.sources})

    def record(self, topology: str, version: int, places: Mapping[TaskId, Place], strategy: str, now: float) -> Migration:
        moved = tuple(TaskMove(task, slot, places[task].slot) for task, slot in sorted(self.sources.items()) if task in places)
        return Migration(topology, strategy, self.cause, COMPLETED, "", self.from_version, version,
                         self.began, self.began, now, moved, self.in_flight, steps=((REPLACE, now - self.began),),
                         rebalanced=(self.began, now))


def record_of_request(rows: Iterable[Mapping[str, Any]], known: Collection[int], strategy: str) -> dict[str, Any] | None:
    """The record, as JSON, of a migration that a person has requested; None if there is none. `rows`: of its topology, in
    order. `known`: the ids before the request. Migrations of one topology exclude each other, but records of losses do not."""
    return next((dict(row) for row in rows if row["id"] not in known
                 and (row["strategy"], row["cause"]) == (strategy, str(BY_PERSON))), None)


def in_ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


# -- figures --------------------------------------------------------------------------------------------------------------


class Span(NamedTuple):
    """The buckets from the first number to the last, both included."""

    first: int
    last: int

    @property
    def seconds(self) -> float:
        return max(0, self.last - self.first + 1) * BUCKET_SECONDS


def bucket_of(time: float) -> int:
    return int(time / BUCKET_SECONDS)


def effect_of(buckets: Sequence[Bucket], began: float, ended: float, until: float) -> Effect:
    """The effect of a migration between these times. `buckets`: in order, without empty ones. `until`: the time up to which
    they are complete."""
    if not buckets:
        return Effect()
    during, before = Span(bucket_of(began), bucket_of(ended)), span_before(buckets, began)
    after = Span(during.last + 1, min(during.last + round(AFTER_SECONDS / BUCKET_SECONDS), bucket_of(until) - 1))
    affected = Span(during.first, max(during.last, after.last))  # tuples that it held reach the sinks after it
    usual = usual_gap(buckets, before, during)
    usually = rate(buckets, before)
    ratio = rate(buckets, during) / usually if usually else None
    return Effect(
        in_ms(longest_gap(buckets, during, bucket_of(until))), in_ms(usual),
        round(ratio, 4) if ratio is not None else None,
        degraded(buckets, Span(during.first, after.last), usually, usual) if usually else dict.fromkeys(LEVELS),
        in_ms(mean_latency(buckets, before)), in_ms(worst_latency(buckets, affected)),
        in_ms(mean_latency(buckets, after)))


def span_before(buckets: Sequence[Bucket], began: float) -> Span:
    """The buckets before a migration with which it is compared."""
    first = bucket_of(began)
    return Span(max(buckets[0].number, first - round(BEFORE_SECONDS / BUCKET_SECONDS)), first - 1)


def within(buckets: Sequence[Bucket], span: Span) -> list[Bucket]:
    first, end = (bisect_left(buckets, number, key=_number) for number in (span.first, span.last + 1))
    return list(buckets[first:end])


def _number(bucket: Bucket) -> int:
    return bucket.number


def rate(buckets: Sequence[Bucket], span: Span) -> float:
    """Tuples per second."""
    return sum(bucket.tuples for bucket in within(buckets, span)) / span.seconds if span.seconds else 0.0


def longest_gap(buckets: Sequence[Bucket], span: Span, until: int | None = None) -> float | None:
    """Seconds between two buckets with tuples, of which some lie in the span. A gap that has not ended counts up to the bucket
    `until`. None if there is no gap to speak of."""
    numbers = [bucket.number for bucket in buckets]
    if until is not None and numbers and until > numbers[-1]:
        numbers.append(until)
    gaps = [later - earlier for earlier, later in pairwise(numbers) if earlier <= span.last and later >= span.first]
    return max(gaps) * BUCKET_SECONDS if gaps else None


def usual_gap(buckets: Sequence[Bucket], before: Span, during: Span) -> float | None:
    """The longest gap in as much time as the migration took, before it: the median of several such slices."""
    earlier = within(buckets, before)
    length = max(USUAL_BUCKETS, during.last - during.first + 1)
    slices = [Span(last - length + 1, last) for last in range(before.last, before.first + length - 2, -length)]
    gaps = [gap for span in slices or [before] if (gap := longest_gap(earlier, span)) is not None]
    return median(gaps) if gaps else None


def degraded(buckets: Sequence[Bucket], span: Span, usually: float, usual: float | None) -> dict[int, float]:
    """Level -> seconds in which so many percent of the usual rate were missing. A slice is no shorter than the usual gap:
    that is not a loss."""
    length = max(SLICE_BUCKETS, round((usual or 0.0) / BUCKET_SECONDS))
    slices = [Span(first, first + length - 1) for first in range(span.first, span.last - length + 2, length)]
    missing = [1 - rate(buckets, each) / usually for each in slices]
    below = {level: sum(share >= level / 100 - ROUNDING for share in missing) for level in LEVELS}
    return {level: round(slices_below * length * BUCKET_SECONDS, 3) for level, slices_below in below.items()}


def mean_latency(buckets: Sequence[Bucket], span: Span) -> float | None:
    seen = within(buckets, span)
    tuples = sum(bucket.tuples for bucket in seen)
    return sum(bucket.seconds for bucket in seen) / tuples if tuples else None


def worst_latency(buckets: Sequence[Bucket], span: Span) -> float | None:
    return max((bucket.worst for bucket in within(buckets, span)), default=None)


def timeline(buckets: Sequence[Bucket], began: float, ended: float) -> list[tuple[float, float, float | None]]:
    """(milliseconds since the beginning, tuples per second, mean latency in milliseconds), from some time before the migration
    to some time after it."""
    if not buckets:
        return []
    margin = max(AFTER_SECONDS, min(BEFORE_SECONDS, ended - began))
    span = Span(max(buckets[0].number, bucket_of(began - margin)), bucket_of(ended + AFTER_SECONDS))
    width = max(1, -(-(span.last - span.first + 1) // POINTS))
    points: list[tuple[float, float, float | None]] = []
    for first in range(span.first, span.last + 1, width):
        slot = Span(first, min(first + width - 1, span.last))
        points.append((round((first * BUCKET_SECONDS - began) * 1000, 1), round(rate(buckets, slot), 1),
                       in_ms(mean_latency(buckets, slot))))
    return points
