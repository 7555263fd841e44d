"""The estimators over arrays give what the real ones give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.control.scheduling.load_smoothing import EstimatorParameters, Ewma, Last, TrimmedMean
from millrace.errors import BadParameter
from millrace.schedulers.instances import random_situation
from millrace.simulation.estimates import array_estimator
from millrace.simulation.measuring import Measured, Meter, Noise
from millrace.simulation.world import World
from support.examples import examples

SMOOTHED = ("cpu_mhz", "busy_seconds", "blocked_seconds", "memory_mb")
REST: dict[str, Any] = dict.fromkeys((*SMOOTHED, "emitted", "executed"), 0)
ESTIMATORS = [Ewma(), Ewma(a=0.0), Ewma(a=0.9), TrimmedMean(), TrimmedMean(window=1), TrimmedMean(window=3), Last()]


def windows(world: World, count: int, rng: np.random.Generator) -> list[Measured]:
    """Windows with noise, silent edges, and tasks that settle."""
    made = []
    for _ in range(count):
        tasks = np.stack([rng.integers(0, 500, world.count) / 10.0, rng.uniform(0, 900, world.count),
                          rng.uniform(0, 1, world.count), rng.uniform(0, 1, world.count)])
        edges = rng.uniform(0, 100, len(world.source)) * (rng.random(len(world.source)) < 0.8)
        made.append(Measured(10.0, tasks, edges, rng.integers(0, 9, world.count), np.zeros(world.count),
                             np.zeros(world.count), rng.random(world.count) < 0.2))
    return made


@settings(max_examples=examples(40), deadline=None)
@given(st.sampled_from(ESTIMATORS), st.integers(0, 10_000))
def test_arrays_are_smoothed_like_loads(parameters: EstimatorParameters, seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = World.of(random_situation(rng))
    meter = Meter(world, Noise(), rng)
    arrays = array_estimator(parameters, world.source, world.target)
    real = {graph.name: parameters.fresh() for graph in world.graphs}
    for measured in windows(world, 8, rng):
        expected = {name: real[name].add(load) for name, load in meter.loads(measured, measured.tasks, measured.edges).items()}
        tasks, edges = arrays.add(measured.tasks, measured.edges, measured.settling)
        for name, load in meter.loads(measured, tasks, edges).items():
            assert load.settling == expected[name].settling and load.tasks.keys() == expected[name].tasks.keys()
            assert load.traffic == pytest.approx(expected[name].traffic)
            for task, row in load.tasks.items():
                other = expected[name].tasks[task]
                assert [getattr(row, name) for name in SMOOTHED] == pytest.approx([getattr(other, name) for name in SMOOTHED])
                assert abs(row.emitted - other.emitted) <= 1 and abs(row.executed - other.executed) <= 1  # rounded
                assert replace(row, **REST) == replace(other, **REST)


def test_an_estimator_of_a_user_is_refused() -> None:
    class Mine:
        def fresh(self) -> object:
            return self

    with pytest.raises(BadParameter, match="no estimator Mine"):
        array_estimator(Mine(), np.zeros(0), np.zeros(0))  # type: ignore[arg-type]


def test_bytes_follow_the_tuples() -> None:
    case = random_situation(np.random.default_rng(1))
    case = replace(case, load={name: replace(load, traffic_bytes={pair: 40 * tuples for pair, tuples in load.traffic.items()})
                               for name, load in case.load.items()})
    world = World.of(case)
    measured = windows(world, 1, np.random.default_rng(2))[0]
    for load in Meter(world, Noise(), np.random.default_rng(3)).loads(measured, measured.tasks, measured.edges).values():
        assert load.traffic_bytes == pytest.approx({pair: 40 * tuples for pair, tuples in load.traffic.items()})
