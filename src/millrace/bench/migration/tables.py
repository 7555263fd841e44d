"""The papers' tables with ours beside them: for the terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from millrace.bench.migration.cases import KEYED, REDEPLOYED, SCALED, WORKLOADS, row_name
from millrace.bench.migration.figures import RunFigures, figure_of
from millrace.bench.migration.published import NSTORM_PAPER, NSTORM_REDEPLOYMENTS, PUBLISHED, STORM_HERE, Published, published
from millrace.bench.migration.ratios import RunIndex
from millrace.control.migrations import LEVELS

UNKNOWN_CELL = "-"
THEIRS = "In brackets the paper's figure, theirs and on other hardware: ≤ no more than this, ≈ about this."
UNSCALED = ("The time scale shortens the papers' delays and cycles, but not the start of a process, for which storm and storm* "
            "wait: with a scale below 1, nstorm and nstorm+ look better beside them than with the papers' own delays. Rows "
            "with scale 1 have those.")

# Short headers: a table is to fit a terminal.
PHASE_COLUMNS = {"restore_ms": "restore", "drain_ms": "drain", "rebalance_ms": "rebal.", "catchup_ms": "catch",
                 "recovery_ms": "recov.", "stabilise_ms": "stable", "replayed": "replay", "lost": "lost", "repeated": "again"}
DEGRADED_COLUMNS = {**{f"degraded_{level}_s": f"{level} %" for level in LEVELS}, "share": "share",
                    "throughput_to_storm": "to storm", "longest_gap_ms": "gap, s", "replayed": "replay", "lost": "lost"}
STATE_COLUMNS = {"pause_ms": "pause", "longest_gap_ms": "gap", "usual_gap_ms": "usual gap", "peak_latency_ms": "worst latency",
                 "bytes_moved": "bytes", "lost": "lost", "repeated": "repeated"}


@dataclass(frozen=True, slots=True)
class PaperTable:
    """One of the tables. `name`: of its files. `key`: the first columns. `columns`: metrics with their headers. `runs`: the
    rows' runs, in their order."""

    name: str
    title: str
    note: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    runs: tuple[RunFigures, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def header(self) -> tuple[str, ...]:
        return (*self.key, *self.columns.values())


def paper_tables(runs: Sequence[RunFigures]) -> list[PaperTable]:
    """The tables that have runs."""
    index = RunIndex(runs)
    made = [_scaled("scale-in", "Scaling in", index, "-in"), _scaled("scale-out", "Scaling out", index, "-out"),
            _long(index), *(_redeployed(name, index) for name, workload in WORKLOADS.items() if workload.kind == REDEPLOYED),
            _keyed(index)]
    return [table for table in made if table.runs]


def _scaled(name: str, title: str, index: RunIndex, suffix: str) -> PaperTable:
    runs = [run for run in index.runs if WORKLOADS[run["workload"]].kind == SCALED and run["workload"].endswith(suffix)
            and not run["workload"].startswith("linear50")]
    return _phases(name, f"{title}: seconds since the request", runs)


def _long(index: RunIndex) -> PaperTable:
    runs = [run for run in index.runs if run["workload"].startswith("linear50")]
    table = _phases("linear50", "Linear with 50 tasks: seconds since the request", runs)
    dcr, ccr = (index.find(strategy, "linear50-in") for strategy in ("dcr", "ccr"))
    if dcr is None or ccr is None or dcr["drain_ms"] is None or ccr["drain_ms"] is None:
        return table
    theirs = next(figure.value for figure in PUBLISHED if figure.metric == "drain_over_ccr_ms")
    note = (f"{table.note} Draining by dcr takes {dcr['drain_ms'] - ccr['drain_ms']:,.0f} ms longer than capturing by ccr "
            f"(theirs: {theirs:,.0f}).")
    return PaperTable(table.name, table.title, note, table.key, table.columns, table.runs, table.rows)


def _phases(name: str, title: str, runs: Sequence[RunFigures]) -> PaperTable:
    rows = tuple((run["workload"], row_name(run["strategy"], run["variant"]), *(
        _cell(figure_of(run, metric), published(run["strategy"], run["workload"], metric), _unit(metric))
        for metric in PHASE_COLUMNS)) for run in runs)
    return PaperTable(name, title, THEIRS, ("dataflow", "strategy"), PHASE_COLUMNS, tuple(runs), rows)


def _redeployed(workload: str, index: RunIndex) -> PaperTable:
    runs = sorted((run for run in index.runs if run["workload"] == workload), key=lambda run: int(run["moved_tasks"]))
    rows = tuple((f"{run['moved_tasks']}", row_name(run["strategy"], run["variant"]), *(
        _cell(_of_redeployment(run, metric, index), _by_redeployment(run, metric), _unit(metric))
        for metric in DEGRADED_COLUMNS)) for run in runs)
    note = (f"{THEIRS} Seconds of a re-deployment in which so much of the throughput was missing; the paper's seconds, of "
            f"{NSTORM_REDEPLOYMENTS} re-deployments, divided by {NSTORM_REDEPLOYMENTS}. {UNSCALED} "
            f"{_storm_here(workload)}").rstrip()
    return PaperTable(workload, f"{workload}: re-deployments of M tasks", note, ("M", "strategy"), DEGRADED_COLUMNS,
                      tuple(runs), rows)


def _of_redeployment(run: RunFigures, metric: str, index: RunIndex) -> float | None:
    if metric == "share":
        return index.share(run)
    return index.throughput_to("storm", run) if metric == "throughput_to_storm" else figure_of(run, metric)


def _by_redeployment(run: RunFigures, metric: str) -> Published | None:
    """The paper's figure, of one re-deployment."""
    theirs = published(run["strategy"], run["workload"], metric, run["moved_tasks"], run["variant"])
    if theirs is None or theirs.source != NSTORM_PAPER or not metric.startswith("degraded_"):
        return theirs
    return replace(theirs, value=theirs.value / NSTORM_REDEPLOYMENTS)


def _storm_here(workload: str) -> str:
    figures = [figure for figure in PUBLISHED if figure.source == STORM_HERE and figure.workload == workload]
    if not figures:
        return ""
    return f"{STORM_HERE}: " + "; ".join(f"{figure.table}: {figure.metric} {figure.value:,.0f}" for figure in figures) + "."


def _keyed(index: RunIndex) -> PaperTable:
    runs = sorted((run for run in index.runs if WORKLOADS[run["workload"]].kind == KEYED), key=lambda run: int(run["state_mb"]))
    rows = tuple((f"{run['state_mb']}", run["strategy"], *(_cell(figure_of(run, metric), None) for metric in STATE_COLUMNS))
                 for run in runs)
    theirs = next(figure for figure in PUBLISHED if figure.metric == "recover_8_instances_ms")
    note = (f"The Sl-Stream paper has only times of recovering state: {theirs.value / 1000:g} s for 8 tasks "
            "of 10 to 80 MB, theirs and on other hardware. We move 18 tasks, of which 8 have the state.")
    return PaperTable("state-size", "Size of keyed state against pause: times in ms", note, ("MB", "strategy"), STATE_COLUMNS,
                      tuple(runs), rows)


def _unit(metric: str) -> float:
    """The divisor that makes seconds of milliseconds."""
    return 1000 if metric.endswith("_ms") else 1


def _cell(ours: float | None, theirs: Published | None, unit: float = 1) -> str:
    """Our figure and the paper's, both divided by the unit."""
    text = UNKNOWN_CELL if ours is None else _number(ours / unit)
    return text if theirs is None else f"{text} ({theirs.mark}{_number(theirs.value / unit)})"


def _number(value: float) -> str:
    if value == inf:
        return "∞"
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:,.3g}"


