"""The plan of faults, the meters and the proofs, without Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from millrace.bench.faults import batches, drivers, resident, run, soak
from millrace.bench.faults.batches import BatchSoak
from millrace.bench.faults.comparison import broken_promise
from millrace.bench.faults.meters import FaultFigures, LongestGap
from millrace.bench.faults.plan import (
    EXTRA_SECONDS,
    HUNG,
    KILL_ONE,
    MOVE,
    PAUSE,
    QUIET_SECONDS,
    SLOW_SINK,
    STOP,
    STORE_AWAY,
    Fault,
    is_over,
    plan_of_faults,
)
from millrace.bench.faults.resident import PROOFS, ResidentSoak, Victim
from millrace.bench.faults.sabotage import HANG, HANG_SECONDS, SLOW, SLOW_SECONDS
from millrace.bench.faults.soak import NAME, Soak, Stuck, figures_of
from millrace.bench.faults.surroundings import TakenAway, catches, executor_of, has_ended, is_stopped
from millrace.cli.main import app
from millrace.control.topology_status import RUNNING
from millrace.control.waves import CLAIM, IDLE, INIT
from millrace.errors import MillraceError, StoreUnreachable
from millrace.master.batch_log import BatchLog, BatchRecord, UnderWay
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
    assert set(soak_on(FakeMaster(), tmp_path).kinds) == set(resident.PROOFS)
    assert set(batch_soak_on(FakeMaster()).kinds) == set(batches.PROOFS)


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


TASK = TaskId("count", 0)


class FakeMaster:
    """One worker, generation 5 in slot 0, with one task. A condition is looked at once, after `happens`."""

    def __init__(self) -> None:
        self.topology = SimpleNamespace(waves=SimpleNamespace(abandoned=0, committed=0, refused=False, phase=IDLE), troubled="",
                                        places={TASK: SimpleNamespace(slot=0, incarnation=1)}, status=RUNNING,
                                        checkpoint=SimpleNamespace(wave=0))
        self.worker = SimpleNamespace(address=SimpleNamespace(generation=5))
        self.state = SimpleNamespace(topologies={NAME: self.topology}, workers={0: self.worker})
        self.connections = {0: SimpleNamespace(hello=SimpleNamespace(pid=11), generation=5, heard=0.0)}
        self.worker_port = SimpleNamespace(patience=SimpleNamespace(timeout=1.5))
        self.batch_logs: dict[str, BatchLog] = {}
        self.events = [{"text": "the query failed"}]
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


RUNNING_TOPOLOGY = cast(Any, SimpleNamespace(name=NAME, observed=lambda: SimpleNamespace(total=lambda component, meter: 0)))


def soak_on(master: FakeMaster, base: Path, running: Any = RUNNING_TOPOLOGY) -> BrokenSoak:
    return BrokenSoak(cast(Any, SimpleNamespace(master=master)), running, TakenAway(base), 100.0, Console(stderr=True))


def batch_soak_on(master: FakeMaster) -> BatchSoak:
    return BatchSoak(cast(Any, SimpleNamespace(master=master)), RUNNING_TOPOLOGY, Console(quiet=True))


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


class SteadyMaster(FakeMaster):
    """Takes the place of the module `time`, too. Two waves are committed in every wait; a condition that does not hold lets the
    time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        self.happens()
        self.topology.waves.committed += 2
        self.topology.checkpoint.wave += 2
        if condition():
            self.now += 0.5
            return True
        self.now += seconds
        return False


class SeededSoak(BatchSoak):
    """Two kinds of faults that take three seconds; `causes`: those that were caused."""

    def __init__(self, master: SteadyMaster) -> None:
        super().__init__(cast(Any, SimpleNamespace(master=master)), RUNNING_TOPOLOGY, Console(quiet=True))
        self._clock, self.causes = master, list[tuple[float, Fault]]()
        self.breaks = {MOVE: self._break, STOP: self._break}

    def _break(self, fault: Fault) -> bool:
        self.causes.append((self._clock.now, fault))
        self._clock.now += 3.0
        return fault.kind == MOVE or self._clock.now > 100.0


