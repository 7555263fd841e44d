"""The life of a task's component: make it, initialize it, restore its state, retry if that fails, close it."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from millrace.api.bolt import Bolt
from millrace.api.component import Component
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.tuple import DEFAULT_STREAM
from millrace.errors import StateNotKept
from millrace.hotpath.plain import BOLT, HANDLE, SPOUT
from millrace.hotpath.steps import fast_emit
from millrace.model.graph import resolve
from millrace.runtime.tasks.splits import SplitHandle, Splits
from millrace.runtime.tasks.user_errors import USER_ERRORS, describe, error_of

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task

FIRST_RETRY_SECONDS, LAST_RETRY_SECONDS = 1.0, 30.0  # between attempts to start a component that fails to start


class ComponentLife:
    """Starts the component of one task. Input that arrives before it has started waits in the inbox.

    A sink that commits must not discard staged output before the master's INIT names the wave to resume from. So it is restored
    only when its state is loaded and INIT has come (`allow_restore`), in either order.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._may_restore = self._loaded_early = self._initialized = False
        self._error: BaseException | None = None
        self._retry_seconds = FIRST_RETRY_SECONDS

    # -- starting ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make and initialize the component; retry after a pause if that fails."""
        if not self._task.ended:
            self._task.on_own_thread(self._build, self._built)

    def allow_restore(self) -> None:
        """The master's INIT has arrived."""
        self._may_restore = True
        if self._loaded_early:
            self._loaded_early = False
            self._task.on_own_thread(self._restore, self._restored)

    def _build(self) -> None:
        self._error = error_of(partial(self.build, empty_state=True))

    def build(self, empty_state: bool) -> None:
        """Make and initialize the component, and report keyed state that its `initialize` has replaced."""
        task = self._task
        if isinstance(task.component, Splits):  # it may have some of its splits
            task.component.close()
        task.component = self.make(empty_state)
        task.initialize()
        self._initialized = True
        task.component._timer_seconds()  # raises here, as a failed start, rather than on the loop
        for name in task.snapshots.replaced():
            text = (f"initialize of {task.name} replaces self.{name}, which is keyed state: the new object is not saved and is "
                    "lost with the worker. Use the state as it is, or give the attribute another name")
            task.report_error(StateNotKept(text), None)

    def _built(self) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is not None:
            self._retry()
        elif task.topology.graph.waves:
            task.snapshots.load(self._loaded)
        else:
            self._start()

    def _loaded(self, error: BaseException | None) -> None:
        if self._task.ended:
            return
        self._error = error
        if error is not None:
            self._retry()
        elif self._task.commits and not self._may_restore:
            self._loaded_early = True
        else:
            self._task.on_own_thread(self._restore, self._restored)

    def _restore(self) -> None:
        self._error = error_of(self._task.snapshots.restore_component)

    def _restored(self) -> None:
        task = self._task
        task.busy = False
        if task.ended:
            return
        if self._error is not None:
            self._retry()
        else:
            task.snapshots.initialized()
            self._start()

    def _start(self) -> None:
        task = self._task
        task.started = True
        task.on_start({})
        task.worker.ready(task)

    def _retry(self) -> None:
        assert self._error is not None
        task, worker = self._task, self._task.worker
        task.meters.errors += 1
        worker.errors.start_failed(task, self._error)
        if task.topology.graph.waves:
            task.snapshots.initialized(describe(self._error))
        worker.timers.at(worker.clock.now() + self._retry_seconds, self.begin)
        self._retry_seconds = min(2 * self._retry_seconds, LAST_RETRY_SECONDS)

    # -- instances ---------------------------------------------------------------------------------------------------

    def make(self, empty_state: bool) -> Component:
        """Create an instance attached to the task. `empty_state`: it does not take over the previous one's state."""
        task = self._task
        kind = resolve(task.definition.code)
        component: Component = Splits(task, kind, self._make_split) if task.definition.splits else kind()
        self._introduce(component)
        component._handle = task
        task.snapshots.attach(component, empty_state)
        self._attach_emit(component)
        return component

    def _make_split(self, split: int, handle: SplitHandle) -> ReplayableSpout:
        """Create the instance that reads one split of the task's spout."""
        component: ReplayableSpout = resolve(self._task.definition.code)()
        self._introduce(component)
        component.task_index, component.parallelism = split, self._task.definition.splits
        component.splits, component._handle = component.parallelism, handle
        return component

    def _introduce(self, component: Component) -> None:
        """Tell a component where it runs."""
        task = self._task
        topology, definition = task.topology, task.definition
        conf = {"topology.name": topology.graph.name, **topology.graph.config, **definition.config}
        component.topology_name, component.component_name = topology.graph.name, task.name.component
        component.task_id, component.task_index, component.parallelism = task.number, task.name.index, definition.par
        component.debug, component.storm_conf = bool(conf.get("topology.debug")), conf
        component.context = topology.context(task.name)
        component.logger = logging.getLogger(f"millrace.{topology.graph.name}.{task.name}")
        component.tracked = topology.tracked
        component.exactly_once, component.epoch = topology.graph.exactly_once, topology.epoch
        component._commits = task.commits

    def replace(self) -> None:
        """Replace the component after an error, if it asks for that. The old instance stays if the new one fails to start."""
        task, old = self._task, self._task.component
        if not old.exit_on_exception:
            return
        try:
            task.component = self.make(empty_state=False)
            task.initialize()
        except USER_ERRORS as error:
            task.report_error(error, None)
            task.component = old
            self._attach_emit(old)

    def _attach_emit(self, component: Component) -> None:
        """Install the fast `emit` on the handle, and on the component unless its class overrides `emit`."""
        task = self._task
        default = task.outbox.by_stream.get(DEFAULT_STREAM)
        if default is None or not default.width or default.direct:
            return
        spout = task.definition.kind == "spout"
        default.rebinds.clear()
        task.emit = fast_emit(default, task.outbox.emit, HANDLE, track=spout)
        if type(component).emit in (Bolt.emit, Spout.emit):  # type: ignore[attr-defined]
            vars(component)["emit"] = fast_emit(default, task.outbox.emit, SPOUT if spout else BOLT, track=spout)

    def close(self) -> None:
        if self._initialized:
            try:
                self._task.component.close()
            except USER_ERRORS as error:
                self._task.report_error(error, None)
