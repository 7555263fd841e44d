"""Where Spark keeps how far the DataFrame of a DataFrame spout has been read, and whose that is.

    <checkpoint store>/<topology>.frames/<component>/<run>      unless the settings name a place

A run is a number that rises. A topology that keeps state has its run in each manifest, so that state and positions which belong
together are resumed together, whatever was started and killed in between.
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

OWNER = "_millrace"  # in a checkpoint's directory: whose it is


def given_checkpoint(graph: TopologyGraph, component: ComponentDef) -> str:
    """The checkpoint directory from the component's config, or one below the directory in the topology's; empty if unset."""
    own, common = DATAFRAME_CHECKPOINT.of(component.config), DATAFRAME_CHECKPOINT.of(graph.config)
    if own is None and common is not None:
        return f"{common.rstrip('/')}/{path_step(component.name)}"
    return str(own or "")


def claim_checkpoint(directory: Path, topology: str, component: str) -> None:
    """`TopologyError` if it is another spout's: Spark would take that one's positions for ours."""
    owner = directory / OWNER
    try:
        directory.mkdir(parents=True, exist_ok=True)
        found = owner.read_text() if owner.exists() else ""
        if not found:
            owner.write_text(f"{topology}/{component}")
    except OSError as error:
        raise MillraceError(f"{directory} cannot be the checkpoint of {component!r} of {topology!r}: {error}. Name another "
                            f"directory in {DATAFRAME_CHECKPOINT.key}") from None
    if found and found != f"{topology}/{component}":
        raise TopologyError(f"the checkpoint {directory} is that of {found}, and not of {topology}/{component}: what has been "
                            "read of one DataFrame says nothing about another. Name another directory in "
                            f"{DATAFRAME_CHECKPOINT.key}")


def new_run() -> str:
    """A name that no run has had: one that died before Spark made its directory may be in a manifest all the same."""
    return str(time.time_ns())


class Noted(NamedTuple):
    """How far a run has read: the micro-batch that Spark has begun last, and when."""

    run: str
    batch: int
    at: float
    place: Path

    @property
    def number(self) -> int:
        return int(self.run)


class Runs:
    """The checkpoints of one DataFrame spout, below a checkpoint store that is a directory."""

    def __init__(self, store: str, topology: str, component: str) -> None:
        directory = local_directory(store)
        if directory is None:
            raise TopologyError(f"Spark needs a directory to keep how far the DataFrame of {component!r} has been read, and "
                                f"the checkpoint store {store} is none: set {DATAFRAME_CHECKPOINT.key} to one that driver and "
                                "executors share")
        # no topology's own path has a dot
        self._directory = directory.absolute() / f"{path_step(topology)}.frames" / path_step(component)

    def place(self, run: str) -> Path:
        return self._directory / run

    def last(self) -> Noted | None:
        """The last one that has read anything: one that was begun after it, and has not, leaves it as it is."""
        return next((noted for run in reversed(self._all()) if (noted := self._noted(run)) is not None), None)

    def _noted(self, run: str) -> Noted | None:
        place = self.place(run)
        written = [path for path in (place / "offsets").glob("*") if path.name.isdigit()]  # Spark's own: one for each batch
        newest = max(written, key=lambda path: int(path.name), default=None)
        return Noted(run, int(newest.name), newest.stat().st_mtime, place) if newest is not None else None

    def forget_others(self, run: str) -> None:
        """This one can be resumed now. Of the others the last stays, should this one's checkpoints turn out damaged."""
        for other in [other for other in self._all() if other != run][:-1]:
            shutil.rmtree(self.place(other), ignore_errors=True)

    def _all(self) -> list[str]:
        return sorted((path.name for path in self._directory.glob("*") if path.name.isdigit()), key=int)
