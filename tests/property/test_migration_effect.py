"""The figures of a migration, compared with those of a plain list of counts, one for each bucket."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.migrations import (
    BUCKET_SECONDS,
    LEVELS,
    ROUNDING,
    SLICE_BUCKETS,
    USUAL_BUCKETS,
    Bucket,
    Flow,
    Migration,
    Span,
    degraded,
    effect_of,
    longest_gap,
    mean_latency,
    rate,
    timeline,
    usual_gap,
    worst_latency,
)
from millrace.master.load.migration_log import MigrationLog, SinkBuckets, WorkerClocks
from millrace.runtime.meters import TopologyMeters
from millrace.runtime.wire import messages as wire

counts = st.lists(st.integers(0, 3), min_size=1, max_size=120)
FIRST = 1000  # number of the first bucket


def of(tuples: list[int]) -> list[Bucket]:
    """Buckets of these counts; every tuple has the latency of its bucket's position in seconds."""
    return [Bucket(FIRST + at, count, count * float(at), float(at)) for at, count in enumerate(tuples) if count]


def span(tuples: list[int], order: Random) -> tuple[int, int]:
    first, last = sorted(order.choices(range(len(tuples)), k=2))
    return first, last


def gap_in(tuples: list[int], first: int, last: int) -> int | None:
    """The largest distance of two neighbours with tuples, if it touches the span."""
    full = [at for at, count in enumerate(tuples) if count]
    distances = [later - earlier for earlier, later in pairwise(full) if not (later < first or earlier > last)]
    return max(distances, default=None)


def ms(buckets: float) -> float:
    return pytest.approx(buckets * BUCKET_SECONDS)


@given(counts, st.randoms(use_true_random=False))
def test_the_longest_gap(tuples: list[int], order: Random) -> None:
    first, last = span(tuples, order)
    expected = gap_in(tuples, first, last)
    found = longest_gap(of(tuples), Span(FIRST + first, FIRST + last))
    assert found is None if expected is None else found == ms(expected)


@given(counts, st.integers(1, 50))
def test_a_gap_that_has_not_ended_counts_up_to_now(tuples: list[int], silent: int) -> None:
    tuples = [*tuples, 1]
    until = FIRST + len(tuples) - 1 + silent
    assert longest_gap(of(tuples), Span(until, until), until) == ms(silent)


@given(counts, st.randoms(use_true_random=False))
def test_rates_and_latencies(tuples: list[int], order: Random) -> None:
    first, last = span(tuples, order)
    found, part = Span(FIRST + first, FIRST + last), tuples[first:last + 1]
    assert rate(of(tuples), found) == pytest.approx(sum(part) / len(part) / BUCKET_SECONDS)
    latencies = [at + first for at, count in enumerate(part) for _ in range(count)]
    assert mean_latency(of(tuples), found) == (pytest.approx(sum(latencies) / len(latencies)) if latencies else None)
    assert worst_latency(of(tuples), found) == (max(latencies) if latencies else None)


@given(counts, st.integers(0, 60), st.floats(0.1, 100.0))
def test_degraded_seconds(tuples: list[int], usual: int, usually: float) -> None:
    length = max(SLICE_BUCKETS, usual)
    slices = [tuples[at:at + length] for at in range(0, len(tuples) - length + 1, length)]
    found = degraded(of(tuples), Span(FIRST, FIRST + len(tuples) - 1), usually, usual * BUCKET_SECONDS)
    for level in LEVELS:
        below = [part for part in slices if 1 - sum(part) / length / BUCKET_SECONDS / usually >= level / 100 - ROUNDING]
        assert found[level] == pytest.approx(len(below) * length * BUCKET_SECONDS, abs=1e-3)
    assert list(found.values()) == sorted(found.values(), reverse=True)


def test_an_even_stream_is_not_degraded_and_silence_is_all_of_it() -> None:
    whole = Span(FIRST, FIRST + 99)
    assert degraded(of([2] * 100), whole, 2 / BUCKET_SECONDS, BUCKET_SECONDS) == dict.fromkeys(LEVELS, 0.0)
    assert degraded([], whole, 2 / BUCKET_SECONDS, None) == dict.fromkeys(LEVELS, 5.0)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=150), st.integers(1, 40))
def test_the_usual_gap_is_the_median_of_slices_as_long_as_the_migration(tuples: list[int], during: int) -> None:
    length, slices = max(USUAL_BUCKETS, during), []
    end = len(tuples)
    while end - length >= 0:
        slices.append((end - length, end - 1))
        end -= length
    gaps = [gap for first, last in slices or [(0, len(tuples) - 1)] if (gap := gap_in(tuples, first, last)) is not None]
    buckets = [*of(tuples), Bucket(FIRST + len(tuples) + during, 5)]  # the migration's own gap is not a usual one
    begin = FIRST + len(tuples)
    found = usual_gap(buckets, Span(FIRST, begin - 1), Span(begin, begin + during - 1))
    assert found is None if not gaps else found == ms(median(gaps))


@given(counts, st.integers(0, 200), st.integers(0, 200))
def test_a_timeline_has_every_tuple_of_its_time(tuples: list[int], begins: int, length: int) -> None:
    buckets = of(tuples)
    began = (FIRST + begins) * BUCKET_SECONDS
    ended = began + length * BUCKET_SECONDS
    points = timeline(buckets, began, ended)
    shown = sum(rate * BUCKET_SECONDS for _, rate, _ in points)
    end = round((points[-1][0] / 1000 + began) / BUCKET_SECONDS) if points else FIRST
    start = round((points[0][0] / 1000 + began) / BUCKET_SECONDS) if points else FIRST
    assert shown == pytest.approx(sum(bucket.tuples for bucket in buckets if start <= bucket.number <= end), abs=0.5)


