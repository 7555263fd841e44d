"""Faults of the resident engine: its workers, its code, its sinks and its store."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from random import Random
from typing import NamedTuple

from rich.console import Console

from millrace.bench.faults.plan import (
    HUNG,
    KILL_ALL_BUT_ONE,
    KILL_EXECUTOR,
    KILL_ONE,
    KILL_TWO,
    MOVE,
    PAUSE,
    SLOW_SINK,
    STOP,
    STORE_AWAY,
    Fault,
)
from millrace.bench.faults.sabotage import HANG, HANG_SECONDS, SLOW, SLOW_SECONDS
from millrace.bench.faults.soak import Soak
from millrace.bench.faults.surroundings import TakenAway, catches, executor_of, has_ended, is_stopped, send_signal
from millrace.control.waves import CLAIM, IDLE, INIT, Waves
from millrace.model.graph import TaskId
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import WORDS_PER_LINE

STOPPED_SECONDS = 3.0  # of a stopped process: longer than its heartbeat may be missing
AWAY_SECONDS = 2.0  # of an outage of the store
SLOW_SHARE = 0.5  # of the words that come, at most, does a slow sink take

# Each kind of fault with the proof that it had an effect.
PROOFS = {
    KILL_ONE: "the process is gone, the master has lost this worker, and its tasks run as new incarnations",
    KILL_TWO: "both processes are gone, the master has lost these workers, and their tasks run as new incarnations",
    KILL_ALL_BUT_ONE: "the processes are gone, the master has lost these workers, and their tasks run as new incarnations",
    KILL_EXECUTOR: "the executor's JVM is gone, the master has lost its workers, and their tasks run as new incarnations",
    STOP: "the process stood still, and the master missed its heartbeats for longer than the limit",
    HUNG: "the process held its interpreter lock, and the master missed its heartbeats for longer than the limit",
    SLOW_SINK: f"the sinks took less than {SLOW_SHARE:.0%} of the words that the spouts were to send meanwhile",
    STORE_AWAY: "a wave was abandoned, a new epoch not claimed, or a wave not restored, and the reason names the store",
    MOVE: "the task is at the worker that it was moved to, which is another one than before",
    PAUSE: "the topology was paused",
}


class Victim(NamedTuple):
    """A worker: its process and its generation. A slot gets a new generation only after its worker was lost."""

    pid: int
    generation: int


class ResidentSoak(Soak):
    """Faults on the resident engine. `rate`: lines that the spouts send, per second."""

    def __init__(self, engine: ResidentEngine, running: RunningTopology, store: TakenAway, rate: float,
                 console: Console) -> None:
        super().__init__(engine.master, running, console)
        self._store, self._rate = store, rate
        self.abandoned: list[str] = []  # reasons why waves were abandoned
        self.breaks.update({
            KILL_ONE: lambda fault: self._kill(fault, 1),
            KILL_TWO: lambda fault: self._kill(fault, 2),
            KILL_ALL_BUT_ONE: lambda fault: self._kill(fault, max(1, len(self._workers()) - 1)),
            KILL_EXECUTOR: self._kill_executor, STOP: self._stop, HUNG: self._hang, SLOW_SINK: self._slow_down,
            STORE_AWAY: self._take_store_away})

    @property
    def waves(self) -> Waves:
        waves = self._state.waves
        assert waves is not None
        return waves

    @property
    def committed(self) -> int:
        return self.waves.committed

    def _is_settled(self) -> bool:
        return self.waves.phase == IDLE

    def _doing(self) -> str:
        waited = ", ".join(map(str, sorted(self.waves.waiting))) or "nothing"
        return f"its wave is in phase {self.waves.phase} and waits for {waited}"

    def _look(self) -> bool:
        if self.waves.abandoned > len(self.abandoned):
            self.abandoned += [self._state.troubled] * (self.waves.abandoned - len(self.abandoned))
        return super()._look()

    def _await_end_of_work(self) -> None:
        self._await_commits(2, "after the spouts were stopped")  # workers that are gone by now have been missed
        super()._await_end_of_work()
        self._await_commits(1, "when everything was processed")

    # -- victims -----------------------------------------------------------------------------------------------------

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

    # -- faults: each returns True if it had an effect ---------------------------------------------------------------

    def _kill(self, fault: Fault, number: int) -> bool:
        victims = self._victims(fault, self._workers(), number)
        before = self._incarnations(victims)
        if len(victims) < number or any(has_ended(victim.pid) for victim in victims.values()):
            return False
        for victim in victims.values():
            send_signal(victim.pid, signal.SIGKILL)
        return self._shows(lambda: all(has_ended(victim.pid) for victim in victims.values())) \
            and self._are_replaced(victims, before)

    def _kill_executor(self, fault: Fault) -> bool:
        workers = self._workers()
        executors = {slot: executor for slot, victim in workers.items() if (executor := executor_of(victim.pid)) is not None}
        if not executors:
            return False
        chosen = Random(fault.draw).choice(sorted(set(executors.values())))
        victims = {slot: workers[slot] for slot, executor in executors.items() if executor == chosen}
        before = self._incarnations(victims)
        if has_ended(chosen):
            return False
        send_signal(chosen, signal.SIGKILL)
        return self._shows(lambda: has_ended(chosen)) and self._are_replaced(victims, before)

    def _stop(self, fault: Fault) -> bool:
        victims = self._victims(fault, self._workers(), 1)
        for victim in victims.values():
            send_signal(victim.pid, signal.SIGSTOP)
        try:
            return self._fall_silent(victims, STOPPED_SECONDS) and all(is_stopped(victim.pid) for victim in victims.values())
        finally:
            for victim in victims.values():
                send_signal(victim.pid, signal.SIGCONT)

    def _hang(self, fault: Fault) -> bool:
        victims = self._hosts_of("split", HANG)
        chosen = Random(fault.draw).sample(sorted(victims), min(1, len(victims)))
        for slot in chosen:
            send_signal(victims[slot].pid, HANG)
        return bool(chosen) and self._fall_silent({slot: victims[slot] for slot in chosen}, HANG_SECONDS) \
            and not any(is_stopped(victims[slot].pid) or has_ended(victims[slot].pid) for slot in chosen)

    def _fall_silent(self, victims: dict[int, Victim], seconds: float) -> bool:
        """Wait this long. Returns True if the master heard nothing from them for longer than the heartbeat timeout."""
        limit, missed = self._master.worker_port.patience.timeout, set[int]()

        def look() -> bool:
            self._look()
            for slot, victim in victims.items():
                connection = self._master.connections.get(slot)
                if connection is None or connection.generation != victim.generation:
                    missed.add(slot)  # it was silent for so long that it was given up
                elif time.monotonic() - connection.heard > limit:
                    missed.add(slot)
            return False

        self._master.wait_until(look, seconds)
        return missed == victims.keys()

    def _slow_down(self, fault: Fault) -> bool:
        victims = self._hosts_of("sink", SLOW)
        before = self._master.call(lambda: self._running.observed().total("sink", "executed"))
        for victim in victims.values():
            send_signal(victim.pid, SLOW)
        self._pass(SLOW_SECONDS)
        taken = self._master.call(lambda: self._running.observed().total("sink", "executed")) - before
        return bool(victims) and taken < SLOW_SHARE * self._rate * WORDS_PER_LINE * SLOW_SECONDS

    def _hosts_of(self, component: str, number: signal.Signals) -> dict[int, Victim]:
        """The workers with tasks of a component, if they catch the signal: it would end others."""
        slots = self._master.call(lambda: {place.slot for task, place in self._state.places.items()
                                           if task.component == component})
        return {slot: victim for slot, victim in self._workers().items() if slot in slots and catches(victim.pid, number)}

    def _take_store_away(self, fault: Fault) -> bool:
        abandoned = self.waves.abandoned
        self._store.take_away()
        try:
            self._pass(AWAY_SECONDS)
            return self._shows(lambda: (self.waves.abandoned > abandoned or self.waves.phase in (CLAIM, INIT))
                               and str(self._store.path) in self._state.troubled)
        finally:
            self._store.bring_back()
