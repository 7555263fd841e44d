"""Calls that the engine owes a spout: `ack`, `fail`, `activate` and `deactivate`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millrace.api.spout import ReliableSpout, Repeat, Spout
from millrace.runtime.tasks.user_errors import USER_ERRORS

if TYPE_CHECKING:
    from millrace.runtime.tasks.spout import SpoutTask

Notice = tuple[str, list[Any]]  # its kind, and the ids of the tuples
ACKED, ACTIVATE, DEACTIVATE = "acked", "activate", "deactivate"  # kinds of notices; any other is a cause of failure


class SpoutNotices:
    """Notices for one spout, collected on the worker's loop. Only `deliver` may run on the task's own thread."""

    def __init__(self, task: SpoutTask) -> None:
        self._task = task
        self.waiting: list[Notice] = []
        self.failures: deque[Notice] = deque()  # of failed roots; replaying them needs room
        self.wants_acks = self.wants_untracked_acks = False

    def start(self, active: bool) -> None:
        """Begin once the component is ready."""
        component = self._task.component
        self.wants_acks = type(component).ack is not Spout.ack
        self.wants_untracked_acks = self.wants_acks and not isinstance(component, ReliableSpout)
        if active:
            self.add_activity(active)

    def add_activity(self, active: bool) -> None:
        self.waiting.append((ACTIVATE if active else DEACTIVATE, []))

    def due(self, room: bool) -> bool:
        """True if something can be delivered; failures only if there is room for their replays."""
        return bool(self.waiting or (room and self.failures))

    def take(self, room: bool) -> list[Notice]:
        """Take the notices that can be delivered; one failed root at a time, so that there is room for its replay."""
        notices, self.waiting = self.waiting, []
        if room and self.failures:
            notices.append(self.failures.popleft())
        return notices

    def deliver(self, notices: list[Notice]) -> None:
        component = self._task.component
        for kind, ids in notices:
            if kind in (ACTIVATE, DEACTIVATE):
                self._call(component.activate if kind == ACTIVATE else component.deactivate)
                continue
            if kind != ACKED:
                component.fail_cause = kind
                # A reliable spout must know which of the tuples with an id is meant, and that an emit of the id replays it.
                fail = component._notify_of_failure if isinstance(component, ReliableSpout) else component.fail
                for tup_id in ids:
                    self._call(fail, tup_id)
                continue
            if type(component).ack is ReliableSpout.ack and not component._repeats:
                self._call(component._all_acked, ids)  # type: ignore[attr-defined]
            else:
                self._ack_each(ids)

    def _ack_each(self, ids: list[Any]) -> None:
        component: Any = self._task.component
        ack, repeated = component.ack, bool(component._repeats)
        for tup_id in ids:
            if repeated and isinstance(tup_id, Repeat):
                self._call(component._notify_of, tup_id, ack, True)
            else:
                self._call(ack, tup_id)

    def _call(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except USER_ERRORS as error:  # the remaining ids must still be notified
            self._task.meters.failed += 1
            self._task.report_error(error, None)