def beginning(caused: list[tuple[float, Fault]], seed: int, kinds: tuple[str, ...]) -> list[tuple[float, Fault]]:
    """The faults at the beginning that are the plan of the seed."""
    plan = plan_of_faults(seed, kinds)
    return list(takewhile(lambda cause: cause[1] == next(plan), caused))


def test_each_seed_has_its_own_plan_and_an_equal_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    master = SteadyMaster()
    monkeypatch.setattr(soak, "time", master)
    seeded = SeededSoak(master)
    seeded.run([5, 6, 7], 90.0)
    left, lasted = seeded.causes, []
    for seed in (5, 6, 7):
        own = beginning(left, seed, seeded.kinds)
        assert own
        lasted.append(own[-1][0] - own[0][0])
        left = left[len(own):]
    assert not left
    assert all(20.0 < seconds < 30.0 for seconds in lasted[:2])
    assert lasted[2] > 30.0 and seeded.figures.effective[STOP] == 1, "it is extended until each kind of fault had an effect"
    assert seeded.seconds == master.now


@pytest.mark.parametrize("resident_engine", [True, False])
def test_a_topology_that_ends_on_its_own_is_reported_with_its_last_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                          resident_engine: bool) -> None:
    master = SteadyMaster()
    monkeypatch.setattr(soak, "time", master)
    tried: Soak = soak_on(master, tmp_path) if resident_engine else batch_soak_on(master)
    waits = iter([lambda: None, master.state.topologies.clear])
    master.happens = lambda: next(waits)()
    with pytest.raises(Stuck, match="words has ended on its own; last events:\nthe query failed"):
        tried.run([1], 60.0)
    figures = figures_of(tried, dict.fromkeys(tried.kinds, ""))
    assert (figures["waves"], figures["seconds"]) == (2, 0.5)


class FakeProcesses:
    """Python processes of executors, and the signals that they got."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *pids: int) -> None:
        self.got: list[tuple[int, signal.Signals]] = []
        monkeypatch.setattr(batches, "python_processes", lambda number: list(pids))
        monkeypatch.setattr(batches, "send_signal", lambda pid, number: self.got.append((pid, number)))
        monkeypatch.setattr(batches, "has_ended", lambda pid: (pid, signal.SIGKILL) in self.got)


def batch_of(seconds: float, attempts: int = 1, restored: int = 0) -> BatchRecord:
    return BatchRecord(batch=1, wave=1, plan_version=1, started=0.0, seconds=seconds, attempts=attempts, restored=restored)


def cause(kind: str, *then: BatchRecord | UnderWay, before: float = 0.1) -> bool:
    """Cause a fault of batches, after a batch that took `before` seconds; `then`: what the log gets to see afterwards."""
    master = FakeMaster()
    log = master.batch_logs.setdefault(NAME, BatchLog())
    log.add(batch_of(before))

    def happens() -> None:
        for entry in then:
            if isinstance(entry, BatchRecord):
                log.add(entry)
            else:
                log.under_way = entry

    steps = iter([happens])
    master.happens = lambda: next(steps, lambda: None)()
    return batch_soak_on(master).breaks[kind](Fault(kind, 0.0, 0, True))


AGAIN = UnderWay(batch=2, attempt=2, doing="", since=0.0, tasks=[])


@pytest.mark.parametrize("kind", [KILL_ONE, HUNG, SLOW_SINK])
def test_a_fault_without_a_process_has_no_effect(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    processes = FakeProcesses(monkeypatch)
    assert not cause(kind, batch_of(60.0, attempts=2))
    assert not processes.got


def test_hung_code_is_proved_by_a_long_batch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses(monkeypatch, 11)
    assert cause(HUNG, batch_of(0.1), batch_of(HANG_SECONDS), batch_of(0.1))
    assert processes.got == [(11, HANG)]
    assert not cause(HUNG, batch_of(HANG_SECONDS - 0.1))
    assert not cause(HUNG, batch_of(0.1, attempts=2, restored=3), AGAIN)
    assert not cause(HUNG, before=60.0), "that batch was over before the fault"


def test_a_slow_sink_is_proved_by_a_long_batch_or_another_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses(monkeypatch, 11, 12)
    assert cause(SLOW_SINK, batch_of(SLOW_SECONDS))
    assert processes.got == [(11, SLOW), (12, SLOW)]
    assert cause(SLOW_SINK, AGAIN)
    assert cause(SLOW_SINK, batch_of(0.1, attempts=2))
    assert not cause(SLOW_SINK, batch_of(0.1, restored=3)), "tasks may load their state for other reasons"


def test_a_killed_process_is_proved_by_another_attempt_or_state_that_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = FakeProcesses(monkeypatch, 11)
    assert cause(KILL_ONE, AGAIN)
    assert processes.got == [(11, signal.SIGKILL)]
    assert cause(KILL_ONE, batch_of(0.1, restored=1))
    assert not cause(KILL_ONE, batch_of(60.0))


class SignalledWorker:
    """The worker of `FakeMaster`, with a task of a component: the signals that it got, and the seconds since it was heard."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, component: str, catches_signals: bool = True) -> None:
        self.master, self.got, self.silence = FakeMaster(), list[signal.Signals](), 0.0
        self.master.topology.places = {TaskId(component, 0): SimpleNamespace(slot=0, incarnation=1)}
        monkeypatch.setattr(resident, "time", SimpleNamespace(monotonic=lambda: self.silence))
        monkeypatch.setattr(resident, "send_signal", lambda pid, number: self.got.append(number))
        monkeypatch.setattr(resident, "is_stopped", lambda pid: self.got[-1:] == [signal.SIGSTOP])
        monkeypatch.setattr(resident, "has_ended", lambda pid: False)
        monkeypatch.setattr(resident, "catches", lambda pid, number: catches_signals)

    def cause(self, kind: str, base: Path, running: Any = RUNNING_TOPOLOGY) -> bool:
        return soak_on(self.master, base, running).breaks[kind](Fault(kind, 0.0, 0, True))


