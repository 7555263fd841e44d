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

from millrace.bench.faults import batches, drivers, resident, run
from millrace.bench.faults.batches import BatchSoak
from millrace.bench.faults.comparison import broken_promise
from millrace.bench.faults.meters import FaultFigures, LongestGap
from millrace.bench.faults.plan import EXTRA_SECONDS, PAUSE, QUIET_SECONDS, STORE_AWAY, Fault, is_over, plan_of_faults
from millrace.bench.faults.resident import PROOFS, ResidentSoak, Victim
from millrace.bench.faults.soak import NAME, Stuck
from millrace.bench.faults.surroundings import TakenAway, catches, executor_of, has_ended, is_stopped
from millrace.errors import StoreUnreachable
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.directory import DirectoryStore

KINDS = tuple(PROOFS)
GOOD = {"stuck": None, "guarantee": "exactly-once", "lost": 0, "wrong": 0, "beyond": 0, "repeated": 0, "torn_bytes": 0,
        "counts_wrong": 0, "counts_less": 0}


@given(seed=st.integers())
def test_the_seed_alone_decides_and_every_kind_comes_in_each_round(seed: int) -> None:
    plan = list(islice(plan_of_faults(seed, KINDS), 4 * len(KINDS)))
    assert plan == list(islice(plan_of_faults(seed, KINDS), 4 * len(KINDS)))
    for start in range(0, len(plan), len(KINDS)):
        assert {fault.kind for fault in plan[start : start + len(KINDS)]} == set(KINDS)
    assert all(0 <= fault.quiet <= QUIET_SECONDS for fault in plan)


@given(seed=st.integers())
def test_a_pause_comes_only_after_the_fault_before_it_is_recovered_from(seed: int) -> None:
    plan = list(islice(plan_of_faults(seed, KINDS), 4 * len(KINDS)))
    assert all(before.alone for before, fault in pairwise(plan) if fault.kind == PAUSE)


def test_other_seeds_other_plans() -> None:
    plans = [tuple(islice(plan_of_faults(seed, KINDS), 5)) for seed in range(20)]
    assert len(set(plans)) == 20
    faults = list(islice(plan_of_faults(0, KINDS), 80))
    assert {fault.alone for fault in faults} == {True, False}


def test_a_run_continues_until_each_kind_had_an_effect_or_the_extra_time_is_up() -> None:
    all_kinds = Counter(KINDS)
    assert [is_over(now, 10.0, all_kinds, KINDS) for now in (9.9, 10.0)] == [False, True]
    one_is_missing = all_kinds - Counter([STORE_AWAY])
    assert not is_over(9.9 + EXTRA_SECONDS, 10.0, one_is_missing, KINDS)
    assert is_over(10.0 + EXTRA_SECONDS, 10.0, one_is_missing, KINDS)


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


def test_figures_by_kind() -> None:
    figures = FaultFigures()
    for kind, gap, took in (("paused", 0.5, 1.0), ("paused", 1.5, 3.0), ("paused", 0.1, 2.0)):
        figures.effective[kind] += 1
        figures.recovered(kind, gap, took)
    figures.effective["task moved"] += 1  # the next fault followed at once
    assert figures.by_kind(["paused", "task moved", "store away"]) == {
        "paused": {"n": 3, "gap_p50_ms": 500, "gap_max_ms": 1500, "recovery_p50_ms": 2000},
        "task moved": {"n": 1, "gap_p50_ms": None, "gap_max_ms": None, "recovery_p50_ms": None},
        "store away": {"n": 0, "gap_p50_ms": None, "gap_max_ms": None, "recovery_p50_ms": None}}


def test_visible_rows_are_told_apart_by_the_run_that_wrote_them(tmp_path: Path) -> None:
    (tmp_path / "part-0-w000000000001-77-ab12.audit").write_bytes(b"row")
    (tmp_path / "part-1-w000000000002-77-cd34.audit").write_bytes(b"row")
    (tmp_path / "part-0-w000000000003-78-ab12.audit").write_bytes(b"")  # no rows yet
    (tmp_path / "part-0-4711-0.audit").write_bytes(b"row")  # at least once
    (tmp_path / ".staged-words+sink").mkdir()
    assert drivers.runs_of(tmp_path) == {"77", "part-0-4711-0.audit"}
    assert drivers.visible_bytes(tmp_path) == 9


def test_every_fault_has_its_proof(tmp_path: Path) -> None:
    master, running = FakeMaster(), cast(Any, SimpleNamespace())
    batched = BatchSoak(cast(Any, SimpleNamespace(master=master)), running, Console(stderr=True))
    assert set(soak_on(master, tmp_path).kinds) == set(resident.PROOFS)
    assert set(batched.kinds) == set(batches.PROOFS)


def test_a_process_that_would_die_of_a_signal_is_told_from_one_that_catches_it() -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, print); print('ready', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        assert catches(child.pid, signal.SIGUSR1) and not catches(child.pid, signal.SIGUSR2)
    finally:
        child.kill()
        child.communicate()
    assert not catches(child.pid, signal.SIGUSR1)


def test_each_guarantee_forbids_its_own_results() -> None:
    assert broken_promise(GOOD) == ""
    again = {**GOOD, "repeated": 3, "counts_wrong": 2, "beyond": 1, "torn_bytes": 7}
    assert broken_promise(again) == "repeated 3, beyond 1, torn_bytes 7, counts_wrong 2"
    assert broken_promise({**again, "guarantee": "at-least-once"}) == ""
    assert broken_promise({**GOOD, "guarantee": "at-least-once", "lost": 1, "counts_less": 2}) == "lost 1, counts_less 2"
    assert broken_promise({"stuck": "no wave", "guarantee": "exactly-once"}) == "no wave"


def test_a_run_that_is_stuck_has_every_figure_that_was_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def stuck(*arguments: Any) -> dict[str, Any]:
        raise Stuck("no wave")

    monkeypatch.setattr(run, "_run_soak", stuck)
    monkeypatch.setattr(run, "keep", lambda name, result: name)
    result = run.run_faults(1.0, 0, "exactly-once", run.RESIDENT, live=False)
    assert result["stuck"] == "no wave"
    assert [result[key] for key in ("driver_restart_ms", "wave_under_backpressure_ms", "latency_under_backpressure_ms")] == [
        None] * 3


def test_the_operating_system_shows_the_effect_of_signals() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert not has_ended(child.pid) and not is_stopped(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        assert os.waitid(os.P_PID, child.pid, os.WSTOPPED) is not None
        assert is_stopped(child.pid) and not has_ended(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert has_ended(child.pid)  # although nobody has waited for it
    finally:
        child.kill()
        child.communicate()
    assert has_ended(child.pid) and not is_stopped(child.pid) and executor_of(child.pid) is None


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


class BrokenSoak(ResidentSoak):
    """Opens the proofs to the tests."""

    def is_proved(self) -> bool:
        return self._are_replaced({0: Victim(1, 5)}, self._incarnations([0]))

    def break_store(self) -> bool:
        return self._take_store_away(Fault(STORE_AWAY, 0.0, 0, True))


def soak_on(master: FakeMaster, base: Path) -> BrokenSoak:
    running = SimpleNamespace(observed=lambda: SimpleNamespace(total=lambda component, meter: 0))
    return BrokenSoak(cast(Any, SimpleNamespace(master=master)), cast(Any, running), TakenAway(base), 100.0,
                      Console(stderr=True))


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
