"""A lock on a topology's checkpoints: a file that one process at a time can lock."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from types import TracebackType

from millrace.errors import StoreInUse
from millrace.runtime.durable import PRIVATE_FILE

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # errors of file systems without locks
SHOWN = 200  # bytes of the holder's description

log = logging.getLogger(__name__)


class Lock:
    """Held until it is closed or the process ends in any way. The empty file stays: if it were removed, two processes could
    each lock a file of this name."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path, topology: str) -> Lock | None:
        """Take the lock. Raises `StoreInUse` if another process has it; None if the file system has no locks."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, PRIVATE_FILE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, SHOWN, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise StoreInUse(f"topology {topology!r} cannot use the checkpoints in {path.parent}: {holder} runs a topology of "
                             "this name with them, and two would destroy each other's checkpoints and staged output. Stop that "
                             "one, or run this one under another name, with another --cluster, or with another "
                             "checkpoint.store") from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in NO_LOCKS:
                raise
            log.warning("the file system of %s has no locks (%s): make sure that no other topology %r uses it",
                        path.parent, error, topology)
            return None
        return cls(descriptor)

    def close(self) -> None:
        """Release the lock; a second call does nothing."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # closing is not enough: a child process may have the file open too
            finally:
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
