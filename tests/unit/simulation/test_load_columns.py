"""Loads of a simulation as arrays: schedulers read from them what they would read task by task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.situation import Situation
from millrace.schedulers.inputs.measured import LoadOfColumns, pair_columns, task_columns
from millrace.schedulers.instances import random_situation
from millrace.schedulers.problem import BYTES, TUPLES, Problem
from millrace.simulation.measuring import Measured, Meter, Noise
from millrace.simulation.world import World


def loads_of(case: Situation, seed: int) -> dict[str, Load]:
    """A window with random figures; a fifth of the tasks settle, and a fifth of the pairs have no traffic."""
    world, rng = World.of(case), np.random.default_rng(seed)
    edges = rng.uniform(0, 100, len(world.source)) * (rng.random(len(world.source)) < 0.8)
    tasks = rng.uniform(0, 1, (4, world.count)) * np.array([[100.0], [500.0], [1.0], [0.2]])
    measured = Measured(7.0, tasks, edges, rng.integers(0, 9, world.count), tasks[0], tasks[0], rng.random(world.count) < 0.2)
    return Meter(world, Noise(), rng).loads(measured, tasks, edges)


def plain(load: Load) -> Load:
    """The same load, without arrays."""
    return Load(load.window_seconds, load.tasks, load.traffic, load.settling, traffic_bytes=load.traffic_bytes)


def with_sizes(case: Situation) -> Situation:
    sized = {name: replace(load, traffic_bytes={pair: 3.0 * tuples for pair, tuples in list(load.traffic.items())[::2]})
             for name, load in case.load.items()}
    return replace(case, load=sized)


@pytest.mark.parametrize("seed", range(5))
def test_arrays_and_values_make_the_same_problem(seed: int) -> None:
    case = with_sizes(random_situation(np.random.default_rng(seed)))
    loads = loads_of(case, seed)
    assert all(isinstance(load, LoadOfColumns) for load in loads.values())
    for unit in (TUPLES, BYTES):
        one, other = (Problem.of(case.graphs, case.cluster, each, case.plan, unit)
                      for each in (loads, {name: plain(load) for name, load in loads.items()}))
        for name in ("cpu", "time", "memory", "queue", "queue_floor", "settling", "left", "right", "tuples", "rate"):
            assert getattr(one, name).tolist() == pytest.approx(getattr(other, name).tolist(), rel=1e-12), (unit, name)


def test_columns_of_some_tasks_and_of_one_that_is_not_there() -> None:
    case = random_situation(np.random.default_rng(1))
    load = next(iter(loads_of(case, 1).values()))
    asked = (*list(load.tasks)[:2], TaskId("nobody", 0))
    ours, theirs = task_columns(load, asked), task_columns(plain(load), asked)
    assert [column.tolist() for column in ours] == [column.tolist() for column in theirs] and not ours.known[2]
    numbers = {task: number for number, task in enumerate(load.tasks) if number}  # one task is not in the problem
    columns = [pair_columns(each, numbers, by_size=True) for each in (load, plain(load))]
    assert columns[0].ends.tolist() == columns[1].ends.tolist() and columns[0].tuples.tolist() == columns[1].tuples.tolist()
    assert len(load.tasks) == len(plain(load).tasks) and list(load.tasks) == list(plain(load).tasks)


def test_a_few_tasks_are_made_one_by_one_and_are_the_same_as_when_all_are() -> None:
    load = next(iter(loads_of(random_situation(np.random.default_rng(2), tasks=(40, 40), topologies=(1, 1)), 2).values()))
    tasks = list(load.tasks)
    few = [load.tasks[task] for task in tasks[:3]]
    assert "_made" not in vars(load.tasks), "most windows of a simulation are not looked at in full"
    assert few == [seen for _, seen in zip(range(3), load.tasks.values())]
    assert [load.tasks[task] for task in tasks] == list(load.tasks.values())
