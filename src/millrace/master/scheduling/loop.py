"""The scheduling loop, on the master's thread: at the end of each load window it records the load, asks the scheduler if the
schedule generator says so, and enacts plans that are accepted.

    control/scheduling/schedule_generator.py   decides when to ask, and what to do with the answer
    control/scheduling/plan_acceptance.py      decides whether a plan is worth its moves
    scheduler_process.py                       runs the scheduler, in its own process
    control/moving/plan_changes.py             applies an accepted plan to the running topologies
    master/plans/distribution.py               sends the new plan to the nodes
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

from millrace.config import HISTORY, HISTORY_RETENTION, LOAD_PERIOD, MIGRATION_STABLE, MIGRATION_WATCH
from millrace.control.events import Event, Replanned, Say
from millrace.control.migrations import Migration
from millrace.control.moves import PERSON
from millrace.control.scheduling.hot_groups import HotGroups
from millrace.control.scheduling.load_smoothing import Estimator, EstimatorParameters, make_estimator
from millrace.control.scheduling.schedule_generator import ENACTED, Choice, Decision, Policy, ScheduleGenerator
from millrace.control.strategies import catalogue
from millrace.control.strategies.steps import PlacementChange
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING
from millrace.elastic.elastic_loop import ElasticDecision
from millrace.errors import BadParameter, MillraceError, SchedulerFailed, StalePlan
from millrace.master.load.history import History, default_history_url
from millrace.master.load.migration_log import MigrationLog, replay_seconds
from millrace.master.load.monitor import LoadMonitor, WorkerMeters
from millrace.master.load.observed import TopologyObserved
from millrace.master.scheduling.elastic import Elasticity
from millrace.master.scheduling.scheduler_process import SchedulerAnswer, SchedulerProcess
from millrace.master.state_view import MasterView
from millrace.model.load import Load
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import PERIOD_SECONDS, make_scheduler, traits
from millrace.schedulers.rules import check_result, result_from_json

log = logging.getLogger("millrace.master")
OFF = "off"  # no scheduler: tasks stay where they were first placed, and move only when their worker is lost
KEEP_NOTHING = "none"
DECISIONS_REMEMBERED = 20  # by earlier masters of the same cluster
MIGRATIONS_REMEMBERED = 100
CHECK_SECONDS = 30.0  # to import and construct a user's scheduler
NOTHING_CHOSEN = Choice(OFF, {}, PERIOD_SECONDS)


class Process(Protocol):
    """A process that reports for a slot: a worker, or a Spark executor."""

    generation: int
    cpu_seconds: float
    memory_mb: float


class SchedulingPort(Protocol):
    """The part of the master that the scheduling loop uses."""

    @property
    def state(self) -> MasterView:
        """Workers, topologies and plans."""

    @property
    def observed(self) -> Mapping[str, TopologyObserved]:
        """Reports of the tasks, by topology."""

    def processes(self) -> Mapping[int, Process]:
        """All processes that report, by slot."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event."""

    def say(self, message: Say) -> None:
        """Report something to users."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread; callable from any thread."""


