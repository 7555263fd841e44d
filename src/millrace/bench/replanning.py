"""`millrace bench replanning`: Word Count on two Spark executors, re-planned while it runs, with every word checked."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from typing import Any

from rich.console import Console

from millrace.bench.results import keep
from millrace.control.scheduling.schedule_generator import ENACTED
from millrace.errors import MillraceError
from millrace.schedulers.otd import Otd
from millrace.schedulers.problem import Problem
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.audit import AuditedWordCount, audit

SLOTS = 4
MASTER = "local-cluster[2,3,700]"
WINDOW_SECONDS = 2.0
DRAIN_SECONDS = 60.0
DECIDE_SECONDS = 60.0  # until a scheduler has decided, beyond its part: a safety limit
SWAPS = ("tstorm", "slstream", "even", "otd")


def run_replanning(seconds: float, rate: float, live: bool) -> dict[str, Any]:
    """Run parts of `seconds` each: without a scheduler, with OTD (four times as long), and with the others in turn."""
    console = Console(stderr=not live)
    directory = tempfile.mkdtemp(prefix="millrace-replanning-")
    settings = {"worker.node.by": "executor", "load.period.secs": WINDOW_SECONDS, "history.url": "none"}
    try:
        with ResidentEngine(MASTER, SLOTS, name=f"replanning-{os.getpid()}", settings=settings) as engine:
            running = engine.submit(AuditedWordCount, "words", {"path": directory, "rate": rate})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; last events: {engine.status()['events'][-3:]}")
            result = _measure(engine, running, console, seconds)
            result.update(_audited(running, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    console.print(f"{result['tuples_in']:,} words in, {result['lost']} lost, {result['repeated']} repeated; "
                  f"kept in {keep('replanning', result)}")
    return result


def _measure(engine: ResidentEngine, running: RunningTopology, console: Console, seconds: float) -> dict[str, Any]:
    time.sleep(seconds)
    result: dict[str, Any] = {"slots": SLOTS, "nodes": 2, "worker_limit": Otd().high,
                              "before": _traffic(engine, console, "placed evenly")}
    engine.set_scheduler("otd", period=WINDOW_SECONDS, cool_down=WINDOW_SECONDS)
    time.sleep(4 * seconds)
    _wait_for(engine, "otd", ENACTED)
    result["otd"] = {**_traffic(engine, console, "after OTD"), "moves": _enacted(engine, "otd")}
    for name in SWAPS:
        before = _decided(engine, name)
        engine.set_scheduler(name, period=WINDOW_SECONDS, cool_down=WINDOW_SECONDS)
        time.sleep(seconds)
        _wait_for(engine, name, more_than=before)
        result[f"then {name}"] = {**_traffic(engine, console, f"after {name}"), "plans": _enacted(engine, name)}
    return result


def _traffic(engine: ResidentEngine, console: Console, what: str) -> dict[str, float]:
    situation = engine.master.call(engine.master.scheduling.situation)
    problem = Problem.of(situation.graphs, situation.cluster, situation.load, situation.plan)
    figures = problem.figures(problem.current)
    share = figures.inter_node / max(float(problem.rate.sum()), 1e-9)
    console.print(f"{what}: {share:.1%} of the tuples between nodes, busiest worker {figures.largest_worker_load:.0%} of a "
                  "core")
    return {"inter_node_share": round(share, 4), "largest_worker_load": round(figures.largest_worker_load, 3)}


def _wait_for(engine: ResidentEngine, name: str, outcome: str = "", more_than: int = 0) -> None:
    """Wait until the scheduler has decided once more (with this outcome): a busy machine may be late."""
    if not engine.master.wait_until(lambda: _decided(engine, name, outcome) > more_than, DECIDE_SECONDS):
        raise MillraceError(f"the scheduler {name} has no new {outcome or 'decision'} within {DECIDE_SECONDS:g} s; the last "
                            f"decisions: {engine.decisions(3)}")


def _decided(engine: ResidentEngine, name: str, outcome: str = "") -> int:
    """The number of its decisions, repeated ones too, with this outcome."""
    return sum(decision["times"] for decision in engine.decisions(200)
               if decision["scheduler"] == name and outcome in ("", decision["outcome"]))


def _enacted(engine: ResidentEngine, name: str) -> int:
    return sum(decision["outcome"] == ENACTED and decision["scheduler"] == name for decision in engine.decisions(200))


def _audited(running: RunningTopology, directory: str) -> dict[str, Any]:
    if not running.drain(DRAIN_SECONDS):
        raise MillraceError(f"the topology did not drain within {DRAIN_SECONDS:g} s after its spouts were stopped")
    audited = audit(directory, {task.index: position for task, position in running.positions().items()})
    running.kill(wait=0)
    return {"tuples_in": audited.tuples_in, "tuples_out": audited.tuples_out, "lost": audited.lost,
            "repeated": audited.repeated, "wrong": audited.wrong + audited.beyond}
