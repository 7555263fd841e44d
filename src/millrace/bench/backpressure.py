"""Exactly once in front of a slow sink: the time to a committed wave, and the latency of tuples, under back-pressure."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.topology_runs import start_run
from millrace.config import EXACTLY_ONCE, GUARANTEE, WAVE_INTERVAL
from millrace.connectors.generator import GeneratorSpout
from millrace.connectors.sinks import JsonLinesSink
from millrace.control.waves import Waves
from millrace.errors import MillraceError
from millrace.master.load.observed import TopologyObserved
from millrace.master.service import Master
from millrace.model.graph import TaskId
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology

WARM_UP_SECONDS = 20.0
WAVES = 3
LIMIT_SECONDS = 120.0  # for one wave
RECENT_ROWS = 100
SLEEP, P50, P99 = "bench.sleep", "latency_p50_ms", "latency_p99_ms"


class Moments(GeneratorSpout):
    """Emits the time, as fast as it may."""

    outputs: ClassVar[list[str]] = ["number", "born"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return self.ordinal(position), time.monotonic()


class Relay(Bolt):
    outputs: ClassVar[list[str]] = ["number", "born"]

    def process(self, tup: Tuple) -> None:
        self.emit(tup.values)


class SlowLines(JsonLinesSink):
    """Sleeps for every row, on a thread of its own, and reports the time since the rows were emitted."""

    blocking: ClassVar[bool] = True

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._sleep = float(storm_conf[SLEEP])
        self._latencies: deque[float] = deque(maxlen=RECENT_ROWS)

    def process_rows(self, rows: list[Any]) -> None:
        for row in rows:
            time.sleep(self._sleep)
            self._latencies.append(time.monotonic() - row.born)
        super().process_rows(rows)
        ordered = sorted(self._latencies)
        for name, share in ((P50, 0.5), (P99, 0.99)):
            self.report_metric(name, round(1000 * ordered[int(share * (len(ordered) - 1))], 1))


class SlowEnd(Topology):
    moments = Moments.spec(par=2)
    relay = Relay.spec(inputs={moments: Grouping.SHUFFLE}, par=2)
    lines = SlowLines.spec(inputs={relay: Grouping.SHUFFLE})


def wave_under_backpressure(ms_per_row: float, engine: ResidentEngine, directory: Path) -> dict[str, float]:
    """Milliseconds to a committed wave, from the beginning of the first one after the previous commit, the longest of some, and
    the latency of tuples from the spout to the sink, with a sink that takes so long for a row and spouts that are as fast as
    they may be. Raises `MillraceError` if no wave is committed for two minutes. `directory`: for the sink's rows. It must
    outlive the engine, because a sink may still write when its topology has ended."""
    config = {GUARANTEE.key: EXACTLY_ONCE, WAVE_INTERVAL.key: 1.0, SLEEP: ms_per_row / 1000, "path": str(directory / "rows")}
    running = start_run(engine, SlowEnd, config, WARM_UP_SECONDS)
    try:
        waves = engine.master.state.topology(running.name).waves
        assert waves is not None
        longest = max(_commit_times(engine.master, waves, ms_per_row))
        return {"wave_ms": round(1000 * longest, 1), **_latencies(running)}
    finally:
        running.kill(wait=0.0)
        running.wait(LIMIT_SECONDS)


@dataclass(slots=True)
class CommitTimes:
    """Seconds to each committed wave, from the beginning of the first wave after the previous commit: waves that were abandoned
    in between count. The first commit that is seen has no time, because its first wave may have been missed."""

    committed: int
    commits: int = 0
    seconds: list[float] = field(default_factory=list)
    _first: float | None = None

    def look(self, waves: Waves, enough: int) -> bool:
        """Call repeatedly, on the master's thread. Returns True if this many commits were seen."""
        if waves.committed > self.committed:
            if self.commits:
                self.seconds.append(waves.began + waves.took - (self._first if self._first is not None else waves.began))
            self.committed, self._first = waves.committed, None
            self.commits += 1
        elif waves.wave > self.committed and self._first is None:
            self._first = waves.began
        return self.commits >= enough


def _commit_times(master: Master, waves: Waves, ms_per_row: float) -> list[float]:
    times = CommitTimes(waves.committed)
    for count in range(1, WAVES + 2):
        if not master.wait_until(partial(times.look, waves, count), LIMIT_SECONDS):
            raise MillraceError(f"no wave was committed in {LIMIT_SECONDS:g} s before a sink that takes {ms_per_row:g} ms for "
                                f"a row; {waves.abandoned} were abandoned")
    return times.seconds


def _latencies(running: RunningTopology) -> dict[str, float]:
    def look(observed: TopologyObserved) -> dict[str, float]:
        custom = observed.tasks[TaskId("lines", 0)].custom
        return {name: float(custom[name]) for name in (P50, P99)}

    return running.measured(look)
