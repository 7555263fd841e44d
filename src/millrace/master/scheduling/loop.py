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
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from millrace.config import (
    AGENT_POLL,
    LOAD_PERIOD,
    MIGRATION_STABLE,
    MIGRATION_WATCH,
    WORKER_POLL,
)
from millrace.control.events import ClusterMeasured, LoadEstimated, Replanned, Say, SchedulerChosen
from millrace.control.migrations import Migration
from millrace.control.moves import PERSON
from millrace.control.scheduling.bottlenecks import Bottlenecks, changed_topologies
from millrace.control.scheduling.hot_groups import HotGroups
from millrace.control.scheduling.overload_warnings import OverloadWarnings, Relief
from millrace.control.scheduling.plan_gains import WINDOWS_KEPT
from millrace.control.scheduling.scaled_topologies import ScaledTopologies
from millrace.control.scheduling.schedule_generator import (
    BALANCE,
    ENACTED,
    FAILED,
    OVERTAKEN,
    Choice,
    Decision,
    Policy,
    ScheduleGenerator,
)
from millrace.control.strategies import catalogue
from millrace.control.strategies.steps import PlacementChange
from millrace.control.submission import ackers_for
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import PAUSED, RUNNING
from millrace.control.workers import machine_of
from millrace.errors import BadParameter, MillraceError, SchedulerFailed, StalePlan
from millrace.master.failures import Failures
from millrace.master.load.cluster_links import NO_COSTS, ClusterLinks
from millrace.master.load.history import History
from millrace.master.load.history_tables import PastWindow
from millrace.master.load.migration_log import MigrationLog, replay_seconds
from millrace.master.load.monitor import LoadMonitor
from millrace.master.load.other_processes import OtherProcesses
from millrace.master.scheduling.elastic import Elasticity
from millrace.master.scheduling.estimates import LoadEstimates, load_of_run
from millrace.master.scheduling.port import SchedulingPort
from millrace.master.scheduling.records import Records
from millrace.master.scheduling.scheduler_process import SchedulerAnswer, SchedulerProcess, checked_answer
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.sample import WindowSample
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan, Scheduler, SchedulingResult
from millrace.schedulers.parameters import parameters_of
from millrace.schedulers.registry import OFF, PERIOD_SECONDS, make_scheduler, traits

log = logging.getLogger("millrace.master")
DECISIONS_REMEMBERED = 20  # by earlier masters of the same cluster
MIGRATIONS_REMEMBERED = 100
CHECK_SECONDS = 30.0  # to import and construct a user's scheduler
ELASTIC_WINDOWS = 10  # for which a bottleneck lasts that elasticity should have relieved
OF_CHOICE = ("period", "weighs_itself", "cool_down", "packing")
NOTHING_CHOSEN = Choice(OFF, {}, PERIOD_SECONDS)


