"""The metrics that the paper on DSM, DCR and CCR defines for a migration, from the buckets of the sinks.

A sink counts chunks, in buckets of `BUCKET_SECONDS`: a time is known to half a bucket. A tuple that leaves in the bucket in
which tasks begin to end counts as one from before that, unless it was restored with them or read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil, inf

from millrace.control.migrations import (
    BUCKET_SECONDS,
    Bucket,
    Migration,
    Span,
    bucket_of,
    in_ms,
    rate,
    span_before,
    usual_gap,
    within,
)

STABLE_SECONDS = 60.0  # that the output rate must stay near the rate before
TOLERANCE = 0.2 + 1e-9  # share of the rate before by which it may differ; with what rounding adds
SLICE_SECONDS = 1.0  # least length of the slices of that time in which the rate is measured: a stream of 8 tuples/s may come
# one by one before a migration and two by two after it, and in half a second that would look like another rate
SLICES = 60  # into which that time is divided, unless they would be too short
SLICE_TUPLES = 10  # least number of tuples in each: one more or less is no change of the rate
SLICE_GAPS = 10  # the same for usual gaps in the output


@dataclass(frozen=True, slots=True)
class Metrics:
    """Times in milliseconds, all but that of the rebalance since the request. None: the strategy has no such phase, there was
    no such tuple, or it is not known yet.

    drain      until tasks began to end, if spouts waited before that
    rebalance  from when tasks began to end until all had started again; they may not have restored their state yet
    restore    until the first tuple left a sink after tasks had begun to end, or after all had gone back to a wave
    catchup    until the last tuple had left a sink that had entered before the request
    recovery   until the last tuple had left a sink that was replayed
    stabilise  until the output rate was near the rate before, and stayed there for some time and until all was over
    """

    drain_ms: float | None = None
    rebalance_ms: float | None = None
    restore_ms: float | None = None
    catchup_ms: float | None = None
    recovery_ms: float | None = None
    stabilise_ms: float | None = None


def metrics_of(migration: Migration, buckets: Sequence[Bucket], until: float,
               stable_seconds: float = STABLE_SECONDS) -> Metrics:
    """The metrics of a migration. `buckets`: in order, without empty ones. `until`: the time up to which they are complete."""
    began, ends = migration.began, migration.rebalanced
    after = within(buckets, Span(bucket_of(began), bucket_of(until)))
    return Metrics(
        in_ms(ends[0] - began) if ends is not None and migration.waits else None,
        in_ms(ends[1] - ends[0]) if ends is not None else None,
        _ms_until(_first_after(after, migration.went_back or ends[0]), began) if ends is not None else None,
        _ms_until(_last_old(after, migration), began),
        _ms_until(next((bucket.number for bucket in reversed(after) if bucket.replayed), None), began),
        _ms_stable(buckets, migration, until, stable_seconds))


def _ms_until(bucket: int | None, began: float) -> float | None:
    return None if bucket is None else in_ms(max(0.0, (bucket + 0.5) * BUCKET_SECONDS - began))


def _first_after(buckets: Sequence[Bucket], time: float) -> int | None:
    return next((bucket.number for bucket in buckets if _is_after(bucket, time)), None)


def _is_after(bucket: Bucket, time: float) -> bool:
    """True if tuples of the bucket have left after that time, at which tasks began to end or went back."""
    return bucket.number > bucket_of(time) or (bucket.number == bucket_of(time)
                                               and (bucket.rewound > 0 or bucket.entered == -inf))


def _last_old(after: Sequence[Bucket], migration: Migration) -> int | None:
    """The last bucket with a tuple from before the request; None if tasks began to end only after it. What spouts read again
    had entered before, unless they go back to a wave of the migration's own, which may have begun with the request: the time at
    which it was first sent is known to a bucket only."""
    def is_old(bucket: Bucket) -> bool:
        unsure = BUCKET_SECONDS if migration.checkpoints and bucket.replayed else 0.0
        return bucket.entered < migration.began - unsure or (bucket.rewound > 0 and not migration.checkpoints)

    last = next((bucket for bucket in reversed(after) if is_old(bucket)), None)
    if last is None or (migration.rebalanced is not None and not _is_after(last, migration.rebalanced[0])):
        return None
    return last.number


def _ms_stable(buckets: Sequence[Bucket], migration: Migration, until: float, seconds: float) -> float | None:
    if not buckets:
        return None
    began = migration.began
    before = span_before(buckets, began)
    expected = rate(buckets, before)
    if not expected:
        return None
    window = max(1, round(seconds / BUCKET_SECONDS))
    usual = usual_gap(buckets, before, Span(before.last + 1, before.last + 1)) or 0.0
    length = max(SLICE_SECONDS, seconds / SLICES, SLICE_TUPLES / expected, SLICE_GAPS * usual) / BUCKET_SECONDS
    first = stable_from(buckets, Span(bucket_of(began), bucket_of(until) - 1), expected, window, min(window, ceil(length)),
                        bucket_of(migration.ended))
    return None if first is None else in_ms(max(0.0, first * BUCKET_SECONDS - began))


def stable_from(buckets: Sequence[Bucket], span: Span, expected: float, window: int, length: int, least: int) -> int | None:
    """The first bucket of the span from which on the rate of every slice of this length is near the expected one: for `window`
    buckets, and at least until the bucket `least`. None if there is none."""
    tuples = dict.fromkeys(range(span.first, span.last + 1), 0)
    tuples.update((bucket.number, bucket.tuples) for bucket in within(buckets, span))
    sums = list(accumulate(tuples.values(), initial=0))
    near = 0  # slices in a row
    for at in range(len(sums) - length):
        off = abs((sums[at + length] - sums[at]) / (length * BUCKET_SECONDS) / expected - 1)
        near = near + 1 if off <= TOLERANCE else 0
        if near > window - length and span.first + at + length > least:
            return span.first + at - near + 1
    return None
