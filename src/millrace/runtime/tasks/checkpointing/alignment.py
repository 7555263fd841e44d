"""Aligns the inputs of a task at a wave: channels that have delivered the mark are held back until all have."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millrace.runtime.flow.channel import Delivery
from millrace.runtime.wire.messages import WaveMark

ABANDONED = "~"  # sorts after every kind of wave


class Alignment:
    """`ahead` holds chunks that came after the mark on channels that have passed it. They are not credited, so their senders
    wait and the queue stays bounded."""

    def __init__(self, sources: Iterable[int]) -> None:
        self.sources = frozenset(sources)  # numbers of the tasks that send here
        self.mark: WaveMark | None = None
        self.passed: set[int] = set()
        self.ahead: deque[Delivery] = deque()
        self.over: tuple[int, str] = (0, "")  # the last wave that passed or was abandoned here; older ones are late

    def holds(self, source: int) -> bool:
        return source in self.passed

    def is_late(self, mark: WaveMark) -> bool:
        """True if the wave was abandoned or has passed already."""
        if self.mark is not None and mark.wave < self.mark.wave:
            return True
        wave, kind = self.over
        return mark.wave < wave or (mark.wave == wave and kind in (mark.kind, ABANDONED))

    def is_other(self, mark: WaveMark) -> bool:
        """True if the mark is of another wave than the one being aligned: that one was abandoned."""
        return self.mark is not None and (self.mark.wave, self.mark.kind) != (mark.wave, mark.kind)

    def passes(self, mark: WaveMark, source: int) -> bool:
        """Record the mark on this channel; return whether it has now come on all."""
        self.mark = mark
        self.passed.add(source)
        return self.complete

    @property
    def complete(self) -> bool:
        """True if a mark has come on all channels."""
        return self.mark is not None and self.passed >= self.sources

    def overtake(self, mark: WaveMark) -> set[int]:
        """Let the wave pass without waiting for further marks; return the channels on which it has not come."""
        missing = set(self.sources - self.passed)
        self.mark = mark
        return missing

    def release(self) -> deque[Delivery]:
        """End the alignment; return the chunks held back, in order of arrival."""
        if self.mark is not None:
            self.over = max(self.over, (self.mark.wave, self.mark.kind))
        self.mark, self.passed = None, set()
        ahead, self.ahead = self.ahead, deque()
        return ahead

    def abandon(self, wave: int) -> None:
        """Treat all further marks of this wave as late."""
        self.over = max(self.over, (wave, ABANDONED))
