"""A stream whose sinks write the time of every chunk to a file of their own, a bolt that takes its time to take over, and a
bolt with key groups."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout

STAMP = struct.Struct("d")
KEYS = 500


class Ticking(GeneratorSpout):
    outputs: ClassVar[list[str]] = ["number"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (position % KEYS,)


class Unhurried(Bolt):
    """Its next incarnation needs `seconds` before it works, and notes how long that was. It is not initialized before the file
    `gate` exists."""

    outputs: ClassVar[list[str]] = ["number"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._seconds, self._path = storm_conf["seconds"], Path(storm_conf["path"])
        while not Path(storm_conf["gate"]).exists():
            time.sleep(0.005)

    def process_rows(self, rows: list[Any]) -> None:
        self.emit_rows(rows)

    def snapshot(self) -> Any:
        return {"any": "thing"}

    def restore(self, snapshot: Any) -> None:
        began = time.monotonic()
        time.sleep(self._seconds)
        self._path.with_name("restored").write_bytes(STAMP.pack(time.monotonic() - began))


class Tallied(Bolt):
    """Counts by number, in keyed state."""

    outputs: ClassVar[list[str]] = ["number"]

    def process(self, tup: Tuple) -> None:
        (number,) = tup.values
        self.state[number] = self.state.get(number, 0) + 1
        self.emit(tup.values)


class Stamps(Bolt):
    """Writes the time at the end of each chunk."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._file: BinaryIO = (Path(storm_conf["path"]) / f"{self.task_index}-{os.getpid()}").open("ab", buffering=0)

    def process_rows(self, rows: list[Any]) -> None:
        self._file.write(STAMP.pack(time.monotonic()))


class Stamped(Topology):
    ticking = Ticking.spec()
    unhurried = Unhurried.spec(inputs={ticking: Grouping.SHUFFLE})
    tallied = Tallied.spec(inputs={unhurried: Grouping.fields("number")}, par=2)
    stamps = Stamps.spec(inputs={tallied: Grouping.SHUFFLE}, par=2)


def stamps(directory: Path) -> list[float]:
    """The times of all chunks, in order."""
    return sorted(at for path in directory.iterdir() for (at,) in STAMP.iter_unpack(_whole(path.read_bytes())))


def _whole(data: bytes) -> bytes:
    return data[:len(data) // STAMP.size * STAMP.size]
