"""The plan store: a node's copy of its part of the plan. One writer, the agent; many readers, the workers.

LMDB in a directory. A record is one version of the part. Its key is the stamp, so the newest is the last. A write adds a record
and never changes one. Readers take no lock and see the newest committed version.

    key: author and revision, 8 bytes each, big-endian    value: CRC-32 of key and part, 4 bytes; the part

This is a copy; the coordination store has the truth. So a damaged file is not repaired. The writer starts a new one, and the
readers, which check the file's inode before each read, follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import lmdb

from millrace.control.assignment import Stamp
from millrace.errors import MillraceError

KEPT = 8
MAP_SIZE = 256 << 20
PART_LIMIT = MAP_SIZE // 16  # the kept parts take at most half of the map; the rest is for the one being written
MAX_READERS = 512

_KEY = struct.Struct(">QQ")
_SUM = struct.Struct(">I")
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError, lmdb.VersionMismatchError)

log = logging.getLogger(__name__)
T = TypeVar("T")


class _Damaged(Exception):
    """The file cannot be used; the message has the reason."""


class PlanStore:
    """The plan store of one node. Any number of objects may be open on one directory, in any number of processes. Those of one
    process share an environment, because LMDB must not open it twice."""

    def __init__(self, directory: Path, writer: bool) -> None:
        self.directory, self.writer = directory, writer
        self._damage = ""  # the last one logged, so that a polling reader reports it once
        self._environment: _Environment | None = _enter(directory)

    def write(self, stamp: Stamp, part: bytes) -> bool:
        """Write a version; durable when this returns. Returns False, without writing, if the store already has this stamp or a
        newer one."""
        if not self.writer:
            raise MillraceError(f"the plan store in {self.directory} was opened for reading: only the node's agent opens it "
                                "with writer=True")
        if len(part) > PART_LIMIT:
            raise MillraceError(f"a part of {len(part)} bytes does not fit into the plan store in {self.directory}: the limit "
                                f"is {PART_LIMIT} bytes. Does it hold more than this node's part of the plan?")
        return bool(self._do(lambda environment: _write(environment, stamp, part)))

    def newest(self) -> tuple[Stamp, bytes] | None:
        return self.newer_than(None)

    def newer_than(self, stamp: Stamp | None) -> tuple[Stamp, bytes] | None:
        """The newest version if it is newer than `stamp`; None if it is not, or while there is no usable file."""
        return self._do(lambda environment: _read(environment, stamp))

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            _leave(environment)

    def _do(self, action: Callable[[lmdb.Environment], T]) -> T | None:
        """Run the action. If the file is damaged, a reader gets None and a writer starts a new file."""
        environment = self._of_this_process()
        try:
            return self._attempt(environment, action)
        except _Damaged as error:
            if str(error) != self._damage:
                self._damage = str(error)
                log.warning("the plan store in %s is damaged: %s. %s", self.directory, error,
                            "Starting a new one" if self.writer else "The node's agent will start a new one")
        if not self.writer:
            return None
        environment.replace()
        try:
            return self._attempt(environment, action)
        except _Damaged as error:
            raise MillraceError(f"the plan store in {self.directory} is damaged again right after a new one was started: "
                                f"{error}. Check the disk") from None

    def _attempt(self, environment: _Environment, action: Callable[[lmdb.Environment], T]) -> T:
        try:
            with environment.open() as opened:
                return action(opened)
        except _DAMAGE as error:
            raise _Damaged(str(error)) from error
        except lmdb.MapFullError:
            raise MillraceError(f"the plan store in {self.directory} is full: its {MAP_SIZE >> 20} MB hold the last {KEPT} "
                                "versions. Does a suspended process still read an old one?") from None
        except (lmdb.Error, OSError) as error:
            raise MillraceError(f"cannot use the plan store in {self.directory}: {error}. Is it a directory of this user, on "
                                "a disk that has room?") from error

    def _of_this_process(self) -> _Environment:
        """The environment of this process: after a fork, the parent's must not be used."""
        if self._environment is None:
            raise MillraceError(f"the plan store in {self.directory} was closed: open another one")
        if self._environment.pid != os.getpid():
            self._environment = _enter(self.directory)
        return self._environment


def _write(environment: lmdb.Environment, stamp: Stamp, part: bytes) -> bool:
    environment.reader_check()  # a killed reader would prevent reuse of the pages of its version
    with environment.begin(write=True) as transaction:
        stamps, damaged = _records(transaction)
        if stamps and stamp <= stamps[-1]:
            return False
        for old in [*damaged, *(_KEY.pack(*kept) for kept in stamps[: -(KEPT - 1)])]:
            transaction.delete(old)
        key = _KEY.pack(*stamp)
        transaction.put(key, _SUM.pack(zlib.crc32(part, zlib.crc32(key))) + part)
    return True


def _records(transaction: lmdb.Transaction) -> tuple[list[Stamp], list[bytes]]:
    """The stamps of intact records, the oldest first, and the keys of the others."""
    stamps: list[Stamp] = []
    damaged: list[bytes] = []
    with transaction.cursor() as cursor:
        for key, value in ((bytes(key), bytes(value)) for key, value in cursor):
            if _part(key, value) is None:
                damaged.append(key)
            else:
                stamps.append(Stamp(*_KEY.unpack(key)))
    return stamps, damaged


