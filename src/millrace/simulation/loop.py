"""The closed loop: a world under load, measured in windows, and the schedule generator with a scheduler that acts on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from millrace.control.scheduling.bottlenecks import Bottlenecks, changed_topologies
from millrace.control.scheduling.load_smoothing import EstimatorParameters, make_estimator
from millrace.control.scheduling.schedule_generator import ENACTED, Choice, Policy, ScheduleGenerator
from millrace.errors import SchedulerFailed
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.base import Scheduler
from millrace.schedulers.problem import NOWHERE, Flags, Floats, Ints
from millrace.schedulers.registry import traits
from millrace.schedulers.rules import check_result
from millrace.simulation.absences import Absence, away
from millrace.simulation.acks import AckRouting
from millrace.simulation.demand import Demand, Demands
from millrace.simulation.estimates import TaskRows, array_estimator
from millrace.simulation.figures import Run, Window
from millrace.simulation.flow import LinkModel, WindowFlow, flow
from millrace.simulation.measuring import Measured, Meter, Noise
from millrace.simulation.moving import MoveModel
from millrace.simulation.placement_rule import PlacementRule, is_whole
from millrace.simulation.world import Machines, World, sums_at

Progress = Callable[[float], None]  # seconds that have been simulated


@dataclass(frozen=True)
class Conditions:
    """Conditions that all schedulers have in common. `recovery_seconds`: from the loss of a node until its tasks run elsewhere.
    `estimator` of loads: None takes the scheduler's own."""

    hours: float
    window_seconds: float = 20.0
    links: LinkModel = field(default_factory=LinkModel)
    noise: Noise = field(default_factory=Noise)
    absences: tuple[Absence, ...] = ()
    policy: Policy = field(default_factory=Policy)
    estimator: EstimatorParameters | None = None
    moves: MoveModel = field(default_factory=MoveModel)
    recovery_seconds: float = 2.0


def simulated_run(name: str, scheduler: Scheduler, situation: Situation, demands: Demands, conditions: Conditions,
                  rng: np.random.Generator, progress: Progress = lambda seconds: None) -> Run:
    """Run one scheduler. `situation`: the world, and the plan to begin with; tasks without a slot are placed by the scheduler's
    rule. `rng`: for the noise of measurements."""
    loop = _Loop(name, scheduler, situation, demands, conditions, rng)
    while loop.now < conditions.hours * 3600 - 1e-6:
        loop.window()
        progress(loop.now)
    return loop.run


