"""`millrace bench wordcount`: words a second, latency and the cost of a hop, beside other engines in the same run.

Each figure of Millrace is the best of two rounds, in turn, so that a busy moment of the machine does not decide.
"""

from __future__ import annotations

import os
import tempfile
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from millrace.api.topology import Topology
from millrace.bench.results import keep
from millrace.bench.topologies import SEED, LocalHop, RemoteHop, WordCountArrowBench, WordCountBench, WordCountRowsBench
from millrace.config import AT_LEAST_ONCE, AT_MOST_ONCE, CHECKPOINTS, GUARANTEE
from millrace.errors import MillraceError
from millrace.master.load.observed import TopologyObserved, rate_between
from millrace.model.graph import TaskId
from millrace.spark.engine import ResidentEngine, RunningTopology

WARM_UP_SECONDS = 3.0
ROUNDS = 2
LINES_PER_SECOND = 1000
SATURATED = {"process": (WordCountBench, AT_MOST_ONCE), "process_acked": (WordCountBench, AT_LEAST_ONCE),
             "process_rows": (WordCountRowsBench, AT_MOST_ONCE), "process_rows_acked": (WordCountRowsBench, AT_LEAST_ONCE),
             "process_arrow": (WordCountArrowBench, AT_MOST_ONCE),
             "process_arrow_acked": (WordCountArrowBench, AT_LEAST_ONCE)}
RIVALS = ("bytewax", "bytewax_per_item", "pathway", "spark_sql", "spark_python")


def run_bench(seconds: float, rivals: bool, live: bool) -> dict[str, Any]:
    """Returns the object of `bench wordcount --json`."""
    console = Console(stderr=not live)
    console.print("Word Count on two workers of an embedded Spark; nothing else should run on this machine.")
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as directory, \
            ResidentEngine("local[2]", 2, name=f"bench-{os.getpid()}", settings={CHECKPOINTS.key: directory}) as engine:
        words = _saturated(engine, seconds, console)
        latency = _latency(engine, seconds, console)
        hops = {"inside_a_worker": _hop(engine, LocalHop, seconds / 2, console),
                "to_another_worker": _hop(engine, RemoteHop, seconds / 2, console)}
    details: dict[str, Any] = {}
    if rivals:
        details = _rivals(console)
        words.update({name: found["words_per_s"] for name, found in details.items()})
        latency.update({f"spark_sql_{key}": details["spark_sql"].get(f"{key}_ms") for key in ("p50", "p99")})
    result = {"words_per_s": words, "latency_ms": latency, "hop_us": hops, "ratios": _ratios(words), "rivals": details}
    _print(console, result)
    console.print(f"kept in {keep('wordcount', result)}")
    return result


def start_run(engine: ResidentEngine, topology: type[Topology], config: dict[str, Any], warm_up: float) -> RunningTopology:
    running = engine.submit(topology, config=config, resume=False)  # every measurement begins anew
    if not running.wait_running():
        raise MillraceError(f"{running.name} did not start: {engine.status()['events'][-3:]}")
    time.sleep(warm_up)
    return running


def end_run(running: RunningTopology) -> None:
    errors = running.observed().errors
    running.kill(wait=5)
    if not running.wait(30):
        raise MillraceError(f"{running.name} did not end")
    if errors:
        raise MillraceError(f"{running.name} had errors, so its figures mean nothing: {errors[-1]}")


def counted(observed: TopologyObserved) -> dict[TaskId, tuple[float, float]]:
    return observed.marks("count", "executed")


def _saturated(engine: ResidentEngine, seconds: float, console: Console) -> dict[str, float]:
    best: dict[str, float] = {}
    for turn in range(ROUNDS):
        for name, (topology, guarantee) in SATURATED.items():
            console.print(f"{name}, round {turn + 1} of {ROUNDS} ...")
            running = start_run(engine, topology, {GUARANTEE.key: guarantee, "batch": 2000}, WARM_UP_SECONDS)
            before = running.measured(counted)
            time.sleep(seconds)
            rate = rate_between(before, running.measured(counted))
            best[name] = max(best.get(name, 0.0), round(rate))
            end_run(running)
    return best


def _latency(engine: ResidentEngine, seconds: float, console: Console) -> dict[str, float | None]:
    """Complete latency: from the emit of a line to the ack of all its words."""
    console.print(f"latency at {LINES_PER_SECOND:,} lines/s ...")
    running = start_run(engine, WordCountBench, {GUARANTEE.key: AT_LEAST_ONCE, "rate": LINES_PER_SECOND}, WARM_UP_SECONDS)
    running.measured(lambda observed: observed.forget_latencies())
    time.sleep(seconds)
    found = running.measured(lambda observed: observed.latency("lines", "complete_latency"))
    end_run(running)
    return {"p50": found.percentile_ms(50), "p99": found.percentile_ms(99)}


def _hop(engine: ResidentEngine, topology: type[Topology], seconds: float, console: Console) -> dict[str, float]:
    """From emit in one task to `process` in the next, single tuples, microseconds."""
    console.print(f"one hop, {topology.__name__} ...")
    running = start_run(engine, topology, {GUARANTEE.key: AT_MOST_ONCE, "rate": LINES_PER_SECOND}, seconds)
    custom = running.measured(lambda observed: [task.custom for task in observed.tasks.values()
                                                if task.custom.get("hop_p50_us")])
    end_run(running)
    if len(custom) != 1:
        raise MillraceError(f"{topology.__name__}: one bolt task should have had all tuples, not {len(custom)}")
    return {"p50": custom[0]["hop_p50_us"], "p99": custom[0]["hop_p99_us"]}


def _rivals(console: Console) -> dict[str, Any]:
    from millrace.bench.other_engines.run import run_rival
    from millrace.cli.testing import project_root
    from millrace.spark.session.java import ensure_java

    found = {}
    for name in RIVALS:
        console.print(f"{name} ...")
        found[name] = run_rival(name, None, SEED, root=project_root(), rate=LINES_PER_SECOND, java_home=ensure_java(),
                                report=console.print)
    return found


def _ratios(words: dict[str, float]) -> dict[str, float]:
    pairs = {"process_to_bytewax": ("process", "bytewax"), "process_to_bytewax_per_item": ("process", "bytewax_per_item"),
             "rows_to_bytewax": ("process_rows", "bytewax"), "process_to_pathway": ("process", "pathway"),
             "acked_to_process": ("process_acked", "process"), "arrow_to_spark_sql": ("process_arrow", "spark_sql")}
    return {name: round(words[ours] / words[theirs], 3) for name, (ours, theirs) in pairs.items() if words.get(theirs)}


def _print(console: Console, result: dict[str, Any]) -> None:
    table = Table(title="words a second", title_justify="left")
    table.add_column("engine")
    table.add_column("words/s", justify="right")
    for name, words in result["words_per_s"].items():
        table.add_row(name, f"{words:,.0f}")
    console.print(table)
    for title in ("latency_ms", "hop_us", "ratios"):
        console.print(f"{title}: {result[title]}")
