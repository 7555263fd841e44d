"""`millrace bench faults`: keep breaking what a word count runs on, then look for every word, at the sink and in the state.

Two Spark executors; a plan of faults that the seed alone decides; after each fault, or after some in a row, waves must be
committed again. In the end the sink's files and the counts in the last checkpoint are held against what the seed says must
be there.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import psutil
from rich.console import Console

from millrace.api.grouping import stable_hash
from millrace.bench.results import keep
from millrace.config import AT_LEAST_ONCE, CHECKPOINTS, EXACTLY_ONCE, GUARANTEE, HISTORY, NODE_BY, WAVE_INTERVAL
from millrace.control.events import Moved, Say
from millrace.control.topology_state import TopologyState
from millrace.control.waves import IDLE, Waves
from millrace.errors import MillraceError
from millrace.runtime.checkpoints.checkpoints import Checkpoints
from millrace.runtime.checkpoints.store import CheckpointStore, open_store
from millrace.spark.engine import ResidentEngine, RunningTopology
from millrace.state.task_state import open_states
from millrace.workloads.audit import StatefulWordCount, TallyNumbered, audit, true_counts

MASTER = "local-cluster[2,3,700]"
SLOTS = 4
NAME = "words"
LINES_PER_SECOND = 300
INTERVAL_SECONDS = 1.0
QUIET_SECONDS = 2.0  # at most, between a wave that is committed again and the next fault
OVERLAPPING = 0.25  # share of the faults after which the next one does not wait for that wave
STILL_SECONDS = 3.0  # that a stopped process stands still: longer than its heartbeat may be missing
AWAY_SECONDS = 2.0  # that the store cannot be used
PAUSE_SECONDS = 1.0
RECOVERY_SECONDS = 120.0  # for a wave to be committed after a fault, before the stream counts as stuck

KILL_ONE, KILL_TWO, KILL_ALL_BUT_ONE, KILL_EXECUTOR = "worker killed", "two killed", "all but one killed", "executor killed"
STAND_STILL, STORE_AWAY, MOVE, PAUSE = "worker stood still", "store away", "task moved", "paused"
KINDS = (KILL_ONE, KILL_TWO, KILL_ALL_BUT_ONE, KILL_EXECUTOR, STAND_STILL, STORE_AWAY, MOVE, PAUSE)


@dataclass(frozen=True, slots=True)
class Fault:
    """`quiet`: seconds before it. `draw`: a number out of which whom it befalls is picked, among those there are then.
    `alone`: it is recovered from before the next one comes."""

    kind: str
    quiet: float
    draw: int
    alone: bool


def plan_of_faults(seed: int) -> Iterator[Fault]:
    """Endless, and the same for the same seed: rounds in which every kind comes once, each in an order of its own."""
    chance = Random(seed)
    while True:
        for kind in chance.sample(KINDS, len(KINDS)):
            yield Fault(kind, chance.uniform(0, QUIET_SECONDS), chance.getrandbits(32), chance.random() >= OVERLAPPING)


class Stuck(MillraceError):
    """No wave was committed after a fault."""


class TakenAway:
    """A directory behind a symbolic link. While it is away there is a plain file in the link's place, so that whoever makes
    missing directories cannot bring it back; each change is one rename."""

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


class Silence:
    """The longest time in which a number did not change. `look` again and again; what is between `pause` and `go_on` does
    not count."""

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

    def go_on(self, now: float) -> None:
        self._since = now


class Soak:
    """One run. Everything that waits looks at the sink meanwhile."""

    def __init__(self, engine: ResidentEngine, running: RunningTopology, store: TakenAway, console: Console) -> None:
        self._engine, self._running, self._store, self._console = engine, running, store, console
        self._master = engine.master
        self.done: Counter[str] = Counter()
        self.recovery: dict[str, float] = {}  # the longest of each kind, in seconds
        self.sink, self.commits = Silence(), Silence()
        self.troubles: list[str] = []  # why waves were given up
        self._master.listeners.append(self._hear)
        self._breaks: dict[str, Callable[[Fault], None]] = {
            KILL_ONE: lambda fault: self._kill(fault, 1),
            KILL_TWO: lambda fault: self._kill(fault, 2),
            KILL_ALL_BUT_ONE: lambda fault: self._kill(fault, max(1, len(self._pids()) - 1)),
            KILL_EXECUTOR: self._kill_executor, STAND_STILL: self._stand_still, STORE_AWAY: self._store_away,
            MOVE: self._move, PAUSE: self._pause}

    @property
    def waves(self) -> Waves:
        found = self._state.waves
        assert found is not None
        return found

    @property
    def _state(self) -> TopologyState:
        return self._master.state.topologies[NAME]

    def run(self, seed: int, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._committed(2, "at the start")
        self.sink.go_on(time.monotonic())
        self.commits.go_on(time.monotonic())
        for fault in plan_of_faults(seed):
            self._pass(fault.quiet)
            if time.monotonic() >= end:
                return
            began = time.monotonic()
            self._breaks[fault.kind](fault)
            self.done[fault.kind] += 1
            left = f"{max(0.0, end - began):5.0f} s left: {fault.kind}"
            if not fault.alone:
                self._console.print(f"{left}, and another fault before it is recovered from")
                continue
            self._committed(2, f"after fault {self.done.total()} ({fault.kind})")  # one may have been under way
            took = time.monotonic() - began
            self.recovery[fault.kind] = max(took, self.recovery.get(fault.kind, 0.0))
            self._console.print(f"{left}, two waves committed after {took:.1f} s")

    def drain(self) -> dict[int, int]:
        """Until all is worked off and committed. Returns how many lines each spout task has sent."""
        self.sink.pause(time.monotonic())
        self.commits.pause(time.monotonic())
        self._running.pause()
        self._committed(2, "after the spouts were stopped")  # whoever is gone by now has been missed
        self._wait(lambda: self._state.status == "paused" and self._master.state.drained(self._state),
                   "it did not come to rest")
        self._committed(1, "when all was worked off")
        return {task.index: position for task, position in self._running.positions().items()}

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _committed(self, count: int, when: str) -> None:
        target = self.waves.committed + count
        self._wait(lambda: self.waves.committed >= target and self.waves.phase == IDLE and self._state.status != "starting",
                   f"no wave was committed {when}")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        if not self._master.wait_until(lambda: self._look() or condition(), RECOVERY_SECONDS):
            said = "\n".join(event["text"] for event in list(self._master.events)[-20:])
            waited = ", ".join(map(str, sorted(self.waves.waiting))) or "nobody"
            raise Stuck(f"{otherwise} within {RECOVERY_SECONDS:g} s; {NAME} is {self._state.status}, its wave is in phase "
                        f"{self.waves.phase} and waits for {waited}; the master said:\n{said}")

    def _pass(self, seconds: float) -> None:
        """Let time go by."""
        self._master.wait_until(self._look, seconds)

    def _look(self) -> bool:
        """On the master's thread, at each of its turns. Never true: it is asked again."""
        now = time.monotonic()
        self.sink.look(self._running.observed().total("sink", "executed"), now)
        self.commits.look(self.waves.committed, now)
        return False

    def _hear(self, said: Say) -> None:
        """On the master's thread."""
        if "is given up" in said.text:
            self.troubles.append(said.text)

    # -- faults ------------------------------------------------------------------------------------------------------

    def _pids(self) -> list[int]:
        """The workers that are there."""
        found: list[int] = self._master.call(lambda: [connection.hello.pid for _, connection
                                                      in sorted(self._master.connections.items())])
        return found

    def _kill(self, fault: Fault, count: int) -> None:
        pids = self._pids()
        for pid in Random(fault.draw).sample(pids, min(count, len(pids))):
            _signal(pid, signal.SIGKILL)

    def _kill_executor(self, fault: Fault) -> None:
        executors = sorted({executor for pid in self._pids() if (executor := executor_of(pid)) is not None})
        if executors:
            _signal(Random(fault.draw).choice(executors), signal.SIGKILL)

    def _stand_still(self, fault: Fault) -> None:
        pids = self._pids()
        if not pids:
            return
        pid = Random(fault.draw).choice(pids)
        _signal(pid, signal.SIGSTOP)
        try:
            self._pass(STILL_SECONDS)
        finally:
            _signal(pid, signal.SIGCONT)

    def _store_away(self, fault: Fault) -> None:
        self._store.take_away()
        try:
            self._pass(AWAY_SECONDS)
        finally:
            self._store.bring_back()

    def _move(self, fault: Fault) -> None:
        chance = Random(fault.draw)

        def move() -> None:
            """On the master's thread: nobody comes or goes between the choice and the move."""
            if self._state.status in ("running", "paused", "starting"):
                task, slot = chance.choice(sorted(self._state.places)), chance.choice(sorted(self._master.state.workers))
                self._master.tell(Moved(NAME, task, slot))

        self._master.call(move)

    def _pause(self, fault: Fault) -> None:
        self.sink.pause(time.monotonic())
        self._running.pause()
        self._pass(PAUSE_SECONDS)
        self._running.unpause()
        self.sink.go_on(time.monotonic())


