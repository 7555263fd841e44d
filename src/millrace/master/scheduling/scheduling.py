"""The load monitor, the history and the schedule generator at work, on the master's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from millrace.config import HISTORY, HISTORY_RETENTION, LOAD_PERIOD
from millrace.control.events import Replanned, Say
from millrace.control.load_smoothing import Estimator, EstimatorParameters, make_estimator
from millrace.control.schedule_generator import ENACTED, Choice, Decision, Policy, ScheduleGenerator
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING
from millrace.errors import BadParameter, MillraceError, SchedulerFailed
from millrace.master.load.history import History, default_history_url
from millrace.master.load.monitor import LoadMonitor, WorkerMeters
from millrace.master.scheduling.planner import Answer, Planner
from millrace.model.load import Load
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.base import NewPlan
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import PERIOD_SECONDS, make_scheduler, traits
from millrace.schedulers.rules import check_result, result_from_json

if TYPE_CHECKING:
    from millrace.master.service import Master

log = logging.getLogger("millrace.master")
OFF = "off"  # no scheduler: tasks stay where they are put first, and move only when their worker is lost
KEEP_NOTHING = "none"
DECISIONS_REMEMBERED = 20  # of earlier masters of the same cluster
CHECK_SECONDS = 30.0  # for a user's scheduler to be imported and made
NOTHING_CHOSEN = Choice(OFF, {}, PERIOD_SECONDS)


class Scheduling:
    """What the master does about load. `tick` and everything else is called on the master's thread."""

    def __init__(self, master: Master) -> None:
        self._master, settings = master, master.settings
        self._window_seconds: float = LOAD_PERIOD.of(settings)
        self._history_url: str | None = HISTORY.of(settings)
        self._retention: float = HISTORY_RETENTION.of(settings) * 3600
        self._history: History | None = None
        self._monitor = LoadMonitor(time.monotonic())
        self._estimator = ("ewma", make_estimator("ewma"))
        self._estimators: dict[str, Estimator] = {}
        self._planner = Planner()
        self._trials = Planner(keep=False)  # of schedulers that are not in use yet: they must not wait for the one that is
        self._asking = False  # the planner has not answered yet
        self._told = ""  # the last failure that people were told of
        self.generator = ScheduleGenerator(NOTHING_CHOSEN, Policy())
        self.sample: WindowSample | None = None
        self.load: dict[str, Load] = {}  # estimates, by topology
        if self._history_url not in (None, KEEP_NOTHING):
            self._open_history()  # asked for by name: if it cannot be reached the master must not start

    # -- windows -------------------------------------------------------------------------------------------------------

    @property
    def window_seconds(self) -> float:
        """Windows are no longer than the scheduler's period: it needs a fresh load each time."""
        if self.generator.choice.name == OFF:
            return self._window_seconds
        return min(self._window_seconds, self.generator.period)

    def tick(self, now: float) -> None:
        if now - self._monitor.since >= self.window_seconds:
            self.end_window(now)

    def end_window(self, now: float) -> None:
        master = self._master
        plans = {name: topology.plan for name, topology in master.state.topologies.items() if name in master.observed}
        workers = {slot: WorkerMeters(connection.generation, connection.cpu_seconds, connection.memory_mb)
                   for slot, connection in master.processes().items() if connection.memory_mb}  # it has reported
        observed = {name: master.observed[name] for name in plans}
        sample = self._monitor.end_window(now, time.time(), observed, plans, workers, master.state.cluster())
        self.sample, self.load = sample, self._estimate(sample)
        self._record(lambda history: history.record_window(sample))
        if self.generator.choice.name == OFF:
            return
        situation = self.situation()
        seen = self.generator.observe(situation)
        if seen is not None:
            self._keep(seen)
        if not self._asking and situation.graphs:
            trigger = self.generator.due(now, sample, situation.cluster)
            if trigger is not None:
                self._ask(situation, trigger)

    def _estimate(self, sample: WindowSample) -> dict[str, Load]:
        try:
            self._estimators = {name: self._estimators.get(name) or self._estimator[1].fresh() for name in sample.loads}
            found = {name: self._estimators[name].add(load) for name, load in sample.loads.items()}
            if not all(isinstance(load, Load) for load in found.values()):
                raise TypeError("it must return a Load")
            return found
        except Exception as error:  # a user's own estimator may raise anything
            self._master.say(Say(f"estimator {self._estimator[0]} failed ({type(error).__name__}: {error}): loads are taken as "
                                 "they are measured from now on", level="warning"))
            self._estimator, self._estimators = ("last", make_estimator("last")), {}
            return dict(sample.loads)

    def forget(self, topology: str) -> None:
        self._monitor.forget(topology)
        self._estimators.pop(topology, None)
        self.load.pop(topology, None)

    def situation(self) -> Situation:
        """What a scheduler is asked about: the topologies that run with all their tasks."""
        state = self._master.state
        asked = [topology for topology in state.topologies.values() if _can_be_planned(topology)]
        return Situation(tuple(topology.graph for topology in asked), state.cluster(), dict(self.load),
                         {name: topology.plan for name, topology in state.topologies.items()})

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _ask(self, situation: Situation, trigger: str) -> None:
        choice, policy = self.generator.choice, self.generator.policy
        request = {"scheduler": choice.name, "parameters": dict(choice.parameters), "situation": situation.to_json()}

        def done(answer: Answer | SchedulerFailed) -> None:  # on the planner's thread
            with suppress(MillraceError):  # the master is ending
                self._master.call(lambda: self._answered(situation, trigger, choice, answer))

        self._asking = True
        self._planner.ask(request, policy.time_limit, done)

    def _answered(self, situation: Situation, trigger: str, choice: Choice, answer: Answer | SchedulerFailed) -> None:
        self._asking = False
        if choice is not self.generator.choice:
            return  # another scheduler has been chosen meanwhile: it will be asked
        if isinstance(answer, SchedulerFailed):
            self._failed(self.generator.failed(str(answer), trigger, time.time()))
            return
        try:
            result = check_result(situation, result_from_json(answer))
        except (MillraceError, KeyError, TypeError, ValueError) as error:
            self._failed(self.generator.failed(str(error), trigger, time.time()))
            return
        decision = self.generator.decide(situation, result, trigger, time.time())
        if decision.outcome == ENACTED and isinstance(result, NewPlan):
            decision = self._enact(situation, result, decision)
        self._told = ""
        self._keep(decision)

    def _failed(self, decision: Decision) -> None:
        if decision.reason != self._told:  # once is enough: it will fail the same way each time
            self._told = decision.reason
            self._master.say(Say(f"scheduler {decision.scheduler} failed, the plan stays as it is: {decision.reason}. It will "
                                 "be asked again; mend it, or take another with `millrace scheduler set`", level="warning"))
        self._keep(decision)

    def _enact(self, situation: Situation, result: NewPlan, decision: Decision) -> Decision:
        based_on = {name: plan.version for name, plan in situation.plan.items()}
        try:
            self._master.tell(Replanned(result.plans, based_on, f"{decision.scheduler}: {result.reason}"))
        except MillraceError as error:
            return self.generator.overtaken(decision, str(error))
        self.generator.enacted(decision, time.monotonic())
        return decision

    def _keep(self, decision: Decision) -> None:
        log.info("scheduler %s: %s (%s)", decision.scheduler, decision.outcome, decision.reason)
        self._record(lambda history: history.record_decision(decision.to_json()))

    # -- what people ask for -------------------------------------------------------------------------------------------

    def choose(self, name: str, parameters: dict[str, Any], policy: dict[str, Any],
               estimator: str | None = None, estimator_parameters: dict[str, Any] | None = None) -> Future[dict[str, Any]]:
        """Use this scheduler from now on; nothing changes if anything about it is wrong. Users' own are tried out in the
        planner's process first, so the answer comes later."""
        new_policy = self.generator.policy.changed(policy)
        if name == self.generator.choice.name:
            parameters = {**self.generator.choice.parameters, **parameters}
        if name == OFF and parameters:
            raise BadParameter(f"{OFF!r} is no scheduler and has no parameter {', '.join(map(repr, parameters))}")
        made = self._changed_estimator(estimator, estimator_parameters or {})
        future: Future[dict[str, Any]] = Future()

        def choose(values: dict[str, Any], period: float, weighs_itself: bool) -> None:
            if made is not self._estimator:
                self._estimator, self._estimators = made, {}
            self.generator.set(Choice(name, values, period, weighs_itself), new_policy)
            self._told = ""
            self._planner.renew()
            given = ", ".join(f"{key}={value}" for key, value in values.items())
            advice = ", giving advice only" if new_policy.dry_run else ""
            self._master.say(Say(f"scheduler {name}({given}) is in use{advice}"))
            future.set_result(self.shown())

        if ":" not in name:  # one of ours, or none at all
            if name == OFF:
                choose({}, NOTHING_CHOSEN.period, False)
            else:
                scheduler = make_scheduler(name, parameters)
                choose(parameters_of(scheduler), *traits(scheduler))
        else:
            self._try_out(name, parameters, choose, future)
        return future

    def _changed_estimator(self, name: str | None, parameters: dict[str, Any]) -> tuple[str, EstimatorParameters]:
        """What is not given stays as it is."""
        current, values = self._estimator[0], parameters_of(self._estimator[1])
        if not parameters and name in (None, current):
            return self._estimator
        name = name or current
        return name, make_estimator(name, {**values, **parameters} if name == current else parameters)

    def _try_out(self, name: str, parameters: dict[str, Any], choose: Callable[[dict[str, Any], float, bool], None],
                 future: Future[dict[str, Any]]) -> None:
        def done(answer: Answer | SchedulerFailed) -> None:  # on the planner's thread
            try:
                if isinstance(answer, SchedulerFailed):
                    raise SchedulerFailed(f"scheduler {name!r} cannot be used, nothing has changed: {answer}")
                self._master.call(lambda: choose(answer["parameters"], answer["period"], answer["weighs_itself"]))
            except Exception as error:
                future.set_exception(error)

        self._trials.ask({"scheduler": name, "parameters": parameters}, CHECK_SECONDS, done)

    def shown(self) -> dict[str, Any]:
        """What `scheduler show` prints."""
        generator = self.generator
        return {"scheduler": generator.choice.name, "parameters": dict(generator.choice.parameters),
                "policy": {**parameters_of(generator.policy), "period": generator.period, "min_gain": generator.min_gain},
                "estimator": {"name": self._estimator[0], "parameters": parameters_of(self._estimator[1])},
                "window_seconds": self.window_seconds,
                "last_decision": generator.decisions[-1].to_json() if generator.decisions else None,
                "history": self._history.status() if self._history is not None else None}

    def past(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions, the oldest first."""
        return [decision.to_json() for decision in list(self.generator.decisions)[-limit:]] if limit > 0 else []

    # -- history -------------------------------------------------------------------------------------------------------

    def _record(self, record: Callable[[History], None]) -> None:
        if self._history is None and self._history_url is None:
            try:
                self._open_history()
            except MillraceError as error:
                self._history_url = KEEP_NOTHING
                self._master.say(Say(f"no history is kept: {error}", level="warning"))
        if self._history is not None:
            record(self._history)

    def _open_history(self) -> None:
        self._history = History(self._history_url or default_history_url(), self._master.name, self._retention)
        past = reversed(self._history.decisions(DECISIONS_REMEMBERED))
        self.generator.remember(Decision.from_json(found) for found in past)

    def close(self) -> None:
        self._planner.close()
        self._trials.close()
        if self._history is not None:
            self._history.close()


def _can_be_planned(topology: TopologyState) -> bool:
    return topology.status in (RUNNING, PAUSED) and len(topology.places) == len(topology.graph.tasks())
