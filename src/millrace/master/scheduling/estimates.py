"""Estimates of the load of all topologies, by the estimator in use: the scheduler's own, unless a user has named another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millrace.control.events import Say
from millrace.control.scheduling.load_smoothing import Estimator, EstimatorParameters, make_estimator
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
    """An estimator for each topology, all of one kind."""

    def __init__(self, say: Callable[[Say], None]) -> None:
        self._say = say
        self._estimators: dict[str, Estimator] = {}
        self.choice = EstimatorChoice()

    def use(self, choice: EstimatorChoice) -> None:
        """Use this estimator from now on. Another one begins without a past."""
        if choice.to_json() != self.choice.to_json():
            self._estimators = {}
        self.choice = choice

    def add(self, loads: Mapping[str, Load]) -> dict[str, Load]:
        """The estimates after one more window. An estimator that fails is not used any longer."""
        try:
            self._estimators = {name: self._estimators.get(name) or self.choice.parameters.fresh() for name in loads}
            estimates = {name: self._estimators[name].add(load) for name, load in loads.items()}
            if not all(isinstance(load, Load) for load in estimates.values()):
                raise TypeError("it must return a Load")
            return estimates
        except Exception as error:  # a user's own estimator may raise anything
            self._say(Say(f"estimator {self.choice.name} failed ({type(error).__name__}: {error}): loads are used unsmoothed "
                          "from now on", level="warning"))
            self.use(EstimatorChoice(UNSMOOTHED, make_estimator(UNSMOOTHED), True))
            return dict(loads)

    def recall(self, topology: str, past: Iterable[Load]) -> Load | None:
        """Take the windows of an earlier run, oldest first; the estimate after them, None if there are none."""
        estimate: Load | None = None
        self._estimators[topology] = estimator = self.choice.parameters.fresh()
        for load in past:
            estimate = estimator.add(load)
        return estimate

    def forget(self, topology: str) -> None:
        self._estimators.pop(topology, None)
