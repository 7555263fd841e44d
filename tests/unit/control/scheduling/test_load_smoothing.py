"""Estimators on loads small enough to be worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from millrace.control.scheduling.load_smoothing import (
    ESTIMATORS,
    Estimator,
    Ewma,
    Last,
    TrimmedMean,
    estimator_class,
    make_estimator,
)
from millrace.errors import BadParameter, TopologyError, UnknownName
from millrace.model.graph import TaskId
from millrace.model.load import Latency, Load, TaskLoad

A, B, C = TaskId("a", 0), TaskId("b", 0), TaskId("b", 1)
FULL = Load(10.0, {
    A: TaskLoad(emitted=100, transferred=200, acked=90, failed=10, complete_latency_ms=Latency(1.0, 2.0), cpu_seconds=4.0,
                busy_seconds=2.0, cpu_mhz=800.0, memory_mb=64.0),
    B: TaskLoad(executed=100, queue_length=7, queue_floor=3, busy_seconds=5.0, cpu_mhz=400.0),
}, {(A, B): 100.0}, (B,), {"b": (60.0, 40.0)})


def load(mhz: float = 0.0, tuples: float | None = None, seconds: float = 10.0, settling: tuple[TaskId, ...] = (),
         **measured: float) -> Load:
    """Two tasks, A and B; B has the numbers."""
    return Load(seconds, {A: TaskLoad(), B: TaskLoad(cpu_mhz=mhz, **measured)},  # type: ignore[arg-type]
                {} if tuples is None else {(A, B): tuples}, settling)


def mhz_of(estimator: Estimator, *samples: Load) -> list[float]:
    return [estimator.add(sample).tasks[B].cpu_mhz for sample in samples]


def traffic_of(estimator: Estimator, *samples: Load) -> list[float]:
    return [estimator.add(sample).traffic.get((A, B), 0.0) for sample in samples]


# -- all --


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_first_sample_is_taken_as_it_is(name: str) -> None:
    assert make_estimator(name).fresh().add(FULL) == FULL


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_topology_has_an_estimator_of_its_own(name: str) -> None:
    parameters = make_estimator(name)
    parameters.fresh().add(load(mhz=100))
    assert mhz_of(parameters.fresh(), load(mhz=300)) == [300]


def test_last_is_the_newest_sample() -> None:
    estimator = Last().fresh()
    assert [estimator.add(sample) for sample in (FULL, Load())] == [FULL, Load()]


def groups_of(estimator: Estimator, *counts: tuple[float, ...]) -> list[tuple[float, ...]]:
    """Return the key-group estimates after ten-second windows, in all of which B is settling."""
    return [estimator.add(Load(10.0, {B: TaskLoad()}, {}, (B,), {"b": each})).key_groups["b"] for each in counts]


def test_key_groups_are_smoothed_even_while_a_task_settles() -> None:
    assert groups_of(Ewma(0.5).fresh(), (100.0, 0.0), (0.0, 50.0)) == [(100.0, 0.0), (50.0, 25.0)]
    assert groups_of(TrimmedMean(3).fresh(), (10.0,), (20.0,), (900.0,)) == [(10.0,), (15.0,), (20.0,)]


def test_key_groups_missing_from_the_load_are_dropped() -> None:
    for parameters in (Ewma(), TrimmedMean()):
        estimator = parameters.fresh()
        estimator.add(Load(10.0, {}, {}, (), {"b": (1.0,)}))
        assert estimator.add(Load(10.0)).key_groups == {}


def test_a_broken_count_of_a_key_group_is_nothing() -> None:
    for parameters in (Ewma(), TrimmedMean()):
        assert groups_of(parameters.fresh(), (math.nan, -5.0, 7.0)) == [(0.0, 0.0, 7.0)]


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_queues_and_latencies_are_the_newest(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    estimator.add(load(queue_length=100, queue_floor=50, executed=10))
    newest = Load(10.0, {A: TaskLoad(lag=7), B: TaskLoad(queue_length=1, process_latency_ms=Latency(3.0, 4.0))}, {}, (A,))
    estimate = estimator.add(newest)
    assert (estimate.tasks[A].lag, estimate.tasks[B].lag) == (7, None)
    assert (estimate.tasks[B].queue_length, estimate.tasks[B].queue_floor) == (1, 0)
    assert estimate.tasks[B].process_latency_ms == Latency(3.0, 4.0)
    assert estimate.tasks[B].executed == 5 and estimate.settling == (A,)


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_what_sources_offered_and_time_without_credit_or_for_routing_are_smoothed(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    estimator.add(Load(10.0, {A: TaskLoad(offered=100, blocked_seconds=4.0, routing_seconds=2.0)}))
    task = estimator.add(Load(5.0, {A: TaskLoad(offered=100, blocked_seconds=0.0)})).tasks[A]
    assert (task.offered, task.blocked_seconds, task.routing_seconds) == (75, 1.0, 0.5)


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_nan_counts_as_zero(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    estimator.add(load(mhz=math.nan, tuples=math.inf, busy_seconds=-math.inf, memory_mb=-3.0))
    estimate = estimator.add(load(mhz=100, tuples=10, busy_seconds=2.0, memory_mb=2.0))
    task = estimate.tasks[B]
    assert (task.cpu_mhz, task.busy_seconds, task.memory_mb, estimate.traffic) == (50, 1.0, 1.0, {(A, B): 5})


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_a_window_without_a_length_changes_nothing(parameters: Ewma | TrimmedMean, seconds: float) -> None:
    estimator = parameters.fresh()
    assert estimator.add(load(mhz=5, seconds=seconds)) == Load()
    before = estimator.add(load(mhz=100))
    assert estimator.add(load(mhz=900, seconds=seconds)) == before


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_windows_of_different_length_count_by_their_rates(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    estimator.add(load(mhz=100, tuples=100, seconds=10, executed=100, busy_seconds=4.0))  # 10 a second, 40 % busy
    estimate = estimator.add(load(mhz=300, tuples=600, seconds=20, executed=600, busy_seconds=16.0))  # 30 a second, 80 %
    assert estimate.window_seconds == 20
    assert estimate.tasks[B].cpu_mhz == 200 and estimate.tasks[B].executed == 400
    assert estimate.tasks[B].busy_seconds == pytest.approx(12.0) and estimate.capacity(B) == pytest.approx(0.6)
    assert estimate.arrival_rate("b") == pytest.approx(20)


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_a_task_that_returns_starts_without_its_old_pairs(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    estimator.add(load(mhz=100, tuples=100))
    without = estimator.add(Load(10.0, {A: TaskLoad()}))
    assert set(without.tasks) == {A} and not without.traffic
    back = estimator.add(load(mhz=700, tuples=70))
    assert back.tasks[B].cpu_mhz == 700 and back.traffic == {(A, B): 70}


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_while_a_task_settles_its_estimate_holds(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    settling = load(mhz=10, tuples=4, executed=4, settling=(B,))
    estimator.add(load(mhz=200, tuples=100, executed=100))
    estimate = estimator.add(settling)
    assert estimate.tasks[B].cpu_mhz == 200 and estimate.tasks[B].executed == 100 and estimate.traffic == {(A, B): 100}
    estimate = estimator.add(load(mhz=400, tuples=300, executed=300))
    assert estimate.tasks[B].cpu_mhz == 300 and estimate.tasks[B].executed == 200 and estimate.traffic == {(A, B): 200}


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_a_whole_window_replaces_the_part_that_a_new_task_began_with(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    part, whole = load(mhz=10, tuples=4, settling=(B,)), load(mhz=400, tuples=300)
    assert estimator.add(part) == part
    assert estimator.add(whole) == whole


@pytest.mark.parametrize("parameters", [Ewma(), TrimmedMean()])
def test_traffic_with_a_task_that_was_not_measured_is_taken_as_it_is(parameters: Ewma | TrimmedMean) -> None:
    estimator = parameters.fresh()
    for tuples in (10.0, 20.0):
        estimate = estimator.add(Load(10.0, {A: TaskLoad()}, {(A, C): tuples}))
        assert estimate.traffic == {(A, C): tuples}
    assert not estimator.add(Load(10.0, {A: TaskLoad()})).traffic


# -- ewma --


def test_ewma_by_hand() -> None:
    assert mhz_of(Ewma().fresh(), load(100), load(300), load(0)) == [100, 200, 100]
    assert mhz_of(Ewma(a=0.75).fresh(), load(100), load(300), load(0)) == [100, 150, 112.5]
    assert mhz_of(Ewma(a=0).fresh(), load(100), load(300), load(0)) == [100, 300, 0]


def test_ewma_a_pair_that_fell_silent_fades_and_vanishes() -> None:
    estimator = Ewma().fresh()
    assert traffic_of(estimator, load(tuples=80), load(), load(), load(tuples=30)) == [80, 40, 20, 25]
    for _ in range(24):
        estimate = estimator.add(load(mhz=1))
    assert estimate.traffic == {}


def test_ewma_what_is_small_and_steady_stays() -> None:
    assert traffic_of(Ewma().fresh(), *[load(tuples=1e-9)] * 3) == [1e-9] * 3


def test_ewma_a_pair_that_begins_to_talk_comes_from_silence() -> None:
    assert traffic_of(Ewma().fresh(), load(), load(tuples=80), load(tuples=80)) == [0, 40, 60]


# -- trimmed mean --


def test_trimmed_mean_by_hand() -> None:
    samples = [load(mhz) for mhz in (10, 30, 20, 100, 40, 50, 60)]
    # (10), (10 + 30) / 2, 20, (20 + 30) / 2, (20 + 30 + 40) / 3, then the last five: 30 20 100 40 50 and 20 100 40 50 60
    assert mhz_of(TrimmedMean().fresh(), *samples) == [10, 20, 20, 25, 30, 40, 50]
    assert mhz_of(TrimmedMean(window=1).fresh(), *samples) == [10, 30, 20, 100, 40, 50, 60]


def test_trimmed_mean_counts_silence_between_two_tasks() -> None:
    samples = [load(), load(), load(tuples=90), load(tuples=60), load(tuples=30), load(), load(), load(), load()]
    assert traffic_of(TrimmedMean().fresh(), *samples) == [0, 0, 0, 30, 30, 30, 30, 10, 0]


def test_trimmed_mean_every_value_is_trimmed_by_itself() -> None:
    estimator = TrimmedMean(window=3).fresh()
    for mhz, memory in ((1, 30), (2, 10)):
        estimator.add(load(mhz, memory_mb=memory))
    estimate = estimator.add(load(3, memory_mb=20)).tasks[B]
    assert (estimate.cpu_mhz, estimate.memory_mb) == (2, 20)


# -- by name --


@dataclass(frozen=True)
class Largest:
    """A user-defined estimator."""

    factor: float = 1.0

    def fresh(self) -> Estimator:
        return Last().fresh()


class Broken:
    def __init__(self) -> None:
        raise RuntimeError("no such luck")

    def fresh(self) -> Estimator:
        return Last().fresh()


def test_estimators_are_made_by_name() -> None:
    assert make_estimator("ewma", {"a": 0.25}) == Ewma(0.25)
    assert make_estimator("trimmed-mean", {"window": 7.0}) == TrimmedMean(7)
    assert make_estimator("last") == Last()
    assert make_estimator(f"{__name__}:Largest", {"factor": 2.0}) == Largest(2.0)


@pytest.mark.parametrize(("name", "parameters", "message"), [
    ("ewma", {"alpha": 0.5}, "estimator 'ewma' has no parameter 'alpha'; it has a"),
    ("ewma", {"a": 1.0}, "from 0 to below 1"),
    ("ewma", {"a": -0.1}, "ewma: a = -0.1 is out of range"),
    ("ewma", {"a": math.nan}, "finite"),
    ("trimmed-mean", {"window": 0}, "window = 0 is out of range"),
    ("trimmed-mean", {"window": 2.5}, "whole number"),
    ("last", {"window": 3}, "it has none"),
    (f"{__name__}:Broken", {}, "RuntimeError: no such luck"),
])
def test_bad_parameters(name: str, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        make_estimator(name, parameters)


def test_unknown_names() -> None:
    with pytest.raises(UnknownName, match="there is no estimator named 'median'; there are ewma, trimmed-mean, last"):
        estimator_class("median")
    with pytest.raises(UnknownName, match="is not a class with a method fresh"):
        estimator_class("millrace.model.load:Load")
    with pytest.raises(TopologyError, match="cannot import module"):
        estimator_class("no_such_module:Thing")
