"""Roots in flight: what a spout task has sent and not yet heard the end of, and when it counts as lost or late."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

ATTEMPTS_REMEMBERED = 100_000  # failed ids whose attempts a spout task remembers: it may never send them again
FEW_ROOTS = 4  # in flight: so few can hardly be what makes a bolt slow


@dataclass(slots=True)
class Root:
    """One root in flight, as its spout task remembers it."""

    ids: list[Any]
    tuples: int
    born: float
    attempt: int
    doomed: float | None = None  # fails at this time unless it completes before: part of it went down with a worker


@dataclass(slots=True)
class InFlight:
    """What one spout task has sent and not yet heard of. Roots are kept in the order they were sent."""

    timeout: float
    roots: dict[int, Root] = field(default_factory=dict)
    tuples: int = 0
    attempts: dict[Any, int] = field(default_factory=dict)  # how often an id has failed, while it is not acked
    done_at: float = float("-inf")  # when a root was finished last,
    done_after: float = 0.0  # and how long that one took
    wary_until: float = float("-inf")  # until then others may still send to a worker that is lost
    wary_deadline: float = 0.0  # for what is sent meanwhile

    def sent(self, root: int, ids: list[Any], tuples: int, now: float, attempt: int) -> None:
        self.roots[root] = Root(ids, tuples, now, attempt, self.wary_deadline if now < self.wary_until else None)
        self.tuples += tuples

    def finished(self, root: int, now: float) -> Root | None:
        """The root is complete. None if it was given up before (it has been, or will be, sent again)."""
        known = self.roots.pop(root, None)
        if known is not None:
            self.tuples -= known.tuples
            self.done_at, self.done_after = now, now - known.born
            if self.attempts:
                for tup_id in known.ids:
                    self.attempts.pop(_hashable(tup_id), None)
        return known

    def failed(self, root: int, cause: str) -> Root | None:
        """The root is given up. Only errors in user code count as attempts: a lost worker is not the tuple's fault."""
        known = self.roots.pop(root, None)
        if known is not None:
            self.tuples -= known.tuples
            attempt = known.attempt + (cause == "error")
            if attempt:
                self.count(known.ids, attempt)
        return known

    def count(self, ids: Iterable[Any], attempt: int) -> None:
        """These ids have failed so often."""
        for tup_id in map(_hashable, ids):
            self.attempts.pop(tup_id, None)  # so that the dict is in the order of the last failures
            self.attempts[tup_id] = attempt
            if len(self.attempts) > ATTEMPTS_REMEMBERED:
                del self.attempts[next(iter(self.attempts))]

    def lagging(self, now: float) -> bool:
        """The oldest root is half-way to its timeout: sending more would only make the others late too. Unless others are
        done in good time: then it is a tuple that someone keeps, and no reason to stop."""
        if len(self.roots) <= FEW_ROOTS:
            return False
        flowing = now - self.done_at < self.timeout / 4 and self.done_after < self.timeout / 4
        return not flowing and now - next(iter(self.roots.values())).born > self.timeout / 2

    def doom(self, deadline: float) -> int:
        """A worker is lost: whatever is still unfinished at `deadline` counts as lost with it."""
        for root in self.roots.values():
            if root.doomed is None:
                root.doomed = deadline
        return len(self.roots)

    def be_wary(self, until: float, deadline: float) -> None:
        """Not every worker knows yet that one is lost, and some may still send to it: what is sent before `until` counts as
        lost, too, if it is unfinished at `deadline`."""
        self.wary_until, self.wary_deadline = until, deadline

    def overdue(self, now: float) -> list[tuple[int, str]]:
        """The roots to fail now, and why: "lost" or "timeout"."""
        return list(self._overdue(now))

    def _overdue(self, now: float) -> Iterator[tuple[int, str]]:
        for number, root in self.roots.items():
            if root.doomed is not None and now >= root.doomed:
                yield number, "lost"
            elif now - root.born >= self.timeout:
                yield number, "timeout"
            elif root.doomed is None:
                break  # roots are in order of birth, and doom strikes all at once: the rest are younger

    def by_attempt(self, ids: Iterable[Any]) -> int:
        """How often the most-failed of these ids has failed."""
        return max((self.attempts.get(_hashable(tup_id), 0) for tup_id in ids), default=0) if self.attempts else 0


def _hashable(tup_id: Any) -> Any:
    """A spout may use whatever it likes as id, a list for example."""
    try:
        hash(tup_id)
    except TypeError:
        return repr(tup_id)
    return tup_id
