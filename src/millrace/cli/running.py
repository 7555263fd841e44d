"""`millrace run`: starts an engine for one topology and shows it until it ends or is stopped."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live

from millrace.api.topology import Topology
from millrace.cli.begin import DEFAULT_SLOTS, RunOptions
from millrace.cli.dashboard import dashboard
from millrace.config import MICROBATCH, RESIDENT
from millrace.control.topology_status import ENDED
from millrace.errors import MillraceError, NotTheAuthor
from millrace.model.graph import graph_of
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology

if TYPE_CHECKING:
    from millrace.spark.microbatch import MicrobatchEngine


IN_FLIGHT_SECONDS = {RESIDENT: 5.0, MICROBATCH: 60.0}  # to finish tuples in flight, or the batch in progress, at the end
REFRESH_SECONDS = 0.5
RATE_SECONDS = 5.0
LAST_BATCH_SECONDS = 90.0  # to commit the last batch: a slow store may need longer than the batch
AT_ONCE_SECONDS = 5.0  # to end after a second Ctrl-C


class Rates:
    """Computes each component's tuples per second over the last few seconds, long enough to span several batches."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def of(self, status: dict[str, Any]) -> dict[str, dict[str, float]]:
        now = self._clock()
        return {topology["name"]: {row["name"]: self._rate((topology["name"], row["name"]), now,
                                                           row["emitted"] if row["kind"] == "spout" else row["executed"])
                                   for row in topology["components"]} for topology in status["topologies"]}

    def _rate(self, key: tuple[str, str], now: float, work: int) -> float:
        samples = self._samples.setdefault(key, deque())
        samples.append((now, work))
        while len(samples) > 2 and now - samples[1][0] >= RATE_SECONDS:
            samples.popleft()
        then, before = samples[0]
        return (work - before) / (now - then) if now > then else 0.0


def show_live(engine: ResidentEngine | MicrobatchEngine, console: Console, until: Any) -> None:
    """Refresh the tables until `until(seconds)` returns True."""
    rates = Rates()
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while not until(REFRESH_SECONDS):
            status = engine.status()
            live.update(dashboard(status, rates.of(status)))
    if not console.is_terminal:
        console.print()  # there, the last line of the tables has no end


def run_topology(options: RunOptions, topology: type[Topology], live: bool) -> dict[str, Any]:
    """Run a topology that `begin_run` has checked."""
    console = Console(stderr=not live)
    graph = graph_of(topology, options.name or None, options.config, options.par)
    with start_engine(options, topology, console) as engine:
        for text in engine.unencrypted:
            console.print(f"warning: {text}", markup=False)
        if options.scheduler is not None:
            engine.set_scheduler(options.scheduler, options.scheduler_parameters)
        running = engine.submit(topology, options.name or None, options.config, options.par, options.resume)
        console.print(f"{graph.name} is running as cluster {engine.master.name}; Ctrl-C stops it", markup=False)
        console.print(f"from another terminal: millrace status, plan, load, state, pause, kill {graph.name}", markup=False)
        deadline = time.monotonic() + options.seconds if options.seconds else float("inf")
        try:
            _watch(engine, running, console, deadline, live)
        except KeyboardInterrupt:
            console.print("stopping ...")
        result = _final(engine, running)
        _stop(engine, running, options.engine, console)
        uncommitted, has_ended = running.uncommitted, running.status == ENDED
    if engine.master.superseded:
        raise NotTheAuthor(engine.master.superseded)
    if running.failure:
        raise MillraceError(running.failure)
    if engine.lost:
        raise MillraceError(engine.lost)
    if uncommitted:
        raise MillraceError(f"{graph.name}: {uncommitted}")
    if not has_ended:
        raise MillraceError(f"{graph.name}: it has not ended in time, and input after its last checkpoint may not be "
                            "committed. --resume continues from there")
    return result


def start_engine(options: RunOptions, topology: type[Topology], console: Console) -> ResidentEngine | MicrobatchEngine:
    slots = options.slots or DEFAULT_SLOTS[options.engine]
    if options.engine == MICROBATCH:
        from millrace.spark.microbatch import MicrobatchEngine

        console.print(f"waiting for {slots} executors of Spark {options.master} ...", markup=False)
        return MicrobatchEngine(options.master, slots, name=options.cluster, code=[topology], settings=options.settings,
                                spark_settings=options.spark, require_encryption=options.require_encryption)
    console.print(f"starting {slots} workers on Spark {options.master} ...", markup=False)
    return ResidentEngine(options.master, slots, name=options.cluster, bind=options.bind, port=options.port,
                          one_worker_per_node=options.one_worker_per_node, code=[topology], settings=options.settings,
                          spark_settings=options.spark, require_encryption=options.require_encryption)


def _watch(engine: ResidentEngine | MicrobatchEngine, running: RunningTopology, console: Console, deadline: float,
           live: bool) -> None:
    def over(seconds: float) -> bool:
        if engine.master.superseded:
            raise NotTheAuthor(engine.master.superseded)
        if engine.lost:
            raise MillraceError(engine.lost)
        if running.failure:
            raise MillraceError(running.failure)
        return running.wait(seconds) or time.monotonic() >= deadline

    if live:
        show_live(engine, console, over)
    else:
        while not over(REFRESH_SECONDS):
            continue


def _stop(engine: ResidentEngine | MicrobatchEngine, running: RunningTopology, kind: str, console: Console) -> None:
    """Stop the topology. The master of a resident one decides for how long its last wave may take: while tuples are processed,
    for up to 30 checkpoint timeouts. A second Ctrl-C ends it at once."""
    if running.status == ENDED:
        return
    running.kill(wait=IN_FLIGHT_SECONDS[kind])
    deadline = time.monotonic() + LAST_BATCH_SECONDS if kind == MICROBATCH else float("inf")
    try:
        while (not running.wait(REFRESH_SECONDS) and time.monotonic() < deadline
               and not engine.lost and not engine.master.superseded):
            continue
    except KeyboardInterrupt:
        console.print("ending at once ...")
        running.kill(wait=0.0)
        running.wait(AT_ONCE_SECONDS)


def _final(engine: ResidentEngine | MicrobatchEngine, running: RunningTopology) -> dict[str, Any]:
    status = engine.status()
    rows = [topology for topology in status["topologies"] if topology["name"] == running.name]
    return rows[0] if rows else {"name": running.name, "status": ENDED}
