"""CPU of other processes: what a machine used, without its workers."""

from __future__ import annotations

import pytest

from millrace.master.load.monitor import WorkerMeters
from millrace.master.load.other_processes import OtherProcesses

MACHINES = {0: "m", 1: "m", 2: "other"}


def meters(at: float, cpu: float, machine: float, generation: int = 1) -> WorkerMeters:
    return WorkerMeters(generation, cpu, 100.0, at, machine)


def test_the_use_of_workers_is_not_that_of_others() -> None:
    others = OtherProcesses()
    assert others.end_window({0: meters(0, 5, 100), 1: meters(0, 1, 100), 2: meters(0, 0, 50)}, MACHINES) == {}
    cores = others.end_window({0: meters(10, 9, 112), 1: meters(10, 4, 112), 2: meters(10, 10, 60)}, MACHINES)
    assert cores == pytest.approx({"m": 0.5, "other": 0.0}), "12 s in all, of which the workers used 4 and 3"


def test_reports_need_not_come_at_the_same_time() -> None:
    others = OtherProcesses()
    others.end_window({0: meters(0, 0, 0), 1: meters(0, 0, 0)}, {0: "m", 1: "m"})
    cores = others.end_window({0: meters(8, 4, 12), 1: meters(10, 5, 15)}, {0: "m", 1: "m"})
    assert cores == pytest.approx({"m": 0.5})


def test_it_is_smoothed_and_never_below_0() -> None:
    others = OtherProcesses()
    others.end_window({0: meters(0, 0, 0)}, {0: "m"})
    assert others.end_window({0: meters(1, 0, 2)}, {0: "m"}) == {"m": 2.0}
    assert others.end_window({0: meters(2, 1, 2.5)}, {0: "m"}) == {"m": 1.0}, "the workers used more than the system counted"


def test_a_window_in_which_a_worker_has_joined_tells_nothing() -> None:
    others = OtherProcesses()
    others.end_window({0: meters(0, 0, 0)}, {0: "m"})
    others.end_window({0: meters(1, 0, 1)}, {0: "m"})
    assert others.end_window({0: meters(2, 0, 3), 1: meters(2, 50, 3)}, {0: "m", 1: "m"}) == {"m": 1.0}
    restarted = {0: meters(3, 0, 9), 1: meters(3, 0.5, 9, generation=2)}
    assert others.end_window(restarted, {0: "m", 1: "m"}) == {"m": 1.0}
    assert others.end_window({0: meters(4, 0, 9)}, {0: "m", 1: "m"}) == {"m": 1.0}, "one has not reported yet"


def test_a_machine_without_workers_is_forgotten() -> None:
    others = OtherProcesses()
    others.end_window({0: meters(0, 0, 0)}, {0: "m"})
    assert others.end_window({0: meters(1, 0, 1)}, {0: "m"}) == {"m": 1.0}
    assert others.end_window({}, {}) == {}
