"""`bench migration --report DIR`: the tables as Markdown, each with a figure of its timelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from typing import Any

from millrace.bench.migration.cases import PAPERS_DELAYS, row_name
from millrace.bench.migration.figures import RunFigures, has_papers_delays
from millrace.bench.migration.published import PUBLISHED
from millrace.bench.migration.ratios import ratio_text
from millrace.bench.migration.tables import PaperTable, markdown_table, paper_tables, published_rows, standing_rows
from millrace.errors import MillraceError

REPORT = "migration.md"
INSTALL_PLOT = "pip install millrace[plot]"
PANEL_INCHES = 2.4


def check_report(directory: str) -> Path:
    """Make the directory. Raises an error if the report could not be written later, after an hour of measuring."""
    path = Path(directory)
    try:
        import matplotlib  # noqa: F401  # takes long to import, and few need it
    except ModuleNotFoundError:
        raise MillraceError(f"--report needs the Python package 'matplotlib', which is not installed: {INSTALL_PLOT}") from None
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / REPORT).touch()
    except OSError as error:
        raise MillraceError(f"--report {directory}: cannot write there: {error.strerror}") from None
    return path


def write_report(directory: Path, result: Mapping[str, Any]) -> Path:
    """Write the report of a result; returns its path."""
    lines = ["# Strategies of migration", "",
             f"{len(result['runs'])} runs on Spark {result['master']}, {result['slots']} workers, in "
             f"{result['seconds'] / 60:.1f} minutes. All delays of the papers are multiplied by {result['time_scale']:g}."]
    for table in paper_tables(result["runs"]):
        figure = directory / f"{table.name}.svg"
        draw_table(table, timelines_of(result, table.runs), figure)
        lines += ["", f"## {table.title}", "", *markdown_table(table), "", table.note, "", f"![{table.title}]({figure.name})"]
    lines += ["", "## Ratios in this run", "",
              *(f"- {name.replace('_', ' ')}: {ratio_text(ratio, result['compared'].get(name))}"
                for name, ratio in result["ratios"].items())]
    if result["handover_standing"]:
        lines += ["", "## Hand-over against the best of the others: its worst column", "",
                  *standing_rows(result["handover_standing"])]
    if result["failed"]:
        lines += ["", "## Runs that failed", "",
                  *(f"- {name}: {_first_line(error)}" for name, error in result["failed"].items())]
    lines += ["", "## Figures from elsewhere", "",
              "Measured by the authors of the papers on their hardware, or with Apache Storm on a machine like ours. ≤: no "
              "more than this; ≈: about this.", "",
              *published_rows(PUBLISHED)]
    path = directory / REPORT
    path.write_text("\n".join(lines) + "\n")
    return path


def _first_line(text: str) -> str:
    return text.splitlines()[0] if text else ""


def timelines_of(result: Mapping[str, Any], runs: Sequence[RunFigures]) -> list[list[dict[str, Any]]]:
    """The timelines of some of the result's runs."""
    by_run = {id(run): timeline for run, timeline in zip(result["runs"], result["timelines"])}
    return [by_run[id(run)] for run in runs]


def panels_of(table: PaperTable) -> dict[str, list[int]]:
    """The runs of each panel, by number: those that differ in nothing but the strategy and its cycles."""
    panels: dict[str, list[int]] = {}
    for number, (row, run) in enumerate(zip(table.rows, table.runs)):
        delays = f", {PAPERS_DELAYS}" if has_papers_delays(run) else ""
        panels.setdefault(f"{table.key[0]} {row[0]}{delays}", []).append(number)
    return panels


def draw_table(table: PaperTable, timelines: Sequence[Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Draw throughput and latency around the migrations, one row of panels for each workload and one line for each strategy."""
    from matplotlib.figure import Figure

    panels = panels_of(table)
    names = [row_name(run["strategy"], run["variant"]) for run in table.runs]
    colors = {strategy: f"C{number}" for number, strategy in enumerate(dict.fromkeys(names))}
    figure = Figure(figsize=(11, 1 + PANEL_INCHES * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 2, squeeze=False)
    for (name, numbers), (rate, latency) in zip(panels.items(), axes):
        for number in numbers:
            strategy, points = names[number], timelines[number]
            seconds = [point["at_ms"] / 1000 for point in points]
            rate.step(seconds, [point["rows_per_s"] for point in points], where="post", color=colors[strategy], label=strategy,
                      linewidth=1.2)
            latency.plot(seconds, [nan if point["mean_ms"] is None else point["mean_ms"] for point in points],
                         ".-", color=colors[strategy], label=strategy, linewidth=1.2, markersize=3)
        for panel, label in ((rate, "rows/s at the sinks"), (latency, "latency, ms")):
            panel.axvline(0, color="grey", linestyle="--", linewidth=1)
            panel.set_ylabel(label, fontsize=8)
            panel.set_ylim(bottom=0)
            panel.set_title(name, fontsize=9)
            panel.tick_params(labelsize=8)
        rate.legend(fontsize=7)
    for panel in axes[-1]:
        panel.set_xlabel("seconds since the request", fontsize=8)
    figure.suptitle(table.title, fontsize=10)
    figure.savefig(path)
