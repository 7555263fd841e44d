"""Checkpoints on a file system that pyarrow can open: HDFS, S3, Google Cloud Storage, Azure.

Files are written under a temporary name and moved when complete: some of these systems show a file while it is being written,
and the others would show half of it if the writer failed and closed it. Durability is up to the system.

Object stores return the size and the content of a file in separate answers: if a name is rewritten between the two, a reader
gets bytes of both. So waves write each name once, and pieces and manifests have a CRC as well. Only `author` is rewritten:
mixed bytes of two authors name neither, and a file system that deletes before it moves shows none for a moment.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow
from pyarrow import fs

from millrace.errors import MillraceError, StoreUnreachable
from millrace.redaction import shown_place
from millrace.runtime.checkpoints.directory import UNFINISHED, UNFINISHED_SECONDS, check_name, not_there, refused
from millrace.runtime.checkpoints.guarded import write_and_look

_NO_FILE = (fs.FileType.NotFound, fs.FileType.Directory)


class RemoteStore:
    """A directory of a file system; `place` is its name in messages."""

    def __init__(self, file_system: Any, root: str, place: str) -> None:
        self.root, self.place = root.rstrip("/"), place
        self._files = file_system
        with self._translated("be opened"):
            self._files.create_dir(self.root, recursive=True)

    @classmethod
    def at(cls, url: str) -> RemoteStore:
        place = shown_place(url)
        try:
            file_system, root = fs.FileSystem.from_uri(url)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as error:
            raise MillraceError(f"{place!r} names no checkpoint store ({_one_line(error, url, place)}): use a path, or a URI "
                                "that begins with file, hdfs, s3, gs, abfs, redis or rediss") from None
        except (OSError, pyarrow.ArrowException) as error:
            raise StoreUnreachable(f"the checkpoint store {place} cannot be opened: {_one_line(error, url, place)}. Check that "
                                   "what pyarrow needs for it is installed and that it admits this host") from None
        return cls(file_system, root, place)

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        path = self._path(name)
        directory = path.rpartition("/")[0]
        unfinished = f"{directory}/{UNFINISHED}{uuid.uuid4().hex}"
        with self._translated(f"write {name}"):
            self._files.create_dir(directory, recursive=True)
            try:
                with self._files.open_output_stream(unfinished, compression=None) as stream:
                    for part in parts:
                        stream.write(part)
                self._files.move(unfinished, path)
            except BaseException:
                with contextlib.suppress(OSError, pyarrow.ArrowException):  # the first error matters
                    self._files.delete_file(unfinished)
                raise

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        """Looks before and after it writes: pyarrow offers no conditional request of these systems."""
        return write_and_look(self, name, parts, guard, content)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with self._translated(f"read {name}"):
            try:
                with self._files.open_input_file(self._path(name)) as file:
                    rest = max(0, file.size() - offset)
                    count = rest if length is None else min(rest, length)
                    return bytes(file.read_at(count, offset)) if count else b""
            except (FileNotFoundError, NotADirectoryError):
                raise not_there(name, self.place) from None

    def names(self, prefix: str) -> list[str]:
        directory, slash, _ = prefix.rpartition("/")
        selector = fs.FileSelector(self._path(directory) if slash else self.root, allow_not_found=True, recursive=True)
        with self._translated(f"list {prefix}*"):
            files = self._list(selector)
            for info in files:
                if info.base_name.startswith(UNFINISHED):
                    self._remove_if_old(info)
        names = [info.path[len(self.root) + 1 :] for info in files if not info.base_name.startswith(UNFINISHED)]
        return sorted(name for name in names if name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            with self._translated(f"delete {name}"), contextlib.suppress(FileNotFoundError, NotADirectoryError):
                self._files.delete_file(self._path(name))

    def missing(self, names: Iterable[str]) -> set[str]:
        wanted = list(names)
        with self._translated(f"look for {len(wanted)} names"):
            infos = self._files.get_file_info([self._path(name) for name in wanted])
        return {name for name, info in zip(wanted, infos, strict=True) if info.type in _NO_FILE}

    def lock(self, topology: str) -> None:
        """These file systems have no locks."""

    def close(self) -> None:
        """The file system closes its connections when it is garbage-collected."""

    def _list(self, selector: Any) -> list[Any]:
        try:
            return [info for info in self._files.get_file_info(selector) if info.type == fs.FileType.File]
        except NotADirectoryError:  # a file has no names below it
            return []

    def _remove_if_old(self, info: Any) -> None:
        if info.mtime_ns is not None and time.time() - info.mtime_ns / 1e9 > UNFINISHED_SECONDS:
            with contextlib.suppress(FileNotFoundError):
                self._files.delete_file(info.path)

    def _path(self, name: str) -> str:
        check_name(name)
        return f"{self.root}/{name}"

    @contextlib.contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pyarrow.ArrowException) as error:
            raise refused(self.place, action, error) from error


def _one_line(error: Exception, url: str, place: str) -> str:
    """The error in one line, without secrets of the URL."""
    return " ".join(str(error).replace(url, place).split())[:500]
