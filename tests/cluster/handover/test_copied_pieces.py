"""A move copies each piece of the stored state once, however many waves pass while it is prepared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, State
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.generator import GeneratorSpout
from millrace.control.events import Regrouped
from millrace.model.graph import TaskId
from millrace.runtime.checkpoints.access import CheckpointAccess
from millrace.state.checkpoint import PieceRef
from millrace.testing.local_cluster import LocalCluster

KEYS, LIMIT = 600, 12_000
LARGE = TaskId("large", 0)


def key_at(position: int) -> str:
    return f"k{position if position < KEYS else position % 50}"


class FewNumbers(GeneratorSpout):
    """Every key once, and then only the first ones."""

    outputs: ClassVar[list[str]] = ["key"]

    def generate(self, position: int) -> tuple[Any, ...]:
        return (key_at(position),)


class Large(Bolt):
    counts = CounterState()
    notes = State()

    def process(self, tup: Tuple) -> None:
        self.counts[tup.values[0]] += 1
        self.notes.setdefault(tup.values[0], "x" * 500)


class Growing(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2,
                                        "rate": 2000.0, "limit": LIMIT}
    numbers = FewNumbers.spec(par=1)
    large = Large.spec(inputs={numbers: Grouping.fields("key")}, par=2)


def counted(cluster: LocalCluster) -> Counter[str]:
    return Counter({key: count for task in cluster.tasks("large") if task.started
                    for key, count in task.component.counts.items()})


@pytest.mark.parametrize("groups", [False, True])
def test_no_piece_is_read_twice(groups: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = LocalCluster(workers=3, nodes=3)
    monkeypatch.setattr(FewNumbers, "clock", staticmethod(cluster.clock.now))
    monkeypatch.setattr(FewNumbers, "wall_clock", staticmethod(cluster.clock.now))
    cluster.submit(Growing, name="growing")
    topology = cluster.master.topologies["growing"]
    assert topology.waves is not None
    cluster.run_until(lambda: topology.positions.get(TaskId("numbers", 0), 0) > KEYS)
    begun = topology.waves.committed
    cluster.run_until(lambda: topology.waves.committed >= begun + 2)
    reads: list[Collection[PieceRef]] = []
    fetch = CheckpointAccess.fetch

    def logged(self: CheckpointAccess, topology: str, refs: Collection[PieceRef], *held: Any) -> dict[PieceRef, bytes]:
        reads.append(refs)
        return fetch(self, topology, refs, *held)

    monkeypatch.setattr(CheckpointAccess, "fetch", logged)
    cluster.store_seconds = 0.5  # more than the interval: waves pass meanwhile
    owned = [group for group, owner in enumerate(topology.key_groups["large"]) if owner == 0]
    if groups:
        cluster.tell(Regrouped("growing", "large", dict.fromkeys(owned, 1)))
    else:
        target = (cluster.where("growing")[LARGE] + 1) % 3
        cluster.move("growing", LARGE, target)
    cluster.run_until(lambda: topology.key_groups["large"][owned[0]] == 1 if groups
                      else cluster.where("growing")[LARGE] == target)
    read = [ref for refs in reads for ref in refs]
    assert len({ref.blob for ref in read}) > 2, "more than one wave was copied"
    assert max(Counter(read).values()) == 1
    cluster.store_seconds = 0.0
    cluster.run_until(lambda: counted(cluster).total() == LIMIT)
    assert counted(cluster) == Counter(key_at(position) for position in range(LIMIT))
