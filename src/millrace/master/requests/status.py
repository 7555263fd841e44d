"""The master's status, plans and load as plain data, for the CLI to print."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from millrace.config import MICROBATCH, RESIDENT
from millrace.connectors.tap import TAP_METRIC
from millrace.control.feeding import FEED
from millrace.control.topology_state import TopologyState
from millrace.master.batch_log import BatchLog
from millrace.master.load.observed import TopologyObserved, percentiles
from millrace.master.scheduling.loop import SchedulingLoop
from millrace.master.state_view import MasterView
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load, TaskLoad
from millrace.model.prediction import Prediction
from millrace.runtime.meters import LATENCIES

SHOWN = ("emitted", "merged", "transferred", "executed", "acked", "failed", "dead_letters", "replayed", "expired", "gaps",
         "repeats", "errors")
ADDRESSES = (FEED, TAP_METRIC)  # reported as metrics, for feeders and readers only


class Port(Protocol):
    refused: int
    malformed: int


class CapacityView(Protocol):
    """The control of the number of workers."""

    @property
    def warning(self) -> str: ...
    def settings(self) -> dict[str, Any]: ...


class Overview(Protocol):
    """A read-only view of the master. Connections and processes are by slot."""

    name: str
    endpoint: str
    superseded: str
    hosts: dict[str, str]

    @property
    def store_alarm(self) -> str: ...
    @property
    def state(self) -> MasterView: ...
    @property
    def worker_port(self) -> Port: ...
    @property
    def observed(self) -> Mapping[str, TopologyObserved]: ...
    @property
    def batch_logs(self) -> Mapping[str, BatchLog]: ...
    @property
    def events(self) -> Iterable[dict[str, Any]]: ...
    @property
    def scheduling(self) -> SchedulingLoop: ...
    @property
    def capacity(self) -> CapacityView: ...
    @property
    def connections(self) -> Mapping[int, Any]: ...
    def processes(self) -> Mapping[int, Any]: ...


def status_of(master: Overview) -> dict[str, Any]:
    return {
        "cluster": master.name, "endpoint": master.endpoint, "revision": master.state.revision,
        "refused_connections": master.worker_port.refused, "malformed": master.worker_port.malformed,
        "workers": [_worker(master, slot) for slot in sorted(master.state.workers)],
        "hosts_without_workers": without_workers(master.hosts, [view.executor for view in master.state.workers.values()]),
        "topologies": [topology_status(state, master.observed[name], master.batch_logs.get(name))
                       for name, state in master.state.topologies.items() if name in master.observed],
        "events": list(master.events)[-20:],
        "superseded": master.superseded,
        "warnings": warnings_of(master),
        "scheduler": master.scheduling.generator.choice.name,
        "workers_auto": master.capacity.settings(),
        "elastic": master.scheduling.elastic.models(),
    }


def without_workers(hosts: Mapping[str, str], used: Iterable[str]) -> list[str]:
    """Hosts with Spark executors of which none runs a worker. `hosts`: by executor."""
    return sorted(set(hosts.values()) - {hosts[executor] for executor in used if executor in hosts})


def _worker(master: Overview, slot: int) -> dict[str, Any]:
    view, connection, process = master.state.workers[slot], master.connections.get(slot), master.processes().get(slot)
    tasks = [f"{name}/{task}" for name, topology in master.state.topologies.items()
             for task, place in sorted(topology.places.items()) if place.slot == slot]
    return {"slot": slot, "node": view.address.node, "agent": slot in master.state.agents.values(),
            "executor": view.executor, "generation": view.address.generation,
            "pid": connection.hello.pid if connection else None, "revision": view.revision, "tasks": tasks,
            "counters": dict(process.counters) if process else {},
            "long_calls": [{"what": call.what, "seconds": round(call.seconds, 1)} for call in view.long_calls],
            "silent_seconds": round(time.monotonic() - connection.heard, 1) if connection else 0.0}


def workers_of(master: Overview) -> list[dict[str, Any]]:
    """The workers as `workers` lists them. `leaving`: "removed" or "restarted" if that happens just now."""
    rows = [_worker(master, slot) for slot in sorted(master.state.workers)]
    return [{**{key: row[key] for key in ("slot", "node", "executor", "pid", "tasks")},
             "leaving": master.state.leaving(row["slot"])} for row in rows]


def warnings_of(master: Overview) -> list[str]:
    """Conditions that last and that someone should look at."""
    calls = [f"worker {slot}: {call}" for slot, view in sorted(master.state.workers.items()) for call in view.warnings()]
    waiting = [f"{name}: its spouts wait, because {topology.failed_waves} waves in a row have failed: {topology.troubled}"
               for name, topology in master.state.topologies.items() if topology.spouts_wait]
    return [*filter(None, [master.store_alarm, master.capacity.warning]), *waiting, *master.scheduling.hot_groups.warnings(),
            *master.scheduling.overloads.warnings(), *calls]


def topology_status(state: TopologyState, observed: TopologyObserved, batches: BatchLog | None) -> dict[str, Any]:
    seconds = time.monotonic() - observed.since
    return {"name": state.graph.name, "engine": MICROBATCH if state.batched else RESIDENT, "status": state.status,
            "batches": (batches or BatchLog()).summary() if state.batched else None,
            "version": state.version, "uptime_seconds": round(seconds, 1), "tasks": len(state.places), "losses": state.losses,
            "components": [_component(state, observed, component.name, component.kind, component.par, seconds)
                           for component in state.graph.components],
            "hops": observed.hops(), "spouts_wait": state.spouts_wait, "failed_waves": state.failed_waves,
            "metrics": _metrics(observed)}


def _metrics(observed: TopologyObserved) -> dict[str, dict[str, Any]]:
    """Custom metrics that tasks report, by task."""
    by_task = {str(task): {name: value for name, value in seen.custom.items() if name not in ADDRESSES}
               for task, seen in sorted(observed.tasks.items())}
    return {task: metrics for task, metrics in by_task.items() if metrics}


def _component(state: TopologyState, observed: TopologyObserved, name: str, kind: str, par: int,
               seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "kind": kind, "par": par}
    row.update({key: int(observed.total(name, key)) for key in SHOWN})
    row["last_error"] = observed.last_error_of.get(name)
    row["queue_length"] = sum(task.queue_length for key, task in observed.tasks.items() if key.component == name)
    for latency in LATENCIES:
        measured = percentiles(observed.latency(name, latency))
        row[f"{latency}_ms"] = {"p50": measured.p50, "p99": measured.p99} if measured else None
    row["cpu_seconds"] = round(observed.total(name, "cpu_seconds"), 3)
    row["capacity"] = round(observed.total(name, "busy_seconds") / max(seconds * par, 1e-9), 3)
    return row


def plans_of(state: MasterView) -> dict[str, Any]:
    """The current plans, as `plan` prints them."""
    slots = {slot: {"node": worker.node.name, "executor": worker.executor} for slot, worker in sorted(state.workers.items())}
    return {"revision": state.revision, "author": state.author, "agents": state.agents, "workers": slots,
            "topologies": {name: {"status": topology.status, "splits": sorted(topology.graph.splits),
                                  **topology.plan.to_json()}
                           for name, topology in state.topologies.items()}}


def load_of(state: MasterView, scheduling: SchedulingLoop, topology: str | None) -> dict[str, Any]:
    """The last window and the estimates that schedulers see, as `load` prints them."""
    names = [topology] if topology else list(state.topologies)
    for name in names:
        state.topology(name)  # raises if there is none
    sample = scheduling.sample
    return {
        "window_seconds": scheduling.window_seconds,
        "workers": {slot: msgspec.to_builtins(load) for slot, load in sample.workers.items()} if sample else {},
        "links": scheduling.links.to_json(),
        "nodes": {name: msgspec.to_builtins(load) for name, load in sample.nodes.items()} if sample else {},
        "topologies": {name: {**_estimate(state.topologies[name].graph, scheduling.load[name]),
                              "hops": scheduling.hops(name),
                              "prediction": _prediction(scheduling.elastic.predictions.get(name))}
                       for name in names if name in scheduling.load},
    }


def _prediction(prediction: Prediction | None) -> dict[str, Any] | None:
    return prediction.to_json() if prediction is not None else None


def _estimate(graph: TopologyGraph, load: Load) -> dict[str, Any]:
    components = {}
    for component in graph.components:
        tasks = [measured for task, measured in load.tasks.items() if task.component == component.name]
        components[component.name] = {
            "arrival_rate": load.arrival_rate(component.name),
            "true_processing_rate": load.true_processing_rate(component.name),
            "cpu_mhz": sum(measured.cpu_mhz for measured in tasks), "memory_mb": sum(measured.memory_mb for measured in tasks),
            "queue_length": sum(measured.queue_length for measured in tasks),
            **_offered(tasks, load.window_seconds, component.kind == "spout"), **_shares(tasks, load.window_seconds)}
    return {"components": components, **load.to_json()}


def _offered(tasks: Sequence[TaskLoad], seconds: float, spout: bool) -> dict[str, Any]:
    """Tuples per second that the sources of a spout had, and its lag, as far as they know it."""
    lags = [measured.lag for measured in tasks if measured.lag is not None]
    return {"offered_rate": sum(measured.offered for measured in tasks) / seconds if spout and seconds > 0 else None,
            "lag": sum(lags) if lags else None}


def _shares(tasks: Sequence[TaskLoad], seconds: float) -> dict[str, float]:
    """Shares of the tasks' time: in user code, with work but held up by others, and the rest."""
    available = max(len(tasks) * seconds, 1e-9)
    busy, blocked = (sum(getattr(measured, name) for measured in tasks) / available
                     for name in ("busy_seconds", "blocked_seconds"))
    return {"busy": busy, "blocked": blocked, "idle": max(1 - busy - blocked, 0.0)}
