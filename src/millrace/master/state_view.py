"""A read-only view of the master's state, for the parts of the master that answer questions and carry out its decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from millrace.control.topology_state import TopologyState
from millrace.control.workers import WorkerView
from millrace.model.cluster import Cluster
from millrace.model.graph import TopologyGraph
from millrace.model.plan import Plan
from millrace.schedulers.base import SchedulingResult


class MasterView(Protocol):
    """`MasterState` without the means to change it: changes are requested by sending the master an event."""

    @property
    def author(self) -> int:
        """The master's number among those that have written plans for the cluster."""

    @property
    def revision(self) -> int:
        """The revision of the current assignment."""

    @property
    def topologies(self) -> Mapping[str, TopologyState]:
        """Running topologies by name."""

    @property
    def workers(self) -> Mapping[int, WorkerView]:
        """The workers, by slot."""

    @property
    def agents(self) -> Mapping[str, int]:
        """Node -> slot of the worker whose agent keeps the node's plan store."""

    def wants(self, slot: int) -> bool:
        """True if a process for the slot is welcome: it was not removed, and is not being removed."""

    def leaving(self, slot: int) -> str:
        """The word for what happens to the worker just now: "removed" or "restarted"; empty if nothing does."""

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; raises `UnknownTopology` if there is none."""

    def drained(self, topology: TopologyState) -> bool:
        """True if its spouts have stopped and none of their tuples is in flight."""

    def cluster(self) -> Cluster:
        """Nodes and slots of the present workers."""

    def placed(self, graph: TopologyGraph, plan: Plan, without: Collection[int] = ()) -> SchedulingResult:
        """The first scheduler's slots for the tasks without one. `without`: slots that count as gone."""
