"""The XOR ledger, by which an acker task knows that a root is completely processed.

A root is one chunk of a spout. Every chunk on every edge has a random 63-bit id; the ledger keeps only the XOR of the ids
sent and the ids finished. It is zero if and only if (except with probability 2^-63) nothing is left.
"""

from __future__ import annotations

Owner = tuple[int, int, int]  # the spout task that sent a root: slot, number, incarnation
ACKER_SHIFT = 48  # a root's upper bits name its acker task, so every task knows where to send acks


def acker_of(root: int) -> int:
    """Index of the acker task that keeps this root's ledger."""
    return root >> ACKER_SHIFT


def make_root(acker: int, noise: int) -> int:
    return acker << ACKER_SHIFT | noise & (1 << ACKER_SHIFT) - 1


class Ledger:
    """The roots of one acker task. Messages may arrive in any order: an ack may come before its root."""

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}
        self._owners: dict[int, Owner] = {}
        self._old: dict[int, int] = {}  # sums not touched since the last `age`; forgotten at the next
        self._failed_early: set[int] = set()  # failed before `open` was called: messages may overtake
        self._failed_before: set[int] = set()  # those of the round before
        self.handled = 0  # messages about single roots
        self.told: dict[int, int] = {}  # spout task, by number -> its roots that are over

    def __len__(self) -> int:
        return len(self._sums) + len(self._old)

    def open(self, root: int, edges: int, owner: Owner) -> bool | None:
        """A spout sent a root; `edges` is the XOR of its chunks' ids. Returns True if it is already complete, False if it has
        already failed, None if it is open now."""
        if root in self._failed_early or root in self._failed_before:
            self._failed_early.discard(root)
            self._failed_before.discard(root)
            self.handled += 1
            self._tells(owner)
            return False
        self._owners[root] = owner
        return True if self.ack(root, edges) is not None else None

    def ack(self, root: int, edges: int) -> Owner | None:
        """Chunks of the root were sent or finished. Returns the spout to notify if the root is complete."""
        total = self._sums.pop(root, None)
        if total is None:
            total = self._old.pop(root, 0)
        total ^= edges
        self.handled += 1
        if total == 0 and root in self._owners:
            return self._tells(self._owners.pop(root))
        self._sums[root] = total
        return None

    def fail(self, root: int) -> Owner | None:
        """Remove a root of which a part failed. Returns the spout to notify; None if the root is not known (not yet, or
        no longer)."""
        self._sums.pop(root, None)
        self._old.pop(root, None)
        self.handled += 1
        owner = self._owners.pop(root, None)
        if owner is None:
            self._failed_early.add(root)
            return None
        return self._tells(owner)

    def _tells(self, owner: Owner) -> Owner:
        self.told[owner[1]] = self.told.get(owner[1], 0) + 1
        return owner

    def hand_over(self) -> tuple[list[tuple[int, int, Owner | None]], list[int]]:
        """The contents, for the ledger of the acker's next incarnation: (root, sum, owner) and the roots that failed early.
        Sums of two ledgers can be combined in any order, so nothing is lost while both receive acks."""
        sums = [(root, total, self._owners.get(root)) for known in (self._old, self._sums) for root, total in known.items()]
        return sums, [*self._failed_before, *self._failed_early]

    def age(self) -> int:
        """Called once per message timeout: forgets roots that two rounds have not touched, because their spouts have timed
        them out by then, or are gone. Returns the number of roots forgotten."""
        for root in self._old:
            self._owners.pop(root, None)
        self._failed_early, self._failed_before = set(), self._failed_early
        forgotten, self._old, self._sums = len(self._old), self._sums, {}
        return forgotten
