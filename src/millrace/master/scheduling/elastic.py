"""Elasticity, on the master's thread: at the end of each load window it compares the predicted with the measured latency of
each topology, and scales those that have a model.

    elastic/measured.py, elastic/correction.py   turn the load into a network of queues, and correct it
    elastic/elastic_loop.py                      decides
    control/moving/rescaling.py                  changes the numbers of tasks while the stream runs
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, Protocol

from millrace.control.events import ElasticChosen, Event, Rescaled, Say
from millrace.control.moves import ELASTIC, PERSON, Cause
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import RUNNING
from millrace.elastic.allocation import Infeasible, Limits, counted, limits_shown
from millrace.elastic.comparison import compared_latency
from millrace.elastic.correction import Corrections
from millrace.elastic.elastic_decision import ADVISED_ONLY, INFEASIBLE, SCALES, ElasticDecision
from millrace.elastic.elastic_loop import ElasticChoice, ElasticLoop
from millrace.elastic.elastic_policy import ElasticPolicy
from millrace.elastic.elastic_window import ElasticWindow
from millrace.elastic.forecast import check_installed
from millrace.elastic.measured import MeasuredTopology, bounds, measured
from millrace.elastic.models import PastRates, PredictiveModel, checked_limits, make_model, model_class
from millrace.elastic.past_decisions import ELASTIC_DECISIONS_KEPT
from millrace.elastic.selectivities import Selectivities
from millrace.elastic.service_rates import ServiceRates
from millrace.errors import BadParameter, MillraceError, TopologyError, UnknownTopology
from millrace.master.scheduling.forecasts import Forecasts, PredictiveInBackground
from millrace.master.state_view import MasterView
from millrace.model.elastic_setting import ElasticSetting
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.model.prediction import Prediction
from millrace.model.sample import WindowSample
from millrace.schedulers.parameters import described, parameters_of, with_parameters

log = logging.getLogger("millrace.master")
LIMITS = ("c_max", "t_max_ms")
NO_MODEL = "off"
PREDICTIVE = "predictive"  # its forecasts need a library that takes a second to import


class ElasticPort(Protocol):
    """The part of the master that elasticity uses."""

    @property
    def state(self) -> MasterView:
        """Workers, topologies and plans."""

    def tell(self, event: Event) -> None:
        """Let the master decide on an event."""

    def say(self, message: Say) -> None:
        """Report something to users."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Run the work on the master's thread; callable from any thread."""


