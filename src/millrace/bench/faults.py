"""`millrace bench faults`: break the processes, store and plan of a word count repeatedly, then check every word.

Two Spark executors run a word count near saturation: its highest rate is measured first. The seed alone decides the plan of
faults. A fault counts only if it had an effect, which is proved by a change that the master or the operating system shows.
After each fault, or after some in a row, waves must be committed again. In the end the sink's files and the counts in the last
checkpoint are compared with the lines that the seed gives.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import psutil
from rich.console import Console

from millrace.bench.other_engines.reporting import Rule
from millrace.bench.results import keep
from millrace.bench.stored_counts import stored_counts
from millrace.bench.topology_runs import end_run, start_run, window_rates
from millrace.config import AT_LEAST_ONCE, CHECKPOINTS, EXACTLY_ONCE, GUARANTEE, HISTORY, NODE_BY, WAVE_INTERVAL
from millrace.control.events import Moved
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING
from millrace.control.waves import IDLE, Waves
from millrace.errors import MillraceError
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.spark.engine import ResidentEngine, RunningTopology
from millrace.workloads.audit import StatefulWordCount, audit, true_counts
from millrace.workloads.wordcount import WORDS_PER_LINE

MASTER = "local-cluster[2,3,700]"
SLOTS = 4
NAME = "words"
SATURATION = Rule(warm_up=5.0, seconds=5.0, rounds=2)
SHARE = 0.8  # of the highest rate
INTERVAL_SECONDS = 1.0
QUIET_SECONDS = 2.0  # at most, between a wave that is committed again and the next fault
OVERLAPPING = 0.25  # share of the faults after which the next one does not wait for that wave
STOPPED_SECONDS = 3.0  # of a stopped process: longer than its heartbeat may be missing
AWAY_SECONDS = 2.0  # of an outage of the store
PAUSE_SECONDS = 1.0
EFFECT_SECONDS = 20.0  # for the effect of a fault to show, before it counts as one without effect
EXTRA_SECONDS = 240.0  # at most, beyond the time that was asked for, until each kind of fault had an effect
RECOVERY_SECONDS = 120.0  # for a wave to be committed after a fault, before the stream counts as stuck

KILL_ONE, KILL_TWO, KILL_ALL_BUT_ONE, KILL_EXECUTOR = "worker killed", "two killed", "all but one killed", "executor killed"
STOP, STORE_AWAY, MOVE, PAUSE = "worker stopped", "store away", "task moved", "paused"
# Each kind of fault with the proof that it had an effect.
PROOFS = {
    KILL_ONE: "the process is gone, the master has lost this worker, and its tasks run as new incarnations",
    KILL_TWO: "both processes are gone, the master has lost these workers, and their tasks run as new incarnations",
    KILL_ALL_BUT_ONE: "the processes are gone, the master has lost these workers, and their tasks run as new incarnations",
    KILL_EXECUTOR: "the executor's JVM is gone, the master has lost its workers, and their tasks run as new incarnations",
    STOP: "the process stood still, the master has lost this worker meanwhile, and its tasks run as new incarnations",
    STORE_AWAY: "a wave was abandoned, or a new epoch not claimed, and the reason names the store",
    MOVE: "the task is at the worker that it was moved to, which is another one than before",
    PAUSE: "the topology was paused",
}
KINDS = tuple(PROOFS)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `quiet`: seconds before it. `draw`: seed for the choice of its victims among those that exist then.
    `alone`: the next fault waits until this one is recovered from."""

    kind: str
    quiet: float
    draw: int
    alone: bool


def plan_of_faults(seed: int) -> Iterator[Fault]:
    """Endless rounds of all kinds of faults, each round in its own order; the same for the same seed. The fault before a pause
    is always recovered from first: the time of a pause does not count, so it would cut the gap of that fault short."""
    chance = Random(seed)
    kinds = (kind for _ in count() for kind in chance.sample(KINDS, len(KINDS)))
    for kind, following in pairwise(kinds):
        overlapping = chance.random() < OVERLAPPING and following != PAUSE
        yield Fault(kind, chance.uniform(0, QUIET_SECONDS), chance.getrandbits(32), not overlapping)


