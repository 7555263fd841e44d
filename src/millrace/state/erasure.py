"""Systematic Reed-Solomon codes: r raw blocks that are the data itself, c check blocks; any r of them restore it.

    block:  0                r-1                  r                  r+c-1
            data[0:n] ...    data[(r-1)n:rn]      check block ...    n = ceil(length / r), zeros fill up the last raw block

The codec is ISA-L, through pyeclib. It works on fragments with a header each; a block here has none. The headers depend on the
size only, not on the data: they are made once per size and prepended for decoding.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from pyeclib.ec_iface import ECDriver

from millrace.errors import BadParameter

MAX_BLOCKS = 32  # liberasurecode's limit
STRIPE = 1 << 20  # bytes of data per call: the codec holds the GIL, with this size for less than a millisecond
ALIGNMENT = 64
MAPPED = 1 << 18
Bytes = bytes | bytearray | memoryview
BACKEND = "isa_l_rs_cauchy"  # ISA-L's Vandermonde matrices are not invertible for every set of losses; these are


class Code:
    """One shape: r raw and c check blocks. With r = 1 every block is a copy; with c = 0 all of them are needed."""

    def __init__(self, r: int, c: int) -> None:
        if r < 1 or c < 0 or r + c > MAX_BLOCKS:
            raise BadParameter(f"{r} raw and {c} check blocks: at least 1 raw and 0 check blocks are needed, and at most "
                               f"{MAX_BLOCKS} blocks in all")
        self.r, self.c = r, c

    def __repr__(self) -> str:
        return f"Code({self.r}, {self.c})"

    def block_size(self, length: int) -> int:
        return -(-length // self.r)

    def encode(self, data: Bytes) -> list[memoryview]:
        """Returns the r + c blocks. Full raw blocks are views of the data: do not change it while they are used."""
        raw = self._raw(memoryview(data).cast("B"))
        return [*raw, *self._checks(raw)]

    def decode(self, blocks: Mapping[int, Bytes], length: int) -> bytes:
        """Restores the data from any r blocks. The caller must know that they are good: this cannot be checked here."""
        known = {index: memoryview(block).cast("B") for index, block in blocks.items()}
        size = self.block_size(length)
        missing = {index: room(size) for index in range(self.r) if index not in known}
        self.repair(known, missing)
        known.update(missing)
        return b"".join(known[index][: max(0, length - index * size)] for index in range(self.r))

    def repair(self, blocks: Mapping[int, memoryview], missing: Mapping[int, memoryview]) -> None:
        """Computes the missing raw blocks from any r others, into the memory passed for each."""
        if not missing:
            return
        sources = sorted(blocks)[: self.r]
        sizes = {len(block) for block in (*blocks.values(), *missing.values())}
        if len(sources) < self.r or len(sizes) != 1 or not 0 <= sources[0] <= sources[-1] < self.r + self.c:
            raise BadParameter(f"{self} needs {self.r} blocks of one size to compute block {min(missing)}, got "
                               f"{ {index: len(block) for index, block in blocks.items()} } (index: bytes)")
        if self.r == 1:
            missing[0][:] = blocks[sources[0]]
            return
        for start, end in self._stripes(sizes.pop()):
            width = end - start
            heads = _heads(self.r, self.c, width)
            stripe = memoryview(_driver(self.r, self.c).decode(
                [b"".join((heads[index], blocks[index][start:end])) for index in sources]))
            for index, room in missing.items():
                room[start:end] = stripe[index * width : (index + 1) * width]

    def _raw(self, data: memoryview) -> list[memoryview]:
        size = self.block_size(len(data))
        views = [data[index * size : (index + 1) * size] for index in range(self.r)]
        return [view if len(view) == size else gather([view], size) for view in views]

    def _checks(self, raw: list[memoryview]) -> list[memoryview]:
        if self.r == 1 or not self.c:
            return raw * self.c if self.r == 1 else []
        size = len(raw[0])
        checks = [room(size) for _ in range(self.c)]
        for start, end in self._stripes(size):
            fragments = _driver(self.r, self.c).encode(b"".join([block[start:end] for block in raw]))
            for block, fragment in zip(checks, fragments[self.r :]):
                block[start:end] = memoryview(fragment)[start - end :]  # without the codec's header
        return checks

    def _stripes(self, size: int) -> Iterator[tuple[int, int]]:
        """Start and end of each stripe of a block."""
        width = max(ALIGNMENT, STRIPE // self.r // ALIGNMENT * ALIGNMENT)
        for start in range(0, size, width):
            yield start, min(size, start + width)


def room(size: int) -> memoryview:
    """Allocates writable memory. A large piece is mapped, so that pages cost time only when they are used. Huge pages are not
    used: they are 5 times as fast when warm, but 4 times as slow when a virtual machine has to get them from its host first,
    as in a worker that has just started."""
    if size < MAPPED:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def gather(parts: Sequence[Bytes], size: int) -> memoryview:
    """Concatenates the parts and pads them with zeros up to the size. Copies in steps: a large copy would hold the GIL."""
    whole, end = room(size), 0
    for part in (memoryview(part).cast("B") for part in parts):
        for start in range(0, len(part), STRIPE):
            step = part[start : start + STRIPE]
            whole[end : end + len(step)] = step
            end += len(step)
    whole[end:] = bytes(size - end)
    return whole


@lru_cache(maxsize=64)
def _driver(r: int, c: int) -> ECDriver:
    return ECDriver(k=r, m=c, ec_type=BACKEND)


@lru_cache(maxsize=256)
def _heads(r: int, c: int, width: int) -> list[bytes]:
    """The codec's headers for the fragments of a stripe with blocks of `width` bytes."""
    return [fragment[:-width] for fragment in _driver(r, c).encode(bytes(r * width))]