def _read(environment: lmdb.Environment, after: Stamp | None) -> tuple[Stamp, bytes] | None:
    with environment.begin() as transaction, transaction.cursor() as cursor:
        for key in cursor.iterprev(keys=True, values=False):
            if len(key) == _KEY.size and after is not None and Stamp(*_KEY.unpack(key)) <= after:
                return None
            part = _part(key, cursor.value())
            if part is not None:
                return Stamp(*_KEY.unpack(key)), part
    return None


def _part(key: bytes, value: bytes) -> bytes | None:
    """The part in a record; None if the record is damaged."""
    if len(key) != _KEY.size or len(value) < _SUM.size:
        return None
    part = value[_SUM.size :]
    return part if _SUM.unpack_from(value)[0] == zlib.crc32(part, zlib.crc32(key)) else None


class _Environment:
    """LMDB's environment of one directory in this process: opened on first use, and again when its file was replaced. That
    waits for running transactions."""

    def __init__(self, path: Path) -> None:
        self.path, self.pid, self.users = path, os.getpid(), 0
        self._data = path / "data.mdb"
        self._turn = threading.Condition()
        self._running = 0  # transactions
        self._waiting = 0  # threads that wait until none is running
        self._opened: lmdb.Environment | None = None
        self._inode = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[lmdb.Environment]:
        """The environment for one transaction. Raises `_Damaged` if its file cannot be used."""
        with self._turn:
            self._turn.wait_for(lambda: self._waiting == 0)
            opened = self._follow()
            self._running += 1
        try:
            yield opened
        finally:
            with self._turn:
                self._running -= 1
                self._turn.notify_all()

    def replace(self) -> None:
        """Replace the file by an empty one. If this process dies after the first step, the next one to open makes a new lock
        file for the old data and finds the damage again."""
        with self._turn:
            self._close()  # before locking the files: it may wait for a thread that wants that lock too
            with self._files_locked():
                (self.path / "lock.mdb").unlink(missing_ok=True)
                self._data.unlink(missing_ok=True)

    def close(self) -> None:
        with self._turn:
            self._close()

    def hold(self) -> None:
        """Let no transaction run until `release`: closing one in a forked child would free the parent's reader slot."""
        self._turn.acquire()
        self._until_idle()

    def release(self) -> None:
        self._turn.release()

    def forget(self) -> None:
        """In a forked child: close the parent's environment, which stays open in the parent."""
        if self._opened is not None:
            self._opened.close()

    def _follow(self) -> lmdb.Environment:
        """Open the current file. The size is checked before every transaction: accessing a missing page would kill the process
        with SIGBUS, which no exception handler sees."""
        status = self._status()
        if self._opened is None or status is None or status.st_ino != self._inode:
            self._close()
            with self._files_locked():
                self._opened = self._open_files()
        elif status.st_size < MAP_SIZE:
            raise _Damaged(f"{self._data.name} has {status.st_size} of {MAP_SIZE} bytes")
        return self._opened

    def _status(self) -> os.stat_result | None:
        try:
            return self._data.stat()
        except FileNotFoundError:
            return None

    def _open_files(self) -> lmdb.Environment:
        """Open or make the file. It gets its full length, as a sparse file, before the first write: a shorter one was
        truncated. The page number is read before the size, because another process may be the first to write."""
        opened = lmdb.open(str(self.path), map_size=MAP_SIZE, max_readers=MAX_READERS, mode=0o600,
                           max_spare_txns=0)  # a spare one keeps a reader slot, which a forked child would free
        try:
            written = opened.info()["last_pgno"] > 1
            status = self._data.stat()
            if status.st_size < MAP_SIZE:
                if written:
                    raise _Damaged(f"{self._data.name} has {status.st_size} of {MAP_SIZE} bytes")
                os.truncate(self._data, MAP_SIZE)
            self._inode = status.st_ino
            opened.reader_check()
        except BaseException:
            opened.close()
            raise
        return opened

    def _until_idle(self) -> None:
        """Wait until no transaction runs. New ones queue up behind this, or a busy reader would starve it."""
        self._waiting += 1
        self._turn.wait_for(lambda: self._running == 0)
        self._waiting -= 1
        self._turn.notify_all()

    def _close(self) -> None:
        self._until_idle()
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @contextlib.contextmanager
    def _files_locked(self) -> Iterator[None]:
        """Lock the files across processes, so that nobody opens them while they are replaced. The kernel releases the lock of a
        dead process."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path / "open.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


_environments: dict[str, _Environment] = {}
_environments_lock = threading.Lock()


def _enter(directory: Path) -> _Environment:
    path = os.path.realpath(directory)
    with _environments_lock:
        environment = _environments.setdefault(path, _Environment(Path(path)))
        environment.users += 1
        return environment


def _leave(environment: _Environment) -> None:
    with _environments_lock:
        environment.users -= 1
        last = environment.users == 0 and environment.pid == os.getpid()
        if last:
            del _environments[str(environment.path)]
            environment.close()


def _before_fork() -> None:
    _environments_lock.acquire()
    for environment in _environments.values():
        environment.hold()


def _after_fork_in_parent() -> None:
    for environment in _environments.values():
        environment.release()
    _environments_lock.release()


def _after_fork_in_child() -> None:
    """Start without environments in a child; inherited stores open their own on use."""
    global _environments, _environments_lock
    for environment in _environments.values():
        environment.forget()
    _environments, _environments_lock = {}, threading.Lock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
