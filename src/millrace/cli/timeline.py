"""Draws a migration: throughput and latency at the sinks over time, with its phases marked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from millrace.errors import BadParameter, MillraceError

FORMATS = (".svg", ".png")
INSTALL_PLOT = "pip install millrace[plot]"
MARKS = {"arm": "began", "switch": "switched", "done": "ended"}


def check_plot(path: str, number: int | None) -> None:
    """Raise an error if nothing can be drawn to that file."""
    if number is None:
        raise BadParameter("--plot draws one migration: name it, as in `millrace migrations 3 --plot move.svg`")
    if Path(path).suffix.lower() not in FORMATS:
        raise BadParameter(f"--plot {path}: write a name that ends in {' or '.join(FORMATS)}")
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
    known = [(at, point[2]) for at, point in zip(seconds, points) if point[2] is not None]
    latency.plot([at for at, _ in known], [value for _, value in known], ".-", color="tab:orange", markersize=3)
    latency.set_ylabel("latency, ms")
    latency.set_ylim(bottom=0)
    latency.set_xlabel("seconds since the migration began")
    for phase, label in MARKS.items():
        at = migration["phases_ms"][phase]
        if at is not None:
            for axes in (rate, latency):
                axes.axvline(at / 1000, color="grey", linestyle="--", linewidth=1)
            rate.annotate(label, (at / 1000, 1), xycoords=("data", "axes fraction"), xytext=(2, -10),
                          textcoords="offset points", fontsize=8)
    names = ", ".join(move["task"] for move in migration["moved"][:6])
    more = f" and {len(migration['moved']) - 6} more" if len(migration["moved"]) > 6 else ""
    rate.set_title(f"{migration['topology']}: {migration['strategy']} of {names}{more}, {migration['outcome']}", fontsize=10)
    try:
        figure.savefig(path)
    except OSError as error:
        raise MillraceError(f"cannot write {path}: {error.strerror}") from None
