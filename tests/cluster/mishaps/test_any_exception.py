"""User code that raises exceptions not derived from Exception: the tuple fails, as with any error, and the worker survives."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.sinks import JsonLinesSink
from millrace.testing.local_cluster import LocalCluster
from support.cluster import raising_parts
from support.cluster.batch_parts import N as BATCHED
from support.cluster.batch_parts import Source, numbers_in, run_to_the_end, start
from support.cluster.cluster_runs import drain, errors, meter, run_through
from support.cluster.plain_parts import Numbers, Reliable, Sink
from support.cluster.raising_parts import (
    KINDS,
    Fatal,
    FatalArrow,
    FatalBlocking,
    FatalCallbacks,
    FatalPosition,
    FatalRows,
    FatalSink,
    FatalStart,
    fatal_choice,
)
from support.cluster.records import EVENTS, REFUSED, SEEN
from support.rows import rows_in

N = 60
BOLTS = pytest.mark.parametrize("bolt", [Fatal, FatalBlocking, FatalRows, FatalArrow], ids=lambda bolt: bolt.__name__)
KIND = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def as_in_a_worker() -> Iterator[None]:
    """Ignore SIGINT, as workers do: a KeyboardInterrupt is user code's own then."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    raising_parts.VISIBLE.clear()
    yield
    signal.signal(signal.SIGINT, before)


def line(bolt: type[Bolt], spout: Any = Reliable) -> type[Topology]:
    class Line(Topology):
        source = spout.spec()
        middle = bolt.spec(inputs=[source], par=2)
        sink = Sink.spec(inputs=[middle])
        letters = Sink.spec(inputs=[middle.dead_letters])

    return Line


@KIND
@BOLTS
def test_at_least_once_it_is_retried_and_then_a_dead_letter(bolt: type[Bolt], kind: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(line(bolt), config={"limit": N, "poison": [7, 42], "kind": kind})
    cluster.run(2.0)
    assert meter(cluster, "middle", "errors") >= 4, "three attempts, and a dead letter each"
    drain(cluster, "line")
    assert set(SEEN["sink"]) == set(range(N)) - {7, 42}
    assert sorted((values, error) for _, _, _, values, error in SEEN["letters"]) == [
        ([7], f"{kind}: not 7"), ([42], f"{kind}: not 42")]
    assert "line: drained" in cluster.said


@KIND
@BOLTS
def test_exactly_once_it_is_a_dead_letter_at_once(bolt: type[Bolt], kind: str) -> None:
    exactly_once = {"topology.guarantee": "exactly-once", "topology.chunk.tuples": 1, "burst": 1}
    cluster = run_through(line(bolt, Numbers), seconds=2.0, limit=N, poison=[7, 42], kind=kind, **exactly_once)
    assert sorted(SEEN["sink"]) == [n for n in range(N) if n not in (7, 42)]
    assert sorted((values, error) for _, _, _, values, error in SEEN["letters"]) == [
        ([7], f"{kind}: not 7"), ([42], f"{kind}: not 42")]
    assert any("drained" in said for said in cluster.said), cluster.said


@KIND
def test_in_batches_it_is_a_dead_letter_at_once(tmp_path: Path, kind: str) -> None:
    class InBatches(Topology):
        numbers = Source.spec(par=2)
        middle = Fatal.spec(inputs=[numbers], par=2)
        sink = JsonLinesSink.spec(inputs={middle: Grouping.SHUFFLE})
        letters = Sink.spec(inputs=[middle.dead_letters])

    batches = start(InBatches, tmp_path, config={"poison": [7, 42], "kind": kind})
    found = [error for report in batches.batch() for error in report.errors]
    assert found and all("in raise_for" in error["traceback"] for error in found)
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == [n for n in range(BATCHED) if n not in (7, 42)]
    assert sorted(values for _, _, _, values, _ in SEEN["letters"]) == [[7], [42]]


def test_the_report_has_the_traceback() -> None:
    cluster = LocalCluster(1)
    cluster.submit(line(FatalBlocking), config={"limit": N, "poison": [7], "kind": "CancelledError"})
    cluster.run_until(lambda: bool(errors(cluster)))
    first, *_ = cluster.workers[0].report().errors
    assert first["error"] == "CancelledError: not 7" and first["task"].startswith("middle[")
    assert "in raise_for" in first["traceback"] and first["tuple"].startswith("source/default ")


def test_a_grouping_that_raises_it() -> None:
    class Routed(Topology):
        source = Reliable.spec()
        sink = Sink.spec(inputs={source: Grouping.custom(fatal_choice)}, par=2)

    cluster = run_through(Routed, seconds=2.0, limit=N)
    assert set(SEEN["sink"]) == set(range(N)) - {5}
    assert "routed: drained" in cluster.said


def test_callbacks_of_a_spout_that_raise_it() -> None:
    cluster = run_through(line(Fatal, FatalCallbacks), seconds=3.0, limit=N, poison=[7], refusals=1, kind="PanicException")
    assert set(SEEN["sink"]) == set(range(N))
    assert Counter(n for what, n in EVENTS if what == "ack") == Counter(range(N))
    assert "line: drained" in cluster.said


def test_a_position_that_raises_it_is_not_reported() -> None:
    cluster = LocalCluster(1)
    cluster.submit(line(Fatal, FatalPosition), config={"limit": N})
    cluster.run(1.0)
    assert set(SEEN["sink"]) == set(range(N)) and REFUSED["position"] > 1
    assert cluster.workers[0].report().positions == []


def test_a_start_a_tick_and_an_end_that_raise_it() -> None:
    class Rude(Topology):
        source = Numbers.spec()
        middle = FatalStart.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 0.1})
        sink = Sink.spec(inputs=[middle])

    cluster = LocalCluster(1)
    cluster.submit(Rude, config={"limit": N})
    assert errors(cluster) == ["SystemExit: no start"]
    cluster.run(2.0)
    drain(cluster, "rude")
    assert set(SEEN["sink"]) == set(range(N))
    assert EVENTS.count(("tick",)) > 5 and EVENTS.count(("close",)) == 1


