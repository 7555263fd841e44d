"""Runs of one topology on an engine: the start, the warm-up, the end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from millrace.api.topology import Topology
from millrace.bench.other_engines.reporting import Rule
from millrace.bench.other_engines.spark_common import FASTEST, scratch_directory
from millrace.config import CHECKPOINTS, HISTORY
from millrace.errors import MillraceError
from millrace.master.load.observed import TopologyObserved, rate_between
from millrace.model.graph import TaskId
from millrace.spark.engine import ResidentEngine
from millrace.spark.microbatch import MicrobatchEngine
from millrace.spark.running_topology import RunningTopology

MASTER = "local[2]"
DRAIN_SECONDS = 20.0
END_SECONDS = 60.0


def start_run(engine: ResidentEngine | MicrobatchEngine, topology: type[Topology], config: dict[str, Any],
              warm_up: float) -> RunningTopology:
    running = engine.submit(topology, config=config, resume=False)  # every measurement starts without state
    if not running.wait_running():
        raise MillraceError(f"{running.name} did not start: {engine.status()['events'][-3:]}")
    time.sleep(warm_up)
    return running


def end_run(running: RunningTopology, drain: float = DRAIN_SECONDS) -> None:
    """End the topology. `drain`: seconds to wait for tuples in flight."""
    errors = running.observed().errors
    running.kill(wait=drain)
    if not running.wait(END_SECONDS):
        raise MillraceError(f"{running.name} did not end")
    if errors:
        raise MillraceError(f"{running.name} had errors, so its figures mean nothing: {errors[-1]}")


def window_rates(running: RunningTopology, rule: Rule, component: str = "count", words: int = 1) -> list[float]:
    """Words per second in each window, by the clocks of the workers; the warm-up is over. They are counted where `component`
    has processed a tuple, which stands for this many `words`."""
    def processed(observed: TopologyObserved) -> dict[TaskId, tuple[float, float]]:
        return observed.marks(component, "executed")

    rates = []
    marks = running.measured(processed)
    for _ in range(rule.rounds):
        time.sleep(rule.seconds)
        before, marks = marks, running.measured(processed)
        rates.append(round(words * rate_between(before, marks), 1))
    return rates


@contextmanager
def resident_engine(scratch: Path) -> Iterator[ResidentEngine]:
    with ResidentEngine(MASTER, 2, name=_name(), settings=_settings(scratch)) as engine:
        yield engine


@contextmanager
def microbatch_engine() -> Iterator[MicrobatchEngine]:
    with scratch_directory() as scratch, \
            MicrobatchEngine(MASTER, 1, name=_name(), settings=_settings(scratch),
                             spark_settings={"spark.local.dir": str(scratch / "local"),
                                             "spark.driver.memory": FASTEST["spark.driver.memory"]}) as engine:
        yield engine


def _name() -> str:
    return f"bench-{os.getpid()}"


def _settings(scratch: Path) -> dict[str, Any]:
    return {CHECKPOINTS.key: str(scratch / "checkpoints"), HISTORY.key: "none"}
