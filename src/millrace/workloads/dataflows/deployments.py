"""The virtual machines of the experiments: the default deployment, and those after scaling in and scaling out.

Each instance of a task has a slot of its own. A dataflow of n instances is deployed on ⌈n/2⌉ machines of 2 slots. Scaling in
moves it to half as many machines of 4 slots, and scaling out to n machines of 1 slot. The machines before and after a migration
are not the same, so every instance moves. Source and sink stay on a machine of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from millrace.model.graph import TaskId
from millrace.workloads.dataflows.shapes import SINK_NAME, SOURCE_NAME, Dataflow

EDGE_MACHINE = "edge"  # for source and sink
EDGE_SLOTS = 4


class MachineSlot(NamedTuple):
    """A slot of a virtual machine."""

    machine: str
    slot: int


@dataclass(frozen=True, slots=True)
class Deployment:
    """Machines of one size. `kind`: the name of the size at the provider, from which the machines have their names."""

    kind: str
    machines: int
    slots: int  # of each machine

    def machine_slots(self) -> list[MachineSlot]:
        """All slots in the order in which they are filled: the first slot of each machine, then the second."""
        return [MachineSlot(f"{self.kind}-{machine}", slot) for slot in range(self.slots) for machine in range(self.machines)]

    def placement(self, dataflow: Dataflow) -> dict[TaskId, MachineSlot]:
        """The slot of each task, as Storm's default scheduler places them: round-robin over the machines."""
        instances = [TaskId(task, index) for task in dataflow.tasks for index in range(dataflow.instances(task))]
        if len(instances) > self.machines * self.slots:
            raise ValueError(f"{dataflow.name} has {len(instances)} instances, and {self.machines} machines of {self.slots} "
                             f"slots have only {self.machines * self.slots}: add machines")
        edge = {TaskId(SOURCE_NAME, 0): MachineSlot(EDGE_MACHINE, 0), TaskId(SINK_NAME, 0): MachineSlot(EDGE_MACHINE, 1)}
        return {**edge, **dict(zip(instances, self.machine_slots()))}


def default_deployment(dataflow: Dataflow) -> Deployment:
    """The deployment before a migration, in either direction."""
    return Deployment("D2", _half(dataflow.total_instances), 2)


def scaled_in(dataflow: Dataflow) -> Deployment:
    return Deployment("D3", _half(_half(dataflow.total_instances)), 4)


def scaled_out(dataflow: Dataflow) -> Deployment:
    return Deployment("D1", dataflow.total_instances, 1)


def _half(number: int) -> int:
    return -(-number // 2)
