"""A stream whose sinks write the time of every chunk to a file of their own, and a bolt that takes its time to take over."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.generator import GeneratorSpout

STAMP = struct.Struct("d")


class Ticking(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (position,)


class Unhurried(Bolt):
    """Its next incarnation needs `seconds` before it works."""

    outputs: ClassVar[list[str]] = ["number"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._seconds = storm_conf["seconds"]

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows(rows)

    def snapshot(self) -> Any:
        return {"any": "thing"}

    def restore(self, snapshot: Any) -> None:
        time.sleep(self._seconds)


class Stamps(Bolt):
    """Writes the time at the end of each chunk."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._file: BinaryIO = (Path(storm_conf["path"]) / f"{self.task_index}-{os.getpid()}").open("ab", buffering=0)

    def process_rows(self, rows: list[Any]) -> None:
        self._file.write(STAMP.pack(time.monotonic()))


class Stamped(Topology):
    ticking = Ticking.spec()
    unhurried = Unhurried.spec(inputs={ticking: Grouping.SHUFFLE})
    stamps = Stamps.spec(inputs={unhurried: Grouping.SHUFFLE}, par=2)


def stamps(directory: Path) -> list[float]:
    """The times of all chunks, in order."""
    return sorted(at for path in directory.iterdir() for (at,) in STAMP.iter_unpack(_whole(path.read_bytes())))


def _whole(data: bytes) -> bytes:
    return data[:len(data) // STAMP.size * STAMP.size]
