"""A running spout: fills one chunk per step while there is room downstream.

    tracking  spout_tracking.py  sends the chunks as roots, and handles their verdicts, losses and timeouts
    notices   spout_notices.py   calls of ack, fail, activate and deactivate
    position  spout_position.py  the position of a source that can be replayed, or those of its splits
    split_moves  split_moves.py  splits that other tasks take over, or that it takes over from others
    lag       spout_lag.py       tuples that the source has and the spout has not emitted

User code, in `step`'s execution, in `notices.deliver`, `position` and `lag`, may run on the task's own thread; everything else
runs on the worker's loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from millrace.api.spout import ReliableSpout, Spout
from millrace.config import CHUNK_LINGER, MAX_SPOUT_PENDING, SPOUT_WAIT
from millrace.model.graph import TaskId
from millrace.runtime.tasks.handover.split_moves import SplitMoves
from millrace.runtime.tasks.host import TaskHost, TaskTopology
from millrace.runtime.tasks.spout_lag import SpoutLag
from millrace.runtime.tasks.spout_notices import Notice, SpoutNotices
from millrace.runtime.tasks.spout_position import SplitPositions, SpoutPosition
from millrace.runtime.tasks.spout_tracking import SpoutTracking
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.handover.succession import Incarnation

LONGEST_WAIT = 0.05  # seconds until next_tuple is called again, whatever the spout expects
CALLS_PER_CLOCK_READ = 8  # calls of next_tuple before the clock is read again


class SpoutTask(Task):
    """Runs a spout. One step: notify it of acks and failures, then fill one chunk."""

    component: Spout
    begins_waves = True

    def __init__(self, worker: TaskHost, topology: TaskTopology, name: TaskId, incarnation: int) -> None:
        super().__init__(worker, topology, name, incarnation)
        conf = topology.graph.config
        self.max_pending: int = MAX_SPOUT_PENDING.of(conf)
        self.linger: float = CHUNK_LINGER.of(conf) / 1000
        self.wait: float = SPOUT_WAIT.of(conf) / 1000
        self.wake_at = 0.0  # when to call next_tuple again after it emitted nothing
        self.active = False
        self._raised = False  # next_tuple raised in the last step
        self._filled_since = 0.0  # when the first tuple of a chunk was emitted
        self._dry = False  # next_tuple has emitted nothing in its last call
        self._due_at: float | None = None  # when it will have something, as far as the spout knew then
        self.notices: SpoutNotices = SpoutNotices(self)
        self.tracking = SpoutTracking(self)
        self.splits = SplitPositions(self) if self.definition.splits else None
        self.position = self.splits or SpoutPosition(self)
        self.split_moves = SplitMoves(self)
        self.lag = SpoutLag(self)

    def initialize(self) -> None:
        if self.definition.dataframe:
            feed = self.worker.feeds.open(f"{self.topology.graph.name}/{self.name}", self.report_metric)
            vars(self.component)["feed"] = feed if self.definition.splits else feed.whole()
        super().initialize()
        self.position.restore()
        if isinstance(self.component, ReliableSpout):  # it must keep replaying until the bolts have isolated the bad tuple
            vars(self.component)["max_fails"] = max(self.component.max_fails, self.max_fails)

    def on_start(self, due: Mapping[str, float]) -> None:
        self.notices.start(self.active)
        if self.topology.losses:  # this task may have moved here because of one
            self.tracking.be_wary(self.worker.clock.now() + self.worker.grace)

    def set_active(self, active: bool) -> None:
        if active != self.active:
            self.active = active
            self.wake_at = 0.0  # it may have another timetable
            self.count_blocked(self.worker.clock.now(), idle=not active)
            if self.started:
                self.notices.add_activity(active)
            self.worker.ready(self)

    @property
    def waits(self) -> bool:
        """It also waits if it has as many tuples in flight as it may."""
        return super().waits or bool(self.max_pending and self.tracking.flight.tuples >= self.max_pending)

    def may_emit(self) -> bool:
        return (self.started and self.active and not self.waits and not self.notices.failures
                and self.name not in self.topology.apart  # it is not known to all workers yet, or it retires
                and not self.tracking.flight.lagging(self.worker.clock.now()))

    def step(self, now: float) -> None:
        if self.departure is not None:
            self.departure.go_on()
        self.split_moves.go_on()
        if self.busy or not self.started:
            return
        # Acks are delivered before a wave: what they are for would be repeated after a return to it.
        if self.waves.pending and not self.notices.waiting and self.waves.run_next():
            return
        notices = self.notices.take(room=not self.blocked)
        emit = not self.waves.pending and now >= self.wake_at and self.may_emit()
        if self.waits:
            self._wait_for_others(now)
        else:
            self.count_blocked(now)
        if notices or emit:
            self.on_own_thread(partial(self._execute, notices, emit, now), partial(self._executed, emit))

    def _wait_for_others(self, now: float) -> None:
        if self.active and now >= self.wake_at:  # a source that has nothing now does not wait for them
            self.held_up(now)

    def _execute(self, notices: list[Notice], emit: bool, now: float) -> None:
        clock = self.worker.clock
        cpu = clock.cpu()
        try:
            if notices:
                self.notices.deliver(notices)
            if emit:
                self._fill(now)
        except USER_ERRORS as error:
            self.meters.failed += 1
            self.report_error(error, None)
            self.wake_at = now + max(self.wait, 0.1)  # a spout that always raises must not spin
            self._raised = True
        if self.definition.blocking:
            self.position.refresh(now)
            if self.lag.due:
                self.lag.read()
        self.meters.cpu_seconds += clock.cpu() - cpu
        self.meters.busy_seconds += clock.now() - now

    def _fill(self, began: float) -> None:
        """Call next_tuple until the chunk is full, its time is up, or the spout emits nothing."""
        next_tuple, now, deadline = self.component.next_tuple, self.worker.clock.now, began + self.linger
        limit = min(self.tracking.chunk_size.limit, self.chunk_tuples)
        if self.max_pending:
            limit = min(limit, self.max_pending - self.tracking.flight.tuples)
        before, calls = self.waiting(), 0
        while before < limit:
            next_tuple()
            after = self.waiting()
            if after == before:
                self._dry, self._due_at = True, self._next_due(began)
                return
            if not calls:
                self._filled_since = now()
            before, calls = after, calls + 1
            if calls % CALLS_PER_CLOCK_READ == 0 and now() >= deadline:
                return

    def _next_due(self, began: float) -> float | None:
        """The time at which the spout has a tuple, if it knows. One that was due before the calls began, which have not brought
        it, may come at any time: the spout must not be called without a pause until then."""
        due_in = self.component.due_in()
        due_at = None if due_in is None else self.worker.clock.now() + due_in
        return None if due_at is None or due_at <= began else due_at

    def _executed(self, emitted: bool) -> None:
        """Back on the loop: send the chunk."""
        self.busy = False
        if self.ended:
            return
        now = self.worker.clock.now()
        before, sent = self.meters.emitted, self._send_groups(now)
        if sent and self._filled_since:
            self.meters.outbox_latency.record(self.worker.clock.now() - self._filled_since, self.meters.emitted - before)
            self._filled_since = 0.0
        if sent and self.waits:
            self._wait_for_others(now)
        if self._raised or self._dry or (emitted and not sent):
            self.wake_at = max(self.wake_at, self._next_call(now))
            self._raised = self._dry = False
            self.worker.ready_at(self, self.wake_at)
        if (self.waves.pending or self.notices.due(room=not self.blocked)  # a request may have come during the call
                or (sent and now >= self.wake_at and self.may_emit())):
            self.worker.ready(self)

    def _next_call(self, now: float) -> float:
        """The time to call next_tuple again after it emitted nothing or raised."""
        if self._raised or self._due_at is None:
            return now + self.wait
        return min(self._due_at, now + LONGEST_WAIT)

    def send_waiting(self) -> None:
        self._send_groups(self.worker.clock.now())

    def _send_groups(self, now: float) -> bool:
        """Send all output. Returns False if there was none."""
        groups = self.outbox.take()
        for group in groups:
            self.tracking.send(group, now)
        return bool(groups)

    def drained(self, move: int, awaited: set[Incarnation], impatient: bool) -> bool:
        return self.idle() or impatient

    def leave(self) -> None:
        self.tracking.leave()

    def emitted_for_good(self) -> int:
        """Tuples emitted before the oldest one in flight. A restart begins with that one, and so repeats all that were emitted
        after it, even those that are finished."""
        oldest = next(iter(self.tracking.flight.roots.values()), None)
        return super().emitted_for_good() if oldest is None else oldest.before

    def idle(self) -> bool:
        return not (self.busy or self.tracking.flight.roots or self.notices.due(room=True))

    @property
    def queue_length(self) -> int:
        return self.tracking.flight.tuples
