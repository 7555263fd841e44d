"""One run of faults on a topology: causes them one after the other, waits for recovery and takes the figures."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from rich.console import Console

from millrace.bench.faults.meters import FaultFigures, LongestGap
from millrace.bench.faults.plan import MOVE, PAUSE, Fault, is_over, plan_of_faults
from millrace.control.events import Moved
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING, STARTING
from millrace.errors import MillraceError
from millrace.master.service import Master
from millrace.model.graph import TaskId
from millrace.spark.running_topology import RunningTopology

NAME = "words"
PAUSE_SECONDS = 1.0
EFFECT_SECONDS = 20.0  # for the effect of a fault to show, before it counts as one without effect
RECOVERY_SECONDS = 120.0  # for a wave to be committed after a fault, before the stream counts as stuck


class Stuck(MillraceError):
    """The topology, or a driver, did not recover from a fault."""


class Soak(ABC):
    """One run of faults. Everything that waits looks at the sink meanwhile.

    An engine's own soak adds to `breaks` what causes each kind of fault; that returns True if the fault had an effect.
    """

    def __init__(self, master: Master, running: RunningTopology, console: Console) -> None:
        self._master, self._running, self._console = master, running, console
        self.figures = FaultFigures()
        self.seconds = 0.0  # that the faults took
        self.last_wave = 0  # the last committed one that was seen
        self.sink, self.commits, self._since_fault = LongestGap(), LongestGap(), LongestGap()
        self.breaks: dict[str, Callable[[Fault], bool]] = {MOVE: self._move, PAUSE: self._pause}

    @property
    @abstractmethod
    def committed(self) -> int:
        """The last committed wave."""

    @abstractmethod
    def _is_settled(self) -> bool:
        """True if no wave and no recovery is in progress."""

    @abstractmethod
    def _doing(self) -> str:
        """The step that a topology which is stuck waits in."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(self.breaks)

    @property
    def _state(self) -> TopologyState:
        state = self._master.state.topologies.get(NAME)
        if state is None:
            raise Stuck(f"{NAME} has ended on its own; last events:\n{self._last_events()}")
        return state

    def run(self, seeds: Sequence[int], seconds: float) -> None:
        """Cause faults repeatedly, for this many seconds in all, divided equally between the seeds, and until each kind of
        fault had an effect."""
        began = time.monotonic()
        try:
            self._await_commits(2, "at the start")
            self.sink.unpause(time.monotonic())
            self.commits.unpause(time.monotonic())
            for place, seed in enumerate(seeds, 1):
                self._console.print(f"faults with seed {seed}")
                self._run_plan(seed, time.monotonic() + seconds / len(seeds), last=place == len(seeds))
        finally:
            self.seconds = time.monotonic() - began

    def _run_plan(self, seed: int, end: float, last: bool) -> None:
        """Cause the faults of one seed and recover from them: no plan begins with the faults of another. Only the last plan
        is extended until each kind of fault had an effect."""
        recovered = True
        for fault in plan_of_faults(seed, self.kinds):
            self._pass(fault.quiet)
            now = time.monotonic()
            if is_over(now, end, self.figures.effective, self.kinds) if last else now >= end:
                break
            self._cause(fault, recovered, max(0.0, end - now))
            recovered = fault.alone
        if not recovered:
            self._await_commits(2, f"after the last faults of seed {seed}")

    def _cause(self, fault: Fault, recovered: bool, left: float) -> None:
        """Cause a fault and, if it is alone, wait until the topology has recovered. `recovered`: so it had before."""
        began, figures = time.monotonic(), self.figures
        self._since_fault = LongestGap()
        self._since_fault.unpause(began)
        effective = self.breaks[fault.kind](fault)
        (figures.effective if effective else figures.without_effect)[fault.kind] += 1
        text = f"{left:5.0f} s left: {fault.kind}{'' if effective else ', without effect'}"
        if not fault.alone:
            self._console.print(f"{text}, and another fault before it is recovered from")
            return
        self._await_commits(2, f"after fault {figures.effective.total()} ({fault.kind})")  # one may have been in progress
        took = time.monotonic() - began
        self._since_fault.pause(time.monotonic())
        if effective and recovered:
            figures.recovered(fault.kind, self._since_fault.longest, took)
        self._console.print(f"{text}, two waves committed after {took:.1f} s")

    def drain(self) -> dict[int, int]:
        """Wait until everything is processed and committed. Returns how many lines each spout task has sent."""
        self.sink.pause(time.monotonic())
        self.commits.pause(time.monotonic())
        self._running.pause()
        self._await_end_of_work()
        return {task.index: position for task, position in self._running.positions().items()}

    def _await_end_of_work(self) -> None:
        """Wait until everything that the spouts have sent is processed and committed."""
        self._wait(lambda: self._state.status == PAUSED and self._master.state.drained(self._state),
                   "the topology did not drain")

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _await_commits(self, count: int, when: str) -> None:
        target = self.committed + count
        self._wait(lambda: self.committed >= target and self._is_settled() and self._state.status != STARTING,
                   f"no wave was committed {when}")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        if not self._shows(condition, RECOVERY_SECONDS):
            raise Stuck(f"{otherwise} within {RECOVERY_SECONDS:g} s; {NAME} is {self._state.status}, {self._doing()}; "
                        f"last events:\n{self._last_events()}")

    def _last_events(self) -> str:
        return "\n".join(event["text"] for event in list(self._master.events)[-20:])

    def _shows(self, condition: Callable[[], bool], seconds: float = EFFECT_SECONDS) -> bool:
        """Wait for a condition on the master's thread. Returns False if time ran out."""
        return self._master.wait_until(lambda: self._look() or condition(), seconds)

    def _pass(self, seconds: float) -> None:
        """Sample the meters for this many seconds."""
        self._master.wait_until(self._look, seconds)

    def _look(self) -> bool:
        """Sample the meters, on the master's thread, on every turn of its loop. Returns False so that the wait continues."""
        now, executed = time.monotonic(), self._running.observed().total("sink", "executed")
        self.last_wave = self.committed
        self.sink.look(executed, now)
        self._since_fault.look(executed, now)
        self.commits.look(self.last_wave, now)
        return False

    # -- faults of both engines --------------------------------------------------------------------------------------

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
        self._since_fault.pause(time.monotonic())
        self._running.pause()
        paused = self._shows(lambda: self._state.status == PAUSED)
        self._pass(PAUSE_SECONDS)
        self._running.unpause()
        self.sink.unpause(time.monotonic())
        self._since_fault.unpause(time.monotonic())
        return paused


def figures_of(soak: Soak, proofs: dict[str, str]) -> dict[str, Any]:
    """The figures of a run, for `bench faults --json`."""
    figures, kinds = soak.figures, soak.kinds
    return {"seconds": round(soak.seconds, 1), "faults": {kind: figures.effective[kind] for kind in kinds},
            "kinds": figures.by_kind(kinds), "kinds_without_effect": [kind for kind in kinds if not figures.effective[kind]],
            "without_effect": {kind: figures.without_effect[kind] for kind in kinds},
            "proofs": {kind: proofs[kind] for kind in kinds}, "waves": soak.last_wave,
            "longest_gap_ms": round(soak.sink.longest * 1000),
            "longest_uncommitted_ms": round(soak.commits.longest * 1000),
            "recovery_ms": {kind: round(max(seconds) * 1000) for kind, seconds in figures.recoveries.items() if seconds}}
