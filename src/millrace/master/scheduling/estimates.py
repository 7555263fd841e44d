"""Estimates of the load of all topologies, by the estimator in use: the scheduler's own, unless a user has named another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.control.events import Say
from millrace.control.scheduling.load_smoothing import Estimator, EstimatorParameters, make_estimator
from millrace.control.scheduling.plan_gains import WINDOWS_KEPT
from millrace.model.graph import ACKER, TopologyGraph
from millrace.model.load import Load
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import ESTIMATOR

UNSMOOTHED = "last"


@dataclass(frozen=True, slots=True)
class EstimatorChoice:
    """The estimator in use. `by_user`: a user has named it, or its parameters."""

    name: str = ESTIMATOR
    parameters: EstimatorParameters = field(default_factory=lambda: make_estimator(ESTIMATOR))
    by_user: bool = False

    def changed(self, name: str | None, values: Mapping[str, Any]) -> EstimatorChoice:
        """With these changes by a user; whatever is omitted stays as it is."""
        if name is None and not values:
            return self
        chosen = name or self.name
        kept = parameters_of(self.parameters) if chosen == self.name else {}
        return EstimatorChoice(chosen, make_estimator(chosen, {**kept, **values}), True)

    def for_scheduler(self, name: str) -> EstimatorChoice:
        """The estimator that a scheduler is meant for, unless a user has named one."""
        return self if self.by_user or name == self.name else EstimatorChoice(name, make_estimator(name))

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "parameters": parameters_of(self.parameters)}


class LoadEstimates:
    """An estimator for each topology, all of one kind. The last windows are kept for the next estimator."""

    def __init__(self, say: Callable[[Say], None]) -> None:
        self._say = say
        self._estimators: dict[str, Estimator] = {}
        self._past: dict[str, deque[Load]] = {}
        self.choice = EstimatorChoice()

    def use(self, choice: EstimatorChoice) -> bool:
        """Use this estimator from now on. Another one begins with the last windows. Returns whether it is another one."""
        changed = choice.to_json() != self.choice.to_json()
        if changed:
            self._estimators = {}
        self.choice = choice
        return changed

    def add(self, loads: Mapping[str, Load]) -> dict[str, Load]:
        """The estimates after one more window. Topologies without a load in it are forgotten."""
        estimates = self._add(loads)
        for name in self._past.keys() - loads.keys():
            self.forget(name)
        return estimates

    def recall(self, topology: str, past: Sequence[Load]) -> Load | None:
        """Take the windows of an earlier run, oldest first; the estimate after them, None if there are none."""
        self.forget(topology)
        if not past:
            return None
        self._past[topology] = deque(past[:-1], WINDOWS_KEPT)
        return self._add({topology: past[-1]})[topology]

    def forget(self, topology: str) -> None:
        self._estimators.pop(topology, None)
        self._past.pop(topology, None)

    def _add(self, loads: Mapping[str, Load]) -> dict[str, Load]:
        """An estimator that fails is not used any longer."""
        try:
            estimates = {name: self._estimator(name).add(load) for name, load in loads.items()}
            if not all(isinstance(load, Load) for load in estimates.values()):
                raise TypeError("it must return a Load")
        except Exception as error:  # a user's own estimator may raise anything
            self._say(Say(f"estimator {self.choice.name} failed ({type(error).__name__}: {error}): loads are used unsmoothed "
                          "from now on", level="warning"))
            self.use(EstimatorChoice(UNSMOOTHED, make_estimator(UNSMOOTHED), True))
            estimates = dict(loads)
        for name, load in loads.items():
            self._past.setdefault(name, deque(maxlen=WINDOWS_KEPT)).append(load)
        return estimates

    def _estimator(self, topology: str) -> Estimator:
        if topology not in self._estimators:
            estimator = self.choice.parameters.fresh()
            for load in self._past.get(topology, ()):
                estimator.add(load)
            self._estimators[topology] = estimator
        return self._estimators[topology]


def load_of_run(load: Load, graph: TopologyGraph) -> Load | None:
    """The load of an earlier run as one of this topology; None if it had other tasks. The number of ackers depends on that of
    the workers: if there were more or fewer, their load and traffic is not known."""
    tasks = Counter(task.component for task in load.tasks)
    ackers = tasks.pop(ACKER, 0)
    if any(graph.parallelism.get(component) != count for component, count in tasks.items()):
        return None
    if ackers == graph.ackers:
        return load
    kept = {task: measured for task, measured in load.tasks.items() if task.component != ACKER}
    traffic, sizes = ({pair: sent for pair, sent in pairs.items() if pair[0] in kept and pair[1] in kept}
                      for pairs in (load.traffic, load.traffic_bytes))
    return replace(load, tasks=kept, traffic=traffic, traffic_bytes=sizes,
                   settling=tuple(task for task in load.settling if task in kept))
