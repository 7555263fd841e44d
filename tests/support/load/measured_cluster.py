"""A cluster in one process whose load is measured as the master does it, from the workers' reports."""

from __future__ import annotations

from typing import Any

from millrace.control.events import Replanned
from millrace.master.load.monitor import LoadMonitor
from millrace.master.load.observed import TopologyObserved
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.situation import Situation
from millrace.runtime.wire import messages as wire
from millrace.schedulers.base import NewPlan, Scheduler, SchedulingResult
from millrace.testing.local_cluster import LocalCluster


class MeasuredCluster(LocalCluster):
    """Measures the load of all topologies, in windows that the test ends."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.observed: dict[str, TopologyObserved] = {}
        self.errors: list[str] = []  # of user code, as reported
        self.slow: dict[TaskId, int] = {}  # blocking tasks, and in how many steps a call of them returns
        super().__init__(*args, **options)
        self.monitor = LoadMonitor(self.clock.now())

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            for task, steps in self.slow.items():
                (self.hanging.discard if self._steps % steps == 0 else self.hanging.add)(task)
            super().step()

    def _take(self, report: wire.Report) -> None:
        names = {topology.number: name for name, topology in self.master.topologies.items()}
        for task in (*report.tasks, *report.ackers):
            if (name := names.get(task["topology"])) is not None:
                observed = self.observed.setdefault(
                    name, TopologyObserved(self.master.topologies[name].graph, self.clock.now()))
                if observed.graph != self.master.topologies[name].graph:
                    observed.follow(self.master.topologies[name].graph)
                observed.take(report.slot, report.at, task)
        self.errors += [error["error"] for error in report.errors]
        super()._take(report)

    def window(self, name: str, seconds: float) -> Load:
        """The load of a topology in a window of that length from now on."""
        self._end_window()
        self.run(seconds)
        return self._end_window()[name]

    def plan(self, scheduler: Scheduler, name: str, load: Load) -> SchedulingResult:
        """Ask the scheduler about one topology, and carry out its plan if it has a new one."""
        state = self.master.topologies[name]
        situation = Situation((state.graph,), self.master.cluster(), {name: load}, {name: state.plan})
        result = scheduler.schedule(situation.graphs, situation.cluster, situation.load, situation.plan)
        if isinstance(result, NewPlan):
            self.tell(Replanned(result.plans, {name: state.plan.version}, result.reason, 1))
        return result

    def _end_window(self) -> dict[str, Load]:
        self._report()
        plans = {name: topology.plan for name, topology in self.master.topologies.items()}
        sample = self.monitor.end_window(self.clock.now(), self.clock.wall(), self.observed, plans, {}, self.master.cluster())
        return dict(sample.loads)
