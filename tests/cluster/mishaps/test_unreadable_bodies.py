"""Chunks whose body cannot be read on arrival: an exactly-once topology rolls back, and at-least-once they are replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts
from support.cluster.cluster_runs import counter, drain
from support.cluster.plain_parts import PassArrow, Reliable, Sink, SinkArrow, SinkBlocking, SinkRows
from support.cluster.records import SEEN
from support.cluster.wave_parts import VISIBLE, FakeLedger, Numbers, Pass, PassRows

N = 400
GARBAGE = {"garbage": b"\xc1", "empty": b"", "not rows": wire.encode({"a": 1})}


@pytest.fixture(autouse=True)
def clean_parts() -> Iterator[None]:
    wave_parts.forget()
    yield
    wave_parts.forget()


def spoil(cluster: LocalCluster, form: int, body: bytes, every: int = 5, most: int = 3) -> Callable[[], int]:
    """Replace the body of some chunks on their way; returns a function that tells how many."""
    seen = Counter[str]()

    def replace(sender: int, receiver: int, frames: list[bytes]) -> bool:
        message = wire.decode_data(frames[0])
        if isinstance(message, wire.Chunk) and message.form == form:
            seen["chunks"] += 1
            if seen["chunks"] % every == 0 and seen["spoiled"] < most:
                seen["spoiled"] += 1
                frames[1] = body
        return False

    cluster.drop = replace
    return lambda: seen["spoiled"]


def passed_by(middle_class: type[Bolt]) -> type[Topology]:
    class Passed(Topology):
        config = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2}
        numbers = Numbers.spec(par=2)
        middle = middle_class.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
        ledger = FakeLedger.spec(inputs={middle: Grouping.fields("key")}, par=2)

    return Passed


@pytest.mark.parametrize("body", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("middle", [Pass, PassRows])
def test_exactly_once_it_brings_a_roll_back(middle: type[Bolt], body: bytes) -> None:
    cluster = LocalCluster(3)
    spoiled = spoil(cluster, wire.ROWS, body)
    cluster.submit(passed_by(middle), config={"limit": N, "burst": 10, "topology.chunk.tuples": 10})
    cluster.run_until(lambda: len(VISIBLE) >= N)
    drain(cluster, "passed")
    assert spoiled() == 3 and counter(cluster, "malformed") >= 1, "a chunk of an epoch that has ended is dropped unread"
    assert sorted(number for _, number in VISIBLE) == list(range(N))
    assert any("could not read its input (WireError: " in said for said in cluster.said), cluster.said


def test_exactly_once_a_mark_that_cannot_be_read_brings_a_roll_back() -> None:
    cluster = LocalCluster(3)
    spoiled = spoil(cluster, wire.WAVE, b"\xc1", every=3, most=1)
    cluster.submit(passed_by(Pass), config={"limit": N, "burst": 10, "topology.chunk.tuples": 10})
    cluster.run_until(lambda: len(VISIBLE) >= N)
    drain(cluster, "passed")
    assert spoiled() == 1
    assert sorted(number for _, number in VISIBLE) == list(range(N))
    assert any("could not read its input" in said for said in cluster.said), cluster.said


@pytest.mark.parametrize(("sink", "middle", "form"), [(Sink, None, wire.ROWS), (SinkBlocking, None, wire.ROWS),
                                                      (SinkRows, None, wire.ROWS), (SinkArrow, PassArrow, wire.ARROW)])
def test_at_least_once_its_root_is_replayed(sink: type[Bolt], middle: Any, form: int) -> None:
    class Replayed(Topology):
        source = Reliable.spec()
        passed = (middle or PassArrow).spec(inputs=[source], par=2)
        sink_ = sink.spec(name="sink", inputs=[passed if middle else source], par=2)

    cluster = LocalCluster(3)
    spoiled = spoil(cluster, form, b"\xc1")
    cluster.submit(Replayed, config={"limit": N, "topology.chunk.tuples": 10})
    cluster.run(3.0)
    drain(cluster, "replayed")
    assert spoiled() == 3 and counter(cluster, "malformed") == 3
    assert set(SEEN["sink"]) == set(range(N))