class SchedulingLoop:
    """Called on the master's thread. `cluster`: name of the cluster, for the history."""

    def __init__(self, cluster: str, settings: Mapping[str, Any], port: SchedulingPort) -> None:
        self._port = port
        self._window_seconds: float = LOAD_PERIOD.of(settings)
        self._polls: tuple[float, float] = AGENT_POLL.of(settings), WORKER_POLL.of(settings)
        self.records = Records(cluster, settings, port.say, self._remember)
        self._first = time.monotonic()  # when the first window began
        self._monitor, self._others, self.links = LoadMonitor(self._first), OtherProcesses(), ClusterLinks(settings)
        self._estimates, self._failures = LoadEstimates(port.say), Failures(port.say)
        self._named = False  # a scheduler has been chosen, by a user or as the last master's
        self._choices = 0  # so many times
        self._process = SchedulerProcess()
        self._trials = SchedulerProcess(keep=False)  # for schedulers not in use yet: they must not wait for the one in use
        self.asking = False  # the scheduler has not answered yet
        self.unplaced = ""  # why the scheduler in use has no place for some tasks, by its last answer
        self._reported: dict[str, str] = {}  # the last failure that was reported of an outcome
        self.generator = ScheduleGenerator(NOTHING_CHOSEN, Policy())
        self.sample: WindowSample | None = None
        self.load: dict[str, Load] = {}  # estimates, by topology
        self.elastic = Elasticity(port, self.records.elastic_decision)
        self.hot_groups = HotGroups()
        self.bottlenecks = Bottlenecks()
        self._scaled = ScaledTopologies()
        self.overloads = OverloadWarnings()
        self.migrations = MigrationLog(MIGRATION_STABLE.of(settings), MIGRATION_WATCH.of(settings))
        self.records.open_if_named()

    # -- windows -------------------------------------------------------------------------------------------------------

    @property
    def window_seconds(self) -> float:
        """Length of a load window: a whole part of the scheduler's period and of that of elastic loops, so that they have a
        fresh load each time, on time."""
        periods = [self.generator.period] if self.generator.choice.name != OFF else []
        if self.elastic.window_seconds is not None:
            periods.append(self.elastic.window_seconds)
        longest = self.generator.policy.load_period or self._window_seconds
        shortest = min(periods, default=longest)
        return shortest / math.ceil(shortest / longest)

    @property
    def polls(self) -> tuple[float, float]:
        """Seconds between polls of agents, and of workers."""
        return self.generator.policy.agent_poll or self._polls[0], self.generator.policy.worker_poll or self._polls[1]

    def tick(self, now: float) -> None:
        self._record_migrations(self.migrations.settle(now))
        if now >= self._window_end():
            self.end_window(now)

    def _window_end(self) -> float:
        """Time at which the window is over. Windows begin at multiples of their length, however late the last one ended."""
        seconds = self.window_seconds
        return self._first + math.floor((self._monitor.since - self._first) / seconds + 0.5) * seconds + seconds

    def hops(self, topology: str) -> list[dict[str, Any]]:
        """The parts of the latency between each two components of a topology in the last window."""
        observed = self._port.observed.get(topology)
        return observed.hops() if observed is not None else []

    def end_window(self, now: float) -> None:
        state = self._port.state
        plans = {name: topology.plan for name, topology in state.topologies.items() if name in self._port.observed}
        workers = {slot: process.meters for slot, process in self._port.processes().items() if process.meters is not None}
        machines = {slot: machine_of(worker) for slot, worker in state.workers.items()}
        self._failures.guard("measuring links", now, lambda: self.links.end_window(state.workers))
        links = self.links.costs if self.generator.choice.needs_links else NO_COSTS
        self._port.tell(ClusterMeasured(self._others.end_window(workers, machines), links))
        observed = {name: self._port.observed[name] for name in plans}
        sample = self._monitor.end_window(now, time.time(), observed, plans, workers, state.cluster())
        self._failures.guard("estimating the load", now, lambda: self._estimate(sample))
        self._failures.guard("predicting latencies", now, lambda: self.elastic.predict(sample))
        self.sample = predicted = replace(sample, predictions=self.elastic.predictions, estimates=self.load)
        graphs = {name: state.topologies[name].graph for name in plans}
        for part, work in (("recording the window", lambda: self.records.window(predicted)),
                           ("scaling topologies", lambda: self.elastic.end_window(now, predicted)),
                           ("looking for hot key groups", lambda: self._warn_of_hot_groups(graphs, sample)),
                           ("looking for bottlenecks", lambda: self.bottlenecks.add(graphs, sample, state.cluster())),
                           ("scheduling", lambda: self._schedule(now, sample)),
                           ("warning of overload", lambda: self._warn_of_overload(sample))):
            self._failures.guard(part, now, work)

    def _estimate(self, sample: WindowSample) -> None:
        self.load = self._estimates.add(sample.loads)
        self._port.tell(LoadEstimated(self.load))

    def _warn_of_hot_groups(self, graphs: Mapping[str, TopologyGraph], sample: WindowSample) -> None:
        for warning in self.hot_groups.observe(graphs, sample.loads, sample.plans):
            self._port.say(warning)

    def _schedule(self, now: float, sample: WindowSample) -> None:
        """Ask the scheduler, if it is time."""
        situation = self.situation()
        pressed = self.bottlenecks.pressed()
        topologies = self._port.state.topologies
        self._scaled.observe((topology.graph for topology in topologies.values()),
                             {name: load for name, load in sample.loads.items() if not self._under_way([name])})
        if self.generator.choice.name == OFF or self.asking or not situation.graphs:
            self.generator.take(sample, situation.cluster, pressed)
            return
        measured = self.generator.observe(situation)
        if measured is not None:
            self._record_decision(measured)
        if (not self.generator.cooling(now) and not self._under_way(topologies)
                and self._scaled.settled({graph.name for graph in situation.graphs})):
            self.generator.ask()
        trigger = self.generator.due(now, sample, situation.cluster, pressed)
        if trigger is not None:
            self._ask(situation, trigger)

    def _warn_of_overload(self, sample: WindowSample) -> None:
        """Report overload that lasts although the scheduler was asked, and its end."""
        last = self.generator.decisions[-1] if self.generator.decisions else None
        off = self.generator.choice.name == OFF
        bottlenecks, places = self.bottlenecks.lasting(), self.generator.overloaded()
        if (bottlenecks or places) and not off and (last is None or last.outcome == ENACTED or last.scheduler
                                                    not in (self.generator.choice.name, BALANCE)):
            return  # it may still be relieved
        scaled = self.elastic.models()
        patient = {(each.topology, each.component) for each in self.bottlenecks.lasting(ELASTIC_WINDOWS)}
        bottlenecks = [each for each in bottlenecks
                       if each.topology not in scaled or (each.topology, each.component) in patient]
        state = self._port.state
        tried = "" if off or last is None else f"Scheduler {last.scheduler} does not relieve it: {last.reason}"
        relief = Relief({name: topology.graph for name, topology in state.topologies.items()}, dict(sample.plans), sample,
                        state.cluster(), tried)
        for news in self.overloads.update(bottlenecks, places, relief):
            self._port.say(news)

    def workers_joined(self) -> None:
        """Ask the scheduler at the end of the window: there are more slots than it knew."""
        self.unplaced = ""
        self.generator.ask()

    def forget(self, topology: str) -> None:
        self._monitor.forget(topology)
        self._estimates.forget(topology)
        self.bottlenecks.forget(topology)
        self._scaled.forget(topology)
        self.load.pop(topology, None)
        self.elastic.forget(topology)
        self._record_migrations(self.migrations.forget(topology))

    def situation(self) -> Situation:
        """The scheduler's input: the topologies that run with all their tasks, the cluster, loads and plans."""
        state = self._port.state
        planned = [topology for topology in state.topologies.values() if _can_be_planned(topology)]
        return Situation(tuple(topology.graph for topology in planned), state.cluster(), dict(self.load),
                         {name: topology.plan for name, topology in state.topologies.items()})

    def situation_with_links(self) -> Situation:
        """The same with the costs of links, which it has otherwise only for schedulers that need them."""
        situation = self.situation()
        return replace(situation, cluster=replace(situation.cluster, links=self.links.costs))

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _ask(self, situation: Situation, trigger: str) -> None:
        choice, policy = self.generator.choice, self.generator.policy
        request = {"scheduler": choice.name, "parameters": dict(choice.parameters), "situation": situation}

        def done(answer: SchedulerAnswer | SchedulerFailed) -> None:  # on another thread
            result = checked_answer(situation, answer)
            with suppress(MillraceError):  # the master is ending
                self._port.call(lambda: self._answered(situation, trigger, choice, result))

        self.asking = True
        self._process.ask(request, policy.time_limit, done)

    def _answered(self, situation: Situation, trigger: str, choice: Choice, result: SchedulingResult | SchedulerFailed) -> None:
        self.asking = False
        if choice is not self.generator.choice:
            return  # another scheduler was chosen meanwhile and will be asked
        self._failures.guard("deciding on the scheduler's answer", time.monotonic(),
                             lambda: self._decide(situation, trigger, result))

    def _decide(self, situation: Situation, trigger: str, result: SchedulingResult | SchedulerFailed) -> None:
        if isinstance(result, SchedulerFailed):
            self._failed(self.generator.failed(str(result), trigger, time.time()))
            return
        self.unplaced = result.reason if isinstance(result, CannotPlace) else ""
        decision = self.generator.decide(situation, result, trigger, time.time())
        if decision.outcome == ENACTED and self.generator.accepted is not None:
            decision = self._enact(situation, self.generator.accepted, decision)
        self._reported.pop(FAILED, None)
        self._record_decision(decision)
        balanced = self.generator.balanced(situation, decision, time.time())
        if balanced is not None:
            plans, beside = balanced
            self._record_decision(self._enact(situation, plans, beside) if beside.outcome == ENACTED else beside)

    def _failed(self, decision: Decision) -> None:
        self._report_once(f"scheduler {decision.scheduler} failed, the plan stays as it is: {decision.reason}. It will be "
                          "asked again; fix it, or choose another with `millrace scheduler set`", FAILED, decision)
        self._record_decision(decision)

    def _report_once(self, text: str, outcome: str, decision: Decision) -> None:
        """Report a failure. Repeats of the same failure are not reported, until it is known to be over: a scheduler that failed
        answers, or a plan is carried out."""
        if text != self._reported.get(outcome):
            self._reported[outcome] = text
            self._port.say(Say(text, level="warning", cause=f"decision {decision.number}"))

    def _enact(self, situation: Situation, result: NewPlan, decision: Decision) -> Decision:
        based_on = {name: plan.version for name, plan in situation.plan.items()}
        try:
            self._port.tell(Replanned(result.plans, based_on, f"{decision.scheduler}: {result.reason}", decision.number,
                                      self.generator.policy.strategy, self.generator.policy.strategy_parameters))
        except MillraceError as error:
            passes = isinstance(error, StalePlan) or self._under_way(result.plans)
            if not passes:
                self._report_once(f"plans of scheduler {decision.scheduler} cannot be carried out: {error}. Choose another "
                                  "strategy with `millrace scheduler set --strategy`, or another scheduler", OVERTAKEN,
                                  decision)
            return self.generator.overtaken(decision, str(error), passes)
        self._reported.clear()
        self.generator.enacted(decision, time.monotonic())
        for name in changed_topologies(situation.plan, result.plans):
            self.bottlenecks.forget(name)
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
        self.records.decision(decision)

    # -- requests of users ---------------------------------------------------------------------------------------------

    def choose(self, name: str, parameters: dict[str, Any], policy: dict[str, Any],
               estimator: str | None = None, estimator_parameters: dict[str, Any] | None = None,
               enact: bool = False, resumed: bool = False) -> Future[dict[str, Any]]:
        """Use this scheduler from now on; nothing changes if anything about it is wrong. Users' own schedulers are first
        constructed in another process, so the answer comes later. `enact`: carry out its next plan whatever that gains.
        `resumed`: the last master's, which gives way to one that is chosen before the answer."""
        new_policy = self.generator.policy.changed(policy)
        if "strategy" in policy:  # it may have been chosen before a topology came that does not allow it
            self._check_strategy(new_policy.strategy)
        if name == self.generator.choice.name:
            parameters = {**self.generator.choice.parameters, **parameters}
        if name == OFF and parameters:
            raise BadParameter(f"{OFF!r} is not a scheduler and has no parameter {', '.join(map(repr, parameters))}")
        if name == OFF and enact:
            raise BadParameter(f"{OFF!r} makes no plan that could be carried out: name a scheduler, for example even")
        future: Future[dict[str, Any]] = Future()
        before = self._choices

        def choose(choice: Choice, own_estimator: str, scheduler: Scheduler | None = None) -> None:
            if resumed and self._choices != before:
                future.cancel()
                return
            own = self._estimates.choice.for_scheduler(own_estimator)
            if self._estimates.use(own.changed(estimator, estimator_parameters or {})):
                self.generator.ask()
            self._use(choice, new_policy, enact, scheduler)
            future.set_result(self.settings())

        if ":" not in name:  # a built-in scheduler, or off
            if name == OFF:
                choose(NOTHING_CHOSEN, self._estimates.choice.name)
            else:
                scheduler = make_scheduler(name, parameters)
                choose(Choice.of(name, scheduler), traits(scheduler).estimator, scheduler)
        else:
            self._try_out(name, parameters, choose, future)
        return future

    def _use(self, choice: Choice, policy: Policy, enact: bool, scheduler: Scheduler | None) -> None:
        """Put the scheduler in use, and say and record that it is."""
        if choice == self.generator.choice and ":" not in choice.name:  # users' code may have changed
            choice = self.generator.choice  # an answer that is on its way counts
        else:
            self.unplaced = ""
            self._process.renew()
        self.generator.set(choice, policy, enact)
        self._reported.clear()
        shown = ", ".join(f"{key}={value}" for key, value in choice.parameters.items())
        modes = [*(["dry run"] if policy.dry_run else []),
                 *(["its next plan is carried out whatever it gains"] if enact else [])]
        mode = f" ({'; '.join(modes)})" if modes else ""
        self._port.say(Say(f"scheduler {choice.name}({shown}) is in use{mode}", cause=PERSON))
        self._port.tell(SchedulerChosen("" if choice.name == OFF else choice.name, scheduler))
        self._named, self._choices = True, self._choices + 1
        self.records.choice(self._to_record())

    def _to_record(self) -> dict[str, Any]:
        """The choice as the next master of this cluster finds it in the history."""
        generator, estimator = self.generator, self._estimates.choice
        return {"scheduler": generator.choice.name, "parameters": dict(generator.choice.parameters),
                "policy": parameters_of(generator.policy), "estimator": estimator.to_json() if estimator.by_user else None}

    def resume(self, graph: TopologyGraph) -> None:
        """Called when a topology is about to start: continue with the scheduler of the last master of this cluster, unless a
        user has named one, and with the load of the topology's last run."""
        history = self.records.open()
        if history is None:
            return
        try:
            last = history.choice() if not self._named else None
            past = history.newest_windows(graph.name, WINDOWS_KEPT)
        except MillraceError as error:
            log.warning("what the last master knew cannot be read: %s", error)
            return
        self._named = True
        if last is not None and last["scheduler"] != OFF:
            self._take_over(last)
        self._recall(replace(graph, ackers=ackers_for(graph, max(1, len(self._port.state.workers)))), past)

    def _recall(self, graph: TopologyGraph, past: Sequence[PastWindow]) -> None:
        loads = [load for window in past if (load := load_of_run(window.loads[graph.name], graph)) is not None]
        estimate = self._estimates.recall(graph.name, loads)
        if estimate is not None:
            self.generator.recall(graph.name, loads)
            self.load[graph.name] = estimate
            self._port.tell(LoadEstimated(dict(self.load)))
            self._port.say(Say(f"its load is known from the last {len(loads)} windows of the run before", graph.name))

    def _take_over(self, last: Mapping[str, Any]) -> None:
        """Choose the scheduler of the last master. A user's own is tried out first, and in use some time later."""
        name, estimator = last["scheduler"], last.get("estimator") or {}
        try:
            self.choose(name, last["parameters"], last["policy"], estimator.get("name"), estimator.get("parameters"),
                        resumed=True).add_done_callback(partial(self._tried_again, name))
        except MillraceError as error:
            self._report_lost(name, error)

    def _tried_again(self, name: str, answer: Future[dict[str, Any]]) -> None:  # perhaps on another thread
        if answer.cancelled():
            return
        error = answer.exception()
        with suppress(MillraceError):  # the master is ending
            self._port.call(lambda: self._report_taken_over(name) if error is None else self._report_lost(name, error))

    def _report_taken_over(self, name: str) -> None:
        self._port.say(Say(f"scheduler {name} was in use when this cluster last ran, and is again; `--scheduler` or `millrace "
                           "scheduler set` names another"))

    def _report_lost(self, name: str, error: BaseException) -> None:
        self._port.say(Say(f"scheduler {name} was in use when this cluster last ran, and is not now: {error}. Choose one with "
                           "`millrace scheduler set`", level="warning"))

    def _try_out(self, name: str, parameters: dict[str, Any], choose: Callable[[Choice, str], None],
                 future: Future[dict[str, Any]]) -> None:
        def done(answer: SchedulerAnswer | SchedulerFailed) -> None:  # on another thread
            try:
                if isinstance(answer, SchedulerFailed):
                    raise SchedulerFailed(f"scheduler {name!r} cannot be used, nothing has changed: {answer}")
                choice = Choice(name, answer["parameters"], *(answer[key] for key in OF_CHOICE))
                self._port.call(lambda: choose(choice, answer["estimator"]))
            except Exception as error:
                future.set_exception(error)

        self._trials.ask({"scheduler": name, "parameters": parameters}, CHECK_SECONDS, done)

    def settings(self) -> dict[str, Any]:
        """Scheduler, policy and estimator in use, as `scheduler show` prints them."""
        generator = self.generator
        return {"scheduler": generator.choice.name, "parameters": dict(generator.choice.parameters),
                "policy": {**parameters_of(generator.policy), "period": generator.period, "min_gain": generator.min_gain,
                           "cool_down": generator.cool_down, "overload": generator.overload,
                           "agent_poll": self.polls[0], "worker_poll": self.polls[1]},
                "estimator": self._estimates.choice.to_json(),
                "window_seconds": self.window_seconds, "enacts_next": generator.enacts_next,
                "last_decision": generator.decisions[-1].to_json() if generator.decisions else None,
                "history": self.records.status()}

    def past(self, limit: int) -> list[dict[str, Any]]:
        """The newest decisions, in order of time."""
        return [decision.to_json() for decision in list(self.generator.decisions)[-limit:]] if limit > 0 else []

    # -- history -------------------------------------------------------------------------------------------------------

    def add_migration(self, migration: Migration, new_pids: Sequence[int] = ()) -> None:
        """Add a migration that has ended to the record. `new_pids`: the processes of the workers that it restarted."""
        self.records.open()  # its number comes after those in the history
        topology = self._port.state.topologies.get(migration.topology)
        timeout = replay_seconds(topology.graph) if topology is not None else 0.0
        self.migrations.add(migration, time.monotonic(), time.time(), new_pids, timeout)

    def _record_migrations(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self.generator.costs.learn(row)
            self.records.migration(row)

    def _remember(self, history: History) -> None:
        """Take over what earlier masters of this cluster have recorded."""
        self.generator.remember(Decision.from_json(row) for row in reversed(history.decisions(DECISIONS_REMEMBERED)))
        self.elastic.remember(reversed(history.elastic_decisions(DECISIONS_REMEMBERED)))
        past_migrations = list(reversed(history.migrations(MIGRATIONS_REMEMBERED)))
        self.migrations.remember(past_migrations)
        for row in past_migrations:
            self.generator.costs.learn(row)

    def close(self) -> None:
        self._process.close()
        self._trials.close()
        self.records.close()


def _can_be_planned(topology: TopologyState) -> bool:
    return topology.status in (RUNNING, PAUSED) and len(topology.places) == len(topology.graph.tasks())