def test_nothing_is_known_of_a_topology_that_has_reported_nothing() -> None:
    effect = effect_of([], 10.0, 11.0, 12.0)
    assert effect.longest_gap_ms is effect.usual_gap_ms is effect.throughput_ratio is effect.peak_latency_ms is None
    assert effect.degraded_s == dict.fromkeys(LEVELS) and timeline([], 10.0, 11.0) == []


chunks = st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 2), st.integers(1, 9)), max_size=60)


@given(chunks, st.randoms(use_true_random=False))
def test_buckets_add_up_whatever_the_workers_and_reports(processed: list[tuple[float, int, int]], order: Random) -> None:
    """(time, worker, tuples) in order of time; each worker reports now and then."""
    log = SinkBuckets()
    meters = [TopologyMeters() for _ in range(3)]
    for now, worker, tuples in sorted(processed):
        meters[worker].sink_processed(now, tuples, 0.5)
        if order.random() < 0.3:
            log.take((worker, 1), wire.TopologyReport(1, meters[worker].take_buckets(), Flow()), now, 0.0)
    for worker, left in enumerate(meters):
        log.take((worker, 1), wire.TopologyReport(1, left.take_buckets(), Flow()), 10.0, 0.0)
    truth: dict[int, int] = {}
    for now, _, tuples in processed:
        truth[int(now / BUCKET_SECONDS)] = truth.get(int(now / BUCKET_SECONDS), 0) + tuples
    assert {bucket.number: bucket.tuples for bucket in log.buckets()} == truth
    assert all(bucket.seconds == pytest.approx(bucket.tuples * 0.5) and bucket.worst == 0.5 for bucket in log.buckets())


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.001, 2.0), min_size=1, max_size=30))
def test_the_clock_of_a_worker_is_known_as_well_as_its_fastest_report(ahead: float, delays: list[float]) -> None:
    clocks, fastest = WorkerClocks(), 2.0
    for number, delay in enumerate(delays):
        fastest = min(fastest, delay)
        at = 0.25 * number
        offset = clocks.offset(0, 7, at + ahead, at + delay)
        assert -ahead - 1e-6 <= offset <= -ahead + fastest + 1e-4 * (0.25 * number + 2) + 1e-6


def test_a_worker_that_joined_again_has_another_clock() -> None:
    clocks = WorkerClocks()
    assert clocks.offset(0, 1, 50.0, 100.0) == 50.0
    assert clocks.offset(0, 2, 10.0, 101.0) == 91.0


def test_flows_are_counted_between_two_times_and_over_restarts_of_workers() -> None:
    log = SinkBuckets()
    for at, worker, flow in ((1.0, (0, 1), (2, 0, 10)), (2.0, (1, 2), (1, 1, 0)), (3.0, (0, 1), (2, 0, 15)),
                             (4.0, (0, 3), (1, 0, 0))):
        log.take(worker, wire.TopologyReport(1, [], Flow(*flow)), at, 0.0)
    assert log.flow_between(0.0, 9.0) == Flow(4, 1, 15)
    assert log.flow_between(2.5, 9.0) == Flow(1, 0, 5)
    assert log.flow_between(0.0, 2.5) == Flow(3, 1, 10)
    assert log.flow_between(9.0, 12.0) == Flow()


def ended(began: float, switched: float | None, ended: float) -> Migration:
    return Migration("words", "handover", "person", "done", "", 1, 2, began, switched, ended, ())


@pytest.mark.parametrize(("migrations", "replayed"), [
    ([(10.0, 11.0, 12.0)], [0b111]),  # and not what was replayed at 20 and later
    ([(10.0, 11.0, 12.0), (12.0, 12.5, 12.8)], [0b011, 0b100]),
    ([(10.0, 11.0, 12.0), (12.0, 12.9, 21.0)], [0b111, 0b1000]),
    ([(10.0, 11.0, 12.0), (12.0, None, 12.5)], [0b011, 0b100]),  # cancelled
    ([(10.0, 11.0, 12.0), (10.0, 11.0, 13.0)], [0b001, 0b110]),  # of one batch
    ([(10.0, 11.0, 12.0), (14.0, 15.0, 19.9)], [0b111, 0b1000]),
    ([(10.0, 11.0, 12.0), (30.0, 31.0, 32.0)], [0b111, 0]),
])
def test_a_migration_is_not_charged_with_what_happens_after_it(migrations: list[tuple[float, float | None, float]],
                                                              replayed: list[int]) -> None:
    """Of each time one bit: nothing is missed, or counted twice."""
    log, counter = MigrationLog(), 0
    waiting = [ended(*times) for times in migrations]
    for at, bit in ((11.5, 0b001), (12.2, 0b010), (12.7, 0b100), (20.0, 0b1000), (40.0, 0b10000)):
        while waiting and waiting[0].ended < at:
            log.settle(waiting[0].ended)
            log.add(waiting.pop(0), at, at)
        counter += bit
        flow = wire.TopologyReport(3, [], Flow(0, 0, counter))
        log.take(wire.Report(0, 1, 1, at, [], [], [], [], [], {}, topologies=[flow]), {3: "words"}, at)
    assert [row["replayed"] for row in log.past()] == replayed


def test_a_report_is_for_running_topologies_only() -> None:
    log = MigrationLog()
    report = wire.Report(0, 1, 1, 5.0, [], [], [], [], [], {}, topologies=[wire.TopologyReport(4, [Bucket(1, 1)], Flow())])
    log.take(report, {3: "other"}, 5.0)
    assert log.past() == []
