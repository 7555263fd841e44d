"""The waves of one topology, decided: when one begins, whose word it waits for, when it is committed or given up.

    CLAIM     a new epoch is entered in the store                            (written: INIT)
    INIT      every task takes up the state of the last committed wave       (all acked: the spouts may run)
    PREPARE   every task snapshots, at the same point of the stream          (all acked: the manifest is written)
    COMMIT    the manifest is written: sinks make visible what they prepared (all acked: the next wave may come)
    ROLLBACK  a wave that was not prepared in time, or not stored, is given up

The commit point is the manifest: before it a failure goes back to the wave before, after it to this one. Everything is
sent again until it is acked, and every task answers a second asking like the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.model.graph import TaskId
from millrace.state.checkpoint import TaskRecord

PREPARE, COMMIT, ROLLBACK, INIT = "prepare", "commit", "rollback", "init"
IDLE, STORING, CLAIM = "idle", "store", "claim"  # phases beside those that bear the name of what is being sent
RESEND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Send:
    """Tell these tasks. `sweep`: only the spouts begin, the others when it has come to them along every channel; one that
    has done it already acks again. `wave` was prepared in `wave_epoch`. `whole`: no deltas, the store has lost some."""

    kind: str
    wave: int
    tasks: tuple[TaskId, ...]
    wave_epoch: int = 0
    sweep: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """Every task is prepared: write the manifest."""

    wave: int
    records: tuple[TaskRecord, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Enter the new epoch in the store."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Every task has taken up its state."""

    wave: int


@dataclass(frozen=True, slots=True)
class Committed:
    wave: int


@dataclass(frozen=True, slots=True)
class GivenUp:
    wave: int
    reason: str


Step = Send | Store | Claim | Restored | Committed | GivenUp


@dataclass(slots=True)
class Waves:
    """One wave at a time. `tasks` are all tasks of the topology; they change only with `restore`."""

    interval: float
    timeout: float
    wave: int = 0  # number of the last one begun; numbers are never used again
    committed: int = 0  # number of the last one committed,
    committed_epoch: int = 0  # and the epoch it was prepared in
    phase: str = IDLE
    tasks: tuple[TaskId, ...] = ()
    waiting: set[TaskId] = field(default_factory=set)
    records: dict[TaskId, TaskRecord] = field(default_factory=dict)
    whole: bool = False
    epoch: int = 0
    due: float = 0.0
    began: float = 0.0
    sent: float = 0.0
    took: float = 0.0  # seconds from the beginning of the last committed wave to its commit
    given_up: int = 0
    refused: bool = False  # the claim was: it is to be tried again
    closing: bool = False  # the next wave is the last one and does not wait for its time

    def restore(self, tasks: Iterable[TaskId], epoch: int, claim: bool, now: float) -> list[Step]:
        """The tasks start, anew or for the first time: they wait for INIT. Whatever was going on is over. `claim`: nothing is
        thrown away before the store knows of the new epoch."""
        self.tasks, self.epoch = tuple(tasks), epoch
        self.records, self.waiting = {}, set()
        if not claim:
            return [self._send(INIT, now)]
        self.phase, self.refused = CLAIM, False
        return [Claim()]

    def claimed(self, wave: int, error: str, now: float) -> list[Step]:
        """The epoch is entered in the store, or could not be: it is tried again."""
        if self.phase != CLAIM or wave != self.committed:
            return []
        if error:
            self.refused, self.sent = True, now
            return []
        return [self._send(INIT, now)]

    def begin(self, now: float) -> list[Step]:
        """A wave, now; nothing if one is under way."""
        if self.phase != IDLE or not self.tasks:
            return []
        self.wave += 1
        self.began, self.records = now, {}
        return [self._send(PREPARE, now)]

    def tick(self, now: float) -> list[Step]:
        if self.phase == IDLE:
            return self.begin(now) if now >= self.due else []
        if self.phase == PREPARE and now - self.began >= self.timeout:
            late = ", ".join(map(str, sorted(self.waiting)[:5]))
            return self.give_up(f"not prepared within {self.timeout:g} s: {late}", now)
        if self.phase == STORING or now - self.sent < RESEND_SECONDS:
            return []
        if self.phase == CLAIM:
            again, self.refused = self.refused, False  # one at a time: a store that hangs must not be flooded
            return [Claim()] if again else []
        return [self._again(now)]

    def acked(self, kind: str, wave: int, task: TaskId, record: TaskRecord | None, error: str, now: float) -> list[Step]:
        """A task's word. Only of what is being asked, and in order: anything else is late or a repetition."""
        if kind != self.phase or wave != self._asked() or task not in self.waiting:
            return []
        if error:
            return self.give_up(f"{task}: {error}", now) if kind == PREPARE else []  # the others are asked again
        self.waiting.discard(task)
        if record is not None:
            self.records[task] = record
        return [] if self.waiting else self._all_acked(now)

    def _all_acked(self, now: float) -> list[Step]:
        if self.phase == PREPARE:
            self.phase = STORING
            return [Store(self.wave, tuple(self.records[task] for task in sorted(self.records)))]
        kind, self.phase = self.phase, IDLE
        if kind == INIT:
            self.due = now  # a first one soon: until then the beginning is all there is to go back to
            return [Restored(self.committed)]
        self.due = now if self.closing else max(now, self.began + self.interval)
        if kind == COMMIT:
            return [Committed(self.wave)]
        return []

    def stored(self, wave: int, error: str, now: float) -> list[Step]:
        """The manifest is written, or could not be."""
        if self.phase != STORING or wave != self.wave:
            return []
        if error:
            self.whole = True  # what the deltas build upon may be gone
            return self.give_up(error, now)
        self.committed, self.committed_epoch, self.whole = self.wave, self.epoch, False
        self.took = now - self.began
        return [self._send(COMMIT, now)]

    def give_up(self, reason: str, now: float) -> list[Step]:
        """The wave under way is rolled back; the next one covers it."""
        if self.phase not in (PREPARE, STORING):
            return []
        self.given_up += 1
        return [GivenUp(self.wave, reason), self._send(ROLLBACK, now)]

    def _asked(self) -> int:
        return self.committed if self.phase == INIT else self.wave

    def _send(self, kind: str, now: float) -> Send:
        self.phase, self.waiting = kind, set(self.tasks)
        return self._again(now)

    def _again(self, now: float) -> Send:
        self.sent = now
        return Send(self.phase, self._asked(), tuple(sorted(self.waiting)), self.committed_epoch if self.phase == INIT
                    else self.epoch, self.phase == PREPARE, self.whole)