@pytest.mark.parametrize(("kind", "component", "signals"), [(STOP, "count", [signal.SIGSTOP, signal.SIGCONT]),
                                                            (HUNG, "split", [HANG])])
@pytest.mark.parametrize(("silence", "generation", "proved"), [(1.4, 5, False), (1.6, 5, True), (0.0, 6, True)])
def test_a_worker_that_stands_still_is_proved_by_heartbeats_that_are_missed(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, component: str, signals: list[signal.Signals],
        silence: float, generation: int, proved: bool) -> None:
    """One that the master has given up, and that has a successor, was silent for long enough, too."""
    worker = SignalledWorker(monkeypatch, component)

    def happens() -> None:
        worker.silence, worker.master.connections[0].generation = silence, generation

    worker.master.happens = happens
    assert worker.cause(kind, tmp_path) == proved
    assert worker.got == signals


@pytest.mark.parametrize(("taken", "proved"), [(1999, True), (2000, False)])
def test_a_slow_sink_is_proved_by_the_words_that_it_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int,
                                                                 proved: bool) -> None:
    """In 4 s, 100 lines a second have 4,000 words."""
    worker, totals = SignalledWorker(monkeypatch, "sink"), [500]
    worker.master.happens = lambda: totals.append(500 + taken)
    running = SimpleNamespace(observed=lambda: SimpleNamespace(total=lambda component, meter: totals[-1]))
    assert worker.cause(SLOW_SINK, tmp_path, running) == proved
    assert worker.got == [SLOW]


@pytest.mark.parametrize(("kind", "component"), [(HUNG, "split"), (SLOW_SINK, "sink")])
def test_a_worker_that_the_signal_would_end_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str,
                                                      component: str) -> None:
    worker = SignalledWorker(monkeypatch, component, catches_signals=False)
    assert not worker.cause(kind, tmp_path)
    assert not worker.got


@pytest.mark.parametrize(("phase", "proved"), [(CLAIM, True), (INIT, True), (IDLE, False)])
def test_a_wave_that_cannot_be_restored_proves_the_store_away(tmp_path: Path, phase: str, proved: bool) -> None:
    """The store must not stay away for longer because a topology that restarts abandons no wave."""
    master = FakeMaster()
    master.topology.waves.phase = phase
    master.topology.troubled = f"the checkpoint store {tmp_path / 'checkpoints'} is no directory"
    assert soak_on(master, tmp_path).break_store() == proved
