"""Between Spark and a DataFrame spout: what each side remembers of the batches on their way. Both send again rather than lose.

A batch is known by its `Key`. A feeder sends the batches of one partition, a few at a time, and keeps each until it is acked
(`Outbox`). A spout's task emits each once, however often it comes, and answers whoever sent it (`Intake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NEW, PENDING, DONE = "new", "pending", "done"
FEED = "millrace.feed"  # the metric under which a task tells its `FeedAddress`
WINDOW = 16  # batches of a partition that are on their way at the same time


class Key(NamedTuple):
    """A batch of a streaming query. `digest` is that of its content: rows that Spark computes again may come in another order,
    and then the same number stands for other rows, which must not be taken for a repetition."""

    query: str
    batch: int
    partition: int
    sequence: int
    digest: int


class Intake:
    """What one incarnation of a spout's task knows of the batches that it was sent; of one micro-batch at a time, because the
    next one comes only when all of the last are done."""

    def __init__(self) -> None:
        self._batch = ("", -1)
        self._pending: dict[Key, list[Any]] = {}  # who is to hear of its end
        self._done: set[Key] = set()

    def offer(self, key: Key, sender: Any) -> str:
        """NEW: emit it. PENDING: it is on its way, the sender will hear. DONE: tell the sender."""
        if (key.query, key.batch) != self._batch:
            self._batch, self._pending, self._done = (key.query, key.batch), {}, set()
        if key in self._done:
            return DONE
        senders = self._pending.get(key)
        if senders is None:
            self._pending[key] = [sender]
            return NEW
        if sender not in senders:
            senders.append(sender)
        return PENDING

    def done(self, key: Key) -> list[Any]:
        """It has been processed. Returns those who are to hear of it."""
        senders = self._pending.pop(key, None)
        if senders is None:  # of a micro-batch that nobody waits for any more
            return []
        self._done.add(key)
        return senders

    def refused(self, key: Key) -> list[Any]:
        """It cannot be emitted: forgotten, so that it may be tried again. Returns those who are to hear of it."""
        return self._pending.pop(key, [])


class FeedAddress(NamedTuple):
    """Where a spout's task takes batches in. `boot` names its machine; `ipc` is another one for each incarnation."""

    ipc: str
    tcp: str
    boot: str


def choose(feeds: Sequence[FeedAddress], boot: str, turn: int) -> FeedAddress | None:
    """Those on this machine in turn; if there are none, all in turn."""
    near = [feed for feed in feeds if boot and feed.boot == boot]
    usable = near or [feed for feed in feeds if feed.tcp]
    return usable[turn % len(usable)] if usable else None


@dataclass(slots=True)
class Sending:
    """One batch that is not acked. `target`: the feed that it was sent to, by its ipc address; empty: to none yet."""

    sequence: int
    payload: Any
    target: str = ""
    at: float = 0.0  # when it was sent


class Outbox:
    """The batches of one partition that are not acked, in order; no more than `window` of them."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._sendings: dict[int, Sending] = {}
        self._next = 0

    @property
    def full(self) -> bool:
        return len(self._sendings) >= self._window

    @property
    def empty(self) -> bool:
        return not self._sendings

    @property
    def next_sequence(self) -> int:
        return self._next

    def put(self, payload: Any) -> None:
        assert not self.full
        self._sendings[self._next] = Sending(self._next, payload)
        self._next += 1

    def acked(self, sequence: int) -> bool:
        """Whether that is news."""
        return self._sendings.pop(sequence, None) is not None

    def unsent(self) -> list[Sending]:
        return [sending for sending in self._sendings.values() if not sending.target]

    def silent(self, before: float) -> bool:
        """Something was sent before then and is not acked."""
        return any(sending.target and sending.at < before for sending in self._sendings.values())

    def look_again(self, feeds: Sequence[FeedAddress], sent_before: float) -> None:
        """These are the feeds now. What went to one that is gone is to be sent again, and so is what was sent before then: it,
        or the ack, may have been lost with a connection."""
        there = {feed.ipc for feed in feeds}
        for sending in self._sendings.values():
            if sending.target not in there or sending.at < sent_before:
                sending.target = ""
