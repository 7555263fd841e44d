"""Invariants of the estimators for any input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.scheduling.load_smoothing import COUNTERS, ESTIMATORS, LEVELS, SECONDS, Ewma, TrimmedMean, make_estimator
from millrace.model.graph import TaskId
from millrace.model.load import Load, TaskLoad

TASKS = [TaskId(component, index) for component in "ab" for index in range(2)]
amounts = st.floats(0, 1e9, allow_subnormal=False)
counts = st.integers(0, 10**9)
lengths = st.floats(0.01, 1000)
weights = st.floats(0, 1, exclude_max=True)


@st.composite
def task_loads(draw: st.DrawFn) -> TaskLoad:
    return TaskLoad(**{name: draw(counts) for name in COUNTERS}, queue_length=draw(counts),
                    **{name: draw(amounts) for name in SECONDS + LEVELS})


@st.composite
def loads(draw: st.DrawFn, settling: bool = True, seconds: st.SearchStrategy[float] = lengths) -> Load:
    present = draw(st.sets(st.sampled_from(TASKS)))
    pairs = st.tuples(st.sampled_from(TASKS), st.sampled_from(TASKS))
    return Load(draw(seconds), {task: draw(task_loads()) for task in present}, draw(st.dictionaries(pairs, amounts)),
                tuple(draw(st.sets(st.sampled_from(TASKS)))) if settling else (),
                traffic_bytes=draw(st.dictionaries(pairs, amounts)))


def values(load: Load) -> dict[object, float]:
    """Return all estimated values as rates."""
    rates: dict[object, float] = {pair: tuples / load.window_seconds for pair, tuples in load.traffic.items() if tuples}
    rates.update({("bytes", *pair): size / load.window_seconds for pair, size in load.traffic_bytes.items() if size})
    for task, measured in load.tasks.items():
        rates.update({(task, name): getattr(measured, name) / load.window_seconds for name in COUNTERS + SECONDS})
        rates.update({(task, name): getattr(measured, name) for name in LEVELS})
    return rates


estimators = st.one_of(st.builds(Ewma, a=weights), st.builds(TrimmedMean, window=st.integers(1, 7)))


@given(estimators, loads(settling=False), st.integers(1, 8))
def test_a_constant_gives_that_constant(parameters: Ewma | TrimmedMean, sample: Load, times: int) -> None:
    estimator = parameters.fresh()
    for _ in range(times):
        estimate = estimator.add(sample)
    assert values(estimate) == pytest.approx(values(sample))


@given(estimators, st.lists(loads(), min_size=1, max_size=8))
def test_an_estimate_lies_between_the_least_and_the_most_that_came_in(parameters: Ewma | TrimmedMean,
                                                                      samples: list[Load]) -> None:
    estimator = parameters.fresh()
    seen: list[dict[object, float]] = []
    for sample in samples:
        seen.append(values(sample))
        rounding = 1 / sample.window_seconds  # counters are whole numbers
        for key, value in values(estimator.add(sample)).items():
            came = [past.get(key, 0.0) for past in seen]
            assert min(came) * (1 - 1e-9) - rounding <= value <= max(came) * (1 + 1e-9) + rounding


@given(st.sampled_from(sorted(ESTIMATORS)), st.lists(loads(), min_size=1, max_size=6))
def test_tasks_queues_and_length_are_the_newest_samples(name: str, samples: list[Load]) -> None:
    estimator = make_estimator(name).fresh()
    for sample in samples:
        estimate = estimator.add(sample)
        assert estimate.window_seconds == sample.window_seconds and estimate.settling == sample.settling
        assert {task: seen.queue_length for task, seen in estimate.tasks.items()} == {
            task: seen.queue_length for task, seen in sample.tasks.items()}


@given(st.permutations(range(5)), loads(settling=False), st.floats(2, 1000))
def test_a_single_spike_among_five_does_not_show_in_the_trimmed_mean(order: list[int], usual: Load, factor: float) -> None:
    spike = Load(usual.window_seconds, {task: TaskLoad(cpu_mhz=seen.cpu_mhz * factor, memory_mb=seen.memory_mb * factor)
                                        for task, seen in usual.tasks.items()},
                 {(source, target): usual.traffic.get((source, target), 1.0) * factor
                  for source in usual.tasks for target in usual.tasks})
    steady = Load(usual.window_seconds, usual.tasks,
                  {pair: tuples for pair, tuples in usual.traffic.items() if set(pair) <= usual.tasks.keys()})
    estimator = TrimmedMean().fresh()
    for number in order:
        estimate = estimator.add(spike if number == 0 else steady)
    assert values(estimate) == pytest.approx(values(steady))


@given(st.sampled_from(["ewma", "trimmed-mean"]), st.lists(st.floats(), min_size=1, max_size=6), lengths)
def test_values_of_a_broken_meter_are_ignored(name: str, broken: list[float], seconds: float) -> None:
    estimator = make_estimator(name).fresh()
    task = TASKS[0]
    for value in broken:
        estimate = estimator.add(Load(seconds, {task: TaskLoad(cpu_mhz=value, busy_seconds=value)}, {(task, task): value}))
        numbers = (estimate.tasks[task].cpu_mhz, estimate.tasks[task].busy_seconds, *estimate.traffic.values())
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