def test_every_method_of_an_exactly_once_sink_that_raises_it_once() -> None:
    class Published(Topology):
        config = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.2}
        source = Numbers.spec()
        sink = FatalSink.spec(inputs=[source])

    cluster = LocalCluster(2)
    cluster.submit(Published, config={"limit": N})
    cluster.run_until(lambda: len(raising_parts.VISIBLE) == N)
    drain(cluster, "published")
    assert sorted(raising_parts.VISIBLE) == list(range(N))
    assert all(REFUSED[call] > 1 for call in ("process", "prepare", "commit", "recover", "snapshot"))


class FatalBatches(BatchingBolt):
    """Raises for the batches of even keys."""

    outputs = ["n"]

    def group_key(self, tup: Any) -> int:
        return int(tup.values.n) % 4

    def process_batch(self, key: Any, tups: list[Any]) -> None:
        if key == 0 and REFUSED["batches"] < 3:
            REFUSED["batches"] += 1
            raise KINDS["CancelledError"]("no batch")
        for tup in tups:
            self.emit([tup.values.n])


def test_a_batch_that_raises_it_does_not_take_the_others_along() -> None:
    class Batched(Topology):
        source = Reliable.spec()
        middle = FatalBatches.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 0.1})
        sink = Sink.spec(inputs=[middle])

    run_through(Batched, seconds=5.0, limit=N)
    assert set(SEEN["sink"]) == set(range(N))


@pytest.mark.parametrize("bolt", [Fatal, FatalBlocking])
def test_a_real_ctrl_c_is_not_swallowed(bolt: type[Bolt]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cluster = LocalCluster(1)
    cluster.submit(line(bolt), config={"limit": N, "poison": [7], "kind": "KeyboardInterrupt"})
    with pytest.raises(KeyboardInterrupt):
        cluster.run(1.0)


def test_a_start_in_a_batch_that_raises_it_fails_the_attempt(tmp_path: Path) -> None:
    class StartsLate(Topology):
        numbers = Source.spec(par=2)
        middle = FatalStart.spec(inputs=[numbers])
        sink = JsonLinesSink.spec(inputs={middle: Grouping.SHUFFLE})

    batches = start(StartsLate, tmp_path)
    with pytest.raises(Exception, match="user code raised SystemExit: no start"):
        batches.batch()
    run_to_the_end(batches)
    assert len(rows_in(tmp_path / "out")) == BATCHED
