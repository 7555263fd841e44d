"""Reliable spouts whose own `fail` emits the id again: that is a replay, which counts as another attempt at the same tuple."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.api.spout import ReliableSpout, ReplayableSpout, Spout
from millrace.api.topology import Topology
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import drain, errors
from support.cluster.plain_parts import Sink
from support.cluster.records import SEEN
from support.cluster.refusing_parts import Picky

N = 40
POISON = (7, 23)


class OwnReplays(ReliableSpout):
    """Emits numbers, and those that fail again by itself. `twice`: each also as n + 1000, under the same id."""

    outputs = ["n"]
    twice = False

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def next_tuple(self) -> None:
        if self.next < N:
            n, self.next = self.next, self.next + 1
            self.emit([n], tup_id=n)
            if self.twice:
                self.emit([n + 1000], tup_id=n)

    def fail(self, tup_id: Any) -> None:
        (n,) = self.unacked_tuples[tup_id][0]
        self.emit([n], tup_id=tup_id)


class OwnReplaysOfTwo(OwnReplays):
    twice = True


class OwnReplaysOfPositions(ReplayableSpout):
    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def seek(self, position: int) -> None:
        self.next = position

    def next_tuple(self) -> None:
        if self.next < N:
            n, self.next = self.next, self.next + 1
            self.emit([n], tup_id=n)

    def fail(self, tup_id: Any) -> None:
        self.emit([tup_id], tup_id=tup_id)


@pytest.mark.parametrize("chunk", [1, 10])
@pytest.mark.parametrize(("spout", "poison"), [
    (OwnReplays, POISON), (OwnReplaysOfTwo, (7, 23, 1005, 1007)), (OwnReplaysOfPositions, POISON)])
def test_poison_becomes_a_dead_letter_and_nothing_is_left(spout: type[Spout], poison: tuple[int, ...], chunk: int) -> None:
    class Line(Topology):
        source = spout.spec()
        middle = Picky.spec(inputs=[source], par=2)
        sink = Sink.spec(inputs=[middle])
        letters = Sink.spec(inputs=[middle.dead_letters])

    cluster = LocalCluster(2)
    cluster.submit(Line, config={"poison": list(poison), "topology.chunk.tuples": chunk})
    cluster.run(5.0)
    (task,) = cluster.tasks("source")
    drain(cluster, "line")
    numbers = {*range(N), *(range(1000, 1000 + N) if spout is OwnReplaysOfTwo else ())}
    assert set(SEEN["sink"]) == numbers - set(poison)
    assert sorted({tuple(values) for _, _, _, values, _ in SEEN["letters"]}) == [(n,) for n in poison]
    assert not [error for error in errors(cluster) if "positions must rise" in error]
    assert not task.component.unacked_tuples and not task.component._repeats
