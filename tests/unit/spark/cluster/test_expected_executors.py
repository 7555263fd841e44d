"""The start waits for the executors that Spark's settings announce, or until no more come."""

from __future__ import annotations

import pytest

from millrace.spark.cluster.placement import Executor
from millrace.spark.cluster.spread import Expected, all_registered, is_spare, missing_executors, spread

NOW = 1000.0
PATIENCE = 3.0


def executor(number: int, host: str, cores: int = 2, age: float = 10.0, ready: bool = True) -> Executor:
    return Executor(str(number), host, cores, added=NOW - age, ready=ready)


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
    ([executor(0, "a", 4), executor(1, "b", 4, ready=False)], Expected(), False),  # Spark would start no task there yet
    ([executor(0, "a", 4), executor(1, "b", 4, ready=False)], Expected(2), False),
    ([executor(0, "a"), executor(1, "b", ready=False)], Expected(0, 4), False),
])
def test_when_the_start_waits_no_longer(executors: list[Executor], expected: Expected, ready: bool) -> None:
    assert all_registered(executors, 3, 1, expected, NOW, PATIENCE) is ready


def test_six_workers_on_three_hosts_of_which_one_has_two_executors() -> None:
    places = spread(6, [executor(0, "a", 8), executor(1, "b", 4), executor(2, "b", 4), executor(3, "c", 8)])
    assert [place.id for place in places if place is not None] == ["0", "1", "3", "2", "0", "3"]


def test_new_workers_go_where_the_fewest_are() -> None:
    executors = [Executor("0", "a", 4, busy=2), Executor("1", "b", 4, busy=1), Executor("2", "b", 4)]
    places = spread(4, executors, workers={"0": 2, "1": 1})
    assert [place.id for place in places if place is not None] == ["2", "1", "0", "2"]


def test_no_worker_is_meant_for_an_executor_that_does_not_accept_tasks_yet() -> None:
    places = spread(3, [executor(0, "a"), executor(1, "b", 4, ready=False)])
    assert [place and place.id for place in places] == ["0", "0", None]


@pytest.mark.parametrize("workers, executors, missing", [
    (1, [], 1), (2, [Executor("0", "a", 2)], 0), (2, [Executor("0", "a", 2, busy=1)], 1),
    (5, [Executor("0", "a", 4, busy=4), Executor("1", "b", 2, busy=2)], 2),
])
def test_the_executors_that_are_missing(workers: int, executors: list[Executor], missing: int) -> None:
    assert missing_executors(workers, executors) == missing


@pytest.mark.parametrize("executors, workers, others_need_cores, spare", [
    ([Executor("0", "a", 2), Executor("1", "a", 2, busy=2)], {"1": 2}, False, True),
    ([Executor("0", "a", 2), Executor("1", "a", 2, busy=2)], {"1": 2}, True, False),  # no core would be free
    ([Executor("0", "a", 2), Executor("1", "a", 2, busy=1)], {"1": 1}, True, True),
    ([Executor("0", "a", 2, busy=1), Executor("1", "a", 2)], {}, False, False),  # a job runs there
    ([Executor("0", "a", 2), Executor("1", "a", 2)], {"0": 1}, False, False),  # a worker starts there
    ([Executor("0", "a", 2)], {}, False, False),  # the last one
    ([Executor("1", "a", 2), Executor("2", "a", 2)], {}, False, False),  # it is gone
])
def test_an_executor_is_given_back_if_nothing_needs_it(executors: list[Executor], workers: dict[str, int],
                                                       others_need_cores: bool, spare: bool) -> None:
    assert is_spare("0", executors, workers, others_need_cores) is spare
