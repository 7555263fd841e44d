"""Jobs of a fragment exchange: save a blob with its holders, fetch it back, tell holders which blobs are still needed."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from millrace.errors import NotEnoughFragments
from millrace.runtime.fragments.links import Address, Asker
from millrace.runtime.fragments.messages import (
    PART_BYTES,
    Accepted,
    Discard,
    FragmentAnswer,
    FragmentRequest,
    Get,
    Head,
    Keep,
    Part,
    Put,
)
from millrace.state.fragments import Assembly, BlobIdentity, Fragment

PATIENCE = 0.25  # seconds without a part after which one more fragment is fetched
BLOB_LIMIT = 16 << 30  # bytes: a forged length must not exhaust the memory
Holders = Sequence[tuple[int, Address]]  # index of a fragment, and its holder


class FragmentRequests(Protocol):
    """The exchange as jobs see it. Everything but the action of `build` runs on the exchange's thread."""

    def now(self) -> float: ...

    def heard(self, address: Address) -> float: ...

    def ask(self, address: Address, request: FragmentRequest, part: memoryview | None, asker: Asker) -> None: ...

    def build(self, action: Callable[[], memoryview | None], then: Callable[[memoryview | None], None]) -> None: ...


class Telling:
    """Sends a message to several workers; done when each has answered or is known to be silent."""

    def __init__(self, exchange: FragmentRequests, message: Callable[[], Keep | Discard], addresses: Iterable[Address],
                 done: Callable[[int], None]) -> None:
        self.over = False
        self._done = done
        self._addresses = list(dict.fromkeys(addresses))
        self._left, self._confirmed = len(self._addresses), 0
        self._exchange, self._message = exchange, message

    def start(self) -> None:
        for address in self._addresses:
            self._exchange.ask(address, self._message(), None, self)
        self._end_if_done()

    def answered(self, answer: FragmentAnswer | None, part: memoryview | None) -> None:
        self._left -= 1
        self._confirmed += isinstance(answer, Accepted)
        self._end_if_done()

    def tick(self, now: float) -> None:
        """Nothing to do: a link that stays silent is closed, which answers for the other side."""

    def _end_if_done(self) -> None:
        if not self._left and not self.over:
            self.over = True
            self._done(self._confirmed)


class _Push:
    """One fragment on its way to its holder."""

    def __init__(self, job: Saving, fragment: Fragment, address: Address) -> None:
        self.over = self.held = False
        self._job, self._fragment, self._address = job, fragment, address
        self._left = len(_offsets(len(fragment.payload)))

    def start(self, exchange: FragmentRequests) -> None:
        head, payload = Head.of(self._fragment), memoryview(self._fragment.payload)
        for offset in _offsets(len(payload)):
            exchange.ask(self._address, Put(0, head, offset), payload[offset : offset + PART_BYTES], self)

    def answered(self, answer: FragmentAnswer | None, part: memoryview | None) -> None:
        if self.over:  # an unreachable address answers once for each part
            return
        self._left -= 1
        refused = not (isinstance(answer, Accepted) and answer.ok)
        if refused or not self._left:
            self.over, self.held = True, not refused
            self._job.end_if_done()


class Saving:
    """Saves a blob. Done when all fragments are held or refused, or the time is up; reports how many are held."""

    def __init__(self, exchange: FragmentRequests, holders: Holders, seconds: float, done: Callable[[int], None]) -> None:
        self.over = False
        self._exchange, self._holders, self._deadline, self._done = exchange, holders, exchange.now() + seconds, done
        self._pushes: list[_Push] = []

    def start(self) -> None:
        """Nothing to do: `push` follows once the blob is cut."""

    def push(self, fragments: Sequence[Fragment]) -> None:
        if self.over:
            return
        self._pushes = [_Push(self, fragments[index], address) for index, address in self._holders]
        for push in self._pushes:
            push.start(self._exchange)
        self.end_if_done()

    def tick(self, now: float) -> None:
        if now > self._deadline:
            for push in self._pushes:
                push.over = True
            self.end_if_done()

    def end_if_done(self) -> None:
        if not self.over and all(push.over for push in self._pushes):
            self.over = True
            self._done(sum(push.held for push in self._pushes))


