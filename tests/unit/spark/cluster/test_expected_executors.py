"""The start waits for the executors that Spark's settings announce, or until no more come."""

from __future__ import annotations

import pytest

from millrace.spark.cluster.placement import Executor
from millrace.spark.cluster.spread import Expected, all_registered, spread

NOW = 1000.0
PATIENCE = 3.0


def executor(number: int, host: str, cores: int = 2, age: float = 10.0) -> Executor:
    return Executor(str(number), host, cores, added=NOW - age)


@pytest.mark.parametrize("conf, local, expected", [
    ({}, 0, Expected()),
    ({}, 3, Expected(3)),
    ({"spark.executor.instances": "4"}, 0, Expected(4)),
    ({"spark.cores.max": "12"}, 0, Expected(0, 12)),
    ({"spark.dynamicAllocation.enabled": " TRUE", "spark.executor.instances": "9"}, 0, Expected(1)),
    ({"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "2"}, 0, Expected(2)),
])
def test_what_the_settings_announce(conf: dict[str, str], local: int, expected: Expected) -> None:
    assert Expected.of(conf, local) == expected


@pytest.mark.parametrize("executors, expected, ready", [
    ([], Expected(), False),
    ([executor(0, "a")], Expected(), False),  # no room for three workers
    ([executor(0, "a", 4)], Expected(), True),
    ([executor(0, "a", 4), executor(1, "b", 4, age=1.0)], Expected(), False),  # a third host may follow
    ([executor(0, "a", 4, age=1.0)], Expected(1), True),
    ([executor(0, "a", 4)], Expected(2), False),
    ([executor(0, "a"), executor(1, "b", age=0.0)], Expected(0, 4), True),
])
def test_when_the_start_waits_no_longer(executors: list[Executor], expected: Expected, ready: bool) -> None:
    assert all_registered(executors, 3, 1, expected, NOW, PATIENCE) is ready


def test_six_workers_on_three_hosts_of_which_one_has_two_executors() -> None:
    places = spread(6, [executor(0, "a", 8), executor(1, "b", 4), executor(2, "b", 4), executor(3, "c", 8)])
    assert [place.id for place in places if place is not None] == ["0", "1", "3", "2", "0", "3"]
