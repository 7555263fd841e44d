"""Feeding of a DataFrame spout by Spark: the bookkeeping of both sides for batches in transit. Batches are resent, never lost.

A batch is identified by its `Key`. A feeder sends the batches of one partition, a few at a time, and keeps each until it is
acked (`SendWindow`). A spout's task emits each batch once, however often it arrives, and answers every sender (`Intake`).

If the spout has splits, batches are dealt to them in turn, by partition and number: a batch that is sent again goes to the same
split. Each split has an `Intake`, which goes with it when it goes to another task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

NEW, PENDING, DONE = "new", "pending", "done"
FEED = "millrace.feed"  # the metric under which a task reports its `FeedAddress`
FEED_WINDOW = 16  # batches of a partition in transit at the same time
RETURNED = "returned"  # in place of a feed's address: the batch is sent again as soon as the master says where to


class Key(NamedTuple):
    """A batch of a streaming query. `digest` is a hash of its content: rows that Spark recomputes may come in another order,
    and then the same number stands for other rows, which must not be mistaken for a repeat."""

    query: str
    batch: int
    partition: int
    sequence: int
    digest: int


class Intake:
    """Batches that one incarnation of a spout's task has received, or one of its splits. Covers one micro-batch at a time,
    because the next one comes only when all batches of the last are done."""

    def __init__(self) -> None:
        self._batch = ("", -1)
        self._pending: dict[Key, list[Any]] = {}  # senders to answer when it is done
        self._done: set[Key] = set()

    def offer(self, key: Key, sender: Any) -> str:
        """Register an arrival. NEW: emit it. PENDING: already emitted, the sender is answered later. DONE: answer now."""
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
        """Record that the batch has been processed. Returns the senders to answer."""
        senders = self._pending.pop(key, None)
        if senders is None:  # of an earlier micro-batch
            return []
        self._done.add(key)
        return senders

    def refused(self, key: Key) -> list[Any]:
        """Forget a batch that cannot be emitted, so that it may be sent again. Returns the senders to answer."""
        return self._pending.pop(key, [])

    def record(self) -> list[Any]:
        """The micro-batch, and which of its batches are done: partition, sequence and digest of each. For `resume`."""
        return [*self._batch, *[number for key in sorted(self._done) for number in key[2:]]]

    def resume(self, record: Sequence[Any] | None) -> list[tuple[int, Any]]:
        """Return to the state of a record; None: to the beginning. Returns the batches that are not done, with their senders:
        the sequence of each."""
        unanswered = [(key.sequence, sender) for key, senders in self._pending.items() for sender in senders]
        query, batch, *numbers = record or ("", -1)
        self._batch, self._pending = (query, batch), {}
        self._done = {Key(query, batch, *numbers[i:i + 3]) for i in range(0, len(numbers), 3)}
        return unanswered


class FeedAddress(NamedTuple):
    """Address at which a spout's task receives batches. `boot` names its machine; `ipc` differs for each incarnation."""

    ipc: str
    tcp: str
    boot: str


def choose(feeds: Sequence[FeedAddress], boot: str, turn: int) -> FeedAddress | None:
    """The feed for this turn: round-robin over those on this machine, or over all if there are none here."""
    near = [feed for feed in feeds if boot and feed.boot == boot]
    usable = near or [feed for feed in feeds if feed.tcp]
    return usable[turn % len(usable)] if usable else None


@dataclass(frozen=True, slots=True)
class Receivers:
    """The destinations of batches. `owners`: by split, the index of the feed of the task that has it, or -1 if that has not
    told its address; empty if the spout has no splits, so that a batch can go to any task."""

    feeds: Sequence[FeedAddress] = ()
    owners: Sequence[int] = ()

    def feed(self, turn: int, boot: str) -> FeedAddress | None:
        """The feed for a batch; None if there is none that can be reached."""
        if not self.owners:
            return choose(self.feeds, boot, turn)
        owner = self._owner(turn)
        return owner if owner is not None and (owner.tcp or (boot and owner.boot == boot)) else None

    def receives(self, ipc: str, turn: int) -> bool:
        """True if a batch that was sent to this address is in the right place."""
        if not self.owners:
            return any(feed.ipc == ipc for feed in self.feeds)
        owner = self._owner(turn)
        return owner is not None and owner.ipc == ipc

    def _owner(self, turn: int) -> FeedAddress | None:
        index = self.owners[turn % len(self.owners)]
        return self.feeds[index] if 0 <= index < len(self.feeds) else None


@dataclass(slots=True)
class Sending:
    """One unacked batch. `target`: ipc address of the feed that it was sent to; empty if it is still to be sent."""

    sequence: int
    payload: Any
    target: str = ""
    at: float = 0.0  # when it was sent


class SendWindow:
    """The unacked batches of one partition, in order; at most `window` of them."""

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
        """Remove the batch; False if it was acked before."""
        return self._sendings.pop(sequence, None) is not None

    def unsent(self) -> list[Sending]:
        return [sending for sending in self._sendings.values() if not sending.target]

    def give_back(self, sequence: int, target: str) -> None:
        """Note that the task at this address will not process the batch."""
        sending = self._sendings.get(sequence)
        if sending is not None and sending.target == target:  # else it has been sent elsewhere since
            sending.target = RETURNED

    @property
    def homeless(self) -> bool:
        """True if a batch waits for news of the master."""
        return any(sending.target == RETURNED for sending in self._sendings.values())

    def silent(self, before: float) -> bool:
        """True if something was sent before that time and is not acked."""
        return any(sending.target and sending.at < before for sending in self._sendings.values())

    def look_again(self, receives: Callable[[str, int], bool], sent_before: float) -> None:
        """Mark batches for resending: those sent to addresses that do not receive them, and those sent before that time,
        because they or their acks may have been lost with a connection. `receives`: address and sequence."""
        for sending in self._sendings.values():
            if not receives(sending.target, sending.sequence) or sending.at < sent_before:
                sending.target = ""
