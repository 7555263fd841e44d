"""The state of a master as plain data: what `status` prints, as a table or as JSON."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from millrace.control.master_state import TopologyState
from millrace.master.observed import TopologyObserved, percentiles
from millrace.runtime.meters import LATENCIES

if TYPE_CHECKING:
    from millrace.master.service import Master

SHOWN = ("emitted", "transferred", "executed", "acked", "failed", "dead_letters", "replayed", "expired", "gaps", "repeats")


def status_of(master: Master) -> dict[str, Any]:
    return {
        "cluster": master.name, "endpoint": master.endpoint, "revision": master.state.revision,
        "refused_connections": master.refused, "malformed": master.malformed,
        "workers": [_worker(master, slot) for slot in sorted(master.state.workers)],
        "topologies": [_topology(state, master.observed[name]) for name, state in master.state.topologies.items()
                       if name in master.observed],
        "events": list(master.events)[-20:],
    }


def _worker(master: Master, slot: int) -> dict[str, Any]:
    view, connection = master.state.workers[slot], master.connections.get(slot)
    tasks = [f"{name}/{task}" for name, topology in master.state.topologies.items()
             for task, place in sorted(topology.places.items()) if place.slot == slot]
    return {"slot": slot, "host": view.address.host, "executor": view.executor, "generation": view.address.generation,
            "pid": connection.hello.pid if connection else None, "revision": view.revision, "tasks": tasks,
            "counters": dict(connection.counters) if connection else {}}


def _topology(state: TopologyState, observed: TopologyObserved) -> dict[str, Any]:
    seconds = time.monotonic() - observed.since
    return {"name": state.graph.name, "status": state.status, "version": state.version, "uptime_seconds": round(seconds, 1),
            "tasks": len(state.places), "losses": state.losses,
            "components": [_component(state, observed, component.name, component.kind, component.par, seconds)
                           for component in state.graph.components],
            "metrics": {str(task): seen.custom for task, seen in sorted(observed.tasks.items()) if seen.custom},
            "last_errors": observed.errors[-5:]}


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