def executor_of(pid: int) -> int | None:
    """The process of the Spark executor that a worker belongs to; None if one of them is gone."""
    try:
        return next((parent.pid for parent in psutil.Process(pid).parents() if "--executor-id" in parent.cmdline()), None)
    except psutil.Error:
        return None


def _signal(pid: int, number: signal.Signals) -> None:
    """It may have ended by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def stored_counts(store: CheckpointStore, topology: str) -> Counter[str]:
    """The words' counts in the newest checkpoint, read without the engine."""
    checkpoints = Checkpoints(store, topology)
    manifest = checkpoints.latest()
    if manifest is None:
        raise MillraceError(f"there is no checkpoint of {topology!r} to compare with the truth")
    component = TallyNumbered()
    state = open_states(component, stable_hash, range(manifest.key_groups), manifest.key_groups, "audit", time.time)
    assert state is not None
    for group, chain in manifest.chains("count").items():
        state.restore(group, checkpoints.read_chain(chain))
    return Counter(dict(component.counts.items()))


def run_faults(minutes: float, seed: int, guarantee: str, live: bool) -> dict[str, Any]:
    """Returns the object of `bench faults --json`.

    `longest_gap_ms`: the longest time without a word at the sink, as the workers' reports showed it, apart from pauses that
    were asked for. Exactly once, words become visible with the waves: `longest_uncommitted_ms` is the longest time from one
    commit to the next. `recovery_ms`: for each kind of fault the longest time until two more waves were committed; that of
    faults before which the last one was not recovered from yet is that of both.
    `stuck`: why the run ended early; then nothing is compared.
    """
    if guarantee not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        raise MillraceError(f"--guarantee {guarantee}: faults lose nothing only with {EXACTLY_ONCE} or {AT_LEAST_ONCE}")
    console = Console(stderr=not live)
    console.print(f"{guarantee}, seed {seed}: {minutes:g} minutes of faults on {SLOTS} workers of Spark {MASTER}",
                  markup=False)
    with tempfile.TemporaryDirectory(prefix="millrace-faults-") as base:
        store, output = TakenAway(Path(base)), Path(base) / "output"
        settings = {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(store.path)}
        with ResidentEngine(MASTER, SLOTS, name=f"faults-{os.getpid()}", settings=settings) as engine:
            running = engine.submit(StatefulWordCount, NAME, {
                "path": str(output), "rate": LINES_PER_SECOND, GUARANTEE.key: guarantee,
                WAVE_INTERVAL.key: INTERVAL_SECONDS})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; the master says: {engine.status()['events'][-3:]}")
            soak = Soak(engine, running, store, console)
            result: dict[str, Any] = {"minutes": minutes, "seed": seed, "guarantee": guarantee, "stuck": None}
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
    return {"faults": {kind: soak.done[kind] for kind in KINDS}, "waves": soak.waves.committed, "given_up": soak.waves.given_up,
            "troubles": soak.troubles, "longest_gap_ms": round(soak.sink.longest * 1000),
            "longest_uncommitted_ms": round(soak.commits.longest * 1000),
            "recovery_ms": {kind: round(seconds * 1000) for kind, seconds in soak.recovery.items()}}