# -- output ------------------------------------------------------------------------------------------------------------


def terminal_table(table: PaperTable) -> Table:
    shown = Table(title=table.title, caption=table.note, title_justify="left", caption_justify="left", box=SIMPLE_HEAD,
                  padding=0, pad_edge=False)
    for number, name in enumerate(table.header):
        is_key = number < len(table.key)
        shown.add_column(name, justify="left" if is_key else "right", overflow="fold", no_wrap=is_key)
    for row in table.rows:
        shown.add_row(*(cell.replace(" (", "\n(") for cell in row))
    return shown


def markdown_table(table: PaperTable) -> list[str]:
    return markdown_rows(table.header, table.rows)


def markdown_rows(header: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [f"| {' | '.join(map(str, row))} |" for row in (header, ["---"] * len(header), *rows)]


def published_rows(figures: Iterable[Published]) -> list[str]:
    """All figures from elsewhere, as Markdown."""
    return markdown_rows(("source", "table", "strategy", "workload", "tasks", "metric", "value"),
                         ((figure.source, figure.table, figure.strategy, figure.workload, figure.moved_tasks or "",
                           figure.metric, f"{figure.mark}{figure.value:,g}") for figure in figures))


def standing_rows(standings: Iterable[Mapping[str, Any]]) -> list[str]:
    """The worst column of hand-over on each workload, as Markdown."""
    return markdown_rows(("workload", "M", "MB", "column", "handover", "best of the others", "strategy", "ratio"),
                         ((of["workload"], of["moved_tasks"], of["state_mb"] or "", of["column"], _number(of["handover"]),
                           _number(of["other"]), of["strategy"], f"{of['ratio']:g}") for of in standings))