class _Pull:
    """One fragment on its way from its holder."""

    def __init__(self, job: Fetching, index: int, address: Address, now: float) -> None:
        self.over = self.complete = self.late = False
        self.index, self.at = index, now
        self.head: Head | None = None
        self._job, self.address = job, address
        self._end = self._crc = 0  # of the bytes received so far

    def start(self, exchange: FragmentRequests) -> None:
        self._get(exchange, 0)

    def answered(self, answer: FragmentAnswer | None, part: memoryview | None) -> None:
        if self.over:
            return
        fault = self._fault(answer, part)
        if fault or not isinstance(answer, Part) or part is None:
            self._job.failed(self, fault)
            return
        if self.head is None:
            self._begin(answer.head)
        self._job.assembly(answer.head.identity).block(self.index)[self._end : self._end + len(part)] = part
        self._end += len(part)
        self._crc = zlib.crc32(part, self._crc)
        self.at = self._job.exchange.now()
        if self._end == answer.head.identity.block_size:
            self._finish(answer.head)

    def _fault(self, answer: FragmentAnswer | None, part: memoryview | None) -> str:
        if answer is None:
            return "its holder does not answer"
        if not isinstance(answer, Part) or part is None:
            return "no longer held"
        if self.head is None and (fault := self._job.fault(answer.head, self.index)):
            return fault
        if self.head not in (None, answer.head) or answer.offset != self._end:
            return "its parts do not fit together"
        expected = min(PART_BYTES, answer.head.identity.block_size - self._end)
        return f"a part of it has {len(part)} bytes instead of {expected}" if len(part) != expected else ""

    def _begin(self, head: Head) -> None:
        """Request the rest, now that the size is known."""
        self.head = head
        for offset in _offsets(head.identity.block_size)[1:]:
            self._get(self._job.exchange, offset)

    def _finish(self, head: Head) -> None:
        if self._crc != head.crc:
            self._job.failed(self, "corrupt")
            return
        self.over = self.complete = True
        self._job.completed(self)

    def _get(self, exchange: FragmentRequests, offset: int) -> None:
        exchange.ask(self.address, Get(0, self._job.blob, self.index, offset), None, self)


