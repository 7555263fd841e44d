"""Roots in flight: chunks that a spout task has sent and that are not acked or failed yet, with their deadlines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

ATTEMPTS_REMEMBERED = 100_000  # failed ids whose attempts a spout task remembers; it may never resend them
FAILED_REMEMBERED = 100_000  # and those that it has not sent again yet
FEW_ROOTS = 4  # in flight: so few hardly make a bolt slow


@dataclass(slots=True)
class Root:
    """One root in flight, as its spout task remembers it."""

    ids: list[Any]
    tuples: int
    born: float
    attempt: int
    doomed: float | None = None  # fails at this time unless it completes before: part of it may be lost with a worker
    origin: float = 0.0  # as in `Lineage`
    before: int = 0  # tuples that the task had emitted when it was sent


@dataclass(slots=True)
class InFlight:
    """The unfinished roots of one spout task, in the order they were sent."""

    timeout: float
    roots: dict[int, Root] = field(default_factory=dict)
    tuples: int = 0
    attempts: dict[Any, int] = field(default_factory=dict)  # failures of each id that is not acked
    failing: dict[Any, tuple[float, float]] = field(default_factory=dict)  # ids not sent again: origin, and when they failed
    done_at: float = float("-inf")  # time when a root was last finished,
    done_after: float = 0.0  # and the time it took
    wary_until: float = float("-inf")  # until then other workers may still send to a lost worker
    wary_deadline: float = 0.0  # at which roots sent meanwhile fail

    def sent(self, root: int, ids: list[Any], tuples: int, now: float, attempt: int, origin: float = 0.0,
             before: int = 0) -> None:
        doomed = self.wary_deadline if now < self.wary_until else None
        self.roots[root] = Root(ids, tuples, now, attempt, doomed, origin, before)
        self.tuples += tuples

    def finished(self, root: int, now: float) -> Root | None:
        """Remove a root that is complete and return it; None if it has failed before: it has been, or will be, replayed."""
        known = self.roots.pop(root, None)
        if known is not None:
            self.tuples -= known.tuples
            self.done_at, self.done_after = now, now - known.born
            if self.attempts:
                for tup_id in map(_hashable, known.ids):
                    if self.attempts.get(tup_id, 0) <= known.attempt:  # else another tuple with this id has failed
                        self.attempts.pop(tup_id, None)
        return known

    def failed(self, root: int, cause: str, now: float = 0.0) -> Root | None:
        """Remove a root that failed and return it. Only errors in user code count as attempts: a lost worker is not the tuple's
        fault."""
        known = self.roots.pop(root, None)
        if known is not None:
            self.tuples -= known.tuples
            attempt = known.attempt + (cause == "error")
            if attempt:
                self.count(known.ids, attempt)
            if cause != "error" or known.origin:  # a tuple that fails in user code does so wherever its task is
                self._remember(known, now)
        return known

    def _remember(self, root: Root, now: float) -> None:
        failing, entry = self.failing, (root.origin or root.born, now)
        for tup_id in map(_hashable, root.ids):
            failing.pop(tup_id, None)  # so that the dict is in the order of the failures
            failing[tup_id] = entry
        for tup_id in list(islice(failing, max(0, len(failing) - FAILED_REMEMBERED))):
            del failing[tup_id]

    def take_origin(self, ids: Iterable[Any]) -> float:
        """The origin of tuples that are about to be sent: the earliest of those that have failed; 0 if none has."""
        taken = [entry for tup_id in map(_hashable, ids) if (entry := self.failing.pop(tup_id, None)) is not None]
        return min(taken)[0] if taken else 0.0

    def forget_failing(self, now: float) -> None:
        """Forget failed ids that have not been sent again for the length of a timeout: some spouts send nothing again."""
        while self.failing and now - self.failing[oldest := next(iter(self.failing))][1] > self.timeout:
            del self.failing[oldest]

    def count(self, ids: Iterable[Any], attempt: int) -> None:
        """Record that these ids have failed this many times."""
        for tup_id in map(_hashable, ids):
            self.attempts.pop(tup_id, None)  # so that the dict is in the order of the last failures
            self.attempts[tup_id] = attempt
            if len(self.attempts) > ATTEMPTS_REMEMBERED:
                del self.attempts[next(iter(self.attempts))]

    def lagging(self, now: float) -> bool:
        """True if the oldest root is half-way to its timeout: sending more would make the others late too. False while other
        roots finish in good time: then a bolt is holding on to one tuple, which is no reason to stop."""
        if len(self.roots) <= FEW_ROOTS:
            return False
        flowing = now - self.done_at < self.timeout / 4 and self.done_after < self.timeout / 4
        return not flowing and now - next(iter(self.roots.values())).born > self.timeout / 2

    def doom(self, deadline: float) -> int:
        """Count roots that are unfinished at `deadline` as lost with a worker."""
        for root in self.roots.values():
            if root.doomed is None:
                root.doomed = deadline
        return len(self.roots)

    def be_wary(self, until: float, deadline: float) -> None:
        """Count roots sent before `until` as lost, too, if they are unfinished at `deadline`: not every worker knows yet that
        one is lost, and some may still send to it."""
        self.wary_until, self.wary_deadline = until, deadline

    def overdue(self, now: float) -> list[tuple[int, str]]:
        """The roots to fail now, with the cause: "lost" or "timeout"."""
        return list(self._overdue(now))

    def _overdue(self, now: float) -> Iterator[tuple[int, str]]:
        for number, root in self.roots.items():
            if root.doomed is not None and now >= root.doomed:
                yield number, "lost"
            elif now - root.born >= self.timeout:
                yield number, "timeout"
            elif root.doomed is None:
                break  # roots are in order of age and doomed all at once: the rest are younger

    def by_attempt(self, ids: Iterable[Any]) -> int:
        """The highest number of failures of any of these ids."""
        return max((self.attempts.get(_hashable(tup_id), 0) for tup_id in ids), default=0) if self.attempts else 0


def _hashable(tup_id: Any) -> Any:
    """A key for the id: a spout may use any value as id, a list for example."""
    try:
        hash(tup_id)
    except TypeError:
        return repr(tup_id)
    return tup_id
