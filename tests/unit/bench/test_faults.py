"""The plan of faults, the meters, and the results of a run, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from millrace.bench.faults import drivers, run
from millrace.bench.faults.comparison import broken_promise
from millrace.bench.faults.meters import FaultFigures, LongestGap
from millrace.bench.faults.plan import (
    EXTRA_SECONDS,
    PAUSE,
    QUIET_SECONDS,
    STORE_AWAY,
    is_over,
    plan_of_faults,
)
from millrace.bench.faults.resident import PROOFS
from millrace.bench.faults.surroundings import TakenAway, catches, executor_of, has_ended, is_stopped
from millrace.cli.main import app
from millrace.errors import MillraceError, StoreUnreachable
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


COMPARED = {**dict.fromkeys(("tuples_in", "tuples_out", "lost", "wrong", "beyond", "repeated", "torn_bytes", "words",
                             "counts_wrong", "counts_less"), 0)}


class FakeRun:
    """The three parts of a run of faults without Spark; `fails`: the part that raises an error, with what it has measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self._fails, self.kept = fails, dict[str, dict[str, Any]]()
        monkeypatch.setattr(run, "_run_soak", self._soak)
        monkeypatch.setattr(run.drivers, "run_driver_faults", self._drivers)
        monkeypatch.setattr(run, "_under_backpressure", self._backpressure)
        monkeypatch.setattr(run, "keep", self._keep)

    def _keep(self, name: str, result: dict[str, Any]) -> str:
        self.kept[name] = result
        return name

    def _check(self, part: str) -> None:
        if self._fails == part:
            raise MillraceError(f"no {part}")

    def _soak(self, base: Path, result: dict[str, Any], console: Console) -> None:
        self._check("start")
        result.update(saturation=1000, faults={"paused": 2}, without_effect={"paused": 0}, longest_gap_ms=5,
                      longest_uncommitted_ms=6)
        self._check("soak")
        result.update(COMPARED)

    def _drivers(self, base: Path, master: str, slots: int, rate: int, result: dict[str, Any], console: Console) -> None:
        self._check("drivers")
        result.update(drivers={"rate": rate, "compared": COMPARED}, driver_restart_ms=7)

    def _backpressure(self, base: Path) -> dict[str, Any]:
        self._check("backpressure")
        return {"wave_under_backpressure_ms": {"1": 8}}


def test_one_result_keeps_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(monkeypatch)
    result = run.run_faults(1.0, [3, 1, 2], "exactly-once", run.RESIDENT, live=False)
    assert fake.kept == {"faults-exactly-once": result}
    assert (result["seed"], result["seeds"], result["drivers"]["rate"]) == (3, [3, 1, 2], 400)
    assert run.broken_promises(result) == ""


@pytest.mark.parametrize("fails", ["soak", "drivers"])
def test_a_run_that_is_stuck_keeps_its_figures_and_has_those_that_were_not_measured(monkeypatch: pytest.MonkeyPatch,
                                                                                    fails: str) -> None:
    fake = FakeRun(monkeypatch, fails)
    result = run.run_faults(1.0, [0], "exactly-once", run.RESIDENT, live=False)
    assert fake.kept == {"faults-exactly-once": result}
    assert result["faults"] == {"paused": 2} and ("lost" in result) == (fails == "drivers")
    assert result["stuck"] == f"no {fails}" == run.broken_promises(result)
    assert [result[key] for key in ("driver_restart_ms", "wave_under_backpressure_ms", "latency_under_backpressure_ms")] == [
        None] * 3


def test_an_error_before_a_slow_sink_leaves_the_rest_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(monkeypatch, "backpressure")
    result = run.run_faults(1.0, [0], "exactly-once", run.RESIDENT, live=False)
    assert fake.kept == {"faults-exactly-once": result} and result["stuck"] is None
    assert (result["driver_restart_ms"], result["wave_under_backpressure_ms"]) == (7, None)
    assert run.broken_promises(result) == "before a slow sink: MillraceError: no backpressure"


def test_a_run_that_did_not_start_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRun(monkeypatch, "start")
    with pytest.raises(MillraceError, match="no start"):
        run.run_faults(1.0, [0], "exactly-once", run.RESIDENT, live=False)
    assert not fake.kept


def test_every_seed_needs_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRun(monkeypatch)
    assert run.run_faults(0.3, [1, 2, 3], "at-least-once", run.MICROBATCH, live=False)["seeds"] == [1, 2, 3]
    with pytest.raises(MillraceError, match=r"--minutes 0.2 for 3 seeds.*ask for 0.3 minutes or for fewer seeds"):
        run.run_faults(0.2, [1, 2, 3], "at-least-once", run.MICROBATCH, live=False)


@pytest.mark.parametrize(("options", "seeds"), [([], [1]), (["--seed", "4"], [4]), (["--seed", "4", "--seed", "2"], [4, 2])])
def test_the_seed_can_be_repeated_on_the_command_line(monkeypatch: pytest.MonkeyPatch, options: list[str],
                                                      seeds: list[int]) -> None:
    fake = FakeRun(monkeypatch)
    ended = CliRunner().invoke(app, ["bench", "faults", "--minutes", "1", *options], catch_exceptions=False)
    assert ended.exit_code == 0
    assert fake.kept["faults-exactly-once"]["seeds"] == seeds


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
