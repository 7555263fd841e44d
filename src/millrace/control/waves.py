"""The waves of one topology: when one begins, whose acks it waits for, when it is committed or abandoned.

    CLAIM     the new epoch is entered in the store                          (written: INIT)
    INIT      every task restores the state of the last committed wave       (all acked: the spouts may run)
    PREPARE   every task snapshots, at the same point of the stream          (all acked: the manifest is written)
              a wave that takes too long overtakes queued tuples: tasks snapshot at once and save the tuples with the wave
    COMMIT    the manifest is written: sinks publish their prepared output   (all acked: the next wave may begin)
    ROLLBACK  a wave that was not prepared in time, or not stored, is abandoned

The manifest is the commit point: a failure before it rolls back to the previous wave, a failure after it to this one.
Every request is sent again until it is acked, and tasks answer a repeated request like the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from millrace.control.pauses import doubled_pause
from millrace.model.graph import TaskId
from millrace.state.checkpoint import TaskRecord

PREPARE, COMMIT, ROLLBACK, INIT = "prepare", "commit", "rollback", "init"
IDLE, STORING, CLAIM = "idle", "store", "claim"  # the other phases have the name of the message being sent
RESEND_SECONDS = 1.0
MOST_TIMEOUTS = 30  # that a wave, or the end of a topology, waits while tasks make progress
FIRST_PAUSE, LAST_PAUSE = 0.5, 30.0  # seconds before the next wave after one abandoned wave, and at most
FIRST_OUTPUT_SECONDS = 0.5  # from the return to a wave until the next one begins


@dataclass(frozen=True, slots=True)
class Send:
    """Send a wave message to these tasks. `sweep`: only the spouts begin, other tasks follow when the wave has reached them
    on every channel; a task that has done it already acks again. `wave` was prepared in `wave_epoch`. `whole`: write no
    deltas, because the store has lost some. `overtakes`: a task that has not done it yet does it before its queued input.
    `captures`: and processes nothing more. `dropped`: waves up to this number that are not committed are over: no task may wait
    for their marks."""

    kind: str
    wave: int
    tasks: tuple[TaskId, ...]
    wave_epoch: int = 0
    sweep: bool = False
    whole: bool = False
    overtakes: bool = False
    captures: bool = False
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Store:
    """Write the manifest: every task is prepared."""

    wave: int
    records: tuple[TaskRecord, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Enter the new epoch in the store."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Every task has restored its state."""

    wave: int


@dataclass(frozen=True, slots=True)
class Committed:
    wave: int


@dataclass(frozen=True, slots=True)
class Abandoned:
    wave: int
    reason: str


@dataclass(frozen=True, slots=True)
class RolledBack:
    """Every task knows that the wave is abandoned. `records`: of tasks that are writing nothing, what they would build the next
    snapshot on."""

    wave: int
    records: tuple[TaskRecord, ...]


WaveStep = Send | Store | Claim | Restored | Committed | Abandoned | RolledBack