def _compared(output: Path, store: CheckpointStore, expected: dict[int, int]) -> dict[str, Any]:
    found, truth = audit(output, expected), true_counts(expected)
    counts = stored_counts(store, NAME)
    words = counts.keys() | truth.keys()
    return {"tuples_in": found.tuples_in, "tuples_out": found.tuples_out, "lost": found.lost, "repeated": found.repeated,
            "wrong": found.wrong, "beyond": found.beyond, "words": len(truth),
            "counts_wrong": sum(counts[word] != truth[word] for word in words),
            "counts_less": sum(counts[word] < truth[word] for word in words)}


def broken_promise(result: dict[str, Any]) -> str:
    """What the guarantee forbids and the run has; empty if all is well."""
    if result["stuck"]:
        return str(result["stuck"])
    forbidden = ["lost", "wrong", "counts_less"]
    if result["guarantee"] == EXACTLY_ONCE:
        forbidden += ["repeated", "beyond", "counts_wrong"]
    return ", ".join(f"{name} {result[name]}" for name in forbidden if result[name])


def _print(console: Console, result: dict[str, Any]) -> None:
    if result["stuck"]:
        console.print(f"stuck: {result['stuck']}", markup=False)
    else:
        console.print(f"{result['tuples_in']:,} words in, {result['tuples_out']:,} out: {result['lost']} lost, "
                      f"{result['repeated']} repeated; of {result['words']:,} counts {result['counts_wrong']} differ from the "
                      f"truth, {result['counts_less']} are less")
    console.print(f"{sum(result['faults'].values())} faults; longest silence at the sink {result['longest_gap_ms']:,} ms, "
                  f"between two commits {result['longest_uncommitted_ms']:,} ms; kept in {keep('faults', result)}")
