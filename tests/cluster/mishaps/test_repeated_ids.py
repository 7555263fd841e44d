"""One tup_id for several tuples in flight: each is acked or fails by itself, and the ack of one does not hide the failure of
another."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.spout import ReliableSpout, ReplayableSpout, Spout
from millrace.api.topology import Stream, Topology
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import drain, errors, run_through
from support.cluster.plain_parts import Sink
from support.cluster.records import EVENTS, SEEN
from support.cluster.refusing_parts import Picky, refuse

N = 60
LEFT, RIGHT = "left", "right"


class OnTwoStreams(ReliableSpout):
    """Emits each number on both streams, under one id."""

    outputs = [Stream(["n"], LEFT), Stream(["n"], RIGHT)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def next_tuple(self) -> None:
        if self.next < self.storm_conf["limit"]:
            n, self.next = self.next, self.next + 1
            self.emit([n], tup_id=n, stream=LEFT)
            self.emit([n], tup_id=n, stream=RIGHT)

    def ack(self, tup_id: Any) -> None:
        EVENTS.append(("ack", tup_id))
        super().ack(tup_id)

    def fail(self, tup_id: Any) -> None:
        EVENTS.append(("fail", tup_id))
        super().fail(tup_id)


class TwiceOnOne(OnTwoStreams):
    """Emits n and n + 1000 on one stream, under one id."""

    def next_tuple(self) -> None:
        if self.next < self.storm_conf["limit"]:
            n, self.next = self.next, self.next + 1
            self.emit([n], tup_id=n, stream=LEFT)
            self.emit([n + 1000], tup_id=n, stream=LEFT)


class PlainOnTwoStreams(Spout):
    """Emits each number on both streams, and both again when one fails."""

    outputs = [Stream(["n"], LEFT), Stream(["n"], RIGHT)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.next = 0

    def next_tuple(self) -> None:
        if self.next < self.storm_conf["limit"]:
            self.next += 1
            self._emit_both(self.next - 1)

    def _emit_both(self, n: int) -> None:
        self.emit([n], tup_id=n, stream=LEFT)
        self.emit([n], tup_id=n, stream=RIGHT)

    def ack(self, tup_id: Any) -> None:
        EVENTS.append(("ack", tup_id))

    def fail(self, tup_id: Any) -> None:
        EVENTS.append(("fail", tup_id))
        self._emit_both(tup_id)


class Refuses(Bolt):
    """Keeps its input, and refuses poison of the setting named after the component first."""

    def process(self, tup: Any) -> None:
        if self.component_name == self.storm_conf.get("refuses", RIGHT):
            refuse(self, tup.values.n)
        SEEN[self.component_name].append(tup.values.n)


def both(spout: type[Spout]) -> type[Topology]:
    class Both(Topology):
        source = spout.spec()
        left = Refuses.spec(inputs=[source[LEFT]], par=2)
        right = Refuses.spec(inputs=[source[RIGHT]], par=2)
        letters = Sink.spec(inputs=[left.dead_letters, right.dead_letters])

    return Both


@pytest.mark.parametrize("refuses", [LEFT, RIGHT])
@pytest.mark.parametrize("chunk", [1, 20])
def test_a_failure_on_one_stream_is_replayed_though_the_other_is_acked(refuses: str, chunk: int) -> None:
    cluster = run_through(both(OnTwoStreams), seconds=3.0, limit=N, poison=list(range(0, N, 13)), refusals=1, refuses=refuses,
                          **{"topology.chunk.tuples": chunk})
    assert set(SEEN[LEFT]) == set(SEEN[RIGHT]) == set(range(N))
    assert Counter(SEEN[RIGHT if refuses == LEFT else LEFT]) == Counter(range(N)), "only what has failed is sent again"
    assert Counter(n for what, n in EVENTS if what == "ack") == Counter(2 * list(range(N)))
    assert "both: drained" in cluster.said


@pytest.mark.parametrize("spout", [OnTwoStreams, PlainOnTwoStreams])
def test_poison_on_one_stream_becomes_a_dead_letter_and_its_neighbours_arrive(spout: type[Spout]) -> None:
    cluster = run_through(both(spout), seconds=5.0, limit=N, poison=[7, 42], **{"topology.chunk.tuples": 20})
    assert set(SEEN[LEFT]) == set(range(N)) and set(SEEN[RIGHT]) == set(range(N)) - {7, 42}
    assert sorted({tuple(values) for _, _, _, values, _ in SEEN["letters"]}) == [(7,), (42,)]
    assert "both: drained" in cluster.said


def test_two_tuples_of_one_stream_under_one_id() -> None:
    class OneStream(Topology):
        source = TwiceOnOne.spec()
        middle = Picky.spec(inputs=[source[LEFT]], par=2)
        sink = Sink.spec(inputs=[middle])

    run_through(OneStream, seconds=3.0, limit=N, poison=[3, 1003, 1010], refusals=1, **{"topology.chunk.tuples": 5})
    assert set(SEEN["sink"]) == {*range(N), *range(1000, 1000 + N)}
    assert Counter(n for what, n in EVENTS if what == "ack") == Counter(2 * list(range(N)))


def test_a_lost_worker_loses_none_of_the_tuples_with_one_id() -> None:
    cluster = LocalCluster(3)
    cluster.submit(both(OnTwoStreams), config={"limit": N, "topology.chunk.tuples": 5})
    cluster.run_until(lambda: len(SEEN[RIGHT]) >= 10)
    spout = cluster.where("both")[cluster.tasks("source")[0].name]
    cluster.kill(next(slot for slot in cluster.workers if slot != spout))
    cluster.run(3.0)
    drain(cluster, "both")
    assert set(SEEN[LEFT]) == set(SEEN[RIGHT]) == set(range(N))


class Standing(ReplayableSpout):
    """Emits positions by the setting `positions`."""

    outputs = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.left = list(storm_conf["positions"])

    def seek(self, position: int) -> None: ...

    def next_tuple(self) -> None:
        if self.left:
            position = self.left.pop(0)
            self.emit([position], tup_id=position)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
@pytest.mark.parametrize(("positions", "wrong", "last", "sent"), [
    ([0, 1, 2, 2, 5], 2, 2, [0, 1, 2, 5]), ([0, 4, 3, 7], 3, 4, [0, 4, 7])])
def test_positions_that_do_not_rise_are_refused(positions: list[int], wrong: int, last: int, sent: list[int],
                                                guarantee: str) -> None:
    class Line(Topology):
        source = Standing.spec()
        sink = Sink.spec(inputs=[source])

    cluster = LocalCluster(1)
    cluster.submit(Line, config={"positions": positions, "topology.guarantee": guarantee})
    cluster.run_until(lambda: bool(errors(cluster)))
    (error,) = errors(cluster)
    assert error.startswith(f"EmitError: Standing emitted position {wrong} after position {last}: positions must rise")
    cluster.run(1.0)
    assert sorted(SEEN["sink"]) == sent
