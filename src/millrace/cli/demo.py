"""`millrace demo`: Word Count, a worker killed on the way, and the proof that nothing is missing."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from typing import Any

from rich.console import Console

from millrace.cli.running import show_live
from millrace.errors import MillraceError
from millrace.master.load.observed import rate_between
from millrace.spark.engine import ResidentEngine, RunningTopology
from millrace.workloads.audit import AuditedWordCount, AuditResult, audit

DRAIN_SECONDS = 60.0


def run_demo(seconds: float, rate: float, workers: int, live: bool) -> dict[str, Any]:
    """Returns the figures of `demo --json`."""
    console = Console(stderr=not live)
    directory = tempfile.mkdtemp(prefix="millrace-demo-")
    try:
        console.print(f"starting Spark and {workers} workers in it (about 10 s) ...")
        with ResidentEngine(f"local[{workers + 1}]", workers, name=f"demo-{os.getpid()}") as engine:
            running = engine.submit(AuditedWordCount, "wordcount", {"path": directory, "rate": rate})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; the master says: {engine.status()['events'][-3:]}")
            return _measure(engine, running, console, seconds, live, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _measure(engine: ResidentEngine, running: RunningTopology, console: Console, seconds: float, live: bool,
             directory: str) -> dict[str, Any]:
    killer = Killer(engine, console, at=time.monotonic() + seconds / 3)
    end = time.monotonic() + seconds
    before = running.measured(lambda observed: observed.marks("count", "executed"))
    _until(engine, running, console, live, lambda: killer.check() or time.monotonic() >= end)
    after = running.measured(lambda observed: observed.marks("count", "executed"))
    latency = running.measured(lambda observed: observed.latency("lines", "complete_latency"))
    if not running.drain(DRAIN_SECONDS):
        raise MillraceError(f"the topology did not come to rest within {DRAIN_SECONDS:g} s after its spouts were stopped")
    found = audit(directory, {task.index: position for task, position in running.positions().items()})
    running.kill(wait=0)
    result = {"tuples_in": found.tuples_in, "tuples_out": found.tuples_out, "lost": found.lost, "repeated": found.repeated,
              "wrong": found.wrong + found.beyond, "workers_killed": killer.killed,
              "words_per_s": round(rate_between(before, after)),
              "p50_ms": latency.percentile_ms(50), "p99_ms": latency.percentile_ms(99)}
    _explain(console, found, result)
    return result


class Killer:
    """Kills one worker with SIGKILL at its time, as a crash would."""

    def __init__(self, engine: ResidentEngine, console: Console, at: float) -> None:
        self._engine, self._console, self._at = engine, console, at
        self.killed = 0

    def check(self) -> bool:
        """Always False: it is not the end."""
        if not self.killed and time.monotonic() >= self._at:
            victim = self._engine.status()["workers"][-1]
            os.kill(victim["pid"], signal.SIGKILL)
            self.killed += 1
            self._console.print(f"[bold]kill -9 {victim['pid']}[/bold] (worker {victim['slot']}, {len(victim['tasks'])} tasks)")
        return False


def _until(engine: ResidentEngine, running: RunningTopology, console: Console, live: bool, over: Any) -> None:
    if live:
        show_live(engine, console, lambda seconds: running.wait(seconds) or over())
    else:
        while not (running.wait(0.25) or over()):
            continue


def _explain(console: Console, found: AuditResult, result: dict[str, Any]) -> None:
    console.print(f"\n{found.tuples_in:,} words went in; every one of them was looked for in the sink's files: "
                  f"[bold]{found.lost:,} lost[/bold], {found.repeated:,} repeated (at-least-once), "
                  f"{result['workers_killed']} worker killed.")
    console.print(f"{result['words_per_s']:,} words/s; a line and all its words done in {result['p50_ms']:.3g} ms (p50), "
                  f"{result['p99_ms']:.3g} ms (p99, the crash included).")
