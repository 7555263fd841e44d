"""Draws simulated runs over time: traffic between nodes, latency and moves, one line for each scheduler."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from millrace.errors import MillraceError
from millrace.schedulers.problem import Floats
from millrace.simulation.figures import Run, Window

POINTS = 500  # at most, on a line


def draw_runs(runs: Sequence[Run], path: str) -> None:
    """Write the picture. Needs matplotlib, which `check_picture` looks for."""
    from matplotlib.figure import Figure  # takes long to import, and few need it

    figure = Figure(figsize=(9, 7), layout="constrained")
    traffic, latency, moves = figure.subplots(3, sharex=True)
    for run in runs:
        hours, lengths = _hours(run)
        traffic.plot(hours, _means(run, lengths, lambda window: window.inter_node), label=run.scheduler)
        latency.plot(hours, _means(run, lengths, _latency), label=run.scheduler)
        moved = np.add.reduceat([window.moves for window in run.windows], lengths)
        moves.step(hours, np.cumsum(moved), where="post", label=run.scheduler)
    for axes, label in ((traffic, "tuples/s between nodes"), (latency, "latency, ms"), (moves, "moves so far")):
        axes.set_ylabel(label)
        axes.set_ylim(bottom=0)
    latency.set_yscale("symlog")
    moves.set_xlabel("hours")
    traffic.legend(fontsize=8)
    traffic.set_title(f"{runs[0].tasks:,} tasks on {runs[0].nodes:,} nodes", fontsize=10)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MillraceError(f"cannot write {path}: {error.strerror}") from None


def _hours(run: Run) -> tuple[Floats, NDArray[np.int64]]:
    """The points of a line: the hour at which each ends, and its first window."""
    first = np.arange(0, len(run.windows), max(1, len(run.windows) // POINTS))
    ends = np.cumsum([window.seconds for window in run.windows]) / 3600
    return ends[np.append(first[1:] - 1, len(ends) - 1)], first


def _means(run: Run, first: NDArray[np.int64], figure: Callable[[Window], float]) -> Floats:
    seconds = np.array([window.seconds for window in run.windows])
    values = np.array([figure(window) for window in run.windows])
    return np.asarray(np.add.reduceat(values * seconds, first) / np.add.reduceat(seconds, first))


def _latency(window: Window) -> float:
    """The mean over the topologies, by what is offered to them."""
    offered = float(window.offered.sum())
    return float(window.latency_ms @ window.offered) / offered if offered else 0.0
