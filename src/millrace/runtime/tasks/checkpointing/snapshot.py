"""One snapshot of a task, and the threads that write and read snapshots."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from millrace.state.checkpoint import IN_FLIGHT, OWN, InFlightStream, SplitRecord

Pieces = dict[int, tuple[bool, bytes]]


def groups_of(pieces: Iterable[int]) -> set[int]:
    """The key groups among the keys of pieces."""
    return {group for group in pieces if group not in (OWN, IN_FLIGHT)}


class Snapshot(NamedTuple):
    """A task's state at a wave. `position`: that of a replayable spout, `splits`: those of one with splits; `prepared`: tokens
    of a sink's output; `streams`: those of the input that the wave has overtaken."""

    pieces: Pieces
    position: int | None
    prepared: list[str] = []
    streams: list[InFlightStream] = []
    staged: bytes = b""  # the result of `hand_over()` of a sink or a spout whose task moves
    splits: dict[int, SplitRecord] = {}


class StoreThread:
    """Names a thread that writes and reads snapshots for the tasks of a worker."""

    def __init__(self, number: int) -> None:
        self.name = f"store {number}"


STORE_THREADS = tuple(map(StoreThread, range(4)))  # shared by all tasks: one for each of hundreds would be idle
