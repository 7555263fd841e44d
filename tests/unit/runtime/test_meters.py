"""Counters and latency histograms: recording, reporting and merging in the master."""

from __future__ import annotations

import msgspec
import pytest

from millrace.runtime.meters import COUNTERS, LATENCIES, SECONDS, LatencyHistogram, Meters


def recorded(*seconds: float) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for each in seconds:
        histogram.record(each)
    return histogram


def test_nothing_recorded_is_not_zero() -> None:
    histogram = LatencyHistogram()
    assert histogram.percentile_ms(50) is None and histogram.mean_ms() is None
    assert (histogram.count, histogram.take()) == (0, "")


@pytest.mark.parametrize("seconds", [0.000_05, 0.001, 0.25, 12.0, 3000.0])
def test_a_latency_is_kept_to_two_digits(seconds: float) -> None:
    assert recorded(seconds).percentile_ms(50) == pytest.approx(seconds * 1000, rel=0.01)


@pytest.mark.parametrize(("seconds", "shown_ms"), [(0.0, 0.001), (-1.0, 0.001), (1e9, 3_600_000)])
def test_values_out_of_range_are_clamped(seconds: float, shown_ms: float) -> None:
    """A clock set back, or a tuple that waited for days, must not lose other values."""
    assert recorded(seconds).percentile_ms(100) == pytest.approx(shown_ms, rel=0.01)


def test_the_percentiles_that_users_see() -> None:
    histogram = LatencyHistogram()
    assert histogram.percentiles_ms() is None
    for seconds, count in ((0.001, 600), (0.002, 350), (0.004, 45), (0.008, 4), (0.064, 1)):
        histogram.record(seconds, count)
    assert msgspec.to_builtins(histogram.percentiles_ms()) == pytest.approx(
        {"p50": 1.0, "p90": 2.0, "p99": 4.0, "p999": 8.0, "max": 64.0}, rel=0.01)


def test_a_chunk_counts_as_often_as_it_has_tuples() -> None:
    histogram = LatencyHistogram()
    histogram.record(0.001, 99)
    histogram.record(1.0, 1)
    assert histogram.count == 100
    assert histogram.percentile_ms(50) == pytest.approx(1.0, rel=0.01)
    assert histogram.mean_ms() == pytest.approx((99 * 1 + 1000) / 100, rel=0.01)
    assert histogram.percentile_ms(99.9) == pytest.approx(1000.0, rel=0.01)


def test_taking_empties_it() -> None:
    histogram = recorded(0.5)
    assert histogram.take() != ""
    assert (histogram.count, histogram.take()) == (0, "")
    histogram.record(0.001)
    assert histogram.percentile_ms(100) == pytest.approx(1.0, rel=0.01)


def test_taken_histograms_can_be_merged_elsewhere() -> None:
    total = LatencyHistogram()
    for histogram in (recorded(0.001, 0.002), LatencyHistogram(), recorded(1.0)):
        total.merge(histogram.take())
    assert total.count == 3
    assert total.percentile_ms(100) == pytest.approx(1000.0, rel=0.01)


def test_histograms_can_be_added() -> None:
    total = LatencyHistogram()
    total.add(LatencyHistogram())
    assert total.count == 0
    total.add(recorded(0.001))
    total.add(recorded(0.003, 0.002))
    assert total.count == 3


def test_a_report_has_every_meter_and_can_travel() -> None:
    meters = Meters()
    meters.emitted, meters.failed, meters.cpu_seconds = 7, 2, 0.5
    meters.complete_latency.record(0.25, 3)
    meters.hop("lines").inbox_latency.record(0.01)
    report = meters.report()
    assert {*COUNTERS, *SECONDS, *LATENCIES, "outbox_latency", "hops"} == set(report)
    assert (report["emitted"], report["failed"], report["executed"], report["cpu_seconds"]) == (7, 2, 0, 0.5)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(report)) == report


def test_counters_only_rise_and_latencies_are_since_the_last_report() -> None:
    meters = Meters()
    meters.acked += 5
    meters.execute_latency.record(0.1)
    assert (meters.report()["acked"], meters.report()["acked"]) == (5, 5)
    meters.execute_latency.record(0.1)
    assert meters.report()["execute_latency"] != ""
    assert meters.report()["execute_latency"] == ""


def test_a_users_own_numbers_are_in_the_report_and_out_of_reach() -> None:
    meters = Meters()
    assert "custom" not in meters.report()
    meters.custom["behind"] = 3
    report = meters.report()
    meters.custom["behind"] = 4
    assert report["custom"] == {"behind": 3}