class Fetching:
    """Fetches r fragments, the raw ones first, and one more for each that fails or is late. The result is the blob, or an error
    that lists the fault of each fragment."""

    def __init__(self, exchange: FragmentRequests, blob: str, shape: tuple[int, int], holders: Holders, seconds: float,
                 done: Callable[[memoryview | NotEnoughFragments], None]) -> None:
        self.over = False
        self.exchange, self.blob = exchange, blob
        self._shape, self._done = shape, done
        self._seconds, self._deadline = seconds, exchange.now() + seconds
        self._spare = sorted(holders, reverse=True)  # the last is fetched next
        self._pulls: list[_Pull] = []
        self._assemblies: dict[BlobIdentity, Assembly] = {}
        self._faults: dict[int, str] = {}
        self._building = False
        self._insufficient: dict[BlobIdentity, int] = {}  # this many fragments did not make the blob

    def start(self) -> None:
        self._fetch_more()

    def tick(self, now: float) -> None:
        if now > self._deadline:
            self._fail(f" within {self._seconds:g} s")
            return
        for pull in self._pulls:  # not late while its holder answers other requests
            pull.late |= now - max(pull.at, self.exchange.heard(pull.address)) > PATIENCE
        self._fetch_more()

    def fault(self, head: Head, index: int) -> str:
        """The reason why a fragment is not the requested one; empty if it is."""
        if (head.blob, head.index, (head.r, head.c)) != (self.blob, index, self._shape):
            return f"its holder has fragment {head.index} of {head.r} + {head.c} of {head.blob} instead"
        if head.length > BLOB_LIMIT:
            return f"its blob has {head.length} bytes; the limit is {BLOB_LIMIT}"
        return ""

    def assembly(self, identity: BlobIdentity) -> Assembly:
        if identity not in self._assemblies:
            self._assemblies[identity] = Assembly(identity)
        return self._assemblies[identity]

    def completed(self, pull: _Pull) -> None:
        assert pull.head is not None
        identity = pull.head.identity
        group = self._group(identity)
        if len(group) >= self._needed(identity):
            self._build(identity, group)
        else:
            self._fetch_more()

    def failed(self, pull: _Pull, why: str) -> None:
        pull.over, pull.complete = True, False
        self._faults[pull.index] = why
        self._fetch_more()

    def _group(self, identity: BlobIdentity) -> list[_Pull]:
        """The complete fragments of the same blob."""
        return [pull for pull in self._pulls if pull.complete and pull.head is not None and pull.head.identity == identity]

    def _needed(self, identity: BlobIdentity) -> int:
        return self._insufficient[identity] + 1 if identity in self._insufficient else self._shape[0]

    def _fetch_more(self) -> None:
        """Fetch more fragments while those complete and in progress are too few; fail if there are no more."""
        while not self.over and not self._building and self._coming(late=False) < self._lacking():
            if not self._spare:
                if self._coming(late=True) < self._lacking():
                    self._fail("")
                return
            index, address = self._spare.pop()
            pull = _Pull(self, index, address, self.exchange.now())
            self._pulls.append(pull)
            pull.start(self.exchange)

    def _lacking(self) -> int:
        """The minimum number of fragments missing from a group that makes a blob."""
        complete = Counter(pull.head.identity for pull in self._pulls if pull.complete and pull.head is not None)
        return min((self._needed(identity) - count for identity, count in complete.items()), default=self._shape[0])

    def _coming(self, late: bool) -> int:
        return sum(not pull.over and (late or not pull.late) for pull in self._pulls)

    def _build(self, identity: BlobIdentity, group: Sequence[_Pull]) -> None:
        """Compute the blob. Fragments in progress are cancelled, so that nothing is written meanwhile; they are requested
        again if needed."""
        self._building = True
        for pull in self._pulls:
            if not pull.over:
                pull.over = True
                self._spare.append((pull.index, pull.address))
        crcs = {pull.index: pull.head.crc for pull in group if pull.head is not None}
        assembly = self._assemblies[identity]
        self.exchange.build(lambda: assembly.build(crcs), lambda data: self._built(identity, len(group), data))

    def _built(self, identity: BlobIdentity, used: int, data: memoryview | None) -> None:
        self._building = False
        if data is not None:
            self._end(data)
            return
        # Each fragment is intact, but together they are not the blob: only one more can show which is wrong. Fragments of
        # another identity, a blob of the same name that was saved earlier or later, may still fit.
        self._insufficient[identity] = used
        self._fetch_more()

    def _fail(self, when: str) -> None:
        complete = sorted(pull.index for pull in self._pulls if pull.complete)
        unusable = {**{pull.index: "has not arrived yet" for pull in self._pulls if not pull.over}, **self._faults}
        self._end(NotEnoughFragments(
            f"{self.blob} cannot be restored from its fragments{when}: any {self._shape[0]} of "
            f"{sum(self._shape)} are needed, received {complete or 'none'}"
            f"{', each intact, but together not the blob' if self._insufficient else ''}; unusable: "
            f"{', '.join(f'{index}: {why}' for index, why in sorted(unusable.items())) or 'none'}. Read it from the checkpoint "
            "store"))

    def _end(self, result: memoryview | NotEnoughFragments) -> None:
        if not self.over:
            self.over = True
            for pull in self._pulls:
                pull.over = True
            self._done(result)


def _offsets(size: int) -> range:
    """The offsets of a fragment's parts; an empty fragment has one empty part."""
    return range(0, size or 1, PART_BYTES)
