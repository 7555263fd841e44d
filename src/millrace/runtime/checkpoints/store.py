"""Checkpoint stores: durable bytes under a name. Blocking calls, for a thread that may wait.

    /path, file:///path                 a directory; shared by all hosts if there are several
    hdfs://, s3://, gs://, abfs://      a directory of a file system that pyarrow can open
    redis://, rediss://                 a Redis; data that it loses in a restart is lost

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
SAME_AS_S3 = ("s3a", "s3n")  # Hadoop's names for it


class CheckpointStore(Protocol):
    """Thread-safe. Every call may raise `StoreUnreachable`: no answer, no room, no permission."""

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        """Write the concatenated parts under this name; durable when this returns. The write is atomic: readers see the old
        content, or nothing if there was none, until they see all of the new."""
        ...

    def write_if(self, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
        """Write as `write` does, if the name `guard` has this content. False: it has another one, or none. Then the name may
        have been written nevertheless, unless the store compares and writes in one step; but whenever this returns True, the
        guard had the content while the name could be read."""
        ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read from `offset` to the end, or up to `length` bytes. Raises `CheckpointMissing`."""
        ...

    def names(self, prefix: str) -> list[str]:
        """All names with this prefix, sorted. Unfinished files of crashed writers are omitted, and removed when old."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete names; missing ones are ignored."""
        ...

    def missing(self, names: Iterable[str]) -> set[str]:
        """Those of the names that do not exist."""
        ...

    def lock(self, topology: str) -> Lock | None:
        """Take the exclusive right to run a topology of this name on this store, until the lock is closed or the process ends.
        Raises `StoreInUse` if another process has it. None: this store has no locks, so operators must prevent it."""
        ...

    def close(self) -> None: ...


def open_store(url: str) -> CheckpointStore:
    """Open the store that a setting names. Optional packages are imported here, since that is slow."""
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
    """The directory that a setting names; None if it names another kind of store."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Path(url).expanduser()
    return _local_path(url) if scheme == "file" else None


def _local_path(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise MillraceError(f"{url!r} names no checkpoint store: a path on this host has three slashes, as in "
                            f"file:///{parts.netloc}{parts.path}")
    return Path(unquote(parts.path))
