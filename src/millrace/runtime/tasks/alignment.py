"""A task with several inputs and a wave: channels that have brought it are held back until all have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.runtime.flow.channel import Delivery
from millrace.runtime.wire.messages import WaveMark

GIVEN_UP = "~"  # sorts after every kind of wave


class Alignment:
    """`ahead` has what came after the wave on channels that have passed it. Held chunks are not credited, so their senders
    wait: nothing piles up."""

    def __init__(self, sources: Iterable[int]) -> None:
        self.sources = frozenset(sources)  # numbers of the tasks that send here
        self.mark: WaveMark | None = None
        self.passed: set[int] = set()
        self.ahead: deque[Delivery] = deque()
        self.over: tuple[int, str] = (0, "")  # the last wave that is done or given up here; older ones are late

    def holds(self, source: int) -> bool:
        return source in self.passed

    def is_late(self, mark: WaveMark) -> bool:
        """One that was given up, or is there already."""
        if self.mark is not None and mark.wave < self.mark.wave:
            return True
        wave, kind = self.over
        return mark.wave < wave or (mark.wave == wave and kind in (mark.kind, GIVEN_UP))

    def is_other(self, mark: WaveMark) -> bool:
        """Another wave than the one waited for: that one has been given up."""
        return self.mark is not None and (self.mark.wave, self.mark.kind) != (mark.wave, mark.kind)

    def passes(self, mark: WaveMark, source: int) -> bool:
        """The wave has come on this channel; whether it now has on all."""
        self.mark = mark
        self.passed.add(source)
        return self.passed >= self.sources

    def release(self) -> deque[Delivery]:
        """The wave is over, or given up: what was held back, in the order in which it came."""
        if self.mark is not None:
            self.over = max(self.over, (self.mark.wave, self.mark.kind))
        self.mark, self.passed = None, set()
        ahead, self.ahead = self.ahead, deque()
        return ahead

    def give_up(self, wave: int) -> None:
        """Whatever of this wave still comes is late."""
        self.over = max(self.over, (wave, GIVEN_UP))