class SchedulingLoop:
    """Called on the master's thread. `cluster`: name of the cluster, for the history."""

    def __init__(self, cluster: str, settings: Mapping[str, Any], port: SchedulingPort) -> None:
        self._cluster, self._port = cluster, port
        self._window_seconds: float = LOAD_PERIOD.of(settings)
        self._history_url: str | None = HISTORY.of(settings)
        self._retention: float = HISTORY_RETENTION.of(settings) * 3600
        self._history: History | None = None
        self._monitor = LoadMonitor(time.monotonic())
        self._estimator = ("ewma", make_estimator("ewma"))
        self._estimators: dict[str, Estimator] = {}
        self._process = SchedulerProcess()
        self._trials = SchedulerProcess(keep=False)  # for schedulers not in use yet: they must not wait for the one in use
        self.asking = False  # the scheduler has not answered yet
        self.unplaced = ""  # why the scheduler in use has no place for some tasks, by its last answer
        self._reported = ""  # the last failure that was reported
        self.generator = ScheduleGenerator(NOTHING_CHOSEN, Policy())
        self.sample: WindowSample | None = None
        self.load: dict[str, Load] = {}  # estimates, by topology
        self.elastic = Elasticity(port, self._record_elastic)
        self.hot_groups = HotGroups()
        self.migrations = MigrationLog(MIGRATION_STABLE.of(settings), MIGRATION_WATCH.of(settings))
        if self._history_url not in (None, KEEP_NOTHING):
            self._open_history()  # named by the user: if it cannot be reached, the master must not start

    # -- windows -------------------------------------------------------------------------------------------------------

    @property
    def window_seconds(self) -> float:
        """Length of a load window, at most the scheduler's period and that of elastic loops: they need a fresh load each
        time."""
        periods = [self._window_seconds]
        if self.generator.choice.name != OFF:
            periods.append(self.generator.period)
        if self.elastic.window_seconds is not None:
            periods.append(self.elastic.window_seconds)
        return min(periods)

    def tick(self, now: float) -> None:
        self._record_migrations(self.migrations.settle(now))
        if now - self._monitor.since >= self.window_seconds:
            self.end_window(now)

    def end_window(self, now: float) -> None:
        state = self._port.state
        plans = {name: topology.plan for name, topology in state.topologies.items() if name in self._port.observed}
        workers = {slot: WorkerMeters(process.generation, process.cpu_seconds, process.memory_mb)
                   for slot, process in self._port.processes().items() if process.memory_mb}  # 0 before its first report
        observed = {name: self._port.observed[name] for name in plans}
        sample = self._monitor.end_window(now, time.time(), observed, plans, workers, state.cluster())
        self.load = self._estimate(sample)
        self.sample = predicted = self.elastic.predict(sample, self.load)
        self._record(lambda history: history.record_window(predicted))
        self.elastic.end_window(now, predicted)
        for warning in self.hot_groups.observe({name: state.topologies[name].graph for name in plans}, sample.loads, plans):
            self._port.say(warning)
        if self.generator.choice.name == OFF:
            return
        situation = self.situation()
        measured = self.generator.observe(situation)
        if measured is not None:
            self._record_decision(measured)
        if not self.asking and situation.graphs:
            trigger = self.generator.due(now, sample, situation.cluster)
            if trigger is not None:
                self._ask(situation, trigger)

    def _estimate(self, sample: WindowSample) -> dict[str, Load]:
        try:
            self._estimators = {name: self._estimators.get(name) or self._estimator[1].fresh() for name in sample.loads}
            estimates = {name: self._estimators[name].add(load) for name, load in sample.loads.items()}
            if not all(isinstance(load, Load) for load in estimates.values()):
                raise TypeError("it must return a Load")
            return estimates
        except Exception as error:  # a user's own estimator may raise anything
            self._port.say(Say(f"estimator {self._estimator[0]} failed ({type(error).__name__}: {error}): loads are used "
                               "unsmoothed from now on", level="warning"))
            self._estimator, self._estimators = ("last", make_estimator("last")), {}
            return dict(sample.loads)

    def workers_joined(self) -> None:
        """Ask the scheduler at the end of the window: there are more slots than it knew."""
        self.unplaced = ""
        self.generator.ask()

    def forget(self, topology: str) -> None:
        self._monitor.forget(topology)
        self._estimators.pop(topology, None)
        self.load.pop(topology, None)
        self.elastic.forget(topology)
        self._record_migrations(self.migrations.forget(topology))

    def situation(self) -> Situation:
        """The scheduler's input: the topologies that run with all their tasks, the cluster, loads and plans."""
        state = self._port.state
        planned = [topology for topology in state.topologies.values() if _can_be_planned(topology)]
        return Situation(tuple(topology.graph for topology in planned), state.cluster(), dict(self.load),
                         {name: topology.plan for name, topology in state.topologies.items()})

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _ask(self, situation: Situation, trigger: str) -> None:
        choice, policy = self.generator.choice, self.generator.policy
        request = {"scheduler": choice.name, "parameters": dict(choice.parameters), "situation": situation.to_json()}

        def done(answer: SchedulerAnswer | SchedulerFailed) -> None:  # on another thread
            with suppress(MillraceError):  # the master is ending
                self._port.call(lambda: self._answered(situation, trigger, choice, answer))

        self.asking = True
        self._process.ask(request, policy.time_limit, done)

    def _answered(self, situation: Situation, trigger: str, choice: Choice, answer: SchedulerAnswer | SchedulerFailed) -> None:
        self.asking = False
        if choice is not self.generator.choice:
            return  # another scheduler was chosen meanwhile and will be asked
        if isinstance(answer, SchedulerFailed):
            self._failed(self.generator.failed(str(answer), trigger, time.time()))
            return
        try:
            result = check_result(situation, result_from_json(answer))
        except (MillraceError, KeyError, TypeError, ValueError) as error:
            self._failed(self.generator.failed(str(error), trigger, time.time()))
            return
        self.unplaced = result.reason if isinstance(result, CannotPlace) else ""
        decision = self.generator.decide(situation, result, trigger, time.time())
        if decision.outcome == ENACTED and isinstance(result, NewPlan):
            decision = self._enact(situation, result, decision)
        else:
            self._reported = ""
        self._record_decision(decision)

    def _failed(self, decision: Decision) -> None:
        self._report_once(f"scheduler {decision.scheduler} failed, the plan stays as it is: {decision.reason}. It will be "
                          "asked again; fix it, or choose another with `millrace scheduler set`", decision)
        self._record_decision(decision)

    def _report_once(self, text: str, decision: Decision) -> None:
        """Report a failure. Repeats of the same failure are not reported."""
        if text != self._reported:
            self._reported = text
            self._port.say(Say(text, level="warning", cause=f"decision {decision.number}"))

    def _enact(self, situation: Situation, result: NewPlan, decision: Decision) -> Decision:
        based_on = {name: plan.version for name, plan in situation.plan.items()}
        try:
            self._port.tell(Replanned(result.plans, based_on, f"{decision.scheduler}: {result.reason}", decision.number,
                                      self.generator.policy.strategy, self.generator.policy.strategy_parameters))
        except MillraceError as error:
            if not isinstance(error, StalePlan) and not self._under_way(result.plans):
                self._report_once(f"plans of scheduler {decision.scheduler} cannot be carried out: {error}. Choose another "
                                  "strategy with `millrace scheduler set --strategy`, or another scheduler", decision)
            return self.generator.overtaken(decision, str(error))
        self._reported = ""
        self.generator.enacted(decision, time.monotonic())
        return decision

    def _under_way(self, names: Iterable[str]) -> bool:
        """True if tasks of these topologies move just now: a refusal because of that passes by itself."""
        topologies = self._port.state.topologies
        return any(name not in topologies or topologies[name].migration is not None or topologies[name].scaling is not None
                   or not topologies[name].handover.at_rest for name in names)

    def _check_strategy(self, name: str) -> None:
        """Raise `TopologyError` if a running topology does not allow the strategy. One that runs in batches uses none."""
        strategy = catalogue.strategy_named(name)
        for topology in self._port.state.topologies.values():
            if not topology.batched:
                catalogue.check_allowed(strategy, PlacementChange(topology.graph, {}, {}, {}), ())

    def _record_decision(self, decision: Decision) -> None:
        log.info("scheduler %s: %s (%s)", decision.scheduler, decision.outcome, decision.reason)
        self._record(lambda history: history.record_decision(decision.to_json()))

    def _record_elastic(self, decision: ElasticDecision) -> None:
        self._record(lambda history: history.record_elastic_decision(decision.to_json()))

    # -- requests of users ---------------------------------------------------------------------------------------------

    def choose(self, name: str, parameters: dict[str, Any], policy: dict[str, Any],
               estimator: str | None = None, estimator_parameters: dict[str, Any] | None = None) -> Future[dict[str, Any]]:
        """Use this scheduler from now on; nothing changes if anything about it is wrong. Users' own schedulers are first
        constructed in another process, so the answer comes later."""
        new_policy = self.generator.policy.changed(policy)
        if "strategy" in policy:  # it may have been chosen before a topology came that does not allow it
            self._check_strategy(new_policy.strategy)
        if name == self.generator.choice.name:
            parameters = {**self.generator.choice.parameters, **parameters}
        if name == OFF and parameters:
            raise BadParameter(f"{OFF!r} is not a scheduler and has no parameter {', '.join(map(repr, parameters))}")
        new_estimator = self._changed_estimator(estimator, estimator_parameters or {})
        future: Future[dict[str, Any]] = Future()

        def choose(values: dict[str, Any], period: float, weighs_itself: bool) -> None:
            if new_estimator is not self._estimator:
                self._estimator, self._estimators = new_estimator, {}
            self.generator.set(Choice(name, values, period, weighs_itself), new_policy)
            self._reported = self.unplaced = ""
            self._process.renew()
            shown = ", ".join(f"{key}={value}" for key, value in values.items())
            mode = " (dry run)" if new_policy.dry_run else ""
            self._port.say(Say(f"scheduler {name}({shown}) is in use{mode}", cause=PERSON))
            future.set_result(self.settings())

        if ":" not in name:  # a built-in scheduler, or off
            if name == OFF:
                choose({}, NOTHING_CHOSEN.period, False)
            else:
                scheduler = make_scheduler(name, parameters)
                choose(parameters_of(scheduler), *traits(scheduler))
        else:
            self._try_out(name, parameters, choose, future)
        return future

    def _changed_estimator(self, name: str | None, parameters: dict[str, Any]) -> tuple[str, EstimatorParameters]:
        """The estimator with these changes; whatever is omitted stays as it is."""
        current, values = self._estimator[0], parameters_of(self._estimator[1])
        if not parameters and name in (None, current):
            return self._estimator
        name = name or current
        return name, make_estimator(name, {**values, **parameters} if name == current else parameters)

    def _try_out(self, name: str, parameters: dict[str, Any], choose: Callable[[dict[str, Any], float, bool], None],
                 future: Future[dict[str, Any]]) -> None:
        def done(answer: SchedulerAnswer | SchedulerFailed) -> None:  # on another thread
            try:
                if isinstance(answer, SchedulerFailed):
                    raise SchedulerFailed(f"scheduler {name!r} cannot be used, nothing has changed: {answer}")
                self._port.call(lambda: choose(answer["parameters"], answer["period"], answer["weighs_itself"]))
            except Exception as error:
                future.set_exception(error)

        self._trials.ask({"scheduler": name, "parameters": parameters}, CHECK_SECONDS, done)

    def settings(self) -> dict[str, Any]:
        """Scheduler, policy and estimator in use, as `scheduler show` prints them."""
        generator = self.generator
        return {"scheduler": generator.choice.name, "parameters": dict(generator.choice.parameters),
                "policy": {**parameters_of(generator.policy), "period": generator.period, "min_gain": generator.min_gain},
                "estimator": {"name": self._estimator[0], "parameters": parameters_of(self._estimator[1])},
                "window_seconds": self.window_seconds,
                "last_decision": generator.decisions[-1].to_json() if generator.decisions else None,
                "history": self._history.status() if self._history is not None else None}

    def past(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions, in order of time."""
        return [decision.to_json() for decision in list(self.generator.decisions)[-limit:]] if limit > 0 else []

    # -- history -------------------------------------------------------------------------------------------------------

    def add_migration(self, migration: Migration, new_pids: Sequence[int] = ()) -> None:
        """Add a migration that has ended to the record. `new_pids`: the processes of the workers that it restarted."""
        self._open_if_wanted()  # its number comes after those in the history
        topology = self._port.state.topologies.get(migration.topology)
        timeout = replay_seconds(topology.graph) if topology is not None else 0.0
        self.migrations.add(migration, time.monotonic(), time.time(), new_pids, timeout)

    def _record_migrations(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._open_if_wanted()
            if self._history is not None:
                self._history.record_migration(row)

    def _record(self, record: Callable[[History], None]) -> None:
        self._open_if_wanted()
        if self._history is not None:
            record(self._history)

    def _open_if_wanted(self) -> None:
        if self._history is None and self._history_url is None:
            try:
                self._open_history()
            except MillraceError as error:
                self._history_url = KEEP_NOTHING
                self._port.say(Say(f"no history is kept: {error}", level="warning"))

    def _open_history(self) -> None:
        self._history = History(self._history_url or default_history_url(), self._cluster, self._retention)
        past = reversed(self._history.decisions(DECISIONS_REMEMBERED))
        self.generator.remember(Decision.from_json(row) for row in past)
        self.elastic.remember(reversed(self._history.elastic_decisions(DECISIONS_REMEMBERED)))
        self.migrations.remember(reversed(self._history.migrations(MIGRATIONS_REMEMBERED)))

    def close(self) -> None:
        self._process.close()
        self._trials.close()
        if self._history is not None:
            self._history.close()


def _can_be_planned(topology: TopologyState) -> bool:
    return topology.status in (RUNNING, PAUSED) and len(topology.places) == len(topology.graph.tasks())
