"""Spark's checkpoints of DataFrame spouts: their directories, their owners, and how far a run has read.

    <checkpoint store>/<topology>.frames/<component>/<run>      unless the settings name a directory

Run numbers rise. A topology that keeps state has its run in each manifest, so that matching state and positions are resumed
together, whatever was started and killed in between.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from millrace.config import DATAFRAME_CHECKPOINT
from millrace.errors import MillraceError, TopologyError
from millrace.model.graph import ComponentDef, TopologyGraph
from millrace.runtime.checkpoints.store import local_directory
from millrace.state.path_step import path_step

OWNER = "_millrace"  # a file in the checkpoint's directory that names its spout


def configured_checkpoint(graph: TopologyGraph, component: ComponentDef) -> str:
    """The checkpoint directory from the component's config, or one below the directory in the topology's; empty if unset."""
    for_component, for_all = DATAFRAME_CHECKPOINT.of(component.config), DATAFRAME_CHECKPOINT.of(graph.config)
    if for_component is None and for_all is not None:
        return f"{for_all.rstrip('/')}/{path_step(component.name)}"
    return str(for_component or "")


def claim_checkpoint(directory: Path, topology: str, component: str) -> None:
    """Mark the directory as this spout's. `TopologyError` if it is another's: Spark would apply that one's positions."""
    mark = directory / OWNER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        owner = mark.read_text() if mark.exists() else ""
        if not owner:
            mark.write_text(f"{topology}/{component}")
    except OSError as error:
        raise MillraceError(f"{directory} cannot be the checkpoint of {component!r} of {topology!r}: {error}. Name another "
                            f"directory in {DATAFRAME_CHECKPOINT.key}") from None
    if owner and owner != f"{topology}/{component}":
        raise TopologyError(f"the checkpoint {directory} belongs to {owner}, not to {topology}/{component}: positions in one "
                            "DataFrame mean nothing in another. Name another directory in "
                            f"{DATAFRAME_CHECKPOINT.key}")


def new_run() -> str:
    """A new run number. It is not counted up from directories: a run that died before Spark made one may be in a manifest."""
    return str(time.time_ns())


class ReadPosition(NamedTuple):
    """The position of a run: the last micro-batch that Spark began, and when it began."""

    run: str
    batch: int
    at: float
    place: Path

    @property
    def number(self) -> int:
        return int(self.run)


class Runs:
    """The runs of one DataFrame spout, below a checkpoint store that is a directory."""

    def __init__(self, store: str, topology: str, component: str) -> None:
        directory = local_directory(store)
        if directory is None:
            raise TopologyError(f"Spark needs a directory to record how far the DataFrame of {component!r} has been read, but "
                                f"the checkpoint store {store} is not one: set {DATAFRAME_CHECKPOINT.key} to a directory that "
                                "driver and executors share")
        # A topology's own path has no dot, so this cannot clash with one.
        self._directory = directory.absolute() / f"{path_step(topology)}.frames" / path_step(component)

    def place(self, run: str) -> Path:
        return self._directory / run

    def last(self) -> ReadPosition | None:
        """The position of the last run that has read anything; later runs that have not are skipped."""
        return next((position for run in reversed(self._all()) if (position := self._position(run)) is not None), None)

    def _position(self, run: str) -> ReadPosition | None:
        place = self.place(run)
        written = [path for path in (place / "offsets").glob("*") if path.name.isdigit()]  # by Spark, one for each batch
        newest = max(written, key=lambda path: int(path.name), default=None)
        return ReadPosition(run, int(newest.name), newest.stat().st_mtime, place) if newest is not None else None

    def forget_others(self, run: str) -> None:
        """Delete other runs, now that this one can be resumed, except the last: this one's checkpoints may prove damaged."""
        for other in [other for other in self._all() if other != run][:-1]:
            shutil.rmtree(self.place(other), ignore_errors=True)

    def _all(self) -> list[str]:
        return sorted((path.name for path in self._directory.glob("*") if path.name.isdigit()), key=int)
