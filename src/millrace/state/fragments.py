"""Fragments: the blocks of one blob, each with checksums and the identity of its blob.

A blob is everything that one task wrote at one wave; its name is a path, `<topology>/<component>/<task index>/<epoch>-<wave>`.
A reassembled blob is checked as a whole: the result is the original data, or an error.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import NamedTuple

from millrace.errors import BadParameter
from millrace.state.checksum import appended
from millrace.state.erasure import MAX_BLOCKS, Bytes, Code, room

SUBSETS = 64  # maximum number of subsets tried if fragments with good checksums do not make the blob,
SEARCH_BYTES = 256 << 20  # and of bytes decoded for that
NAME_PARTS = 4


class BlobIdentity(NamedTuple):
    """The properties that all fragments of one blob share."""

    blob: str
    r: int
    c: int
    length: int
    whole_crc: int  # CRC-32 of the blob

    def fault(self) -> str:
        """The reason why no such blob can exist; empty if it can."""
        if self.r < 1 or self.c < 0 or self.r + self.c > MAX_BLOCKS or self.length < 0:
            return f"no blob has {self.r} raw and {self.c} check blocks and {self.length} bytes"
        return ""

    @property
    def block_size(self) -> int:
        return Code(self.r, self.c).block_size(self.length)


@dataclass(frozen=True, slots=True)
class Fragment:
    """Block `index` of a blob. `crc` is that of the payload."""

    blob: str
    index: int
    r: int
    c: int
    length: int
    crc: int
    whole_crc: int
    payload: Bytes = field(repr=False)

    @property
    def identity(self) -> BlobIdentity:
        return BlobIdentity(self.blob, self.r, self.c, self.length, self.whole_crc)


def cut(blob: str, data: Bytes, r: int, c: int) -> list[Fragment]:
    """Cuts a blob into r + c fragments. Payloads may be views of the data: it must not change while they are used."""
    whole = zlib.crc32(data)
    return [Fragment(blob, index, r, c, len(data), zlib.crc32(block), whole, block)
            for index, block in enumerate(Code(r, c).encode(data))]


class Assembly:
    """A blob being reassembled: each block is written in place and checksummed by its writer, so that nothing is moved or read
    again at the end."""

    def __init__(self, identity: BlobIdentity) -> None:
        if fault := identity.fault():
            raise BadParameter(f"{identity.blob} cannot be reassembled: {fault}")
        self.identity = identity
        self._code = Code(identity.r, identity.c)
        self._size = identity.block_size
        self._data = room(identity.r * self._size)
        self._checks: dict[int, memoryview] = {}

    def block(self, index: int) -> memoryview:
        """The memory for the block."""
        if index < self.identity.r:
            return self._data[index * self._size : (index + 1) * self._size]
        if index not in self._checks:
            self._checks[index] = room(self._size)
        return self._checks[index]

    def build(self, crcs: Mapping[int, int]) -> memoryview | None:
        """Returns the blob if the written blocks (index: CRC) are enough and consistent. Missing raw blocks are computed in
        place; they may be written after this call, but not during it."""
        r = self.identity.r
        chosen = {index: self.block(index) for index in sorted(crcs)[:r]}
        if len(chosen) < r:
            return None
        missing = {index: self.block(index) for index in range(r) if index not in crcs}
        self._code.repair(chosen, missing)
        sums = {**crcs, **{index: zlib.crc32(block) for index, block in missing.items()}}
        if self._is_whole([sums[index] for index in range(r)]):
            return self._data[: self.identity.length].toreadonly()
        return self._search(sorted(crcs))

    def _is_whole(self, sums: Sequence[int]) -> bool:
        """True if raw blocks with these CRCs make the blob's CRC, without the padding. The blocks are not read again."""
        total = 0
        for block in sums:
            total = appended(total, block, self._size)
        zeros = bytes(len(self._data) - self.identity.length)
        return total == appended(self.identity.whole_crc, zlib.crc32(zeros), len(zeros))

    def _search(self, good: Sequence[int]) -> memoryview | None:
        tries = min(SUBSETS, SEARCH_BYTES // (self.identity.length or 1))
        for chosen in islice(combinations(good, self.identity.r), tries):
            data = self._code.decode({index: self.block(index) for index in chosen}, self.identity.length)
            if zlib.crc32(data) == self.identity.whole_crc:
                return memoryview(data)
        return None


class HeldBlob(NamedTuple):
    """The fragments of one blob in a tree."""

    blob: str
    indexes: list[int]
    bytes: int


class _Branch:
    """One step of a path: the branches below it and, at the end of a blob's name, its fragments by index."""

    __slots__ = ("below", "fragments")

    def __init__(self) -> None:
        self.below: dict[str, _Branch] = {}
        self.fragments: dict[int, Fragment] = {}

    def blobs(self, path: tuple[str, ...]) -> Iterator[tuple[str, dict[int, Fragment]]]:
        if self.fragments:
            yield "/".join(path), self.fragments
        for part, branch in self.below.items():
            yield from branch.blobs((*path, part))


class FragmentTree:
    """The fragments that one worker holds for others: topology → component → task → blob → index. A fragment that would exceed
    `limit` bytes is refused: the checkpoint store has every blob too."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self._root = _Branch()
        self._needed: dict[str, frozenset[str]] = {}  # by task: also blobs of another one whose key groups it has taken over
        self._users: Counter[str] = Counter()  # by blob: the number of tasks that need it

    def put(self, fragment: Fragment) -> bool:
        """Adds a fragment; returns False, without a change, if there is no room."""
        path = _path(fragment.blob)
        if len(path) != NAME_PARTS:
            raise BadParameter(f"{fragment.blob!r} is not the name of a blob: use <topology>/<component>/<task index>/"
                               "<epoch>-<wave>")
        known = self.get(fragment.blob, fragment.index)
        more = len(fragment.payload) - (len(known.payload) if known is not None else 0)
        if self.bytes + more > self.limit:
            return False
        branch = self._root
        for part in path:
            branch = branch.below.setdefault(part, _Branch())
        branch.fragments[fragment.index] = fragment
        self.bytes += more
        return True

    def get(self, blob: str, index: int) -> Fragment | None:
        branch = self._find(_path(blob))
        return branch.fragments.get(index) if branch is not None else None

    def forget(self, *prefixes: str) -> int:
        """Drops the blobs with these names, or all below the path of a task, component or topology. Returns the number of
        blobs dropped."""
        for prefix in prefixes:
            for task in [task for task in self._needed if f"{task}/".startswith(f"{prefix}/")]:
                self._need(task, frozenset())
        return sum(self._cut_off(_path(prefix)) for prefix in prefixes)

    def keep_only(self, task: str, blobs: Collection[str]) -> int:
        """Drops all blobs of a task, and all that it has needed of others, except these and those that another task needs.
        Include those that are being saved."""
        before = self._need(task, frozenset(blobs))
        return sum(self._cut_off(_path(blob)) for blob in before.union(held.blob for held in self.listing(task))
                   if blob not in self._users)

    def listing(self, prefix: str = "") -> list[HeldBlob]:
        """The blobs below the prefix, by name."""
        branch = self._find(_path(prefix))
        blobs = branch.blobs(_path(prefix)) if branch is not None else ()
        return sorted(HeldBlob(blob, sorted(fragments), _size(fragments)) for blob, fragments in blobs)

    def _need(self, task: str, blobs: frozenset[str]) -> frozenset[str]:
        """Replaces the blobs that a task needs, and returns those that it needed before."""
        before = self._needed.pop(task, frozenset())
        if blobs:
            self._needed[task] = blobs
        self._users.update(blobs - before)
        for blob in before - blobs:
            self._users[blob] -= 1
            if not self._users[blob]:
                del self._users[blob]
        return before

    def _find(self, path: Iterable[str]) -> _Branch | None:
        branch: _Branch | None = self._root
        for part in path:
            branch = branch.below.get(part) if branch is not None else None
        return branch

    def _cut_off(self, path: tuple[str, ...]) -> int:
        branch = self._find(path)
        if branch is None:
            return 0
        held = [fragments for _, fragments in branch.blobs(path)]
        self.bytes -= sum(map(_size, held))
        branch.below.clear()
        branch.fragments.clear()
        for end in range(len(path), 0, -1):  # remove empty branches
            parent, child = self._find(path[: end - 1]), self._find(path[:end])
            if parent is not None and child is not None and not child.below and not child.fragments:
                del parent.below[path[end - 1]]
        return len(held)


def _path(name: str) -> tuple[str, ...]:
    return tuple(name.split("/")) if name else ()


def _size(fragments: Mapping[int, Fragment]) -> int:
    return sum(len(fragment.payload) for fragment in fragments.values())
