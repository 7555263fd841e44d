"""Fetches fragments as workers do, from memory: no socket, no thread, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from millrace.errors import NotEnoughFragments
from millrace.runtime.fragments.jobs import Fetching
from millrace.runtime.fragments.links import Address, Asker
from millrace.runtime.fragments.messages import PART_BYTES, FragmentAnswer, FragmentRequest, Get, Head, Nothing, Part
from millrace.state.fragments import Fragment


class HeldFragments:
    """The surroundings of a fetch. `held[i]` is the fragment that holder i returns, right or wrong; a holder without one has
    nothing. Holders in `silent` do not answer."""

    def __init__(self, held: Mapping[int, Fragment], silent: frozenset[int] = frozenset()) -> None:
        self._held, self._silent = held, silent
        self._calls: deque[Callable[[], None]] = deque()

    def fetch(self, blob: str, r: int, c: int) -> bytes:
        """The blob; raises NotEnoughFragments."""
        results: list[memoryview | NotEnoughFragments] = []
        holders = [(index, Address(str(index), "", "")) for index in range(r + c)]
        job = Fetching(self, blob, (r, c), holders, 1.0, results.append)
        job.start()
        while self._calls:
            self._calls.popleft()()
        assert job.over and len(results) == 1
        if isinstance(results[0], NotEnoughFragments):
            raise results[0]
        return bytes(results[0])

    def now(self) -> float:
        return 0.0

    def heard(self, address: Address) -> float:
        return 0.0

    def ask(self, address: Address, request: FragmentRequest, part: memoryview | None, asker: Asker) -> None:
        assert isinstance(request, Get)
        self._calls.append(lambda: asker.answered(*self._answer(int(address.ipc), request.offset)))

    def build(self, action: Callable[[], memoryview | None], then: Callable[[memoryview | None], None]) -> None:
        self._calls.append(lambda: then(action()))

    def _answer(self, index: int, offset: int) -> tuple[FragmentAnswer | None, memoryview | None]:
        if index in self._silent:
            return None, None
        fragment = self._held.get(index)
        if fragment is None or offset > len(fragment.payload):
            return Nothing(0), None
        return Part(0, Head.of(fragment), offset), memoryview(fragment.payload)[offset : offset + PART_BYTES]


def fetched(held: Mapping[int, Fragment], r: int, c: int, blob: str, silent: frozenset[int] = frozenset()) -> bytes:
    return HeldFragments(held, silent).fetch(blob, r, c)
