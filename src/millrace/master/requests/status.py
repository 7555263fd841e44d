"""The state of a master as plain data: what `status` prints, as a table or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.connectors.tap import TAP_METRIC
from millrace.control.feeding import FEED
from millrace.control.master_state import MasterState
from millrace.control.topology_state import TopologyState
from millrace.master.batch_log import BatchLog
from millrace.master.load.observed import TopologyObserved, percentiles
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.runtime.meters import LATENCIES

if TYPE_CHECKING:
    from millrace.master.service import Master

SHOWN = ("emitted", "transferred", "executed", "acked", "failed", "dead_letters", "replayed", "expired", "gaps", "repeats")
ADDRESSES = (FEED, TAP_METRIC)  # told as metrics, and meant for feeders and readers only


def status_of(master: Master) -> dict[str, Any]:
    return {
        "cluster": master.name, "endpoint": master.endpoint, "revision": master.state.revision,
        "refused_connections": master.worker_port.refused, "malformed": master.worker_port.malformed,
        "workers": [_worker(master, slot) for slot in sorted(master.state.workers)],
        "topologies": [topology_status(state, master.observed[name], master.batches.get(name))
                       for name, state in master.state.topologies.items() if name in master.observed],
        "events": list(master.events)[-20:],
        "superseded": master.superseded,
        "scheduler": master.scheduling.generator.choice.name,
    }


def _worker(master: Master, slot: int) -> dict[str, Any]:
    view, connection, process = master.state.workers[slot], master.connections.get(slot), master.processes().get(slot)
    tasks = [f"{name}/{task}" for name, topology in master.state.topologies.items()
             for task, place in sorted(topology.places.items()) if place.slot == slot]
    return {"slot": slot, "node": view.address.node, "agent": slot in master.state.agents.values(),
            "executor": view.executor, "generation": view.address.generation,
            "pid": connection.hello.pid if connection else None, "revision": view.revision, "tasks": tasks,
            "counters": dict(process.counters) if process else {}}


def topology_status(state: TopologyState, observed: TopologyObserved, batches: BatchLog | None) -> dict[str, Any]:
    seconds = time.monotonic() - observed.since
    return {"name": state.graph.name, "engine": "microbatch" if state.batched else "resident", "status": state.status,
            "batches": (batches or BatchLog()).summary() if state.batched else None,
            "version": state.version, "uptime_seconds": round(seconds, 1), "tasks": len(state.places), "losses": state.losses,
            "components": [_component(state, observed, component.name, component.kind, component.par, seconds)
                           for component in state.graph.components],
            "metrics": _metrics(observed),
            "last_errors": observed.errors[-5:]}


def _metrics(observed: TopologyObserved) -> dict[str, dict[str, Any]]:
    """What tasks report of their own accord, by task."""
    found = {str(task): {name: value for name, value in seen.custom.items() if name not in ADDRESSES}
             for task, seen in sorted(observed.tasks.items())}
    return {task: metrics for task, metrics in found.items() if metrics}


def _component(state: TopologyState, observed: TopologyObserved, name: str, kind: str, par: int,
               seconds: float) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "kind": kind, "par": par}
    row.update({key: int(observed.total(name, key)) for key in SHOWN})
    row["queue_length"] = sum(task.queue_length for key, task in observed.tasks.items() if key.component == name)
    for latency in LATENCIES:
        found = percentiles(observed.latency(name, latency))
        row[f"{latency}_ms"] = {"p50": found.p50, "p99": found.p99} if found else None
    row["cpu_seconds"] = round(observed.total(name, "cpu_seconds"), 3)
    row["capacity"] = round(observed.total(name, "busy_seconds") / max(seconds * par, 1e-9), 3)
    return row


def plans_of(state: MasterState) -> dict[str, Any]:
    """The plans in force: what `plan` prints."""
    slots = {slot: {"node": worker.node.name, "executor": worker.executor} for slot, worker in sorted(state.workers.items())}
    return {"revision": state.revision, "author": state.author, "agents": state.agents, "workers": slots,
            "topologies": {name: {"status": topology.status, **topology.plan.to_json()}
                           for name, topology in state.topologies.items()}}


def load_of(master: Master, topology: str | None) -> dict[str, Any]:
    """What `load` prints: the last window, and the estimates that schedulers see."""
    scheduling, names = master.scheduling, [topology] if topology else list(master.state.topologies)
    for name in names:
        master.state.topology(name)
    sample = scheduling.sample
    return {
        "window_seconds": scheduling.window_seconds,
        "workers": {slot: msgspec.to_builtins(load) for slot, load in sample.workers.items()} if sample else {},
        "nodes": {name: msgspec.to_builtins(load) for name, load in sample.nodes.items()} if sample else {},
        "topologies": {name: _estimate(master.state.topologies[name].graph, scheduling.load[name])
                       for name in names if name in scheduling.load},
    }


def _estimate(graph: TopologyGraph, load: Load) -> dict[str, Any]:
    components = {}
    for component in graph.components:
        own = [measured for task, measured in load.tasks.items() if task.component == component.name]
        components[component.name] = {
            "arrival_rate": load.arrival_rate(component.name),
            "true_processing_rate": load.true_processing_rate(component.name),
            "cpu_mhz": sum(measured.cpu_mhz for measured in own), "memory_mb": sum(measured.memory_mb for measured in own),
            "queue_length": sum(measured.queue_length for measured in own)}
    return {"components": components, **load.to_json()}
