"""The proofs that a fault had an effect, without Spark."""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from millrace.bench.faults import batches, resident, soak
from millrace.bench.faults.batches import BatchSoak
from millrace.bench.faults.plan import (
    HUNG,
    KILL_ONE,
    MOVE,
    SLOW_SINK,
    STOP,
    STORE_AWAY,
    Fault,
    plan_of_faults,
)
from millrace.bench.faults.resident import ResidentSoak, Victim
from millrace.bench.faults.sabotage import HANG, HANG_SECONDS, SLOW, SLOW_SECONDS
from millrace.bench.faults.soak import NAME, Soak, Stuck, figures_of
from millrace.bench.faults.surroundings import TakenAway
from millrace.control.topology_status import RUNNING
from millrace.control.waves import CLAIM, IDLE, INIT
from millrace.master.batch_log import BatchLog, BatchRecord, UnderWay
from millrace.model.graph import TaskId

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


def test_every_fault_has_its_proof(tmp_path: Path) -> None:
    assert set(soak_on(FakeMaster(), tmp_path).kinds) == set(resident.PROOFS)
    assert set(batch_soak_on(FakeMaster()).kinds) == set(batches.PROOFS)


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
