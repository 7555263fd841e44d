"""Schedulers that users might write: good, wrong and hostile ones, named as user_schedulers:Class."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.load import Load
from millrace.model.plan import Plan
from millrace.schedulers.base import NewPlan, NoChange, SchedulingResult, next_plan
from millrace.schedulers.even import Even
from millrace.schedulers.parameters import check_parameters, parameter

Graphs = Sequence[TopologyGraph]
Loads = Mapping[str, Load]
Plans = Mapping[str, Plan]


def shifted(graphs: Graphs, cluster: Cluster, plan: Plans, by: int = 1) -> NewPlan:
    """Moves every task by so many slots."""
    numbers = sorted(slot.number for slot in cluster.slots)
    return NewPlan({graph.name: next_plan(graph, plan[graph.name], {
        task: numbers[(numbers.index(slot) + by) % len(numbers)] for task, slot in plan[graph.name].placement.items()})
        for graph in graphs}, "everything moves on")


class Raises:
    """Raises with a message of two lines and markup."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        raise KeyError("[/bold] no such thing\nand a second line")


class ReturnsText:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> Any:
        return "put everything on the first node"


class ForgetsATask:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        result = shifted(graphs, cluster, plan)
        return NewPlan({name: replace(new, placement=dict(list(new.placement.items())[1:]))
                        for name, new in result.plans.items()}, result.reason)


class UsesADeadSlot:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        result = shifted(graphs, cluster, plan)
        return NewPlan({name: replace(new, placement=dict.fromkeys(new.placement, 77)) for name, new in result.plans.items()},
                       result.reason)


class MovesTasksAndKeyGroups:
    """Moves every task by a slot, and gives the first key group of every component to its last task."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        result = shifted(graphs, cluster, plan)
        return NewPlan({name: replace(new, key_groups={component: (max(owners), *owners[1:])
                                                       for component, owners in new.key_groups.items()})
                        for name, new in result.plans.items()}, result.reason)


class WrongOwner:
    """The key groups of every component belong to a task that it does not have."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        result = shifted(graphs, cluster, plan)
        return NewPlan({name: replace(new, key_groups={component: (99, *owners[1:])
                                                       for component, owners in new.key_groups.items()})
                        for name, new in result.plans.items()}, result.reason)


class Hangs:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        threading.Event().wait()
        return NoChange("never")


class HangsWithAChild:
    """Hangs, and its child keeps the inherited file descriptors open."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        code = "import os, threading; open(os.environ['GRANDCHILD'], 'w').write(str(os.getpid())); threading.Event().wait()"
        subprocess.run([sys.executable, "-c", code], check=False, close_fds=False)
        return NoChange("never")


class Exits:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        os._exit(3)


class SysExits:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        sys.exit("enough")


class Prints:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        for number in range(2000):
            print(f"{number:6} some progress or other of a talkative scheduler")
        sys.stdout.flush()
        return NoChange("said it all")


class Leaks:
    kept: list[bytearray] = []

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        self.kept.append(bytearray(4 << 20))
        return NoChange(f"{len(self.kept)} times 4 MB")


class Unsendable:
    """Returns a version number that cannot be serialized."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        return NewPlan({graph.name: replace(plan[graph.name], version=2**70) for graph in graphs}, "far in the future")


class CannotSay:
    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        class Mute(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even that")

        raise Mute


class WithArrays:
    """A good scheduler with NumPy numbers in its plan."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        result = shifted(graphs, cluster, plan)
        return NewPlan({name: replace(new, placement={task: np.int64(slot) for task, slot in new.placement.items()})
                        for name, new in result.plans.items()}, result.reason)


class Shuffles:
    """Moves everything each time without gain."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        return shifted(graphs, cluster, plan)


class Gathers:
    """Moves everything to the first slot, once the FIFO $GATE is written."""

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        Path(os.environ["GATE"]).read_text()  # blocks until the FIFO is written
        slot = min(slot.number for slot in cluster.slots)
        return NewPlan({graph.name: next_plan(graph, plan[graph.name], dict.fromkeys(graph.tasks(), slot)) for graph in graphs},
                       "everything goes to one place")


@dataclass(frozen=True)
class Tuned:
    """A good scheduler with parameters and its own period."""

    least: int = parameter(2, "Least of something.", low=1, high=9)
    label: str = parameter("x", "What it says.")

    PERIOD_SECONDS = 17.0

    def __post_init__(self) -> None:
        check_parameters(self)

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        return NoChange(f"{self.label} {self.least}")


class CannotBeMade:
    def __init__(self) -> None:
        raise RuntimeError("no licence")

    def schedule(self, graphs: Graphs, cluster: Cluster, load: Loads, plan: Plans) -> SchedulingResult:
        return NoChange("never")


NOT_A_SCHEDULER = 7


class ForgetsToReturn:
    """An estimator that returns no load."""

    def fresh(self) -> ForgetsToReturn:
        return self

    def add(self, sample: Load) -> Any:
        return None


class FailsToEstimate(ForgetsToReturn):
    def add(self, sample: Load) -> Any:
        raise ZeroDivisionError("no samples")


class SpreadsAlways(Even):
    """Spreads tasks over all workers, whatever that gains."""

    WEIGHS_ITSELF: ClassVar[bool] = True
