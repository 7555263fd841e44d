"""The plan of faults, the meters and the proofs, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from millrace.bench.faults import (
    EXTRA_SECONDS,
    KINDS,
    NAME,
    PAUSE,
    QUIET_SECONDS,
    STORE_AWAY,
    Fault,
    LongestGap,
    Soak,
    TakenAway,
    Victim,
    broken_promise,
    executor_of,
    is_gone,
    is_over,
    is_stopped,
    plan_of_faults,
)
from millrace.errors import StoreUnreachable
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.directory import DirectoryStore

GOOD = {"stuck": None, "guarantee": "exactly-once", "lost": 0, "wrong": 0, "beyond": 0, "repeated": 0, "torn_bytes": 0,
        "counts_wrong": 0, "counts_less": 0}


@given(seed=st.integers())
def test_the_seed_alone_decides_and_every_kind_comes_in_each_round(seed: int) -> None:
    plan = list(islice(plan_of_faults(seed), 4 * len(KINDS)))
    assert plan == list(islice(plan_of_faults(seed), 4 * len(KINDS)))
    for start in range(0, len(plan), len(KINDS)):
        assert {fault.kind for fault in plan[start : start + len(KINDS)]} == set(KINDS)
    assert all(0 <= fault.quiet <= QUIET_SECONDS for fault in plan)


@given(seed=st.integers())
def test_a_pause_comes_only_after_the_fault_before_it_is_recovered_from(seed: int) -> None:
    plan = list(islice(plan_of_faults(seed), 4 * len(KINDS)))
    assert all(before.alone for before, fault in pairwise(plan) if fault.kind == PAUSE)


def test_other_seeds_other_plans() -> None:
    plans = [tuple(islice(plan_of_faults(seed), 5)) for seed in range(20)]
    assert len(set(plans)) == 20
    faults = list(islice(plan_of_faults(0), 80))
    assert {fault.alone for fault in faults} == {True, False}


def test_a_run_continues_until_each_kind_had_an_effect_or_the_extra_time_is_up() -> None:
    all_kinds = Counter(KINDS)
    assert [is_over(now, 10.0, all_kinds) for now in (9.9, 10.0)] == [False, True]
    one_is_missing = all_kinds - Counter([STORE_AWAY])
    assert not is_over(9.9 + EXTRA_SECONDS, 10.0, one_is_missing)
    assert is_over(10.0 + EXTRA_SECONDS, 10.0, one_is_missing)


def test_a_store_that_was_taken_away_is_not_made_again(tmp_path: Path) -> None:
    disk = TakenAway(tmp_path)
    store = DirectoryStore(disk.path)
    store.write("words/a", [b"kept"])
    disk.take_away()
    with pytest.raises(StoreUnreachable):
        store.write("words/b", [b"refused"])
    with pytest.raises(StoreUnreachable):
        DirectoryStore(disk.path)
    disk.bring_back()
    assert store.read("words/a") == b"kept"
    assert store.names("words/") == ["words/a"]


def test_the_longest_gap() -> None:
    gap = LongestGap()
    gap.look(1, 0.0)  # before it begins to count
    gap.unpause(10.0)
    gap.look(5, 10.5)
    gap.look(5, 12.0)
    gap.look(6, 13.5)
    assert gap.longest == 3.0
    gap.pause(14.0)
    gap.look(6, 100.0)
    gap.unpause(100.0)
    gap.look(7, 101.0)
    assert gap.longest == 3.0
    gap.pause(106.0)  # a gap that has not ended counts
    assert gap.longest == 5.0


def test_each_guarantee_forbids_its_own_results() -> None:
    assert broken_promise(GOOD) == ""
    again = {**GOOD, "repeated": 3, "counts_wrong": 2, "beyond": 1, "torn_bytes": 7}
    assert broken_promise(again) == "repeated 3, beyond 1, torn_bytes 7, counts_wrong 2"
    assert broken_promise({**again, "guarantee": "at-least-once"}) == ""
    assert broken_promise({**GOOD, "guarantee": "at-least-once", "lost": 1, "counts_less": 2}) == "lost 1, counts_less 2"
    assert broken_promise({"stuck": "no wave", "guarantee": "exactly-once"}) == "no wave"


def test_the_operating_system_shows_the_effect_of_signals() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not is_gone(child.pid) and not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        assert os.waitid(os.P_PID, child.pid, os.WSTOPPED) is not None
        assert is_stopped(child.pid) and not is_gone(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert is_gone(child.pid)  # although nobody has waited for it
    finally:
        child.kill()
        child.communicate()
    assert is_gone(child.pid) and not is_stopped(child.pid) and executor_of(child.pid) is None


TASK = TaskId("count", 0)


class FakeMaster:
    """One worker, generation 5 in slot 0, with one task. A condition is looked at once, after `happens`."""

    def __init__(self) -> None:
        self.topology = SimpleNamespace(waves=SimpleNamespace(abandoned=0, committed=0, refused=False), troubled="",
                                        places={TASK: SimpleNamespace(slot=0, incarnation=1)})
        self.worker = SimpleNamespace(address=SimpleNamespace(generation=5))
        self.state = SimpleNamespace(topologies={NAME: self.topology}, workers={0: self.worker})
        self.happens: Callable[[], None] = lambda: None

    def call(self, function: Callable[[], Any]) -> Any:
        return function()

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        self.happens()
        return condition()


class BrokenSoak(Soak):
    """Opens the proofs to the tests."""

    def is_proved(self) -> bool:
        return self._are_replaced({0: Victim(1, 5)}, self._incarnations([0]))

    def break_store(self) -> bool:
        return self._take_store_away(Fault(STORE_AWAY, 0.0, 0, True))


def soak_on(master: FakeMaster, base: Path) -> BrokenSoak:
    running = SimpleNamespace(observed=lambda: SimpleNamespace(total=lambda component, meter: 0))
    return BrokenSoak(cast(Any, SimpleNamespace(master=master)), cast(Any, running), TakenAway(base), Console(stderr=True))


@pytest.mark.parametrize(("generation", "incarnation", "proved"), [(5, 2, False), (6, 1, False), (6, 2, True)])
def test_new_incarnations_prove_a_kill_only_if_this_worker_was_lost(tmp_path: Path, generation: int, incarnation: int,
                                                                    proved: bool) -> None:
    """A roll-back by another fault gives every task a new incarnation, and leaves the worker as it is."""
    master = FakeMaster()

    def happens() -> None:
        master.worker.address.generation = generation
        master.topology.places[TASK].incarnation = incarnation

    master.happens = happens
    assert soak_on(master, tmp_path).is_proved() == proved


@pytest.mark.parametrize(("reason", "proved"), [("not prepared within 5 s: count.0", False),
                                                ("the checkpoint store {} could not write t/a", True)])
def test_an_abandoned_wave_proves_the_store_away_only_if_the_reason_names_it(tmp_path: Path, reason: str, proved: bool) -> None:
    master = FakeMaster()

    def happens() -> None:
        master.topology.waves.abandoned, master.topology.troubled = 1, reason.format(tmp_path / "checkpoints")

    soak = soak_on(master, tmp_path)
    steps = iter([lambda: None, happens])
    master.happens = lambda: next(steps)()
    assert soak.break_store() == proved
    assert (tmp_path / "checkpoints").is_dir()  # it is back
