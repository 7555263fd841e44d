"""The metrics of a migration, compared with those of a plain list of the tuples that have left the sinks."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.migration_metrics import metrics_of, stable_from
from millrace.control.migrations import BUCKET_SECONDS, Bucket, Flow, Migration, Span
from millrace.master.load.migration_log import SinkBuckets
from millrace.runtime.meters import RESTORED, REWOUND, TopologyMeters
from millrace.runtime.wire import messages as wire

BEGAN, SWITCHED, ENDED, UNTIL = 100.0, 101.0, 102.0, 120.0
STEPS = (("hold", 0.0), ("checkpoint", 1.0), ("replace", 1.0))
HALF_MS = BUCKET_SECONDS * 500 + 0.1  # to which a time is known, and its rounding


class Left(NamedTuple):
    """A tuple that has left a sink. `replayed`: how it was sent the last time; `entered`: when it was sent the first time."""

    time: float
    latency: float
    entered: float
    replayed: str  # "", "acks", "rewound" or "restored"


def migration(rebalanced: bool, drains: bool) -> Migration:
    return Migration("words", "dcr", "person", "done", "", 1, 2, BEGAN, SWITCHED, ENDED, (),
                     steps=STEPS if drains else STEPS[2:], rebalanced=(SWITCHED, ENDED) if rebalanced else None)


@st.composite
def tuples(draw: st.DrawFn) -> Left:
    time, latency = draw(st.floats(90.0, 119.9)), draw(st.floats(0.0, 3.0))
    replayed = draw(st.sampled_from(["", "", "", "acks", "rewound", "restored"]))
    sent = time - latency
    entered = {"": sent, "acks": sent - draw(st.floats(0.1, 20.0)), "rewound": sent, "restored": -inf}[replayed]
    return Left(time, latency, entered, replayed)


def counted(left: list[Left], workers: int = 2) -> list[Bucket]:
    """The buckets of these tuples, counted by several workers in turn."""
    log, meters = SinkBuckets(), [TopologyMeters() for _ in range(workers)]
    for number, each in enumerate(sorted(left)):
        origin = {"": 0.0, "acks": each.entered, "rewound": REWOUND, "restored": RESTORED}[each.replayed]
        meters[number % workers].sink_processed(each.time, 1, each.latency, origin)
    for worker, counts in enumerate(meters):
        log.take((worker, 1), wire.TopologyReport(1, counts.take_buckets(), Flow()), UNTIL, 0.0)
    return log.buckets()


def clear_of(left: list[Left], *times: float) -> list[Left]:
    """Those that did not leave in the same bucket as one of these times, before or after which they count."""
    return [each for each in left if not any(int(each.time / BUCKET_SECONDS) == int(time / BUCKET_SECONDS) for time in times)]


def ms_since(times: list[float], choose: object = max) -> object:
    chosen = choose(times, default=None)  # type: ignore[operator]
    return None if chosen is None else pytest.approx((chosen - BEGAN) * 1000, abs=HALF_MS)


@given(st.lists(tuples(), max_size=60), st.booleans(), st.booleans())
def test_restore_catch_up_and_recovery(left: list[Left], rebalanced: bool, drains: bool) -> None:
    left = [each for each in clear_of(left, BEGAN, SWITCHED) if not 0 <= BEGAN - each.entered <= BUCKET_SECONDS]
    found = metrics_of(migration(rebalanced, drains), counted(left), UNTIL)
    after = [each for each in left if each.time >= BEGAN]
    assert found.restore_ms == (ms_since([each.time for each in after if each.time > SWITCHED], min) if rebalanced else None)
    rewound_are_old = not (rebalanced and drains)
    old = [each.time for each in after if each.entered < BEGAN or (each.replayed == "rewound" and rewound_are_old)]
    assert found.catchup_ms == (None if rebalanced and max(old, default=0.0) < SWITCHED else ms_since(old))
    assert found.recovery_ms == ms_since([each.time for each in after if each.replayed in ("acks", "rewound")])


def test_the_phases_are_those_of_the_strategy() -> None:
    def phases(rebalanced: bool, drains: bool) -> tuple[float | None, float | None]:
        found = metrics_of(migration(rebalanced, drains), [], UNTIL)
        assert found.restore_ms is found.catchup_ms is found.recovery_ms is found.stabilise_ms is None
        return found.drain_ms, found.rebalance_ms

    assert phases(True, True) == (1000.0, 1000.0)
    assert phases(True, False) == (None, 1000.0), "no wave was awaited"
    assert phases(False, True) == (None, None), "no task has ended"


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.integers(1, 40), st.integers(1, 10),
       st.sampled_from([20.0, 40.0]), st.integers(0, 60))
def test_the_first_window_in_which_every_slice_is_near_the_expected_rate(counts: list[int], window: int, length: int,
                                                                         expected: float, least: int) -> None:
    length = min(length, window)

    def near(at: int) -> bool:
        return abs(sum(counts[at:at + length]) / (length * BUCKET_SECONDS) - expected) <= 0.2 * expected + 1e-7

    stable = [at for at in range(len(counts)) if (end := max(at + window, least + 1)) <= len(counts)
              and at + length <= end and all(near(start) for start in range(at, end - length + 1))]
    buckets = [Bucket(500 + at, count) for at, count in enumerate(counts) if count]
    found = stable_from(buckets, Span(500, 500 + len(counts) - 1), expected, window, length, 500 + least)
    assert found == (500 + stable[0] if stable else None)


@pytest.mark.parametrize(("silent", "surplus", "stable"), [
    (0, 0, 0.0),  # it was not disturbed at all
    (40, 0, 2500.0),
    (40, 40, 4500.0),  # twice as much while it catches up
])
def test_the_output_is_stable_again_after_a_standstill(silent: int, surplus: int, stable: float) -> None:
    """The standstill begins some time after the request: until then the output is what it was."""
    per_bucket = [5] * 210 + [0] * silent + [10] * surplus + [5] * 300
    first = int(BEGAN / BUCKET_SECONDS) - 200
    buckets = [Bucket(first + at, count) for at, count in enumerate(per_bucket) if count]
    until = (first + len(per_bucket)) * BUCKET_SECONDS
    for seconds in (3.0, 10.0):
        found = metrics_of(migration(True, False), buckets, until, seconds).stabilise_ms
        assert found is not None and abs(found - stable) <= 500, "a fifth of a slice may be silent"
    assert metrics_of(migration(True, False), buckets, until, 1000.0).stabilise_ms is None, "that has not passed yet"
    assert metrics_of(migration(True, False), buckets[200:], until, 10.0).stabilise_ms is None, "no rate is known before"


@given(st.lists(tuples(), max_size=30), st.floats(-50.0, 50.0))
def test_workers_with_other_clocks_tell_the_same(left: list[Left], ahead: float) -> None:
    ahead = round(ahead / BUCKET_SECONDS) * BUCKET_SECONDS
    meters, log = TopologyMeters(), SinkBuckets()
    for each in sorted(left):
        origin = {"": 0.0, "acks": each.entered + ahead, "rewound": REWOUND, "restored": RESTORED}[each.replayed]
        meters.sink_processed(each.time + ahead, 1, each.latency, origin)
    log.take((0, 1), wire.TopologyReport(1, meters.take_buckets(), Flow()), UNTIL + ahead, -ahead)
    entered = min((each.entered for each in left), default=inf)
    assert min((bucket.entered for bucket in log.buckets()), default=inf) == pytest.approx(entered)
    assert sum(bucket.replayed for bucket in log.buckets()) == sum(each.replayed in ("acks", "rewound") for each in left)
    assert sum(bucket.rewound for bucket in log.buckets()) == sum(each.replayed == "rewound" for each in left)


def test_a_stream_is_stable_whose_tuples_come_together_after_a_migration() -> None:
    """The rate is the same, although a short slice now has many tuples or few."""
    apart = [(number * 0.03125, 1) for number in range(320)]
    together = [(10.0 + number * 0.125 + (0.03 if number % 7 == 3 else 0.0), 4) for number in range(160)]
    first = int(BEGAN / BUCKET_SECONDS) - 200
    counts: dict[int, int] = {}
    for at, tuples in [*apart, *together]:
        number = first + int(at / BUCKET_SECONDS)
        counts[number] = counts.get(number, 0) + tuples
    buckets = [Bucket(number, count) for number, count in sorted(counts.items())]
    assert metrics_of(migration(True, False), buckets, UNTIL, 6.0).stabilise_ms == 0.0
