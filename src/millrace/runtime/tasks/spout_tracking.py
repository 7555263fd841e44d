"""Roots and attempts of a spout: sends its output as roots, and replays those that fail, time out or are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.config import MESSAGE_TIMEOUT
from millrace.control.in_flight import InFlight
from millrace.runtime.flow.channel import Lineage
from millrace.runtime.flow.routing import rows_of_batch
from millrace.runtime.tasks.outbox import EmitGroup
from millrace.runtime.tasks.spout_notices import ACKED
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.spout import SpoutTask

WARY_SECONDS = 2.0  # within which every worker learns of a lost one: by push, or by the polls of agents and workers
FIRST_CHUNK = 64
QUICK_SECONDS, SLOW_SECONDS = 0.25, 1.0


class ChunkSize:
    """The number of tuples in a spout's chunks. Behind a slow bolt, large chunks would outlast the message timeout and be
    replayed forever. So a tracked spout starts with small chunks and adapts their size to the time they take."""

    def __init__(self, most: int, adaptive: bool) -> None:
        self._most = most
        self.limit = min(FIRST_CHUNK, most) if adaptive else most

    def finished(self, seconds: float) -> None:
        """Adapt the size to the time that a root took."""
        if seconds < QUICK_SECONDS:
            self.limit = min(self.limit * 2, self._most)
        elif seconds > SLOW_SECONDS:
            self.halve()

    def halve(self) -> None:
        self.limit = max(self.limit // 2, 1)


class SpoutTracking:
    """The roots of one spout task, from sending to their verdict. Runs on the worker's loop."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self._notices = task.notices
        self.flight = InFlight(MESSAGE_TIMEOUT.of(task.topology.graph.config))
        self.chunk_size = ChunkSize(task.sender.chunk_tuples, adaptive=task.topology.tracked)

    # -- sending -----------------------------------------------------------------------------------------------------

    def send(self, group: EmitGroup, now: float) -> None:
        tracked = self._task.topology.tracked
        rows = isinstance(group.body, list)
        if not tracked or all(tup_id is None for tup_id in group.ids):
            self._send_root(group, (), now, 0)
            if self._notices.wants_untracked_acks and not tracked:  # as in Storm without ackers: sent counts as acked
                self._notices.waiting.append((ACKED, [tup_id for tup_id in group.ids if tup_id is not None]))
            return
        for piece in self._pieces(group):
            if rows and (None in piece.ids or self.flight.attempts):
                for part, attempt in self._by_attempt(piece):
                    self._send_root(part, self._new_root() if attempt >= 0 else (), now, max(attempt, 0))
            else:
                self._send_root(piece, self._new_root(), now, self.flight.by_attempt(piece.ids))

    def _pieces(self, group: EmitGroup) -> list[EmitGroup]:
        """Cut a group that is far larger than the current chunk size into several roots."""
        limit = self.chunk_size.limit
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
        return (self._task.topology.tracker.new_root(self._task.sender.random.getrandbits(48)),)

    def _send_root(self, group: EmitGroup, roots: tuple[int, ...], now: float, attempt: int) -> None:
        task = self._task
        size = len(group.body) if isinstance(group.body, list) else group.body.num_rows
        origin, before = self._origin(group.ids, now), task.meters.emitted
        try:
            edges = task.sender.send(group, Lineage(roots, attempt, task.worker.clock.now(), origin))
        except USER_ERRORS as error:  # of a custom grouping
            self._send_failed(group, bool(roots), now, attempt, error)
            return
        for root in roots:
            self.flight.sent(root, group.ids, size, now, attempt, origin, before)
            task.topology.tracker.open(root, edges, task)

    def _origin(self, ids: list[Any], now: float) -> float:
        """The origin of a chunk's lineage. One tuple that was sent before makes the whole chunk a replayed one: sinks count by
        chunks."""
        origin = self._task.position.origin(ids, now)
        failed = self.flight.take_origin(ids) if self.flight.failing else 0.0
        return origin or failed

    def _send_failed(self, group: EmitGroup, tracked: bool, now: float, attempt: int, error: BaseException) -> None:
        """Retry a few times; then send tuple by tuple, so that only those that cannot be sent are dropped."""
        task = self._task
        task.meters.failed += 1
        task.report_error(error, None)
        if tracked and attempt < task.max_fails:
            self.flight.count(group.ids, attempt + 1)
            self._notices.failures.append(("error", group.ids))
            return
        rows, before = group.body if isinstance(group.body, list) else rows_of_batch(group.body), task.meters.emitted
        roots, edges = self._new_root() if tracked else (), 0
        for row in rows:
            try:
                edges ^= task.sender.send(group._replace(body=[row]), Lineage(roots, attempt, task.worker.clock.now()))
            except USER_ERRORS as row_error:
                task.unsendable(group.output, row, row_error)
        for root in roots:
            self.flight.sent(root, group.ids, len(rows), now, attempt, before=before)
            task.topology.tracker.open(root, edges, task)

    # -- the end of roots --------------------------------------------------------------------------------------------

    def on_verdicts(self, finished: list[int], failed: list[int]) -> None:
        """Handle verdicts of the ackers on some roots."""
        task = self._task
        now = task.worker.clock.now()
        for number in finished:
            root = self.flight.finished(number, now)
            if root is not None:
                task.meters.acked += root.tuples
                task.meters.complete_latency.record(now - root.born, root.tuples)
                self.chunk_size.finished(now - root.born)
                if self._notices.wants_acks:
                    self._notices.waiting.append((ACKED, root.ids))
        for number in failed:
            self._fail(number, "error")
        task.worker.ready(task)

    def _fail(self, number: int, cause: str) -> None:
        root = self.flight.failed(number, cause, self._task.worker.clock.now())
        if root is not None:
            meters = self._task.meters
            meters.failed += root.tuples
            meters.replayed += root.tuples
            self._notices.failures.append((cause, root.ids))
            if cause == "timeout":
                self.chunk_size.halve()

    def check_overdue(self, now: float) -> None:
        for number, cause in self.flight.overdue(now):
            self._fail(number, cause)
        self.flight.forget_failing(now)
        if self._notices.due(room=True):
            self._task.worker.ready(self._task)

    def leave(self) -> None:
        """Leave the unfinished roots to another incarnation of the task, which sends their tuples again. Verdicts on them come
        too late."""
        self._task.meters.replayed += self.flight.tuples
        self.flight.roots.clear()
        self.flight.tuples = 0

    def worker_lost(self, deadline: float) -> None:
        """Count roots that are unfinished at `deadline` as lost with the worker."""
        self.flight.doom(deadline)
        self.be_wary(deadline)

    def be_wary(self, deadline: float) -> None:
        """Count roots sent shortly after a loss as lost, too, if they stay unfinished: some workers may not know of it yet."""
        self.flight.be_wary(self._task.worker.clock.now() + WARY_SECONDS, deadline + WARY_SECONDS)
