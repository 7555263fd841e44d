"""Writing under a guard, for stores that cannot compare and write in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.errors import CheckpointMissing


class PlainStore(Protocol):
    """The part of a store that a guarded write needs."""

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None: ...

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes: ...


def write_and_look(store: PlainStore, name: str, parts: Sequence[bytes | memoryview], guard: str, content: bytes) -> bool:
    """Write, and look at the guard before and after. The first look keeps names that nobody needs out of the store; the second
    decides. Whoever changes the guard looks at the store afterwards: so if the second look finds the guard unchanged, the
    change comes later, and whoever makes it finds what was written here."""
    if not _has(store, guard, content):
        return False
    store.write(name, parts)
    return _has(store, guard, content)


def _has(store: PlainStore, name: str, content: bytes) -> bool:
    try:
        return store.read(name) == content
    except CheckpointMissing:
        return False
