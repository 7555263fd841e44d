"""The dataflows as topologies. The paper's rate of the source (`rate`) and time of a task (`task_seconds`) are settings.

`Linear`, `Diamond`, `Star`, `Traffic`, `Grid` and `Linear50` spread events by shuffle, as the authors do, and each instance
counts its events in a snapshot of its own. `KeyedLinear` and so on spread them by key, and have keyed state of a size that the
setting `notes` chooses.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import ComponentSpec, Topology
from millrace.workloads.dataflows.shapes import (
    DIAMOND,
    EVENTS_PER_SECOND,
    GRID,
    LINEAR,
    LONG_LINEAR,
    SINK_NAME,
    SOURCE_NAME,
    STAR,
    TASK_SECONDS,
    TRAFFIC,
    Dataflow,
)
from millrace.workloads.dataflows.tasks import Events, EventSink, KeyedTimedTask, TimedTask

# A chunk has one event, as a tuple in Storm: a task sends an event on before it begins with the next. The authors run Storm
# without back-pressure. With the usual bound of half a second of work, which is five events, tasks wait for room so often that
# Grid, at 80 % of its capacity, does not keep up with its source.
LIKE_STORM: dict[str, Any] = {"topology.chunk.tuples": 1, "topology.channel.window": 4096, "topology.channel.secs": 60.0}


def dataflow_topology(dataflow: Dataflow, *, keyed: bool = False, source: type[Spout] = Events,
                      sink: type[Bolt] = EventSink) -> type[Topology]:
    """Makes the topology of a dataflow. `keyed`: events are grouped by key, and the tasks have keyed state. `source`, `sink`:
    subclasses of the usual ones, for measurements."""
    task, grouping = (KeyedTimedTask, Grouping.fields("key")) if keyed else (TimedTask, Grouping.SHUFFLE)
    specs: dict[str, ComponentSpec] = {SOURCE_NAME: source.spec(par=1)}
    for name, sources in dataflow.inputs.items():
        if name == SINK_NAME:
            specs[name] = sink.spec(inputs={specs[read]: Grouping.SHUFFLE for read in sources}, par=1)
        else:
            specs[name] = task.spec(inputs={specs[read]: grouping for read in sources}, par=dataflow.instances(name))
    config = {"rate": EVENTS_PER_SECOND, "task_seconds": TASK_SECONDS, **LIKE_STORM,
              "path": str(Path(tempfile.gettempdir()) / "millrace-dataflows")}
    return type(f"Keyed{dataflow.name}" if keyed else dataflow.name, (Topology,),
                {"__doc__": f"{dataflow.name}: {len(dataflow.tasks)} tasks with {dataflow.total_instances} instances.",
                 "__module__": __name__, "config": config, **specs})


Linear = dataflow_topology(LINEAR)
Diamond = dataflow_topology(DIAMOND)
Star = dataflow_topology(STAR)
Traffic = dataflow_topology(TRAFFIC)
Grid = dataflow_topology(GRID)
Linear50 = dataflow_topology(LONG_LINEAR)

KeyedLinear = dataflow_topology(LINEAR, keyed=True)
KeyedDiamond = dataflow_topology(DIAMOND, keyed=True)
KeyedStar = dataflow_topology(STAR, keyed=True)
KeyedTraffic = dataflow_topology(TRAFFIC, keyed=True)
KeyedGrid = dataflow_topology(GRID, keyed=True)
KeyedLinear50 = dataflow_topology(LONG_LINEAR, keyed=True)
