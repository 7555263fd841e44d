"""Batch control: the topologies that run in batches, as the master knows them. Each batch is a wave."""

from __future__ import annotations

from typing import Protocol

from millrace.control.events import BatchBegan, BatchCommitted, BatchesEnded, BatchOver, Command, Submitted
from millrace.control.submission import owners_in
from millrace.control.topology_state import TopologyState
from millrace.errors import TopologyError


class BatchedTopologies(Protocol):
    """The part of the master's state that batch control uses."""

    author: int

    def topology(self, name: str) -> TopologyState:
        """The running topology of that name; raises `UnknownTopology` if there is none."""

    def end(self, topology: TopologyState, how: str) -> list[Command]:
        """Remove the topology."""


class BatchControl:
    """Every method that returns something returns the commands to carry out."""

    def __init__(self, master: BatchedTopologies) -> None:
        self._master = master

    def prepare(self, topology: TopologyState, event: Submitted) -> None:
        """Set up a topology that runs in batches. Epochs rise from run to run as for other waves, so that no name in the store
        is used twice."""
        if event.checkpoint is not None:
            topology.positions = event.checkpoint.positions()
            topology.key_groups = owners_in(event.checkpoint, event.graph)
        topology.epoch, topology.checkpoint = max(self._master.author, event.after[0]) + 1, event.checkpoint

    def began(self, event: BatchBegan) -> list[Command]:
        self._batched(event.name).in_batch = True
        return []

    def committed(self, event: BatchCommitted) -> list[Command]:
        topology = self._batched(event.name)
        topology.checkpoint = event.manifest
        topology.epoch, topology.positions = event.manifest.epoch, event.manifest.positions()
        return []

    def over(self, event: BatchOver) -> list[Command]:
        self._batched(event.name).in_batch = False
        return []

    def ended(self, event: BatchesEnded) -> list[Command]:
        topology = self._batched(event.name)
        topology.uncommitted = event.uncommitted
        return self._master.end(topology, event.how)

    def _batched(self, name: str) -> TopologyState:
        topology = self._master.topology(name)
        if not topology.batched:
            raise TopologyError(f"{name!r} runs on resident workers and has no batches")
        return topology