class Elasticity:
    """Called on the master's thread. `record` keeps a decision in the history."""

    def __init__(self, port: ElasticPort, record: Callable[[ElasticDecision], None]) -> None:
        self._port, self._record = port, record
        self._corrections: dict[str, Corrections] = {}
        self._selectivities: dict[str, Selectivities] = {}
        self._service_rates: dict[str, ServiceRates] = {}
        self._measured: dict[str, MeasuredTopology] = {}
        self._loops: dict[str, ElasticLoop] = {}
        self._calm: set[str] = set()  # topologies that kept up in the last window
        self._numbers = count(1)
        self._past: deque[ElasticDecision] = deque(maxlen=ELASTIC_DECISIONS_KEPT)
        self.predictions: dict[str, Prediction] = {}

    def remember(self, past: Iterable[Mapping[str, Any]]) -> None:
        """Take over the decisions of earlier masters, oldest first: numbering continues from theirs."""
        self._past.extend(ElasticDecision.from_json(row) for row in past)
        self._numbers = count(max((decision.number for decision in self._past), default=0) + 1)

    @property
    def window_seconds(self) -> float | None:
        """The longest load window that the loops allow; None if there are none. Each joins them to its own windows."""
        return min((loop.policy.period for loop in self._loops.values()), default=None)

    @property
    def grows(self) -> bool:
        """True if it would start more tasks of a topology."""
        return any(not loop.policy.dry_run for loop in self._loops.values())

    # -- windows -------------------------------------------------------------------------------------------------------

    def predict(self, sample: WindowSample) -> WindowSample:
        """The window with the predictions for its topologies."""
        self.predictions = {}
        for name, load in sample.loads.items():
            topology = self._port.state.topologies.get(name)
            if topology is None or topology.batched or not load.tasks:
                continue
            edges = self._selectivities.setdefault(name, Selectivities()).learn(topology.graph, load)
            rates = self._service_rates.setdefault(name, ServiceRates()).learn(topology.graph, load)
            found = self._measured[name] = measured(topology.graph, load, edges, rates)
            if found.network.external_rate <= 0 and not any(found.carried.values()):
                continue
            corrections = self._corrections.setdefault(name, Corrections())
            self.predictions[name] = compared_latency(corrections.applied(found.network), found.times, found.whole)
            calm = found.keeps_up and not found.missing and not _settling(topology, load) and not _under_way(topology)
            if calm and name in self._calm:  # a window that begins with full inboxes says nothing about the model
                corrections.learn(found.network, found.times, found.complete)
            (self._calm.add if calm else self._calm.discard)(name)
        return replace(sample, predictions=self.predictions)

    def end_window(self, now: float, sample: WindowSample) -> None:
        """Let the loops decide. `sample`: with its predictions. An error in one is raised when the others have decided."""
        errors: list[Exception] = []
        for name, loop in self._loops.items():
            try:
                self._decide(name, loop, now, sample)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _decide(self, name: str, loop: ElasticLoop, now: float, sample: WindowSample) -> None:
        topology, found = self._port.state.topologies.get(name), self._measured.get(name)
        if topology is None or found is None or name not in sample.loads:
            return
        prediction = sample.predictions.get(name)
        network = self._corrections.setdefault(name, Corrections()).applied(found.network)
        window = ElasticWindow(sample.at, sample.seconds, network, prediction.measured_ms if prediction else None,
                               found.backlog, found.carried, _settling(topology, sample.loads[name]),
                               _under_way(topology) or found.missing)
        for decision in loop.end_window(now, window):
            self._handle(loop, decision, now)

    def _handle(self, loop: ElasticLoop, decision: ElasticDecision, now: float) -> None:
        if decision.outcome == SCALES and decision.helped is None:
            decision = self._enact(loop, decision, now)
        elif decision.outcome == ADVISED_ONLY:
            self._port.say(Say(f"would be scaled to {counted(decision.changes)}: {decision.reason}", decision.topology,
                               cause=f"elastic decision {decision.number}"))
        elif decision.outcome == INFEASIBLE:
            self._port.say(Say(f"the elastic goal is out of reach: {decision.reason}", decision.topology, "warning",
                               f"elastic decision {decision.number}"))
        elif decision.helped is False:
            self._port.say(Say(f"elastic decision {decision.number} did not help and is not repeated under this load: expected "
                               f"{_ms(decision.expected_ms)}, measured {_ms(decision.measured_ms)}", decision.topology,
                               "warning"))
        log.info("elastic %s of %s: %s (%s)", decision.model, decision.topology, decision.outcome, decision.reason)
        self._keep(decision)

    def _enact(self, loop: ElasticLoop, decision: ElasticDecision, now: float) -> ElasticDecision:
        cause = Cause(ELASTIC, f"{decision.model}, decision {decision.number}: {decision.reason}")
        try:
            self._port.tell(Rescaled(decision.topology, decision.changes, cause))
        except MillraceError as error:
            self._port.say(Say(f"not scaled as {decision.model} decided: {error}", decision.topology, "warning",
                               f"elastic decision {decision.number}"))
            return loop.refused(decision, str(error), now)
        loop.enacted(decision, now)
        return decision

    def _keep(self, decision: ElasticDecision) -> None:
        kept = [known if known.number != decision.number else decision for known in self._past]
        if all(known.number != decision.number for known in kept):
            kept.append(decision)
        self._past = deque(kept, ELASTIC_DECISIONS_KEPT)
        self._record(decision)

    def forget(self, topology: str) -> None:
        """Forget a topology that has ended."""
        for by_name in (self._corrections, self._selectivities, self._service_rates, self._measured, self._loops,
                        self.predictions):
            by_name.pop(topology, None)
        self._calm.discard(topology)

    # -- requests of users ---------------------------------------------------------------------------------------------

    def choose(self, topology: str | None, name: str, values: Mapping[str, Any]) -> Future[dict[str, Any]]:
        """Scale the topology by this model from now on. `values`: limits, parameters of the model and of the loop, by name.
        Goals that are known to be impossible are refused, and nothing changes. The answer may come later, because a library
        may have to be imported first."""
        named = self._named(topology).graph.name
        _sorted(name, values)
        future: Future[dict[str, Any]] = Future()

        def choose() -> None:
            loop = self._loop(named, name, values)
            self._check_possible(self._port.state.topology(named), loop.choice)
            self._port.tell(ElasticChosen(named, _setting(loop)))
            self._loops[named] = loop
            known = named in self._measured
            unchecked = "" if known else "; whether that is possible is known when the load has been measured"
            self._port.say(Say(f"scaled by {_shown(loop)} from now on{unchecked}", named, cause=PERSON))
            future.set_result(self.settings(named))

        if name == PREDICTIVE:
            self._when_imported(choose, future.set_exception)
        else:
            choose()
        return future

    def resume(self, topology: str) -> None:
        """Scale a topology that has just been submitted by the model of the run that it resumes, if there was one."""
        state = self._port.state.topologies[topology]
        setting = state.elastic
        if setting is None:
            return

        def go_on() -> None:
            if self._port.state.topologies.get(topology) is not state or state.elastic is not setting:
                return  # it has ended, or a user has chosen meanwhile
            try:
                self._named(topology)
                loop = self._loops[topology] = self._loop(topology, setting.model, setting.values)
            except MillraceError as error:
                self._port.say(_not_resumed(topology, setting, error))
            else:
                self._port.say(Say(f"scaled by {_shown(loop)} again, as in the run that it resumes", topology))

        if setting.model == PREDICTIVE:
            self._when_imported(go_on, lambda error: self._say_later(_not_resumed(topology, setting, error)))
        else:
            go_on()

    def _loop(self, topology: str, name: str, values: Mapping[str, Any]) -> ElasticLoop:
        """The loop of a topology that is scaled by this model; `BadParameter` if a value is wrong."""
        limits, parameters, policy = _sorted(name, values)
        model = made = make_model(name, parameters, limits)
        if isinstance(made, PredictiveModel):
            model = PredictiveInBackground(made, Forecasts(made, lambda error: self._no_forecast(topology, error)))
        loop = ElasticLoop(topology, ElasticChoice(name, parameters_of(made), limits, model), policy, self._numbers)
        loop.remember(decision for decision in self._past if decision.topology == topology)
        return loop

    def _no_forecast(self, topology: str, error: Exception) -> None:
        self._say_later(Say("no forecast can be made, so the present load is used until there is one: "
                            f"{type(error).__name__}: {error}", topology, "warning"))

    def _say_later(self, message: Say) -> None:
        """Report something; called on other threads."""
        with suppress(MillraceError):  # the master is ending
            self._port.call(lambda: self._port.say(message))

    def _when_imported(self, work: Callable[[], None], failed: Callable[[Exception], Any]) -> None:
        """Run the work on the master's thread when the library for forecasts is imported, on another thread, since the master
        cannot wait for it."""
        def imported() -> None:
            try:
                check_installed()
                self._port.call(work)
            except Exception as error:
                failed(error)

        threading.Thread(target=imported, daemon=True, name="millrace forecast").start()

    def _check_possible(self, state: TopologyState, choice: ElasticChoice) -> None:
        """Raise `BadParameter` if the present load shows that the goal cannot be reached."""
        name = state.graph.name
        found, limits = self._measured.get(name), choice.limits
        if found is None or found.missing:
            fewest = sum(bounds(state.graph, component.name)[0] for component in state.graph.components)
            if limits.c_max is not None and limits.c_max < fewest:
                raise BadParameter(f"c_max = {limits.c_max} is too low for {name!r}: whatever the load, its components have at "
                                   f"least {fewest} tasks together. Nothing has changed; possible: c_max={fewest}")
            return
        network = self._corrections.setdefault(name, Corrections()).applied(found.network)
        result = choice.model.allocate(choice.model.load(network, PastRates()), limits)
        if isinstance(result, Infeasible):
            nearest = limits_shown(result.nearest)
            raise BadParameter(f"{name!r} cannot be scaled by {choice.name} under its present load: {result.reason}. Nothing "
                               f"has changed{f'; possible: {nearest}' if nearest else ''}")

    def off(self, topology: str | None) -> dict[str, Any]:
        """Leave the numbers of tasks as they are from now on."""
        name = self._named(topology).graph.name
        self._port.tell(ElasticChosen(name, None))
        if self._loops.pop(name, None) is not None:
            self._port.say(Say("no longer scaled by itself", name, cause=PERSON))
        return self.settings(name)

    def settings(self, topology: str | None = None) -> dict[str, Any]:
        """The model, limits and policy in use, as `elastic show` prints them, by topology."""
        names = [self._named(topology).graph.name] if topology else list(self._port.state.topologies)
        return {"topologies": {name: self._settings(name) for name in names}}

    def _settings(self, name: str) -> dict[str, Any]:
        loop = self._loops.get(name)
        prediction = self.predictions.get(name)
        par = {component.name: component.par for component in self._port.state.topologies[name].graph.components}
        last = next((decision for decision in reversed(self._past) if decision.topology == name), None)
        shown: dict[str, Any] = {"model": NO_MODEL, "limits": {}, "parameters": {}, "policy": {}, "standing": ""}
        if loop is not None:
            shown = {"model": loop.choice.name, "limits": _given(loop.choice.limits),
                     "parameters": dict(loop.choice.parameters), "policy": parameters_of(loop.policy),
                     "standing": loop.standing}
        return {**shown, "par": par, "instances": sum(par.values()),
                "predicted_ms": prediction.predicted_ms if prediction else None,
                "measured_ms": prediction.measured_ms if prediction else None,
                "last_decision": last.to_json() if last is not None else None}

    def models(self) -> dict[str, str]:
        """The topologies that are scaled by themselves, with their models."""
        return {name: loop.choice.name for name, loop in self._loops.items()}

    def past(self, limit: int, topology: str | None = None) -> list[dict[str, Any]]:
        """The newest decisions, in order of time."""
        rows = [decision.to_json() for decision in self._past if topology in (None, decision.topology)]
        return rows[-limit:] if limit > 0 else []

    def _named(self, topology: str | None) -> TopologyState:
        """The topology of that name, or the only one that runs."""
        running = self._port.state.topologies
        if topology is None and len(running) != 1:
            raise UnknownTopology(f"choose a topology with --topology; running: {', '.join(running) or 'none'}")
        state = self._port.state.topology(topology if topology is not None else next(iter(running)))
        if state.batched:
            raise TopologyError(f"{state.graph.name!r} runs in batches and cannot be scaled by itself: change its tasks with "
                                "`millrace scale`")
        return state


