"""Ticks and timers of a bolt: calls of user code that belong to no chunk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from millrace.api.tuple import SYSTEM_COMPONENT, TICK_STREAM, Tuple
from millrace.config import TICK_SECONDS

if TYPE_CHECKING:
    from millrace.runtime.tasks.bolt import BoltTask


class DueCalls:
    """Calls that run before the next chunk, when the task is neither busy nor blocked. Each runs once, however often it fell
    due meanwhile. Their output is untracked unless it names anchors."""

    def __init__(self, task: BoltTask) -> None:
        self._task = task
        self.pending: dict[str, Callable[[], None]] = {}
        self._next: dict[str, tuple[float, float]] = {}  # of each timer: when it falls due, and its seconds

    def tick_seconds(self) -> float | None:
        seconds: float | None = TICK_SECONDS.of(self._task.component.storm_conf)
        return seconds

    def starts(self, name: str, first: float, seconds: float) -> None:
        """A timer starts, which falls due after `first` seconds and then every `seconds`."""
        self._next[name] = self._task.worker.clock.now() + first, seconds

    def due_in(self) -> dict[str, float]:
        """Seconds until each timer falls due; 0 if it has, and was not run."""
        now = self._task.worker.clock.now()
        return {name: 0.0 if name in self.pending else max(0.0, at - now) for name, (at, _) in self._next.items()}

    def tick(self) -> None:
        self._add("tick", lambda: self._task.component.process_tick(Tuple((self.tick_seconds(),), TICK_ORIGIN)))

    def timer(self) -> None:
        self._add("timer", lambda: self._task.component._on_timer())

    def _add(self, name: str, call: Callable[[], None]) -> None:
        self.pending[name] = call
        if name in self._next:  # between batches, the host knows when it falls due again
            self.starts(name, self._next[name][1], self._next[name][1])
        self._task.worker.ready(self._task)

    def run(self) -> None:
        task = self._task
        task.settling.settle()
        calls, self.pending = list(self.pending.values()), {}
        task.on_own_thread(partial(task.execution.run_calls, calls), self._done)

    def _done(self) -> None:
        task = self._task
        task.busy = False
        if not task.ended:
            task.report_broken()
            task.settling.settle()
            task.inbox.pay()  # there may be room again
            task.worker.ready(task)


class _TickOrigin:
    component, stream, task = SYSTEM_COMPONENT, TICK_STREAM, -1

    def tuple_id(self, index: int) -> str:
        return "tick"


TICK_ORIGIN = _TickOrigin()
