"""Saving a blob with its holders, and fetching it back from them: what an exchange's thread has under way."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from millrace.errors import NotEnoughFragments
from millrace.runtime.fragments.links import Address, Asker
from millrace.runtime.fragments.messages import PART_BYTES, Answer, Drop, Get, Head, Keep, Part, Put, Request, Taken
from millrace.state.fragments import Assembly, BlobIdentity, Fragment

PATIENCE = 0.25  # seconds without a part after which one more fragment is fetched
BLOB_LIMIT = 16 << 30  # bytes: a length that someone made up must not take all the memory
Holders = Sequence[tuple[int, Address]]  # index of a fragment, and who holds it


class Desk(Protocol):
    """What a job needs of its exchange. Everything but the action of `build` happens on the exchange's thread."""

    def now(self) -> float: ...

    def heard(self, address: Address) -> float: ...

    def ask(self, address: Address, request: Request, part: memoryview | None, asker: Asker) -> None: ...

    def build(self, action: Callable[[], memoryview | None], then: Callable[[memoryview | None], None]) -> None: ...


class Telling:
    """A word that is passed on to other workers; done when each has answered or is known not to."""

    def __init__(self, desk: Desk, word: Callable[[], Keep | Drop], addresses: Iterable[Address],
                 done: Callable[[int], None]) -> None:
        self.over = False
        self._done = done
        self._addresses = list(dict.fromkeys(addresses))
        self._left, self._heard = len(self._addresses), 0
        self._request_socket, self._word = desk, word

    def start(self) -> None:
        for address in self._addresses:
            self._request_socket.ask(address, self._word(), None, self)
        self._end_if_done()

    def answered(self, answer: Answer | None, part: memoryview | None) -> None:
        self._left -= 1
        self._heard += isinstance(answer, Taken)
        self._end_if_done()

    def tick(self, now: float) -> None:
        """Nothing to do: a link that stays silent is given up, and then answers for the other side."""

    def _end_if_done(self) -> None:
        if not self._left and not self.over:
            self.over = True
            self._done(self._heard)


class _Push:
    """One fragment on its way to its holder."""

    def __init__(self, job: Saving, fragment: Fragment, address: Address) -> None:
        self.over = self.held = False
        self._job, self._fragment, self._address = job, fragment, address
        self._left = len(_offsets(len(fragment.payload)))

    def start(self, desk: Desk) -> None:
        head, payload = Head.of(self._fragment), memoryview(self._fragment.payload)
        for offset in _offsets(len(payload)):
            desk.ask(self._address, Put(0, head, offset), payload[offset : offset + PART_BYTES], self)

    def answered(self, answer: Answer | None, part: memoryview | None) -> None:
        if self.over:  # asked several times of an address that cannot be reached
            return
        self._left -= 1
        refused = not (isinstance(answer, Taken) and answer.ok)
        if refused or not self._left:
            self.over, self.held = True, not refused
            self._job.end_if_done()


class Saving:
    """Done with the number of fragments that are held: when all are, or are refused, or the time is over."""

    def __init__(self, desk: Desk, holders: Holders, seconds: float, done: Callable[[int], None]) -> None:
        self.over = False
        self._request_socket, self._holders, self._deadline, self._done = desk, holders, desk.now() + seconds, done
        self._pushes: list[_Push] = []

    def start(self) -> None:
        """The blob is being cut up; `push` follows."""

    def push(self, fragments: Sequence[Fragment]) -> None:
        if self.over:
            return
        self._pushes = [_Push(self, fragments[index], address) for index, address in self._holders]
        for push in self._pushes:
            push.start(self._request_socket)
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
        self._end = self._crc = 0  # of what has come

    def start(self, desk: Desk) -> None:
        self._get(desk, 0)

    def answered(self, answer: Answer | None, part: memoryview | None) -> None:
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
        self.at = self._job.desk.now()
        if self._end == answer.head.identity.block_size:
            self._finish(answer.head)

    def _fault(self, answer: Answer | None, part: memoryview | None) -> str:
        if answer is None:
            return "its holder does not answer"
        if not isinstance(answer, Part) or part is None:
            return "not held any more"
        if self.head is None and (fault := self._job.fault(answer.head, self.index)):
            return fault
        if self.head not in (None, answer.head) or answer.offset != self._end:
            return "its parts do not fit together"
        expected = min(PART_BYTES, answer.head.identity.block_size - self._end)
        return f"a part of it has {len(part)} bytes instead of {expected}" if len(part) != expected else ""

    def _begin(self, head: Head) -> None:
        """Now that its size is known, ask for the rest."""
        self.head = head
        for offset in _offsets(head.identity.block_size)[1:]:
            self._get(self._job.desk, offset)

    def _finish(self, head: Head) -> None:
        if self._crc != head.crc:
            self._job.failed(self, "corrupt")
            return
        self.over = self.complete = True
        self._job.came(self)

    def _get(self, desk: Desk, offset: int) -> None:
        desk.ask(self.address, Get(0, self._job.blob, self.index, offset), None, self)


