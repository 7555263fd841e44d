"""Bolts at the end of a stream: count and discard rows, or write files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import msgspec

from millrace.api.bolt import Bolt
from millrace.connectors.settings import setting
from millrace.connectors.staged_files import StagedFiles
from millrace.connectors.staging import StagedSink

if TYPE_CHECKING:
    import pyarrow as pa


class Drop(Bolt):
    """Counts its rows in `count` and discards them."""

    named_rows: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def process_rows(self, rows: list[Any]) -> None:
        self.count += len(rows)


class DropArrow(Bolt):
    """Counts the rows of its Arrow batches in `count` and discards them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def process_arrow(self, batch: pa.RecordBatch) -> None:
        self.count += batch.num_rows


class PartFileSink(StagedSink):
    """Base of the file sinks: each task appends chunks to its own file; `encode` turns rows into bytes.

    | config | meaning |
    | --- | --- |
    | `path` | directory, created if missing; each start of a task writes `part-<task_index>-<pid>-<n><suffix>` |

    `process_rows` returns when the kernel has the whole chunk: a killed process loses no acked rows (a machine that loses
    power may). Only the last record of a file can be torn, by a kill during a write.

    In an exactly-once topology each wave writes its own file, `part-<task_index>-w<wave>-<epoch>-<token><suffix>`, which
    appears complete and synced when the wave is committed; a wave without rows writes none. Until then it is in a hidden
    directory below `path`, so all workers must see the same `path`. Two topologies with the same name must not write to the
    same `path`: each would treat the other's staged files as its own.
    """

    suffix: ClassVar[str] = ""
    staging: StagedFiles | None = None

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path()
        self._file: BinaryIO | None = None

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.directory = Path(setting(self, storm_conf, "path", str))
        if self.exactly_once:
            self.staging = StagedFiles(self.directory, self.suffix, self)
        else:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._file = self._new_part()

    def encode(self, rows: list[Any]) -> bytes:
        """Encodes one chunk of rows as whole records."""
        raise NotImplementedError(f"{type(self).__name__} must define encode(rows)")

    def process_rows(self, rows: list[Any]) -> None:
        if self.staging is not None:
            self.staging.add(self.encode(rows))
        else:
            self._append(self.encode(rows))

    def close(self) -> None:
        super().close()
        self._close_part()

    def _close_part(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _append(self, data: bytes) -> None:
        file = self._file = self._file or self._new_part()
        view = memoryview(data)
        try:
            while view:  # an unbuffered write may take only a part
                view = view[file.write(view):]
        except OSError:
            self._close_part()  # it may end in half a record: the next rows go to a new part
            raise

    def _new_part(self) -> BinaryIO:
        for n in itertools.count():
            path = self.directory / f"part-{self.task_index}-{os.getpid()}-{n}{self.suffix}"
            try:
                return open(path, "xb", buffering=0)  # stays open as long as the task
            except FileExistsError:
                continue  # an earlier start in this process, or a recycled pid: never append to another part
        raise AssertionError("unreachable: itertools.count does not end")


class JsonLinesSink(PartFileSink):
    """Writes each row as one JSON object, the stream's field names as keys. Settings: see PartFileSink."""

    suffix: ClassVar[str] = ".jsonl"

    def __init__(self) -> None:
        super().__init__()
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def encode(self, rows: list[Any]) -> bytes:
        if not rows:
            return b""
        names = field_names(rows[0])
        return self._encode_lines([dict(zip(names, row, strict=True)) for row in rows])


def field_names(row: Sequence[Any]) -> tuple[str, ...]:
    """The field names of a row; their numbers, as strings, if it has no names."""
    return getattr(row, "_fields", None) or tuple(str(index) for index in range(len(row)))