def _sorted(name: str, values: Mapping[str, Any]) -> tuple[Limits, dict[str, Any], ElasticPolicy]:
    """The values as limits, parameters of the model and of the loop; `BadParameter` if there is no such name."""
    of_model = [key for key, _, _ in described(model_class(name))]
    of_loop = [key for key, _, _ in described(ElasticPolicy)]
    unknown = [key for key in values if key not in (*LIMITS, *of_model, *of_loop)]
    if unknown:
        raise BadParameter(f"elastic model {name!r} has no parameter {', '.join(map(repr, unknown))}; it has "
                           f"{', '.join((*model_class(name).GOALS, *of_model))}, and the loop has {', '.join(of_loop)}")
    policy = with_parameters(ElasticPolicy, {key: values[key] for key in values if key in of_loop}, "the elastic loop")
    return checked_limits(values), {key: values[key] for key in values if key in of_model}, policy


def _given(limits: Limits) -> dict[str, float]:
    return {key: value for key in LIMITS if (value := getattr(limits, key)) is not None}


def _setting(loop: ElasticLoop) -> ElasticSetting:
    return ElasticSetting(loop.choice.name, {**_given(loop.choice.limits), **loop.choice.parameters,
                                             **parameters_of(loop.policy)})


def _shown(loop: ElasticLoop) -> str:
    """The model with its limits, as in messages."""
    limits = limits_shown(_given(loop.choice.limits))
    return f"{loop.choice.name}{f' ({limits})' if limits else ''}{', as a dry run,' if loop.policy.dry_run else ''}"


def _not_resumed(topology: str, setting: ElasticSetting, error: Exception) -> Say:
    return Say(f"was scaled by {setting.model} in the run that it resumes, and is not now: {error}", topology, "warning")


def _settling(topology: TopologyState, load: Load) -> bool:
    """True if the window does not cover all tasks, or some of them only in part."""
    ours = [TaskId(component.name, index) for component in topology.graph.components for index in range(component.par)]
    return not set(ours).isdisjoint(load.settling) or any(task not in load.tasks for task in ours)


def _under_way(topology: TopologyState) -> str:
    """The reason why the topology must not be changed just now; empty if it may."""
    if topology.status != RUNNING:
        return f"the topology is {topology.status}"
    if topology.scaling is not None:
        return "its tasks are being scaled"
    if topology.migration is not None:
        return f"it is being migrated by {topology.migration.strategy}"
    if not topology.handover.at_rest:
        return "tasks or key groups are being moved"
    return "" if topology.active else "its spouts wait for the checkpoint store, or for a worker that restarts"


def _ms(milliseconds: float | None) -> str:
    return "unknown" if milliseconds is None else f"{milliseconds:.1f} ms"
