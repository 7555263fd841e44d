"""A stationary stream in closed loop: estimator, generator and scheduler as the master has them, on a load that is measured
with noise. Whatever changes from window to window is noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from millrace.control.scheduling.load_smoothing import Estimator, make_estimator
from millrace.control.scheduling.schedule_generator import ENACTED, Choice, Decision, Policy, ScheduleGenerator
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.sample import NodeLoad, WindowSample, WorkerLoad
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan
from millrace.schedulers.registry import make_scheduler, traits
from millrace.schedulers.rules import check_result

CPU_NOISE, TRAFFIC_NOISE = 0.1, 0.2  # standard deviations, of the true value
WINDOWS_PER_SCHEDULE = 3


class StationaryStream:
    """`truth`: the situation with its true load. The scheduler is asked every third window, `otd` and `balance` every one."""

    def __init__(self, truth: Situation, scheduler: str, seed: int, **parameters: Any) -> None:
        self.truth, self.plan = truth, dict(truth.plan)
        self.scheduler = make_scheduler(scheduler, parameters)
        self.choice = Choice.of(scheduler, self.scheduler)
        self.window_seconds = 5.0 if self.choice.period <= 5 else 20.0
        self.choice = replace(self.choice, period=min(self.choice.period, WINDOWS_PER_SCHEDULE * self.window_seconds))
        self.generator = ScheduleGenerator(self.choice, Policy())
        self.estimators: dict[str, Estimator] = {
            name: make_estimator(traits(self.scheduler).estimator).fresh() for name in truth.load}
        self.rng = np.random.default_rng(seed)
        self.now, self.asked = 1000.0, 0
        self.moved: set[tuple[str, TaskId]] = set()

    def schedules(self, count: int) -> list[Decision]:
        """Run until the scheduler has been asked so many times; the decisions that were enacted."""
        until, enacted = self.asked + count, []
        while self.asked < until:
            decision = self.window()
            if decision is not None and decision.outcome == ENACTED:
                enacted.append(decision)
        return enacted

    def window(self) -> Decision | None:
        self.now += self.window_seconds
        sample = self.measure()
        load = {name: self.estimators[name].add(measured) for name, measured in sample.loads.items()}
        trigger = self.generator.due(self.now, sample, self.truth.cluster)
        if trigger is None:
            return None
        self.asked += 1
        situation = Situation(self.truth.graphs, self.truth.cluster, load, self.plan)
        result = check_result(situation, self.scheduler.schedule(situation.graphs, situation.cluster, load, self.plan))
        decision = self.generator.decide(situation, result, trigger, self.now)
        if decision.outcome == ENACTED and self.generator.accepted is not None:
            self.carry_out(self.generator.accepted, decision)
        return decision

    def carry_out(self, result: NewPlan, decision: Decision) -> None:
        self.moved = {(name, task) for name, plan in result.plans.items()
                      for task in Plan.diff(self.plan[name], plan).moved}
        self.plan.update(result.plans)
        self.generator.enacted(decision, self.now)

    def measure(self) -> WindowSample:
        loads = {name: self.noisy(name, load) for name, load in self.truth.load.items()}
        self.moved = set()
        cpu, busy = dict.fromkeys((slot.number for slot in self.truth.cluster.slots), 0.0), {}
        for name, load in loads.items():
            for task, seen in load.tasks.items():
                slot = self.plan[name].placement[task]
                cpu[slot] += seen.cpu_mhz
                busy[slot] = busy.get(slot, 0.0) + seen.busy_seconds / load.window_seconds
        workers = {slot.number: WorkerLoad(slot.node, cpu[slot.number], busy=busy.get(slot.number, 0.0))
                   for slot in self.truth.cluster.slots}
        nodes = {node.name: NodeLoad(sum(worker.cpu_mhz for worker in workers.values() if worker.node == node.name),
                                     node.capacity_mhz) for node in self.truth.cluster.nodes}
        return WindowSample(self.now, self.window_seconds, loads, self.plan, workers, nodes)

    def noisy(self, name: str, load: Load) -> Load:
        """The true load over one window, with noise; of tasks that have just moved, half a window."""
        scale = self.window_seconds / load.window_seconds
        settling = tuple(task for topology, task in sorted(self.moved) if topology == name)
        whole = {task: 0.5 if task in settling else 1.0 for task in load.tasks}
        tasks, traffic = {}, {}
        for task, seen in load.tasks.items():
            mhz = self.truth.cluster.node_of(self.plan[name].placement[task]).mhz
            used = seen.cpu_mhz * whole[task] * self.factor(CPU_NOISE)
            tasks[task] = replace(seen, cpu_mhz=used, busy_seconds=self.window_seconds * used / mhz,
                                  executed=int(seen.executed * scale))
        for (source, target), tuples in load.traffic.items():
            part = min(whole[source], whole[target])
            traffic[source, target] = tuples * scale * part * self.factor(TRAFFIC_NOISE)
        groups = {component: tuple(count * scale * self.factor(TRAFFIC_NOISE) for count in counts)
                  for component, counts in load.key_groups.items()}
        return Load(self.window_seconds, tasks, traffic, settling, groups)

    def factor(self, noise: float) -> float:
        return max(0.0, 1 + noise * float(self.rng.standard_normal()))
