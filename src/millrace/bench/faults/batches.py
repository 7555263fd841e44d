"""Faults of the microbatch engine: its Python processes, its executors, its code and its sinks."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random

import psutil
from rich.console import Console

from millrace.bench.faults.plan import HUNG, KILL_EXECUTOR, KILL_ONE, MOVE, PAUSE, SLOW_SINK, Fault
from millrace.bench.faults.sabotage import HANG, HANG_SECONDS, SLOW, SLOW_SECONDS
from millrace.bench.faults.soak import Soak
from millrace.bench.faults.surroundings import catches, has_ended, send_signal
from millrace.master.batch_log import BatchLog
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology

PYTHON = "pyspark.daemon"

# Each kind of fault with the proof that it had an effect.
PROOFS = {
    KILL_ONE: "the Python process is gone, and a batch was attempted again or a task loaded its state again",
    KILL_EXECUTOR: "the executor's JVM is gone, and the master has lost its slot",
    HUNG: f"a batch took at least the {HANG_SECONDS:g} s for which the process held its interpreter lock",
    SLOW_SINK: f"a batch took at least the {SLOW_SECONDS:g} s for which the sinks were slow, or was attempted again",
    MOVE: "the task is at the executor that it was moved to, which is another one than before",
    PAUSE: "the topology was paused",
}


class BatchSoak(Soak):
    """Faults on the microbatch engine. Its store is not taken away: Spark keeps its offsets in it and ends the query."""

    def __init__(self, engine: MicrobatchEngine, running: RunningTopology, console: Console) -> None:
        super().__init__(engine.master, running, console)
        self.breaks.update({KILL_ONE: self._kill, KILL_EXECUTOR: self._kill_executor, HUNG: self._hang,
                            SLOW_SINK: self._slow_down})

    @property
    def committed(self) -> int:
        return self._state.checkpoint.wave if self._state.checkpoint is not None else 0

    def _is_settled(self) -> bool:
        return True

    def _doing(self) -> str:
        batch = self._log.under_way
        return f"in batch {batch.batch}, attempt {batch.attempt}: {batch.doing}" if batch is not None else "in no batch"

    @property
    def _log(self) -> BatchLog:
        return self._master.batch_logs.setdefault(self._running.name, BatchLog())

    # -- faults: each returns True if it had an effect ---------------------------------------------------------------

    def _kill(self, fault: Fault) -> bool:
        processes = python_processes(HANG)
        if not processes:
            return False
        victim = Random(fault.draw).choice(processes)
        before = self._again()
        send_signal(victim, signal.SIGKILL)
        return self._shows(lambda: has_ended(victim)) and self._shows(lambda: self._again() > before)

    def _again(self) -> int:
        """Attempts that followed a failed one, and tasks that loaded their state."""
        return self._attempts_again() + self._log.restored

    def _attempts_again(self) -> int:
        batch = self._log.under_way
        return self._log.retried + (batch.attempt - 1 if batch is not None else 0)

    def _kill_executor(self, fault: Fault) -> bool:
        executors = executor_processes()
        if not executors:
            return False
        victim = Random(fault.draw).choice(executors)
        generations = self._generations()
        send_signal(victim, signal.SIGKILL)
        return self._shows(lambda: has_ended(victim)) and self._shows(lambda: not generations <= self._generations())

    def _generations(self) -> set[int]:
        return {worker.address.generation for worker in self._master.state.workers.values()}

    def _hang(self, fault: Fault) -> bool:
        processes = python_processes(HANG)
        if not processes:
            return False
        took_long = self._long_batch(HANG_SECONDS)
        send_signal(Random(fault.draw).choice(processes), HANG)
        return self._shows(took_long)

    def _slow_down(self, fault: Fault) -> bool:
        processes = python_processes(SLOW)
        if not processes:
            return False
        took_long, before = self._long_batch(SLOW_SECONDS), self._attempts_again()
        for process in processes:
            send_signal(process, SLOW)
        return self._shows(lambda: took_long() or self._attempts_again() > before)

    def _long_batch(self, seconds: float) -> Callable[[], bool]:
        """A condition: a batch that is done after this call took at least this long."""
        before = self._log.count

        def took_long() -> bool:
            done = self._log.count - before
            return done > 0 and any(record.seconds >= seconds for record in list(self._log.records)[-done:])

        return took_long


def executor_processes() -> list[int]:
    """The JVMs of the executors that this process started."""
    return sorted(child.pid for child in _children() if "--executor-id" in _command(child))


def python_processes(number: signal.Signals) -> list[int]:
    """The Python processes of the executors that run code which catches the signal."""
    return sorted(child.pid for child in _children() if PYTHON in _command(child) and catches(child.pid, number))


def _children() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
