"""Components run by hand, with all their calls recorded."""

from __future__ import annotations

from typing import Any

import pytest

import millrace.testing
from millrace import BatchingBolt, Bolt, CounterState, Grouping, ReliableSpout, Topology, Tuple
from millrace.testing import Emitted, LocalCluster, drain, rows, start, take, tuples, values, with_state
from millrace.workloads.wordcount import Lines


class Count(Bolt):
    outputs = ["word", "count"]
    config = {"step": 1}
    counts = CounterState()

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        self.step = storm_conf["step"]

    def process(self, tup: Tuple) -> None:
        self.emit([tup.values[0], self.counts.add(tup.values[0], self.step)])


class Counting(Topology):
    lines = Lines.spec(config={"limit": 10, "words": 5})
    count = Count.spec(inputs={lines: Grouping.fields("line")})


def test_a_bolt_with_state_and_settings() -> None:
    bolt = start(Count)
    for tup in tuples("word", [["a"], ["b"], ["a"]]):
        bolt.process(tup)
    assert values(bolt) == [("a", 1), ("b", 1), ("a", 2)]
    assert bolt.counts == {"a": 2, "b": 1}
    bolt = start(Count, {"step": 10})
    bolt.process(tuples("word", [["a"]])[0])
    assert bolt.emitted == [Emitted(("a", 10))]


def test_a_bolt_that_the_test_constructs() -> None:
    bolt = with_state(Count())
    bolt.initialize({"step": 2}, {})
    bolt.process(tuples("word", [["a"]])[0])
    assert bolt.emitted == [Emitted(("a", 2))]


def test_each_component_has_its_own_record() -> None:
    first, second = Bolt(), Bolt()
    first.emit(["a"])
    assert (len(first.emitted), len(second.emitted)) == (1, 0)


def test_streams_are_kept_apart_and_taken() -> None:
    bolt = Bolt()
    bolt.emit(["a"])
    bolt.emit(["b"], stream="other")
    assert (values(bolt), values(bolt, "other")) == ([("a",)], [("b",)])
    assert take(bolt) == [Emitted(("a",)), Emitted(("b",), "other")]
    assert bolt.emitted == []


def test_errors_of_a_batching_bolt_are_recorded() -> None:
    class Bad(BatchingBolt):
        def process_batch(self, key: Any, tups: list[Tuple]) -> None:
            raise ValueError("bad batch")

    bolt = start(Bad)
    (tup,) = tuples("word", [["a"]], stream="s", component="split")
    assert (tup.stream, tup.component, tup.values.word) == ("s", "split", "a")
    bolt.process(tup)
    bolt.process_batches()
    assert [str(error) for error in bolt.errors] == ["bad batch"]
    assert (bolt.failed, bolt.acked) == ([tup], [])


def test_a_reliable_spout_sends_again() -> None:
    class Letters(ReliableSpout):
        letters = iter("ab")

        def next_tuple(self) -> None:
            for letter in self.letters:
                self.emit([letter], tup_id=letter)
                return

    spout = start(Letters, task_index=1, parallelism=3)
    assert (spout.task_index, spout.parallelism) == (1, 3)
    assert [emitted.tup_id for emitted in drain(spout)] == ["a", "b"]
    spout.fail("b")
    assert spout.emitted == [Emitted(("b",), tup_id="b")]


def test_an_endless_spout_is_reported() -> None:
    with pytest.raises(AssertionError, match=r"Lines still emits after 3 calls.*give it a limit"):
        drain(start(Lines), calls=3)


def test_rows_are_named() -> None:
    assert [(row.word, row.count) for row in rows("word count", [["a", 1], ("b", 2)])] == [("a", 1), ("b", 2)]


def test_attributes_are_set_before_initialize() -> None:
    class Clocked(Bolt):
        clock: Any = None

        def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
            self.began = self.clock()

    assert start(Clocked, clock=lambda: 7).began == 7


def test_an_attribute_of_the_components_own_wins() -> None:
    class Own(Bolt):
        errors = ("none",)

        def __init__(self) -> None:  # without super().__init__(): it still records
            self.emitted = 3

    bolt = Own()
    bolt.emit(["a"])
    bolt.ack("x")
    assert (bolt.emitted, bolt.errors, bolt.acked) == (3, ("none",), ["x"])


def test_inside_an_engine_emit_is_the_engines_own() -> None:
    cluster = LocalCluster(workers=1)
    cluster.submit(Counting)
    cluster.run_until(lambda: bool(cluster.tasks("count")) and all(task.started for task in cluster.tasks("count")))
    (task,) = cluster.tasks("count")
    assert task.component._handle is task
    assert "emit" in vars(task.component)  # bound by the engine, ahead of Bolt.emit
    with pytest.raises(AttributeError, match=r"Count\.emitted is recorded only outside an engine"):
        task.component.emitted  # noqa: B018


def test_public_names_are_sorted_and_there() -> None:
    assert millrace.testing.__all__ == sorted(millrace.testing.__all__)
    assert all(hasattr(millrace.testing, name) for name in millrace.testing.__all__)