def is_over(now: float, end: float, effective: Counter[str]) -> bool:
    """True if the time is up and each kind of fault had an effect, and in any case when the extra time is up."""
    return now >= end and (all(effective[kind] for kind in KINDS) or now >= end + EXTRA_SECONDS)


class Victim(NamedTuple):
    """A worker: its process and its generation. A slot gets a new generation only after its worker was lost."""

    pid: int
    generation: int


class Stuck(MillraceError):
    """No wave was committed after a fault."""


class TakenAway:
    """A directory behind a symbolic link. While it is unavailable a plain file takes the link's place, so that code that makes
    missing directories cannot restore it; each change is one rename."""

    def __init__(self, base: Path) -> None:
        self.path, self._disk, self._other = base / "checkpoints", base / "disk", base / "other"
        self._disk.mkdir()
        self.bring_back()

    def take_away(self) -> None:
        self._other.touch()
        self._other.replace(self.path)

    def bring_back(self) -> None:
        self._other.symlink_to(self._disk)
        self._other.replace(self.path)


class LongestGap:
    """The longest time in which a number did not change. Call `look` repeatedly; the time between `pause` and `resume` does not
    count."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._value: float | None = None
        self._since: float | None = None

    def look(self, value: float, now: float) -> None:
        if self._since is None:
            return
        if value != self._value:
            self.longest = max(self.longest, now - self._since)
            self._value, self._since = value, now

    def pause(self, now: float) -> None:
        if self._since is not None:
            self.longest = max(self.longest, now - self._since)
        self._since = None

    def unpause(self, now: float) -> None:
        self._since = now


class Soak:
    """One run of faults. Everything that waits looks at the sink meanwhile."""

    def __init__(self, engine: ResidentEngine, running: RunningTopology, store: TakenAway, console: Console) -> None:
        self._engine, self._running, self._store, self._console = engine, running, store, console
        self._master = engine.master
        self.effective: Counter[str] = Counter()
        self.without_effect: Counter[str] = Counter()
        self.recovery: dict[str, float] = {}  # the longest of each kind, in seconds
        self.seconds = 0.0  # that the faults took
        self.sink, self.commits = LongestGap(), LongestGap()
        self.abandoned: list[str] = []  # reasons why waves were abandoned
        self._breaks: dict[str, Callable[[Fault], bool]] = {
            KILL_ONE: lambda fault: self._kill(fault, 1),
            KILL_TWO: lambda fault: self._kill(fault, 2),
            KILL_ALL_BUT_ONE: lambda fault: self._kill(fault, max(1, len(self._workers()) - 1)),
            KILL_EXECUTOR: self._kill_executor, STOP: self._stop, STORE_AWAY: self._take_store_away,
            MOVE: self._move, PAUSE: self._pause}

    @property
    def waves(self) -> Waves:
        waves = self._state.waves
        assert waves is not None
        return waves

    @property
    def _state(self) -> TopologyState:
        return self._master.state.topologies[NAME]

    def run(self, seed: int, seconds: float) -> None:
        """Cause faults repeatedly, for this many seconds and until each kind of fault had an effect."""
        began_at = time.monotonic()
        end = began_at + seconds
        self._committed(2, "at the start")
        self.sink.unpause(time.monotonic())
        self.commits.unpause(time.monotonic())
        recovered = True
        for fault in plan_of_faults(seed):
            self._pass(fault.quiet)
            if is_over(time.monotonic(), end, self.effective):
                if not recovered:
                    self._committed(2, "after the last faults")
                self.seconds = time.monotonic() - began_at
                return
            recovered = fault.alone
            began = time.monotonic()
            effective = self._breaks[fault.kind](fault)
            (self.effective if effective else self.without_effect)[fault.kind] += 1
            left = f"{max(0.0, end - began):5.0f} s left: {fault.kind}{'' if effective else ', without effect'}"
            if not fault.alone:
                self._console.print(f"{left}, and another fault before it is recovered from")
                continue
            self._committed(2, f"after fault {self.effective.total()} ({fault.kind})")  # one may have been in progress
            took = time.monotonic() - began
            if effective:
                self.recovery[fault.kind] = max(took, self.recovery.get(fault.kind, 0.0))
            self._console.print(f"{left}, two waves committed after {took:.1f} s")

    def drain(self) -> dict[int, int]:
        """Wait until everything is processed and committed. Returns how many lines each spout task has sent."""
        self.sink.pause(time.monotonic())
        self.commits.pause(time.monotonic())
        self._running.pause()
        self._committed(2, "after the spouts were stopped")  # workers that are gone by now have been missed
        self._wait(lambda: self._state.status == PAUSED and self._master.state.drained(self._state),
                   "the topology did not drain")
        self._committed(1, "when everything was processed")
        return {task.index: position for task, position in self._running.positions().items()}

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _committed(self, count: int, when: str) -> None:
        target = self.waves.committed + count
        self._wait(lambda: self.waves.committed >= target and self.waves.phase == IDLE and self._state.status != STARTING,
                   f"no wave was committed {when}")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        if not self._shows(condition, RECOVERY_SECONDS):
            events = "\n".join(event["text"] for event in list(self._master.events)[-20:])
            waited = ", ".join(map(str, sorted(self.waves.waiting))) or "nothing"
            raise Stuck(f"{otherwise} within {RECOVERY_SECONDS:g} s; {NAME} is {self._state.status}, its wave is in phase "
                        f"{self.waves.phase} and waits for {waited}; last events:\n{events}")

    def _shows(self, condition: Callable[[], bool], seconds: float = EFFECT_SECONDS) -> bool:
        """Wait for a condition on the master's thread. Returns False if time ran out."""
        return self._master.wait_until(lambda: self._look() or condition(), seconds)

    def _pass(self, seconds: float) -> None:
        """Sample the meters for this many seconds."""
        self._master.wait_until(self._look, seconds)

    def _look(self) -> bool:
        """Sample the meters, on the master's thread, on every turn of its loop. Returns False so that the wait continues."""
        now = time.monotonic()
        self.sink.look(self._running.observed().total("sink", "executed"), now)
        self.commits.look(self.waves.committed, now)
        if self.waves.abandoned > len(self.abandoned):
            self.abandoned += [self._state.troubled] * (self.waves.abandoned - len(self.abandoned))
        return False

    # -- faults: each returns True if it had an effect ---------------------------------------------------------------

    def _workers(self) -> dict[int, Victim]:
        """The workers by slot."""
        workers: dict[int, Victim] = self._master.call(
            lambda: {slot: Victim(connection.hello.pid, connection.generation)
                     for slot, connection in sorted(self._master.connections.items())})
        return workers

    def _incarnations(self, slots: Iterable[int]) -> dict[TaskId, int]:
        """The tasks in these slots with their incarnations."""
        tasks: dict[TaskId, int] = self._master.call(
            lambda: {task: place.incarnation for task, place in self._state.places.items() if place.slot in slots})
        return tasks

    def _is_lost(self, slot: int, victim: Victim) -> bool:
        """True if the slot has no worker now, or one of another generation."""
        worker = self._master.state.workers.get(slot)
        return worker is None or worker.address.generation != victim.generation

    def _are_replaced(self, victims: dict[int, Victim], before: dict[TaskId, int]) -> bool:
        """Wait until the victims are lost and their tasks run again, as new incarnations. The incarnations alone would prove
        nothing: exactly once, every rollback gives all tasks new ones."""
        def are_replaced() -> bool:
            places = self._state.places
            return all(self._is_lost(slot, victim) for slot, victim in victims.items()) and all(
                task in places and places[task].incarnation != incarnation for task, incarnation in before.items())

        return bool(before) and self._shows(are_replaced)

    def _victims(self, fault: Fault, workers: dict[int, Victim], number: int) -> dict[int, Victim]:
        """Choose workers, those with tasks first: without tasks a fault would have no effect."""
        busy = self._master.call(lambda: {place.slot for place in self._state.places.values()})
        slots = Random(fault.draw).sample(sorted(workers), len(workers))
        return {slot: workers[slot] for slot in sorted(slots, key=lambda slot: slot not in busy)[:number]}

    def _kill(self, fault: Fault, number: int) -> bool:
        victims = self._victims(fault, self._workers(), number)
        before = self._incarnations(victims)
        if len(victims) < number or any(is_gone(victim.pid) for victim in victims.values()):
            return False
        for victim in victims.values():
            _signal(victim.pid, signal.SIGKILL)
        return self._shows(lambda: all(is_gone(victim.pid) for victim in victims.values())) \
            and self._are_replaced(victims, before)

    def _kill_executor(self, fault: Fault) -> bool:
        workers = self._workers()
        executors = {slot: executor for slot, victim in workers.items() if (executor := executor_of(victim.pid)) is not None}
        if not executors:
            return False
        chosen = Random(fault.draw).choice(sorted(set(executors.values())))
        victims = {slot: workers[slot] for slot, executor in executors.items() if executor == chosen}
        before = self._incarnations(victims)
        if is_gone(chosen):
            return False
        _signal(chosen, signal.SIGKILL)
        return self._shows(lambda: is_gone(chosen)) and self._are_replaced(victims, before)

    def _stop(self, fault: Fault) -> bool:
        victims = self._victims(fault, self._workers(), 1)
        before = self._incarnations(victims)
        for victim in victims.values():
            _signal(victim.pid, signal.SIGSTOP)
        try:
            self._pass(STOPPED_SECONDS)
            missed = self._master.call(lambda: all(self._is_lost(slot, victim) and is_stopped(victim.pid)
                                                   for slot, victim in victims.items()))
        finally:
            for victim in victims.values():
                _signal(victim.pid, signal.SIGCONT)
        return missed and self._are_replaced(victims, before)

    def _take_store_away(self, fault: Fault) -> bool:
        abandoned = self.waves.abandoned
        self._store.take_away()
        try:
            self._pass(AWAY_SECONDS)
            return self._shows(lambda: (self.waves.abandoned > abandoned or self.waves.refused)
                               and str(self._store.path) in self._state.troubled)
        finally:
            self._store.bring_back()

    def _move(self, fault: Fault) -> bool:
        chance = Random(fault.draw)
        choice: list[tuple[TaskId, int]] = []

        def move() -> None:
            """Runs on the master's thread: no worker comes or goes between the choice and the move."""
            if self._state.status not in (RUNNING, PAUSED, STARTING) or not self._state.places:
                return
            task = chance.choice(sorted(self._state.places))
            slots = sorted(set(self._master.state.workers) - {self._state.places[task].slot})
            if slots:
                choice.append((task, chance.choice(slots)))
                self._master.tell(Moved(NAME, *choice[0]))

        self._master.call(move)
        return bool(choice) and self._shows(lambda: choice[0][0] in self._state.places
                                            and self._state.places[choice[0][0]].slot == choice[0][1])

    def _pause(self, fault: Fault) -> bool:
        self.sink.pause(time.monotonic())
        self._running.pause()
        paused = self._shows(lambda: self._state.status == PAUSED)
        self._pass(PAUSE_SECONDS)
        self._running.unpause()
        self.sink.unpause(time.monotonic())
        return paused