class Fetching:
    """Fetches r fragments, the raw ones first, and one more for each that fails or is late. Done with the blob, or with
    an error that says what was wrong with which fragment."""

    def __init__(self, desk: Desk, blob: str, shape: tuple[int, int], holders: Holders, seconds: float,
                 done: Callable[[memoryview | NotEnoughFragments], None]) -> None:
        self.over = False
        self.desk, self.blob = desk, blob
        self._shape, self._done = shape, done
        self._seconds, self._deadline = seconds, desk.now() + seconds
        self._spare = sorted(holders, reverse=True)  # the next one is the last
        self._pulls: list[_Pull] = []
        self._assemblies: dict[BlobIdentity, Assembly] = {}
        self._faults: dict[int, str] = {}
        self._building = False
        self._in_vain: dict[BlobIdentity, int] = {}  # how many that belong together were not enough

    def start(self) -> None:
        self._go_on()

    def tick(self, now: float) -> None:
        if now > self._deadline:
            self._fail(f" within {self._seconds:g} s")
            return
        for pull in self._pulls:  # not late: one whose holder is busy with other parts that were asked of it
            pull.late |= now - max(pull.at, self.desk.heard(pull.address)) > PATIENCE
        self._go_on()

    def fault(self, head: Head, index: int) -> str:
        """Why a fragment is not one of those that were asked for."""
        if (head.blob, head.index, (head.r, head.c)) != (self.blob, index, self._shape):
            return f"its holder has fragment {head.index} of {head.r} + {head.c} of {head.blob} instead"
        if head.length > BLOB_LIMIT:
            return f"its blob is of {head.length} bytes; {BLOB_LIMIT} are the limit"
        return ""

    def assembly(self, identity: BlobIdentity) -> Assembly:
        if identity not in self._assemblies:
            self._assemblies[identity] = Assembly(identity)
        return self._assemblies[identity]

    def came(self, pull: _Pull) -> None:
        assert pull.head is not None
        identity = pull.head.identity
        group = self._group(identity)
        if len(group) >= self._needed(identity):
            self._build(identity, group)
        else:
            self._go_on()

    def failed(self, pull: _Pull, why: str) -> None:
        pull.over, pull.complete = True, False
        self._faults[pull.index] = why
        self._go_on()

    def _group(self, identity: BlobIdentity) -> list[_Pull]:
        """The complete ones that belong to the same blob."""
        return [pull for pull in self._pulls if pull.complete and pull.head is not None and pull.head.identity == identity]

    def _needed(self, identity: BlobIdentity) -> int:
        return self._in_vain[identity] + 1 if identity in self._in_vain else self._shape[0]

    def _go_on(self) -> None:
        """Fetch one more as long as those that came and those that are coming are too few; fail if there are no more."""
        while not self.over and not self._building and self._coming(late=False) < self._lacking():
            if not self._spare:
                if self._coming(late=True) < self._lacking():
                    self._fail("")
                return
            index, address = self._spare.pop()
            pull = _Pull(self, index, address, self.desk.now())
            self._pulls.append(pull)
            pull.start(self.desk)

    def _lacking(self) -> int:
        """How many more must come at least, to those that have come and belong together."""
        came = Counter(pull.head.identity for pull in self._pulls if pull.complete and pull.head is not None)
        return min((self._needed(identity) - count for identity, count in came.items()), default=self._shape[0])

    def _coming(self, late: bool) -> int:
        return sum(not pull.over and (late or not pull.late) for pull in self._pulls)

    def _build(self, identity: BlobIdentity, group: Sequence[_Pull]) -> None:
        """What is still under way is called off, so that nothing is written while the blob is computed; it is asked for
        again if it is needed after all."""
        self._building = True
        for pull in self._pulls:
            if not pull.over:
                pull.over = True
                self._spare.append((pull.index, pull.address))
        crcs = {pull.index: pull.head.crc for pull in group if pull.head is not None}
        assembly = self._assemblies[identity]
        self.desk.build(lambda: assembly.build(crcs), lambda data: self._built(identity, len(group), data))

    def _built(self, identity: BlobIdentity, used: int, data: memoryview | None) -> None:
        self._building = False
        if data is not None:
            self._end(data)
            return
        # Each as it was made, and yet they do not fit: which one is wrong shows only with one more. Those of another identity,
        # a blob of the same name that was saved before or after, may still fit as they are.
        self._in_vain[identity] = used
        self._go_on()

    def _fail(self, when: str) -> None:
        came = sorted(pull.index for pull in self._pulls if pull.complete)
        aside = {**{pull.index: "has not come yet" for pull in self._pulls if not pull.over}, **self._faults}
        self._end(NotEnoughFragments(
            f"{self.blob} cannot be put together from its fragments{when}: any {self._shape[0]} of "
            f"{sum(self._shape)} are needed, came {came or 'none'}"
            f"{', each as it was made, but together not the blob' if self._in_vain else ''}; not usable: "
            f"{', '.join(f'{index}: {why}' for index, why in sorted(aside.items())) or 'none'}. Read it from the checkpoint "
            "store"))

    def _end(self, result: memoryview | NotEnoughFragments) -> None:
        if not self.over:
            self.over = True
            for pull in self._pulls:
                pull.over = True
            self._done(result)


def _offsets(size: int) -> range:
    """Where the parts of a fragment begin; one that is empty has one empty part."""
    return range(0, size or 1, PART_BYTES)