class _Loop:
    def __init__(self, name: str, scheduler: Scheduler, situation: Situation, demands: Demands, conditions: Conditions,
                 rng: np.random.Generator) -> None:
        self.scheduler, self.demands, self.conditions = scheduler, demands, conditions
        self.world, self.machines = World.of(situation), Machines.of(situation.cluster)
        self.acks = AckRouting(self.world)
        self.state = conditions.moves.state(self.world)
        self.generator = ScheduleGenerator(Choice.of(name, scheduler), conditions.policy)
        self.generator.ask()
        self.bottlenecks = Bottlenecks()
        self.placement = PlacementRule(name, scheduler)
        self.meter = Meter(self.world, conditions.noise, rng)
        self.estimator = array_estimator(conditions.estimator or make_estimator(traits(scheduler).estimator),
                                         self.world.source, self.world.target)
        period = self.generator.period
        self.window_seconds = period / math.ceil(period / conditions.window_seconds)  # as the master: windows end with it
        self.now = 0.0
        self.run = Run(name, len(situation.cluster.nodes), self.world.count)
        self.away: frozenset[str] = frozenset()
        self.cluster = situation.cluster
        self.estimate: tuple[Measured, TaskRows, Floats] | None = None  # after the last window
        self.plans = first_plans(self.placement, situation)
        self.slots = self.world.slots_of(self.plans, self.machines.position)
        self.before = self.slots  # where tasks are until the moves under way are done
        self.waiting = np.zeros(len(self.world.graphs))

    def window(self) -> None:
        """Simulate one window, and let the generator decide at its end."""
        begin, end = self.now, min(self.now + self.window_seconds, self.conditions.hours * 3600)
        lost = self._nodes_change(away(self.conditions.absences, begin, end))
        demand = self.demands.between(begin, end)
        moved = (self.before != self.slots) & (self.before >= 0) & ~lost
        parts = self._parts(demand, moved, lost, end - begin)
        for record in self.conditions.moves.records(self.world, self.state, moved):
            self.generator.costs.learn(record)
        self.now = end
        self._record(parts, demand, moved)
        measured = self.meter.measure(parts, moved | lost)
        tasks, edges = self.estimator.add(measured.tasks, measured.edges, measured.settling)
        self._decide(measured, tasks, edges)

    # -- the world ------------------------------------------------------------------------------------------------------

    def _parts(self, demand: Demand, moved: Flags, lost: Flags, seconds: float) -> list[tuple[float, WindowFlow, Ints]]:
        """The window up to the end of its moves and recoveries, and after it."""
        conditions = self.conditions
        switch = 0.0
        if moved.any() or lost.any():
            last = conditions.moves.seconds(self.state, moved, self.before, self.slots, self.machines)
            switch = min(conditions.recovery_seconds if (self.before[moved | lost] < 0).any() else last, seconds / 2)
        parts = []
        for length, slots in ((switch, self.before), (seconds - switch, self.slots)):
            if length > 0:
                routed = self.acks.routed(demand, slots)
                result = flow(self.world, self.machines, conditions.links, routed, slots, self.waiting, length)
                self.waiting = result.waiting
                parts.append((length, result, slots))
        self.before = self.slots
        return parts

    def _record(self, parts: list[tuple[float, WindowFlow, Ints]], demand: Demand, moved: Flags) -> None:
        seconds = sum(length for length, _, _ in parts)
        world, last = self.world, parts[-1][1]
        latency = sum(length / seconds * result.latency for length, result, _ in parts)
        pauses = self.conditions.moves.pauses(self.state[moved])
        waits = sums_at(world.topology[moved], demand.rate[moved] * pauses**2 / 2, len(world.graphs))  # half of it on average
        latency += np.divide(waits, last.offered * seconds, out=np.zeros(len(waits)), where=last.offered > 0)
        self.run.windows.append(Window(
            seconds, sum(length / seconds * result.inter_node for length, result, _ in parts),
            sum(length / seconds * result.nodes_used for length, result, _ in parts),
            sum(length for length, result, _ in parts if result.overloaded), int(moved.sum()), latency * 1000, last.offered))

    def _nodes_change(self, gone: frozenset[str]) -> Flags:
        """Take nodes away and bring them back; returns the tasks that had to be placed elsewhere. The scheduler is asked at the
        end of the window, as it is when workers join."""
        none = np.zeros(self.world.count, dtype=bool)
        if gone == self.away:
            return none
        if self.away - gone:
            self.generator.ask()
        self.away, self.cluster = gone, self.machines.without(gone)
        dead = np.isin(self.machines.slot_node, [number for number, node in enumerate(self.machines.cluster.nodes)
                                                 if node.name in gone])
        newly = (self.slots >= 0) & dead[self.slots]
        lost = newly | (self.slots < 0)
        self.before = np.where(lost | (self.before >= 0) & dead[self.before], NOWHERE, self.before)
        if lost.any():
            self._take(self.placement.complete(Situation(self.world.graphs, self.cluster, self._load(), self.plans)))
            self.run.lost += int(newly.sum())
            for name in {self.world.tasks[task][0] for task in np.flatnonzero(lost).tolist()}:
                self.bottlenecks.forget(name)
        return lost

    def _take(self, plans: Mapping[str, Plan]) -> None:
        self.plans = {**self.plans, **plans}
        self.slots = self.world.slots_of(self.plans, self.machines.position)

    # -- the schedule generator -----------------------------------------------------------------------------------------

    def _load(self) -> Mapping[str, Load]:
        """The estimated load; none before the first window is over."""
        return self.meter.loads(*self.estimate) if self.estimate is not None else {}

    def _situation(self) -> Situation:
        """The scheduler's input: topologies of which a task waits for a slot are not planned."""
        waiting = set(self.world.topology[self.slots < 0].tolist())
        graphs = tuple(graph for number, graph in enumerate(self.world.graphs) if number not in waiting)
        return Situation(graphs, self.cluster, self._load(), self.plans)

    def _decide(self, measured: Measured, tasks: TaskRows, edges: Floats) -> None:
        self.estimate = measured, tasks, edges
        sample = self.meter.sample(self.now, measured, self.machines, self.cluster, self.slots, self.plans)
        pressed = self._pressed(sample, measured)
        if (self.slots < 0).all():
            self.generator.take(sample, self.cluster, pressed)
            return
        trigger = self.generator.due(self.now, sample, self.cluster, pressed)
        if trigger is None:
            return
        situation = self._situation()
        self.generator.observe(situation)
        try:
            result = check_result(situation, self.scheduler.schedule(situation.graphs, situation.cluster, situation.load,
                                                                     situation.plan))
        except Exception as error:  # it may be a user's scheduler
            self.generator.failed(str(error), trigger, self.now)
            self.run.error = self.run.error or f"{type(error).__name__}: {error}"
            return
        decision = self.generator.decide(situation, result, trigger, self.now)
        accepted = self.generator.accepted
        if decision.outcome == ENACTED and accepted is not None:
            self.generator.enacted(decision, self.now)
            self.run.plans += 1
            self._take(accepted.plans)
            for name in changed_topologies(situation.plan, accepted.plans):
                self.bottlenecks.forget(name)

    def _pressed(self, sample: WindowSample, measured: Measured) -> bool:
        """True if a topology falls behind its sources. One at whose sources nothing waits does not: the loads of its tasks,
        which take long to make, are not looked at."""
        waiting = set(self.world.topology[measured.lag > 0].tolist())
        calm = {graph.name: Load(sample.seconds, settling=sample.loads[graph.name].settling)
                for number, graph in enumerate(self.world.graphs) if number not in waiting}
        seen = replace(sample, loads={**sample.loads, **calm})
        self.bottlenecks.add({graph.name: graph for graph in self.world.graphs}, seen, self.cluster)
        return self.bottlenecks.pressed()


def first_plans(placement: PlacementRule, situation: Situation) -> dict[str, Plan]:
    """The plans to begin with: those of the situation, with a slot for every task. Nothing is known of the load yet."""
    plans = placement.complete(replace(situation, load={}))
    missing = [graph.name for graph in situation.graphs if not is_whole(graph, plans)]
    if missing:
        raise SchedulerFailed(f"the tasks of {', '.join(missing)} cannot be placed on {len(situation.cluster.slots)} slots: "
                              "the cluster is too small for them")
    return plans
