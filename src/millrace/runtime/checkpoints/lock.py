"""A lock of a topology's checkpoints: a file that one process at a time has locked."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from pathlib import Path
from types import TracebackType

from millrace.errors import StoreInUse

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)  # what file systems say that have none
SHOWN = 200  # bytes of what a holder wrote

log = logging.getLogger(__name__)


class Lock:
    """Held until it is closed or the process ends, however it ends. The file stays, empty: were it removed, two processes
    could each lock a file of this name."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path, topology: str) -> Lock | None:
        """StoreInUse if another has it; None if the file system knows no locks."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, SHOWN, 0).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise StoreInUse(f"a topology {topology!r} was to use the checkpoints in {path.parent}, and {holder} runs one of "
                             "this name with them: two would destroy each other's checkpoints and staged output. Stop that "
                             "one, or run this one under another name, with another --cluster, or with another "
                             "checkpoint.store") from None
        except OSError as error:
            os.close(descriptor)
            if error.errno not in NO_LOCKS:
                raise
            log.warning("the file system of %s has no locks (%s): that no other topology %r uses it is not checked",
                        path.parent, error, topology)
            return None
        return cls(descriptor)

    def close(self) -> None:
        """Twice is no error."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # not by closing alone: a child process may have the file open too
            finally:
                os.close(descriptor)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