def executor_of(pid: int) -> int | None:
    """The process of the Spark executor that a worker belongs to; None if one of them is gone."""
    try:
        return next((parent.pid for parent in psutil.Process(pid).parents() if "--executor-id" in parent.cmdline()), None)
    except psutil.Error:
        return None


def is_gone(pid: int) -> bool:
    """True if the process has ended, even if its parent has not waited for it yet."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False


def _signal(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended on its own."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def saturation(engine: ResidentEngine, directory: Path, config: dict[str, Any]) -> float:
    """The highest rate of the same word count on these workers, in lines per second."""
    running = start_run(engine, StatefulWordCount, {**config, "path": str(directory)}, SATURATION.warm_up)
    rate = max(window_rates(running, SATURATION)) / WORDS_PER_LINE
    end_run(running)
    shutil.rmtree(directory)
    return rate


def run_faults(minutes: float, seed: int, guarantee: str, live: bool) -> dict[str, Any]:
    """Returns the object of `bench faults --json`.

    `minutes`: the time that was asked for; `seconds`: the time that the faults took, as the run continues until each kind of
    fault had an effect, up to a limit; `kinds_without_effect`: kinds that had none even so. `saturation`: the highest rate, in
    lines per second; `rate`: the share of it that the run had. `faults`: those that had an effect.
    `longest_gap_ms`: the longest time without a word at the sink, by the workers' reports, without requested pauses.
    Exactly once, words become visible with the waves: `longest_uncommitted_ms` is the longest time from one commit to the next.
    `recovery_ms`: for each kind of fault the longest time until two more waves were committed; it includes that of the faults
    before it that were not recovered from yet. `stuck`: why the run ended early; then nothing is compared.
    """
    if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise MillraceError(f"--guarantee {guarantee}: faults lose nothing only with {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    console = Console(stderr=not live)
    console.print(f"{guarantee}, seed {seed}: {minutes:g} minutes of faults on {SLOTS} workers of Spark {MASTER}",
                  markup=False)
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as base:
        store, output = TakenAway(Path(base)), Path(base) / "output"
        settings = {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(store.path)}
        config = {GUARANTEE.key: guarantee, WAVE_INTERVAL.key: INTERVAL_SECONDS}
        with ResidentEngine(MASTER, SLOTS, name=f"faults-{os.getpid()}", settings=settings) as engine:
            highest = saturation(engine, Path(base) / "saturation", config)
            rate = round(SHARE * highest)
            console.print(f"highest rate {highest:,.0f} lines/s; the run has {SHARE:.0%} of it: {rate:,} lines/s")
            running = engine.submit(StatefulWordCount, NAME, {**config, "path": str(output), "rate": rate})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; last events: {engine.status()['events'][-3:]}")
            soak = Soak(engine, running, store, console)
            result: dict[str, Any] = {"minutes": minutes, "seed": seed, "guarantee": guarantee, "saturation": round(highest),
                                      "rate": rate, "stuck": None}
            try:
                soak.run(seed, minutes * 60)
                expected = soak.drain()
            except Stuck as error:
                result["stuck"] = str(error)
                expected = {}
            result.update(_measured(soak))
            running.kill(wait=0)
        if expected:
            result.update(_compared(output, open_store(str(store.path)), expected))
    _print(console, result)
    return result


def _measured(soak: Soak) -> dict[str, Any]:
    return {"seconds": round(soak.seconds, 1), "faults": {kind: soak.effective[kind] for kind in KINDS},
            "kinds_without_effect": [kind for kind in KINDS if not soak.effective[kind]],
            "without_effect": {kind: soak.without_effect[kind] for kind in KINDS}, "proofs": PROOFS,
            "waves": soak.waves.committed, "abandoned_waves": soak.waves.abandoned, "abandoned": soak.abandoned,
            "longest_gap_ms": round(soak.sink.longest * 1000),
            "longest_uncommitted_ms": round(soak.commits.longest * 1000),
            "recovery_ms": {kind: round(seconds * 1000) for kind, seconds in soak.recovery.items()}}


def _compared(output: Path, store: CheckpointStore, expected: dict[int, int]) -> dict[str, Any]:
    audited, truth = audit(output, expected), true_counts(expected)
    counts = stored_counts(store, NAME)
    words = counts.keys() | truth.keys()
    return {"tuples_in": audited.tuples_in, "tuples_out": audited.tuples_out, "lost": audited.lost,
            "repeated": audited.repeated, "wrong": audited.wrong, "beyond": audited.beyond,
            "torn_bytes": audited.torn_bytes, "words": len(truth),
            "counts_wrong": sum(counts[word] != truth[word] for word in words),
            "counts_less": sum(counts[word] < truth[word] for word in words)}


def broken_promise(result: dict[str, Any]) -> str:
    """Results that the guarantee forbids; empty if it was kept."""
    if result["stuck"]:
        return str(result["stuck"])
    forbidden = ["lost", "wrong", "counts_less"]
    if result["guarantee"] == EXACTLY_ONCE:
        forbidden += ["repeated", "beyond", "torn_bytes", "counts_wrong"]
    return ", ".join(f"{name} {result[name]}" for name in forbidden if result[name])


def _print(console: Console, result: dict[str, Any]) -> None:
    if result["stuck"]:
        console.print(f"stuck: {result['stuck']}", markup=False)
    else:
        console.print(f"{result['tuples_in']:,} words in, {result['tuples_out']:,} out: {result['lost']} lost, "
                      f"{result['repeated']} repeated; of {result['words']:,} counts {result['counts_wrong']} differ from the "
                      f"truth, {result['counts_less']} are less")
    console.print(f"{sum(result['faults'].values())} faults with an effect, {sum(result['without_effect'].values())} without; "
                  f"longest gap at the sink {result['longest_gap_ms']:,} ms, "
                  f"between two commits {result['longest_uncommitted_ms']:,} ms; "
                  f"kept in {keep('faults-' + result['guarantee'], result)}")
