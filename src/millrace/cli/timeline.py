"""Draws a migration: throughput and latency at the sinks over time, with its phases marked."""

from __future__ import annotations

from math import nan
from pathlib import Path
from textwrap import shorten
from typing import Any

from millrace.cli.record import part_of
from millrace.errors import BadParameter, MillraceError

FORMATS = (".svg", ".png")
INSTALL_PLOT = "pip install millrace[plot]"
NAMED = 6
LONGEST_CAUSE = 100  # characters
MARKS = (("restore_ms", "first tuple", "tab:blue"), ("catchup_ms", "last old tuple", "tab:olive"),
         ("recovery_ms", "last replayed tuple", "tab:purple"), ("stabilise_ms", "stable", "tab:cyan"))


def check_plot(path: str, number: int | None) -> None:
    """Raise an error if nothing can be drawn to that file."""
    if number is None:
        raise BadParameter("--plot draws one migration: name it, as in `millrace migrations 3 --plot move.svg`")
    check_picture(path)


def check_picture(path: str) -> None:
    """Raise an error if no picture can be written to a file of that name."""
    if Path(path).suffix.lower() not in FORMATS:
        raise BadParameter(f"--plot {path}: write a name that ends in {' or '.join(FORMATS)}")
    if not Path(path).absolute().parent.is_dir():
        raise BadParameter(f"--plot {path}: there is no directory {Path(path).absolute().parent}. Create it first")
    try:
        import matplotlib  # noqa: F401  # takes long to import, and few need it
    except ModuleNotFoundError:
        raise MillraceError(f"--plot needs the Python package 'matplotlib', which is not installed: {INSTALL_PLOT}") from None


def draw(migration: dict[str, Any], path: str) -> None:
    """Write the picture of a migration with its timeline."""
    from matplotlib.figure import Figure

    points = migration["timeline"]
    if not points:
        raise MillraceError(f"nothing can be drawn of migration {migration['id']}: its sinks processed nothing then")
    seconds = [point[0] / 1000 for point in points]
    figure = Figure(figsize=(9, 5), layout="constrained")
    rate, latency = figure.subplots(2, sharex=True)
    rate.step(seconds, [point[1] for point in points], where="post", color="tab:blue")
    rate.set_ylabel("tuples/s at the sinks")
    rate.set_ylim(bottom=0)
    means = [nan if point[2] is None else point[2] for point in points]  # the line breaks where nothing was processed
    latency.plot(seconds, means, ".-", color="tab:orange", markersize=3)
    latency.set_ylabel("latency, ms")
    latency.set_ylim(bottom=0)
    latency.set_xlabel("seconds since the migration began")
    for axes in (rate, latency):
        for name, first, last, color in _shown_phases(migration):
            label = f"{name}, {last - first:.0f} ms"
            axes.axvspan(first / 1000, last / 1000, color=color, alpha=0.25, linewidth=0, label=label)
            axes.axvline(first / 1000, color="grey", linestyle="--", linewidth=1)
        axes.axvline(migration["phases_ms"]["done"] / 1000, color="grey", linestyle="--", linewidth=1)
        for name, at, color in _marks(migration):
            axes.axvline(at / 1000, color=color, linestyle=":", linewidth=1.5, label=f"{name}, {at:.0f} ms")
    rate.legend(fontsize=8, title="phases", title_fontsize=8)
    rate.set_title(f"{migration['topology']}: {migration['strategy']} of {_names(migration['moved'])}, {migration['outcome']}\n"
                   f"cause: {shorten(migration['cause'], LONGEST_CAUSE)}", fontsize=10)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MillraceError(f"cannot write {path}: {error.strerror}") from None


def _phases(lasted: dict[str, float | None]) -> list[tuple[str, float, float, str]]:
    """Name, beginning, end and color of each phase. A recovery from a loss does not arm."""
    armed, done = lasted["arm"] or 0.0, lasted["done"] or 0.0
    phases = [("arm", 0.0, armed, "tab:green"), ("switch", armed, done, "tab:red")]
    return [phase for phase in phases if phase[1] < phase[2]]


def _shown_phases(migration: dict[str, Any]) -> list[tuple[str, float, float, str]]:
    """The phases of the strategy: of one that ends tasks, the time before that and the rebalance."""
    rebalance = migration.get("rebalance_ms")
    if rebalance is None:
        return _phases(migration["phases_ms"])
    start = migration["phases_ms"]["arm"] or 0.0
    before = "wait" if migration["drain_ms"] is None else "drain"
    phases = [(before, 0.0, start, "tab:green"), ("rebalance", start, start + rebalance, "tab:red")]
    return [phase for phase in phases if phase[1] < phase[2]]


def _marks(migration: dict[str, Any]) -> list[tuple[str, float, str]]:
    """Name, time and color of each metric that is a point in time."""
    return [(text, migration[name], color) for name, text, color in MARKS if migration.get(name) is not None]


def _names(moved: list[dict[str, Any]]) -> str:
    names = [f"{len(move['groups'])} {part_of(move)}s of {move['task']}" if move["groups"] else str(move["task"])
             for move in moved]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
