"""A running spout: emits while there is room downstream, and tracks the roots in flight."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.api.dataframe import DataFrameSpout
from millrace.api.spout import ReliableSpout, ReplayableSpout, Spout
from millrace.config import CHUNK_LINGER, MAX_SPOUT_PENDING, MESSAGE_TIMEOUT, SPOUT_WAIT
from millrace.control.in_flight import InFlight
from millrace.model.graph import TaskId
from millrace.runtime.flow.channel import Lineage
from millrace.runtime.flow.routing import rows_of
from millrace.runtime.tasks.outbox import EmitGroup
from millrace.runtime.tasks.task import Task
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.worker.topology_run import TopologyRun
    from millrace.runtime.worker.worker import Worker

POSITION_SECONDS = 0.2
WARY_SECONDS = 2.0  # within which every worker learns of a lost one: by push, or by the polls of agents and workers
# Behind a slow bolt, large chunks would outlast the message timeout and be replayed for ever. So a tracked spout starts with
# small chunks and adapts their size to the time they take.
FIRST_CHUNK = 64
QUICK_SECONDS, SLOW_SECONDS = 0.25, 1.0
ACKED, ACTIVATE, DEACTIVATE = "acked", "activate", "deactivate"  # notices for a spout; any other is a cause of failure
CALLS_PER_CLOCK_READ = 8  # calls of next_tuple before the clock is read again


class SpoutTask(Task):
    """One step: notify the spout of acks and failures, then fill one chunk."""

    component: Spout
    begins_waves = True

    def __init__(self, worker: Worker, topology: TopologyRun, name: TaskId, incarnation: int) -> None:
        super().__init__(worker, topology, name, incarnation)
        conf = topology.graph.config
        self.flight = InFlight(MESSAGE_TIMEOUT.of(conf))
        self.max_pending: int = MAX_SPOUT_PENDING.of(conf)
        self.linger: float = CHUNK_LINGER.of(conf) / 1000
        self.wait: float = SPOUT_WAIT.of(conf) / 1000
        self.chunk_limit = min(FIRST_CHUNK, self.sender.chunk_tuples) if topology.tracked else self.sender.chunk_tuples
        self.wake_at = 0.0  # when to call next_tuple again after it emitted nothing
        self.active = False
        self._raised = False  # next_tuple raised in the last step
        self._notices: list[tuple[str, list[Any]]] = []  # for the spout: kind, tuple ids
        self._failures: deque[tuple[str, list[Any]]] = deque()  # the same for failed roots; replaying them needs room
        self._position: int | None = None
        self._position_noted = 0.0
        self._wants_acks = self._wants_untracked_acks = False

    def initialize(self) -> None:
        if isinstance(self.component, DataFrameSpout):
            self.component.feed = self.worker.feeds.open(f"{self.topology.graph.name}/{self.name}", self.report_metric)
        super().initialize()
        if isinstance(self.component, ReplayableSpout) and self.name in self.topology.positions:
            position = self.topology.positions[self.name]
            self.component._next_position = position
            self.component.seek(position)
        if isinstance(self.component, ReliableSpout):  # it must keep replaying until the bolts have isolated the bad tuple
            vars(self.component)["max_fails"] = max(self.component.max_fails, self.max_fails)

    def on_start(self) -> None:
        self._wants_acks = type(self.component).ack is not Spout.ack
        self._wants_untracked_acks = self._wants_acks and not isinstance(self.component, ReliableSpout)
        if self.active:
            self._notices.append((ACTIVATE, []))
        if self.topology.losses:  # this task may have moved here because of one
            self._be_wary(self.worker.clock.now() + self.worker.grace)

    def position(self) -> int | None:
        """The position that the master keeps for the next incarnation; None if the source cannot be replayed."""
        if not self.busy:
            self._note_position()
        return self._position

    def _note_position(self) -> None:
        if isinstance(self.component, ReplayableSpout):
            self._position = self.component.position()
            self._position_noted = self.worker.clock.now()

    # -- work ------------------------------------------------------------------------------------------------------

    def may_emit(self) -> bool:
        return (self.started and self.active and not self.blocked and not self._failures
                and not (self.max_pending and self.flight.tuples >= self.max_pending)
                and not self.flight.lagging(self.worker.clock.now()))

    def step(self, now: float) -> None:
        if self.busy or not self.started or (self.waves.pending and self.waves.run_next()):
            return
        notices, self._notices = self._notices, []
        if self._failures and not self.blocked:
            notices.append(self._failures.popleft())
        emit = self.may_emit() and now >= self.wake_at
        if notices or emit:
            self.on_own_thread(partial(self._execute, notices, emit, now), partial(self._executed, emit))

    def _execute(self, notices: list[tuple[str, list[Any]]], emit: bool, now: float) -> None:
        clock = self.worker.clock
        cpu = clock.cpu()
        try:
            for kind, ids in notices:
                self._notify(kind, ids)
            if emit:
                self._fill(now + self.linger)
        except USER_ERRORS as error:
            self.meters.failed += 1
            self.report_error(error, None)
            self.wake_at = now + max(self.wait, 0.1)  # a spout that always raises must not spin
            self._raised = True
        if self.definition.blocking and now - self._position_noted > POSITION_SECONDS:
            self._note_position()  # on the spout's own thread: the report must not wait for it
        self.meters.cpu_seconds += clock.cpu() - cpu
        self.meters.busy_seconds += clock.now() - now

    def _notify(self, kind: str, ids: list[Any]) -> None:
        component = self.component
        if kind in (ACTIVATE, DEACTIVATE):
            self._guarded(component.activate if kind == ACTIVATE else component.deactivate)
            return
        if kind != ACKED:
            component.fail_cause = kind
        call = component.ack if kind == ACKED else component.fail
        for tup_id in ids:
            self._guarded(call, tup_id)

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except USER_ERRORS as error:  # the remaining ids must still be notified
            self.meters.failed += 1
            self.report_error(error, None)

    def _fill(self, deadline: float) -> None:
        """Call next_tuple until the chunk is full, its time is up, or the spout emits nothing."""
        next_tuple, now, limit = self.component.next_tuple, self.worker.clock.now, self.chunk_limit
        if self.max_pending:
            limit = min(limit, self.max_pending - self.flight.tuples)
        before, calls = self.waiting(), 0
        while before < limit:
            next_tuple()
            after = self.waiting()
            if after == before:
                return
            before, calls = after, calls + 1
            if calls % CALLS_PER_CLOCK_READ == 0 and now() >= deadline:
                return

    def send_waiting(self) -> None:
        self._send_groups(self.worker.clock.now())

    def _send_groups(self, now: float) -> bool:
        groups = self.outbox.take()
        for group in groups:
            self._send_tracked(group, now)
        return bool(groups)

    def _executed(self, emitted: bool) -> None:
        self.busy = False
        if self.ended:
            return
        now = self.worker.clock.now()
        groups = self._send_groups(now)
        if self._raised or (emitted and not groups):
            self._raised = False
            self.wake_at = max(self.wake_at, now + self.wait)
            self.worker.ready_at(self, self.wake_at)
        if self._notices or (self._failures and not self.blocked) or (groups and self.may_emit()):
            self.worker.ready(self)

    # -- tracking --------------------------------------------------------------------------------------------------

    def _send_tracked(self, group: EmitGroup, now: float) -> None:
        tracked = self.topology.tracked
        rows = isinstance(group.body, list)
        if not tracked or all(tup_id is None for tup_id in group.ids):
            self._send_root(group, (), now, 0)
            if self._wants_untracked_acks and not tracked:  # as in Storm without ackers: sent counts as acked
                self._notices.append((ACKED, [tup_id for tup_id in group.ids if tup_id is not None]))
            return
        for piece in self._pieces(group):
            if rows and (None in piece.ids or self.flight.attempts):
                for part, attempt in self._by_attempt(piece):
                    self._send_root(part, self._new_root() if attempt >= 0 else (), now, max(attempt, 0))
            else:
                self._send_root(piece, self._new_root(), now, self.flight.by_attempt(piece.ids))

    def _pieces(self, group: EmitGroup) -> list[EmitGroup]:
        """Cut a group that is far larger than the current chunk size into several roots."""
        limit = self.chunk_limit
        if not isinstance(group.body, list) or len(group.body) < 2 * limit:
            return [group]
        return [group._replace(body=group.body[i:i + limit], ids=group.ids[i:i + limit])
                for i in range(0, len(group.body), limit)]

    def _by_attempt(self, group: EmitGroup) -> list[tuple[EmitGroup, int]]:
        """Split a group by how often its tuples have failed; -1 for those without an id. A chunk has one attempt number, and
        a fresh tuple must not count as one that failed before."""
        parts: dict[int, tuple[list[Any], list[Any]]] = {}
        for row, tup_id in zip(group.body, group.ids, strict=True):
            attempt = -1 if tup_id is None else self.flight.by_attempt([tup_id])
            rows, ids = parts.setdefault(attempt, ([], []))
            rows.append(row)
            ids.append(tup_id)
        return [(group._replace(body=rows, ids=ids), attempt) for attempt, (rows, ids) in parts.items()]

    def _new_root(self) -> tuple[int, ...]:
        return (self.topology.tracker.new_root(self.sender.random.getrandbits(48)),)

    def _send_root(self, group: EmitGroup, roots: tuple[int, ...], now: float, attempt: int) -> None:
        size = len(group.body) if isinstance(group.body, list) else group.body.num_rows
        try:
            edges = self.sender.send(group, Lineage(roots, attempt, self.worker.clock.now()))
        except USER_ERRORS as error:  # of a custom grouping
            self._send_failed(group, bool(roots), now, attempt, error)
            return
        for root in roots:
            self.flight.sent(root, group.ids, size, now, attempt)
            self.topology.tracker.open(root, edges, self)

    def _send_failed(self, group: EmitGroup, tracked: bool, now: float, attempt: int, error: BaseException) -> None:
        """Retry a few times; then send tuple by tuple, so that only those that cannot be sent are dropped."""
        self.meters.failed += 1
        self.report_error(error, None)
        if tracked and attempt < self.max_fails:
            self.flight.count(group.ids, attempt + 1)
            self._failures.append(("error", group.ids))
            return
        rows = group.body if isinstance(group.body, list) else rows_of(group.body)
        roots, edges = self._new_root() if tracked else (), 0
        for row in rows:
            try:
                edges ^= self.sender.send(group._replace(body=[row]), Lineage(roots, attempt, self.worker.clock.now()))
            except USER_ERRORS as row_error:
                self.unsendable(group.output, row, row_error)
        for root in roots:
            self.flight.sent(root, group.ids, len(rows), now, attempt)
            self.topology.tracker.open(root, edges, self)

    def on_verdicts(self, finished: list[int], failed: list[int]) -> None:
        """Handle verdicts of the ackers on some roots."""
        now = self.worker.clock.now()
        for number in finished:
            root = self.flight.finished(number, now)
            if root is not None:
                self.meters.acked += root.tuples
                self.meters.complete_latency.record(now - root.born, root.tuples)
                self._adapt(now - root.born)
                if self._wants_acks:
                    self._notices.append((ACKED, root.ids))
        for number in failed:
            self._fail(number, "error")
        self.worker.ready(self)

    def _adapt(self, seconds: float) -> None:
        if seconds < QUICK_SECONDS:
            self.chunk_limit = min(self.chunk_limit * 2, self.sender.chunk_tuples)
        elif seconds > SLOW_SECONDS:
            self.chunk_limit = max(self.chunk_limit // 2, 1)

    def _fail(self, number: int, cause: str) -> None:
        root = self.flight.failed(number, cause)
        if root is not None:
            self.meters.failed += root.tuples
            self.meters.replayed += root.tuples
            self._failures.append((cause, root.ids))
            if cause == "timeout":
                self.chunk_limit = max(self.chunk_limit // 2, 1)

    def check_overdue(self, now: float) -> None:
        for number, cause in self.flight.overdue(now):
            self._fail(number, cause)
        if self._notices or self._failures:
            self.worker.ready(self)

    def worker_lost(self, deadline: float) -> None:
        self.flight.doom(deadline)
        self._be_wary(deadline)

    def _be_wary(self, deadline: float) -> None:
        self.flight.be_wary(self.worker.clock.now() + WARY_SECONDS, deadline + WARY_SECONDS)

    # -- life ------------------------------------------------------------------------------------------------------

    def set_active(self, active: bool) -> None:
        if active != self.active:
            self.active = active
            if self.started:
                self._notices.append((ACTIVATE if active else DEACTIVATE, []))
            self.worker.ready(self)

    def idle(self) -> bool:
        return not (self.busy or self.flight.roots or self._notices or self._failures)

    @property
    def queue_length(self) -> int:
        return self.flight.tuples
