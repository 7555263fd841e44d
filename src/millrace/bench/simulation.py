"""`millrace bench simulation`: schedulers on three Spark executors, and in a simulation of the same situation.

Words of a text are counted and ranked at a constant rate. Each scheduler begins with the same even placement; traffic between
nodes at the end of its run is measured, predicted from the load of the even placement, and simulated. The record can be kept
for a test.

Schedulers must come to different results, or there is no order to reproduce. So tasks wait, which fills workers without CPU: a
node has room for some of them only. A count and the rank of the same words exchange many tuples and other pairs none, a few
words are much more frequent than others, and there are ten times as many words as lines.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.table import Table

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.bench.results import keep
from millrace.connectors.sinks import Drop
from millrace.errors import MillraceError
from millrace.master.load.history import recorded_windows
from millrace.master.load.history_tables import PastWindow
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.problem import Problem
from millrace.simulation.real_runs import LAST, RealRun, compared_runs, distinct, wrong_order
from millrace.simulation.recorded import recorded_situation
from millrace.spark.engine import ResidentEngine
from millrace.spark.running_topology import RunningTopology
from millrace.workloads.wordcount import Count, Lines, Split

MASTER, SLOTS = "local-cluster[3,3,700]", 6  # three executors as nodes, two workers on each
WINDOW_SECONDS = 2.5
LINES_PER_SECOND = 40.0  # few: the placements must differ by their traffic, and not by what a small machine can bear
COUNT_WAITS, RANK_WAITS = 0.0035, 0.0015  # seconds for a word: all counts keep 1.4 workers busy, and all ranks 0.6
SUMMED = 5  # of so many updates of a word's count, one reaches the sum
WINDOWS = {"even": 6, "online": 9, "erstream": 9, "tstorm": 9, "slstream": 9, "multilevel": 9, "otd": 30}  # of each run
LEAST_DISTINCT = 4  # results: with fewer, the order says little
NAME = "recorded"


class SlowCount(Count):
    """Waits for every word, as if it asked another system."""

    def process(self, tup: Tuple) -> None:
        time.sleep(COUNT_WAITS)
        super().process(tup)


class Rank(Bolt):
    """Keeps the highest count of its words, and passes some of the updates on."""

    outputs: ClassVar[list[str]] = ["word", "count"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._highest = 0

    def process(self, tup: Tuple) -> None:
        time.sleep(RANK_WAITS)
        word, count = tup.values
        self._highest = max(self._highest, count)
        if count % SUMMED == 0:
            self.emit((word, count))


class RankedWords(Topology):
    """No grouping prefers tasks of the same worker, so the traffic of a pair of tasks does not depend on their places."""

    config: ClassVar[dict[str, Any]] = {"zipf": 1.0}
    lines = Lines.spec(par=2)
    split = Split.spec(inputs={lines: Grouping.SHUFFLE}, par=3)
    count = SlowCount.spec(inputs={split: Grouping.fields("word")}, par=6)
    rank = Rank.spec(inputs={count: Grouping.fields("word")}, par=3)
    total = Drop.spec(inputs={rank: Grouping.GLOBAL}, par=1)


def run_simulation_bench(save: str | None, live: bool) -> dict[str, Any]:
    """Returns the object of `bench simulation --json`. `save`: a file for the record."""
    console = Console(stderr=not live)
    record = record_runs(console)
    if save is not None:
        Path(save).write_text(json.dumps(record, separators=(",", ":")) + "\n")
    runs = compared_runs(record)
    console.print(_table(runs))
    wrong = wrong_order(runs)
    if (results := distinct(runs)) < LEAST_DISTINCT:
        console.print(f"only {results} results differ clearly: a record of them would test little")
    for one, other in wrong:
        console.print(f"{one} had less traffic than {other}, and has not in the simulation")
    result = {"runs": [vars(run) for run in runs], "wrong_order": wrong, "distinct": results, "window_seconds": WINDOW_SECONDS,
              "lines_per_second": LINES_PER_SECOND}
    console.print(f"kept in {keep('simulation', result)}")
    return result


def record_runs(console: Console) -> dict[str, Any]:
    """Run every scheduler on a real cluster; returns the record, see millrace.simulation.real_runs."""
    directory = tempfile.mkdtemp(prefix="millrace-simulation-")
    history = f"{directory}/history.db"
    settings = {"worker.node.by": "executor", "load.period.secs": WINDOW_SECONDS, "history.url": f"sqlite:///{history}",
                "load.other.processes": "ignore"}  # Spark's own would look like a lack of CPU
    try:
        with ResidentEngine(MASTER, SLOTS, name=f"simulation-{os.getpid()}", settings=settings) as engine:
            running = engine.submit(RankedWords, NAME, {"rate": LINES_PER_SECOND})
            if not running.wait_running():
                raise MillraceError(f"the topology did not start; last events: {engine.status()['events'][-3:]}")
            saved, spans = _run_all(engine, running, console)
        return _record(saved, spans, recorded_windows(history))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _run_all(engine: ResidentEngine, running: RunningTopology,
             console: Console) -> tuple[Situation, dict[str, tuple[float, float]]]:
    """The situation when placed evenly, and begin and end of each run, in unix time."""
    time.sleep(2 * WINDOW_SECONDS)  # the first windows have the start in them
    placement = _situation(engine).plan[NAME].placement
    spans = {}
    for name, windows in WINDOWS.items():
        console.print(f"{name}: {windows} windows of {WINDOW_SECONDS:g} s ...")
        begin = time.time()
        if name != "even":  # it is what the run began with
            engine.set_scheduler(name)
        time.sleep(windows * WINDOW_SECONDS)
        spans[name] = begin, time.time()
        if name == "even":
            saved = _situation(engine)
        for decision in engine.decisions(50):
            if decision["scheduler"] == name and decision["at"] >= begin:
                console.print(f"  {decision['outcome']}, {decision['times']} times: {decision['reason']}")
        engine.set_scheduler("off")
        if not running.wait_running() or (name == "even" and _situation(engine).plan[NAME].placement != placement):
            raise MillraceError(f"under {name} workers were lost: run it again on a machine that has less to do; last events: "
                                f"{engine.status()['events'][-3:]}")
        if _situation(engine).plan[NAME].placement != placement:
            running.rebalance({str(task): slot for task, slot in placement.items()})
            time.sleep(2 * WINDOW_SECONDS)
    return saved, spans


def _situation(engine: ResidentEngine) -> Situation:
    situation: Situation = engine.master.call(engine.master.scheduling.situation)
    return situation


def _record(saved: Situation, spans: dict[str, tuple[float, float]], windows: Sequence[PastWindow]) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    even: list[PastWindow] = []
    for name, (begin, end) in spans.items():
        own = [window for window in windows if begin < window.at <= end and NAME in window.loads]
        even = even or own
        last = own[-1].placements[NAME]
        final = [_inter_node(saved, window) for window in own
                 if window.placements[NAME] == last and not window.loads[NAME].settling][-LAST:]
        if not final:
            raise MillraceError(f"under {name} tasks moved until the end, in {len(own)} windows: run it again on a machine "
                                "that has less to do")
        runs.append({"scheduler": name, "windows": len(own), "measured": sum(final) / len(final),
                     "placement": {NAME: {str(task): slot for task, slot in last.items()}}})
    return {"window_seconds": WINDOW_SECONDS, "situation": recorded_situation(even, saved).to_json(), "runs": runs}


def _inter_node(saved: Situation, window: PastWindow) -> float:
    plans = {name: Plan(1, placement) for name, placement in window.placements.items()}
    problem = Problem.of(saved.graphs, saved.cluster, window.loads, plans)
    return problem.inter_node(problem.current)


def _table(runs: Sequence[RealRun]) -> Table:
    table = Table(title="tuples/s between nodes at the end", title_justify="left")
    table.add_column("scheduler")
    for column in ("measured", "predicted for its placement", "simulated"):
        table.add_column(column, justify="right")
    for run in runs:
        table.add_row(run.scheduler, *(f"{figure:,.0f}" for figure in (run.measured, run.predicted, run.simulated)))
    return table
