"""Corrections of the queueing model: learned from what was measured, bounded, and shown with the error."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.elastic.comparison import compared_latency
from millrace.elastic.correction import LEAST_FACTOR, MOST_FACTOR, MOST_WHOLE, Corrections
from millrace.elastic.network import Network, Station

SERVICE = 0.01


def network(offered: float, tasks: int = 1) -> Network:
    """A spout that is not modelled, and a bolt of 100 tuples/s per task."""
    return Network((Station("a", 1), Station("b", tasks, 1 / SERVICE)), {("a", "b"): 1.0}, {"a": offered})


def learned(true_overhead: float, true_factor: float, rates: list[float]) -> Network:
    corrections = Corrections()
    for rate in rates:
        plain = network(rate)
        time = SERVICE + true_overhead + true_factor * plain.stations[1].wait(rate, 1)
        corrections.learn(plain, {"b": time}, None)
    return corrections.applied(network(rates[-1]))


def test_nothing_is_corrected_at_first() -> None:
    assert Corrections().applied(network(50)) == network(50)


def test_overhead_and_factor_are_told_apart() -> None:
    """At different loads; 5 ms beside, and a queue twice as long as the model says."""
    station = learned(0.005, 2.0, [20, 80, 50, 70, 30, 85, 60, 40] * 3).stations[1]
    assert station.overhead == pytest.approx(0.005, rel=0.1) and station.factor == pytest.approx(2.0, rel=0.1)


def test_at_a_low_utilization_it_is_overhead() -> None:
    """More tasks would not help, and a higher load must not look 50 times worse."""
    station = learned(0.005, 1.0, [1.0] * 10).stations[1]
    assert station.overhead == pytest.approx(0.005, rel=0.05) and station.factor == pytest.approx(1.0, abs=0.1)


def test_at_a_high_utilization_it_is_the_factor() -> None:
    station = learned(0.0, 0.5, [90.0] * 10).stations[1]
    assert station.overhead == pytest.approx(0.0, abs=0.001) and station.factor == pytest.approx(0.5, abs=0.05)


def test_nothing_is_learned_from_tasks_that_cannot_keep_up() -> None:
    corrections = Corrections()
    corrections.learn(network(99), {"b": 5.0}, 5.0)
    assert corrections.applied(network(50)) == network(50)


@given(st.lists(st.tuples(st.floats(0.1, 95), st.floats(0, 10)), min_size=1, max_size=30))
def test_corrections_have_bounds(windows: list[tuple[float, float]]) -> None:
    corrections = Corrections()
    for rate, time in windows:
        corrections.learn(network(rate), {"b": time}, time)
    found = corrections.applied(network(50))
    assert LEAST_FACTOR <= found.stations[1].factor <= MOST_FACTOR
    assert 0 <= found.stations[1].overhead <= max(time for _, time in windows)
    assert 0 < found.factor <= MOST_WHOLE
    assert math.isfinite(found.latency(found.present))


def test_the_whole_topology_has_a_factor_for_tuples_side_by_side() -> None:
    """Ten words of a line are counted side by side, and E[T] adds them up."""
    plain = Network((Station("a", 1), Station("b", 20, 100.0)), {("a", "b"): 10.0}, {"a": 50.0})
    corrections = Corrections()
    corrections.learn(plain, {"b": 0.01}, 0.012)
    corrected = corrections.applied(plain)
    assert corrected.factor == pytest.approx(0.12, rel=0.02)
    assert corrected.latency(plain.present) == pytest.approx(0.012, rel=0.02)


def test_predicted_against_measured() -> None:
    """The model alone, the prediction with the corrections known before, and its error."""
    plain, corrections = network(50), Corrections()
    first = compared_latency(corrections.applied(plain), {"b": 0.03}, 0.036)
    assert first.offered_rate == 50 and first.model_ms == first.predicted_ms == pytest.approx(20.0)
    assert first.error == pytest.approx((20 - 36) / 36)
    assert first.components[0].service_rate is None and first.components[0].measured_ms is None
    component = first.components[1]
    assert (component.component, component.tasks, component.arrival_rate, component.utilization) == ("b", 1, 50, 0.5)
    assert component.error == pytest.approx((20 - 30) / 30)
    for _ in range(20):
        corrections.learn(plain, {"b": 0.03}, 0.036)
    then = compared_latency(corrections.applied(plain), {"b": 0.03}, 0.036)
    assert then.model_ms == pytest.approx(20.0) and then.predicted_ms == pytest.approx(36, rel=0.02)
    assert then.components[1].predicted_ms == pytest.approx(30, rel=0.02)
    assert then.error == pytest.approx(0, abs=0.02) and then.to_json()["components"][1]["component"] == "b"


def test_no_latency_is_predicted_for_tasks_that_cannot_keep_up_or_have_nothing_to_do() -> None:
    late = compared_latency(network(100), {"b": 1.0}, None)
    assert (late.predicted_ms, late.measured_ms, late.error) == (None, None, None)
    assert (late.components[1].predicted_ms, late.components[1].measured_ms) == (None, 1000.0)
    assert compared_latency(network(0), {}, None).predicted_ms is None