@dataclass(slots=True)
class Waves:
    """One wave at a time. `tasks` are all tasks of the topology; they change with `restore`, and between waves with `admit` and
    `dismiss`."""

    interval: float
    timeout: float
    wave: int = 0  # number of the last wave begun; numbers are never reused
    committed: int = 0  # number of the last wave committed,
    committed_epoch: int = 0  # and the epoch it was prepared in
    phase: str = IDLE
    tasks: tuple[TaskId, ...] = ()
    waiting: set[TaskId] = field(default_factory=set)
    records: dict[TaskId, TaskRecord] = field(default_factory=dict)
    whole: bool = False
    aligned: float = 0.0  # seconds after which a wave that is not prepared overtakes queued tuples; 0: never
    overtakes: bool = False  # the current wave does
    captures: bool = False  # the next wave overtakes, and what it has overtaken is not processed
    capturing: bool = False  # the current wave does
    drains: bool = False  # no wave overtakes
    epoch: int = 0
    due: float = 0.0
    not_before: float = 0.0  # the next wave waits until then, even if one is requested: the last ones failed
    began: float = 0.0
    progressed: float = 0.0  # time when a task was last seen to work on input before the wave
    sent: float = 0.0
    took: float = 0.0  # seconds from the beginning of the last committed wave to its commit
    abandoned: int = 0
    failed: int = 0  # waves abandoned since the last commit
    refused: bool = False  # the store refused the claim: try again
    requested: bool = False  # a wave is wanted after the current one, without waiting for the interval
    held: bool = False  # none begins: a task is being handed over, or tasks are added
    admitting: bool = False  # the INIT being sent is for tasks that were added, and for these alone
    init_cycle: tuple[float, float] | None = None  # of a migration: INITs go out only at this time and every so many seconds
    closing: bool = False  # the next wave is the last one: repeat it without waiting for the interval until it is committed

    def request(self, now: float) -> None:
        """Make a wave due now; if one is in progress, as soon as it is over."""
        self.due = min(self.due, max(now, self.not_before))
        self.requested = self.phase != IDLE

    def close(self, now: float) -> int:
        """Make one last wave due now. Returns its number."""
        self.due, self.closing = now, True
        return self.wave + 1

    def restore(self, tasks: Iterable[TaskId], epoch: int, claim: bool, now: float) -> list[WaveStep]:
        """Start the tasks, for the first time or again: they wait for INIT. A wave in progress is dropped. `claim`: nothing is
        discarded before the new epoch is in the store."""
        self.tasks, self.epoch = tuple(tasks), epoch
        self.records, self.waiting, self.admitting = {}, set(), False
        if not claim:
            return self._init(now)
        self.phase, self.refused = CLAIM, False
        return [Claim()]

    def admit(self, tasks: Iterable[TaskId], now: float) -> list[WaveStep]:
        """Count further tasks, which start without state, among those of the topology: they wait for INIT, too. No wave may be
        under way."""
        new = tuple(tasks)
        self.tasks, self.phase, self.waiting, self.admitting = (*self.tasks, *new), INIT, set(new), True
        return [self._again(now)]

    def dismiss(self, tasks: Iterable[TaskId]) -> None:
        """Forget tasks that have ended. A request that waits for these alone is complete with the next tick."""
        gone = set(tasks)
        self.tasks = tuple(task for task in self.tasks if task not in gone)
        self.waiting -= gone

    def claimed(self, wave: int, error: str, now: float) -> list[WaveStep]:
        """Record that the epoch is entered in the store, or try again if it could not be."""
        if self.phase != CLAIM or wave != self.committed:
            return []
        if error:
            self.refused, self.sent = True, now
            return []
        return self._init(now)

    def _init(self, now: float) -> list[WaveStep]:
        """Ask all tasks to restore their state; later, if INITs follow a cycle."""
        if self.init_cycle is None:
            return [self._send(INIT, now)]
        first, seconds = self.init_cycle
        self.phase, self.waiting = INIT, set(self.tasks)
        self.sent = first + (now - first) // seconds * seconds  # it went out before the tasks had started, and was lost
        return []

    def begin(self, now: float) -> list[WaveStep]:
        """Begin a wave now, unless one is in progress."""
        if self.phase != IDLE or self.held or not self.tasks:
            return []
        self.wave += 1
        self.began, self.records, self.requested, self.overtakes = now, {}, False, self.captures
        self.capturing = self.captures
        return [self._send(PREPARE, now)]

    def tick(self, now: float) -> list[WaveStep]:
        if self.phase == IDLE:
            return self.begin(now) if now >= self.due else []
        if not self.waiting and self.phase not in (STORING, CLAIM):  # those that it waited for have been dismissed
            return self._all_acked(now)
        if self.phase == PREPARE and self._is_late(now):
            late = ", ".join(map(str, sorted(self.waiting)[:5]))
            return self.abandon(f"not prepared within {now - self.began:.0f} s: {late}", now)
        if self._is_to_overtake(now):
            self.overtakes = True
            return [self._again(now)]
        if self.phase == STORING and now - self.sent >= self.timeout:
            # It may still be written, which does no harm: it is complete, and a later manifest takes its place.
            return self.stored(self.wave, f"the checkpoint store has not written its manifest within {self.timeout:g} s", now)
        if self.phase == STORING or now - self.sent < self._resend_seconds:
            return []
        if self.phase == CLAIM:
            again, self.refused = self.refused, False  # one at a time: a store that hangs must not be flooded
            return [Claim()] if again else []
        return [self._again(now)]

    @property
    def _resend_seconds(self) -> float:
        return self.init_cycle[1] if self.init_cycle is not None and self.phase == INIT else RESEND_SECONDS

    def _is_late(self, now: float) -> bool:
        """A wave waits for tasks that work, but not for ever: a task may also be kept busy by tuples that bolts emit on ticks,
        while the wave itself is stuck behind another task."""
        return (now - max(self.began, self.progressed) >= self.timeout
                or now - self.began >= MOST_TIMEOUTS * self.timeout)

    def _is_to_overtake(self, now: float) -> bool:
        """True if the current wave has waited long enough. The last wave of a topology never overtakes: it leaves no tuples
        behind, so that the topology can be resumed with another parallelism."""
        return (self.phase == PREPARE and not self.overtakes and not self.closing and not self.drains
                and 0 < self.aligned <= now - self.began)

    def progress(self, tasks: Iterable[TaskId], now: float) -> None:
        """Record that these tasks have processed tuples. A task that has not answered works on what is ahead of the wave, and
        that is finite: the wave is not abandoned while it does."""
        if self.phase == PREPARE and not self.waiting.isdisjoint(tasks):
            self.progressed = now

    def acked(self, kind: str, wave: int, task: TaskId, record: TaskRecord | None, error: str, now: float) -> list[WaveStep]:
        """Take a task's ack. Acks of anything but the current request are late or repeated, and ignored."""
        if kind != self.phase or wave != self._asked() or task not in self.waiting:
            return []
        if error:
            return self.abandon(f"{task}: {error}", now) if kind == PREPARE else []  # other requests are sent again
        self.waiting.discard(task)
        if record is not None:
            self.records[task] = record
        return [] if self.waiting else self._all_acked(now)

    def _all_acked(self, now: float) -> list[WaveStep]:
        if self.phase == PREPARE:
            self.phase, self.sent = STORING, now
            return [Store(self.wave, self._recorded())]
        kind, self.phase = self.phase, IDLE
        if self.admitting:
            self.admitting = False
            return []
        if kind == INIT:
            self.init_cycle = None
            # A first wave soon: until then a failure would roll back to the start. After a roll-back or a restart it waits for
            # some output to publish, which would otherwise be visible only with the wave after it.
            at_once = not self.committed or self.closing or self.requested
            self.due = now if at_once else now + min(self.interval, FIRST_OUTPUT_SECONDS)
            return [Restored(self.committed)]
        rest = now if self.closing or self.requested else max(now, self.began + self.interval)
        self.not_before = now + doubled_pause(self.failed, FIRST_PAUSE, LAST_PAUSE)
        self.due = max(rest, self.not_before)
        if kind == COMMIT:
            return [Committed(self.wave)]
        return [RolledBack(self.wave, self._recorded())]

    def stored(self, wave: int, error: str, now: float) -> list[WaveStep]:
        """Commit the wave if its manifest is written; abandon it if it could not be."""
        if self.phase != STORING or wave != self.wave:
            return []
        if error:
            self.whole = True  # the deltas' base may be gone
            return self.abandon(error, now)
        self.committed, self.committed_epoch, self.whole = self.wave, self.epoch, False
        self.took, self.failed = now - self.began, 0
        return [self._send(COMMIT, now)]

    def abandon(self, reason: str, now: float) -> list[WaveStep]:
        """Roll back the current wave; the next one covers it."""
        if self.phase not in (PREPARE, STORING):
            return []
        self.abandoned += 1
        self.failed += 1
        self.records = {}
        return [Abandoned(self.wave, reason), self._send(ROLLBACK, now)]

    def give_way(self, now: float) -> list[WaveStep]:
        """Roll back a wave that is being prepared, so that another one need not wait for it. It has not failed."""
        if self.phase != PREPARE:
            return []
        self.records = {}
        return [self._send(ROLLBACK, now)]

    def _recorded(self) -> tuple[TaskRecord, ...]:
        return tuple(self.records[task] for task in sorted(self.records))

    def _asked(self) -> int:
        return self.committed if self.phase == INIT else self.wave

    def _send(self, kind: str, now: float) -> Send:
        self.phase, self.waiting = kind, set(self.tasks)
        return self._again(now)

    def _again(self, now: float) -> Send:
        self.sent = now
        return Send(self.phase, self._asked(), tuple(sorted(self.waiting)), self.committed_epoch if self.phase == INIT
                    else self.epoch, self.phase == PREPARE, self.whole, self.phase == PREPARE and self.overtakes,
                    self.phase == PREPARE and self.capturing, self.wave if self.phase == INIT else 0)
