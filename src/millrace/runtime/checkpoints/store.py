"""Where checkpoints are kept: whatever can hold bytes under a name, safely. Blocking calls, for a thread that may wait.

    /path, file:///path                 a directory; one that all hosts share, if there are several
    hdfs://, s3://, gs://, abfs://      a directory of a file system that pyarrow can open
    redis://, rediss://                 a Redis; what it loses when it restarts is lost

A name is a path of steps joined by `/`, as `state.checkpoint` makes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from millrace.errors import MillraceError
from millrace.runtime.checkpoints.directory import DirectoryStore
from millrace.runtime.checkpoints.lock import Lock

REDIS_SCHEMES = ("redis", "rediss")
SAME_AS_S3 = ("s3a", "s3n")  # what Hadoop's file systems call it


class CheckpointStore(Protocol):
    """Safe to use from any thread. Every call may raise StoreUnreachable: no answer, no room, no permission."""

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """The parts, one after the other, under this name; durable when this returns. Whatever happens meanwhile, readers
        find what was there before, or nothing if there was nothing, until they find all of the new."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """From `offset` on, to the end or as many bytes as asked for; fewer where it ends before. CheckpointMissing."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names that begin so, sorted. What a writer that crashed left unfinished is no name, and goes when it is old."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Those that are not there are no error."""
        ...

    def missing(self, names: Iterable[str]) -> set[str]:
        """Which of these are not there."""
        ...

    def lock(self, topology: str) -> Lock | None:
        """The right to be the only one that runs a topology of this name on this store, until the lock is closed or the
        process ends. StoreInUse if another has it. None: this store has no locks, and people must see to it."""
        ...

    def close(self) -> None: ...


def open_store(url: str) -> CheckpointStore:
    """The store that a setting names. What only some need is imported here: it takes longer than all the rest."""
    directory = local_directory(url)
    if directory is not None:
        return DirectoryStore(directory)
    scheme, _, rest = url.partition("://")
    if scheme in REDIS_SCHEMES:
        from millrace.runtime.checkpoints.redis import RedisStore

        return RedisStore(url)
    from millrace.runtime.checkpoints.remote import RemoteStore

    return RemoteStore.at(f"s3://{rest}" if scheme in SAME_AS_S3 else url)


def local_directory(url: str) -> Path | None:
    """The directory that a setting names; None if it names something else."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Path(url).expanduser()
    return _local_path(url) if scheme == "file" else None


def shown_place(url: str) -> str:
    """The store as messages show it: without a password."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if "://" in url else url


def _local_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise MillraceError(f"{url!r} names no checkpoint store: a path on this host has three slashes, as in "
                            f"file:///{parts.netloc}{parts.path}")
    return Path(unquote(parts.path))
