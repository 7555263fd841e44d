"""The pace of a task: the number of tuples that it takes in a given time, by which its senders bound what is in flight."""

from __future__ import annotations

from collections.abc import Callable

FIRST_TUPLES = 16  # in flight to a task whose pace is not known yet
BOUNDLESS = 1 << 40
CALLS = 4  # calls that the work in flight is divided into, so that a wave can come between them
RECENT = 4  # the share of the given time, 1 / RECENT, over which the pace is averaged
WORTH = 3  # times its fixed costs that the tuples of a call should take: calls do not get smaller than that
AMPLE = 64  # tuples: with such a share, a sender needs no more
GROWTH = 8  # of a call from one to the next: its tuples may reach several tasks, and most of them not the same one
FORGET = 0.8  # weight that a call keeps with every later one, where costs of calls of different sizes are compared
DOUBT = 0.8  # by which the known costs of a call shrink with every call that cannot confirm them: sizes then differ again
DIFFERENT = 0.02  # squared relative deviation of sizes from which the costs of a call can be told from those of its tuples


class Pace:
    """Measured per chunk. Time in which the task waits for its own receivers counts, because its input waits too; time without
    input does not. A call of user code may have costs that do not depend on the number of tuples, such as a round trip to a
    database: calls of a few tuples would then only be slower."""

    __slots__ = ("_calls", "_each", "_overhead", "_seconds", "_size", "_size_squared", "_size_took", "_target", "_took",
                 "_tuples", "in_flight", "least_call")

    def __init__(self, seconds: float | None) -> None:
        """`seconds` of work may be in flight; None: any amount."""
        self._target = seconds or 0.0
        self.in_flight = FIRST_TUPLES if seconds else BOUNDLESS  # tuples, of all senders together
        self.least_call = 1  # tuples: a call of fewer would be mostly overhead
        self._tuples = self._seconds = self._overhead = self._each = 0.0
        self._calls = self._size = self._took = self._size_squared = self._size_took = 0.0

    @property
    def per_call(self) -> int:
        """Tuples to process at once: few enough that a wave can soon come in between."""
        return max(self.in_flight // CALLS, self.least_call)

    def share(self, senders: int, needed: int, waiting: Callable[[], int]) -> tuple[int, int]:
        """The tuples that one of so many senders may have in flight, and the tuples of its chunks. `needed`: the least chunk
        that the task's own receivers ask for. `waiting`: tuples in the inbox.

        Equal shares of a few tuples would stop a sender at every second tuple for the same task, however idle that is. So a
        sender may use what the others leave; as the inbox fills, all of them come down to their shares."""
        needed = max(self.least_call, needed)
        share = max(self.in_flight // senders, needed)
        allowance = share if share >= AMPLE else max(share, self.in_flight - waiting())
        return allowance, max(share // CALLS, needed)

    def took(self, tuples: int, seconds: float) -> None:
        """Record that the task took so many tuples, and was ready for more after so long."""
        target = self._target
        if not target or not tuples:
            return
        keep = target / (target + RECENT * seconds)
        self._tuples = self._tuples * keep + tuples
        self._seconds = self._seconds * keep + seconds
        rate = self._tuples / max(self._seconds, 1e-9)
        able = max(1, int(min(target * rate, 2 * max(tuples, self.in_flight), BOUNDLESS)))  # by steps: the next may be slower
        if not 7 * self.in_flight <= 8 * able <= 9 * self.in_flight:  # senders need not follow every small change
            self.in_flight = able
        if self._overhead:
            self.least_call = max(1, int(min(WORTH * self._overhead / max(self._each, 1e-9), GROWTH * tuples)))

    def called(self, tuples: int, seconds: float) -> None:
        """Record the time of a call with a whole chunk: the line through size and time begins at the costs of any call."""
        self._calls = self._calls * FORGET + 1
        self._size = self._size * FORGET + tuples
        self._took = self._took * FORGET + seconds
        self._size_squared = self._size_squared * FORGET + tuples * tuples
        self._size_took = self._size_took * FORGET + tuples * seconds
        size, took = self._size / self._calls, self._took / self._calls
        spread = self._size_squared / self._calls - size * size
        if spread > DIFFERENT * size * size:
            slope = (self._size_took / self._calls - size * took) / spread
            self._overhead = min(max(0.0, took - slope * size), took)
        else:
            self._overhead *= DOUBT
        self._each = (took - self._overhead) / max(size, 1.0)
