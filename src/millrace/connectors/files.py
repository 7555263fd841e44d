"""Spouts that read text files, line by line or in Arrow batches of lines, and can resume at any line."""

from __future__ import annotations

import bisect
import glob
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from millrace.api.spout import ReplayableSpout
from millrace.connectors.settings import setting
from millrace.errors import TopologyError

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 1 << 16  # bytes read at a time,
ARROW_BLOCK = 1 << 20  # and for batches
BATCH = 10_000  # lines
INDEX_EVERY = 1 << 20  # bytes between two entries of the index
RESCAN_SECONDS = 0.5


class FileSpout(ReplayableSpout):
    """Emits the lines of one file, or of all files that match a glob, without their line ends.

    | config | meaning |
    | --- | --- |
    | `path` | a file or a glob such as `/logs/*.log`; the files, sorted by name, are assigned to the tasks in turn |
    | `follow` | true: wait for more lines and more files at the end (default false) |
    | `burst` | maximum number of lines emitted in one call of `next_tuple` (default 64) |

    The position is the line number in the task's share, so files that were read must not change. With `follow` the last file
    may grow, and new files must sort after the existing ones (dates or numbers in the names); a file is complete when the task
    has a later one. A new file that sorts earlier is skipped with a warning. UTF-8; invalid bytes become U+FFFD. `exhausted` is
    True when everything is read and `follow` is false.
    """

    outputs: ClassVar[list[str]] = ["line"]
    clock: Callable[[], float] = staticmethod(time.monotonic)  # replaced in tests

    def __init__(self) -> None:
        super().__init__()
        self.exhausted = False
        self._pattern = ""
        self._follow = False
        self._burst = 64
        self._matches: list[str] = []  # files of all tasks, in order
        self._files: list[str] = []  # files of this task
        self._fd: int | None = None
        self._place = (0, 0)  # index in _files, and offset of the first unread line
        self._pending: Any = []  # lines read and not yet emitted; as strings, they are in reverse order
        self._block = BLOCK
        self._index: list[tuple[int, int, int]] = []  # (position, file, offset), about one for each MiB
        self._scanned_at = float("-inf")
        self._read_bytes = self._read_lines = 0
        self._sizes: list[int] = []  # of the files of this task, as far as they are complete

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self._pattern = setting(self, storm_conf, "path", str)
        self._follow = setting(self, storm_conf, "follow", bool, False)
        self._burst = setting(self, storm_conf, "burst", int, self._burst, least=1)
        if Path(self._pattern).is_dir():
            raise TopologyError(f"{self.component_name}: path {self._pattern!r} is a directory. "
                                f"Name files in it: {str(Path(self._pattern) / '*')!r}")
        self._scan()
        if not self._matches and not self._follow:
            raise TopologyError(f"{self.component_name}: no file matches path {self._pattern!r}. Correct it, or set "
                                "follow=True to wait for one.")

    def next_tuple(self) -> None:
        if not self._pending and not self._read():
            return
        emit, pending = self.emit, self._pending
        try:
            for _ in range(min(self._burst, self._handle.chunk_tuples, len(pending))):
                emit((pending.pop(),), self._next_position)
        except BaseException:
            self._next_position += 1  # a line that cannot be emitted is reported and skipped
            raise

    def seek(self, position: int) -> None:
        """Finds the line through the index, then by counting line ends from the nearest entry."""
        self.unacked_tuples.clear()
        self.failed_tuples.clear()
        self._pending = []
        self._close_file()
        entry = bisect.bisect_right(self._index, (position, len(self._files), 0)) - 1
        at, number, offset = self._index[entry] if entry >= 0 else (0, 0, 0)
        self._place, self._next_position, self.exhausted = (number, offset), at, False
        while self._next_position < position and self._read():
            skip = min(position - self._next_position, len(self._pending))
            self._skip(skip)
            self._next_position += skip
        if self._next_position < position:
            raise TopologyError(f"{self.component_name}: task {self.task_index} cannot resume at line {position}: "
                                f"{self._pattern!r} has {self._next_position} lines for it. A file it had read is "
                                "gone or shorter; restore it, or start the topology under a new name.")

    def lag(self) -> int | None:
        """Lines that are not emitted: those read, and as many as the unread bytes hold by the mean length of a line so far."""
        number, offset = self._place
        self._sizes += map(os.path.getsize, self._files[len(self._sizes):-1])
        unread = sum(self._sizes[number:]) - offset
        if number < len(self._files):
            opened = self._fd is not None and number == len(self._files) - 1  # such a file may have been removed
            unread += os.stat(self._fd if opened else self._files[-1]).st_size  # type: ignore[arg-type]
        if unread <= 0:
            return len(self._pending)
        return len(self._pending) + -(-unread * self._read_lines // self._read_bytes) if self._read_lines else None

    def close(self) -> None:
        self._close_file()

    def _read(self) -> bool:
        """Reads the next lines into `_pending`; False if there are none now."""
        while True:
            number, offset = self._place
            if number == len(self._files):
                if self._follow and self._scan():
                    continue
                self.exhausted = not self._follow
                return False
            last = number == len(self._files) - 1  # before the read: a file with a successor is then complete
            data = self._next_lines(offset, whole=not (last and self._follow))
            if data:
                self._remember(number, offset)
                self._place = (number, offset + len(data))
                # Only \n ends a line (str.splitlines has ten others); a \r before it is removed.
                self._pending = self._split(data.removesuffix(b"\n").replace(b"\r\n", b"\n").removesuffix(b"\r"))
                self._read_bytes += len(data)
                self._read_lines += len(self._pending)
                return True
            if last and self._follow:
                if self._scan():
                    continue
                return False
            self._close_file()
            self._place = (number + 1, 0)

    def _split(self, text: bytes) -> Any:
        """The lines of the text, as `_pending` has them."""
        return text.decode("utf-8", "replace").split("\n")[::-1]

    def _skip(self, count: int) -> None:
        """Drops the first lines of `_pending`."""
        del self._pending[len(self._pending) - count:]

    def _next_lines(self, offset: int, whole: bool) -> bytes:
        """Complete lines from `offset` on, about a block of them. `whole`: the rest at the end of the file is a line too."""
        if self._fd is None:
            self._fd = os.open(self._files[self._place[0]], os.O_RDONLY)
        size = self._block
        while True:
            data = os.pread(self._fd, size, offset)
            end = data.rfind(b"\n") + 1
            if end:
                return data[:end]
            if len(data) < size:
                return data if whole else b""
            size *= 2  # a line longer than the block

    def _remember(self, number: int, offset: int) -> None:
        if self._index:
            position, known, at = self._index[-1]
            if position >= self._next_position or (known == number and offset - at < INDEX_EVERY):
                return
        self._index.append((self._next_position, number, offset))

    def _scan(self) -> bool:
        """Looks for new files; True if this task got one."""
        now = self.clock()
        if now - self._scanned_at < RESCAN_SECONDS:
            return False
        self._scanned_at = now
        paths = sorted(path for path in glob.glob(self._pattern, recursive=True) if os.path.isfile(path))
        new = [path for path in paths if not self._matches or path > self._matches[-1]]
        if late := set(paths) - set(self._matches) - set(new):
            self.logger.warning("%s: skipped files that sort before files already read: %s", self.component_name,
                                ", ".join(sorted(late)))
        before = len(self._files)
        self._matches += new
        self._files = self._matches[self.task_index::self.parallelism]
        return len(self._files) > before

    def _close_file(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


class ArrowFileSpout(FileSpout):
    """Emits the lines of files in Arrow batches, for bolts with `process_arrow`.

    | config | meaning |
    | --- | --- |
    | `path`, `follow` | as for FileSpout |
    | `batch` | maximum number of lines in a batch (default 10,000); one that ends with what was read so far is shorter |

    The position of a batch is that of its first line, so a topology can resume with another `batch`, or with FileSpout. A batch
    is one tuple for acks and replays.
    """

    def __init__(self) -> None:
        super().__init__()
        self._batch = BATCH
        self._block = ARROW_BLOCK

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self._batch = setting(self, storm_conf, "batch", int, self._batch, least=1)

    def next_tuple(self) -> None:
        if not len(self._pending) and not self._read():
            return
        import pyarrow as pa

        first, lines = self._next_position, self._pending[:self._batch]
        self._skip(len(lines))
        try:
            self.emit_arrow(pa.record_batch([lines], names=self.outputs), first)
        finally:
            self._next_position = first + len(lines)  # a batch that cannot be emitted is reported and skipped

    def _split(self, text: bytes) -> pa.Array:
        return lines_of(text)

    def _skip(self, count: int) -> None:
        self._pending = self._pending[count:]


def lines_of(text: bytes) -> pa.Array:
    """The lines of a text in UTF-8 as an Arrow column; invalid bytes become U+FFFD."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        whole = pa.array([text]).cast(pa.string())  # looks for invalid bytes without making a Python string
    except pa.ArrowInvalid:
        whole = pa.array([text.decode("utf-8", "replace")])
    return pc.list_flatten(pc.split_pattern(whole, "\n"))
