"""`bench migration`: every case on one cluster, one after the other, and the papers' tables with ours beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace.bench.migration.cases import DEFAULT_SCALE, QUICK_SCALE, Delays, MigrationCase, check_scale, chosen_cases
from millrace.bench.migration.driving import faulty, measure
from millrace.bench.migration.places import SLOTS
from millrace.bench.migration.published import PUBLISHED
from millrace.bench.migration.ratios import pairs_of, ratios_of
from millrace.bench.migration.report import check_report, write_report
from millrace.bench.migration.standing import worst_of_handover
from millrace.bench.migration.tables import paper_tables, terminal_table
from millrace.bench.other_engines.spark_common import scratch_directory
from millrace.bench.results import keep
from millrace.config import CHECKPOINTS, HISTORY, MIGRATION_STABLE, MIGRATION_WATCH, NODE_BY
from millrace.errors import MillraceError
from millrace.spark.engine import ResidentEngine

MASTER = "local-cluster[2,5,700]"
REDEPLOYMENTS, QUICK_REDEPLOYMENTS = 3, 2
INTERRUPTED = "migration-interrupted"  # name of a result that no page shows


def run_migration(strategies: Sequence[str] = (), workloads: Sequence[str] = (), time_scale: float | None = None,
                  quick: bool = False, live: bool = True, report: str | None = None) -> dict[str, Any]:
    """Returns the object of `bench migration --json`.

    `runs`: see `migration_figures`. `paper`: figures of the papers and of Apache Storm. `compared`: see `pairs_of`.
    `ratios`: see `ratios_of`. `handover_standing`: see `Standing`. `timelines`: rate and latency at the sinks, by run.
    `failed`: the runs without figures, with the reason.
    """
    delays = check_scale(time_scale if time_scale is not None else QUICK_SCALE if quick else DEFAULT_SCALE)
    cases = chosen_cases(strategies, workloads, quick)
    directory = check_report(report) if report is not None else None
    console, began = Console(stderr=not live), time.monotonic()
    result: dict[str, Any] = {"master": MASTER, "slots": SLOTS, "time_scale": delays.scale, "runs": [], "timelines": [],
                              "failed": {}, "paper": [figure.to_json() for figure in PUBLISHED]}
    console.print(f"{len(cases)} runs on Spark {MASTER}, the papers' delays times {delays.scale:g}; nothing else should run on "
                  "this machine.", markup=False)
    with scratch_directory() as scratch, _engine(scratch, delays) as engine:
        started, redeployments = time.monotonic(), QUICK_REDEPLOYMENTS if quick else REDEPLOYMENTS
        try:
            for number, case in enumerate(cases, 1):
                console.print(progress(number, len(cases), time.monotonic() - started, case), markup=False)
                _measure_or_note(engine, scratch, case, delays, redeployments, result, console)
        except KeyboardInterrupt:
            console.print(f"interrupted: the runs so far are kept in {keep(INTERRUPTED, result, quick)}", markup=False)
            raise
    standings = worst_of_handover(result["runs"])
    result["compared"], result["ratios"] = pairs_of(result["runs"]), ratios_of(result["runs"])
    result["handover_standing"] = [each.to_json() for each in standings]
    result["seconds"] = round(time.monotonic() - began, 1)
    for table in paper_tables(result["runs"]):
        console.print(terminal_table(table))
    for standing in standings:
        console.print(f"handover to the best of the others, at worst: {standing}", markup=False, highlight=False)
    console.print(f"took {result['seconds'] / 60:.1f} minutes; kept in {keep('migration', result, quick)}")
    if directory is not None:
        console.print(f"report in {write_report(directory, result)}", markup=False)
    return result


def progress(number: int, of: int, elapsed: float, case: MigrationCase) -> str:
    """The line before a run: how many are done, and about how long the others take."""
    left = f", about {elapsed / (number - 1) * (of - number + 1) / 60:.0f} minutes left" if number > 1 else ""
    return f"{number} of {of}, after {elapsed:.0f} s{left}: {case} ..."


def _engine(scratch: Path, delays: Delays) -> ResidentEngine:
    return ResidentEngine(MASTER, SLOTS, name=f"migration-{os.getpid()}", settings=engine_settings(scratch, delays))


def engine_settings(scratch: Path, delays: Delays) -> dict[str, Any]:
    """The settings of the cluster. The record of a migration is measured over the window of the time scale."""
    return {NODE_BY.key: "executor", HISTORY.key: "none", CHECKPOINTS.key: str(scratch / "checkpoints"),
            MIGRATION_STABLE.key: delays.window, MIGRATION_WATCH.key: delays.after}


def _measure_or_note(engine: ResidentEngine, scratch: Path, case: MigrationCase, delays: Delays, redeployments: int,
                     result: dict[str, Any], console: Console) -> None:
    """Measure a case; an error costs only this one."""
    try:
        figures, timeline = measure(engine, scratch, case, delays, redeployments)
    except Exception as error:  # whatever it is, the runs of the last hour must not be lost with it
        reason = str(error) if isinstance(error, MillraceError) else f"{type(error).__name__}: {error}"
        result["failed"][str(case)] = reason
        console.print(f"{case} failed: {reason}", style="red", markup=False)
        return
    result["runs"].append(figures)
    result["timelines"].append(timeline)
    console.print(f"longest gap {figures['longest_gap_ms']:,.0f} ms, usually {figures['usual_gap_ms']:,.0f} ms; "
                  f"{figures['lost']} lost, {figures['replayed']} replayed, {figures['repeated']} repeated, "
                  f"{len(figures['new_pids'])} new processes", highlight=False)


def faulty_migrations(result: Mapping[str, Any]) -> str:
    """Runs without figures and runs that were not exact; empty if there are none."""
    failed = (f"{name}: {error.splitlines()[0] if error else 'failed'}" for name, error in result["failed"].items())
    return "; ".join([*faulty(result["runs"]), *failed])
