"""The shapes of the dataflows: tasks, edges and numbers of instances.

Every task has a selectivity of 1:1 and sends its output to each of its receivers, so an event of the source reaches a task once
for each path that leads there. The paper gives a task one instance for each 8 events/s of input, which is the rate of the
source: as many instances as there are paths.

The edges are those of the authors' published topologies. They have the tasks, instances and output rates that the paper states.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from millrace.errors import TopologyError

SOURCE_NAME, SINK_NAME = "source", "sink"
EVENTS_PER_SECOND = 8.0  # at the source
TASK_SECONDS = 0.1  # that a task takes for an event
LONG_LINEAR_TASKS = 50


@dataclass(frozen=True)
class Dataflow:
    """A dataflow. `inputs`: for each task, and for the sink at the end, the components it reads, in topological order."""

    name: str
    inputs: Mapping[str, tuple[str, ...]]

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks, without source and sink."""
        return tuple(name for name in self.inputs if name != SINK_NAME)

    @property
    def edges(self) -> tuple[tuple[str, str], ...]:
        return tuple((source, name) for name, sources in self.inputs.items() for source in sources)

    @property
    def total_instances(self) -> int:
        """The instances of all tasks, which is the number of slots they need."""
        return sum(self.instances(task) for task in self.tasks)

    def arrivals(self, name: str) -> int:
        """The events that reach a task, or the sink, for each event of the source."""
        reached = {SOURCE_NAME: 1}
        for receiver, sources in self.inputs.items():
            reached[receiver] = sum(reached[source] for source in sources)
        return reached[name]

    def instances(self, task: str) -> int:
        return self.arrivals(task)

    def trails(self) -> tuple[tuple[str, ...], ...]:
        """The tasks on each path from the source to the sink: the copies of an event that must arrive."""
        leading: dict[str, list[tuple[str, ...]]] = {SOURCE_NAME: [()]}
        for receiver, sources in self.inputs.items():
            own = () if receiver == SINK_NAME else (receiver,)
            leading[receiver] = [trail + own for source in sources for trail in leading[source]]
        return tuple(leading[SINK_NAME])


def linear(tasks: int) -> Dataflow:
    """A sequence of tasks."""
    if tasks < 1:
        raise TopologyError(f"a linear dataflow of {tasks} tasks was requested: it needs at least 1")
    names = [SOURCE_NAME, *(f"t{number}" for number in range(1, tasks + 1)), SINK_NAME]
    return Dataflow(f"Linear{tasks}", {name: (source,) for source, name in pairwise(names)})


LINEAR = Dataflow("Linear", linear(5).inputs)
LONG_LINEAR = linear(LONG_LINEAR_TASKS)

DIAMOND = Dataflow("Diamond", {
    "t1": (SOURCE_NAME,), "t2": (SOURCE_NAME,), "t3": (SOURCE_NAME,), "t4": (SOURCE_NAME,),
    "t5": ("t1", "t2", "t3", "t4"),
    SINK_NAME: ("t5",),
})

STAR = Dataflow("Star", {
    "t1": (SOURCE_NAME,), "t2": (SOURCE_NAME,),
    "t3": ("t1", "t2"),  # the hub
    "t4": ("t3",), "t5": ("t3",),
    SINK_NAME: ("t4", "t5"),
})

TRAFFIC = Dataflow("Traffic", {
    "t1": (SOURCE_NAME,), "t2": ("t1",), "t3": ("t2",), "t4": ("t3",),
    "t5": ("t4",), "t6": ("t4",), "t7": ("t4",),
    "t8": ("t5",), "t9": ("t5",),
    "t10": ("t8",),
    "t11": ("t9", "t10", "t6"),
    SINK_NAME: ("t7", "t11"),
})

GRID = Dataflow("Grid", {
    "t1": (SOURCE_NAME,), "t2": ("t1",), "t3": ("t2",),
    "t4": ("t3",), "t5": ("t4",), "t6": ("t5",), "t7": ("t6",),
    "t8": ("t3",),
    "t9": ("t8",), "t10": ("t8",), "t11": ("t8",), "t12": ("t11",),
    "t13": ("t9", "t10", "t12"), "t14": ("t13",), "t15": ("t14",),
    SINK_NAME: ("t15", "t7"),
})

DATAFLOWS = (LINEAR, DIAMOND, STAR, TRAFFIC, GRID)
