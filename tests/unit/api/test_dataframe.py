"""Declarations of DataFrame spouts, tested without Spark."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from millrace import Bolt, Grouping, Spout, Topology, Tuple
from millrace.api.dataframe import DataFrameSpout, check_dataframe, dataframes_of
from millrace.config import DATAFRAME_CHECKPOINT
from millrace.errors import NotRunning, TopologyError
from millrace.model.graph import graph_of


class StubDataFrame:
    """The part of a DataFrame that the declaration reads."""

    def __init__(self, *columns: str, streaming: bool = True) -> None:
        self.columns, self.isStreaming = list(columns), streaming


class Sink(Bolt):
    def process(self, tup: Tuple) -> None: ...


def make(spark: Any) -> Any:
    return StubDataFrame("line")


DATAFRAME = StubDataFrame("at", "line")


class Reading(Topology):
    lines = Spout.from_dataframe(DATAFRAME, par=2, checkpoint="/there", config={"topology.dataframe.trigger.secs": 2})
    others = Spout.from_dataframe(make, name="more", outputs=["line"])
    plain = Spout.from_dataframe("their.module:make", outputs=["line"])
    sink = Sink.spec(inputs={lines: Grouping.fields("line"), others: Grouping.SHUFFLE, plain: Grouping.SHUFFLE})


def test_the_columns_are_the_fields() -> None:
    graph = graph_of(Reading)
    lines, more = graph.component("lines"), graph.component("more")
    assert lines.outputs[0].fields == ("at", "line")
    assert more.outputs[0].fields == ("line",)
    assert (lines.kind, lines.par, lines.dataframe, lines.movable) == ("spout", 2, True, True)
    assert not graph.component("sink").dataframe
    assert lines.config == {DATAFRAME_CHECKPOINT.key: "/there", "topology.dataframe.trigger.secs": 2}


def test_the_dataframes_stay_with_the_class() -> None:
    assert dataframes_of(Reading) == {"lines": DATAFRAME, "more": make, "plain": "their.module:make"}


def test_outputs_may_be_in_another_order() -> None:
    assert Spout.from_dataframe(DATAFRAME, outputs=["line", "at"]).outputs[0].fields == ("line", "at")


@pytest.mark.parametrize(("arguments", "message"), [
    ((StubDataFrame("line", streaming=False),), r"needs a streaming DataFrame.*\(line\) is not streaming.*spark\.readStream"),
    ((make,), r"that make returns .* columns are not known yet.*outputs="),
    (("their.module:make",), r"that their\.module:make returns"),
    ((StubDataFrame("two words"),), r"field 'two words'.*cannot be an attribute"),
    ((StubDataFrame("a", "a"),), r"field 'a' occurs twice"),
])
def test_dataframes_that_cannot_be_read_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        Spout.from_dataframe(*arguments)


@pytest.mark.parametrize("outputs", [["line"], ["at", "text"], ["at", "line", "more"]])
def test_outputs_that_are_not_the_columns_are_refused_by_name(outputs: list[str]) -> None:
    message = f"outputs {', '.join(outputs)}, and its DataFrame the columns at, line"
    with pytest.raises(TopologyError, match=re.escape(message)):
        Spout.from_dataframe(DATAFRAME, outputs=outputs)


def test_an_object_that_is_not_a_dataframe_is_refused() -> None:
    with pytest.raises(TypeError, match=r"takes a streaming DataFrame.*not 5 \(int\)"):
        Spout.from_dataframe(5)
    with pytest.raises(TopologyError, match=r"the spout needs a streaming DataFrame, but got None"):
        check_dataframe("the spout", None, ["line"])


# -- the spout itself --


class FakeFeed:
    def __init__(self, *batches: Any) -> None:
        self.batches, self.calls = list(batches), []  # type: ignore[var-annotated]

    def take(self) -> Any:
        return self.batches.pop(0) if self.batches else None

    def done(self, key: Any) -> None:
        self.calls.append(("done", key))

    def refuse(self, key: Any, reason: str) -> None:
        self.calls.append(("refused", key))

    def close(self) -> None:
        self.calls.append(("closed", None))


class FakeHandle:
    def __init__(self, error: Exception | None = None) -> None:
        self.emitted: list[Any] = []
        self.error = error

    def emit_arrow(self, batch: pa.RecordBatch, tup_id: Any, *rest: Any) -> None:
        if self.error is not None:
            raise self.error
        self.emitted.append((tup_id, batch.num_rows))


BATCH = pa.record_batch({"line": ["a", "b"]})


def spout(feed: FakeFeed, tracked: bool = True, error: Exception | None = None) -> tuple[DataFrameSpout, FakeHandle]:
    made, handle = DataFrameSpout(), FakeHandle(error)
    made.feed, made._handle, made.tracked = feed, handle, tracked  # type: ignore[assignment]
    return made, handle


def test_it_is_done_when_it_is_acked() -> None:
    feed = FakeFeed((1, BATCH))
    made, handle = spout(feed)
    made.next_tuple()
    made.next_tuple()
    assert (handle.emitted, feed.calls) == ([(1, 2)], [])
    made.ack(1)
    assert feed.calls == [("done", 1)]
    assert not made.unacked_tuples


def test_failed_batches_are_sent_again_by_the_spout_itself() -> None:
    feed = FakeFeed((1, BATCH))
    made, handle = spout(feed)
    made.next_tuple()
    made.fail_cause = "lost"
    made.fail(1)
    assert (handle.emitted, feed.calls) == ([(1, 2), (1, 2)], [])


def test_untracked_it_is_done_when_it_is_sent() -> None:
    feed = FakeFeed((1, BATCH))
    made, _ = spout(feed, tracked=False)
    made.next_tuple()
    assert feed.calls == [("done", 1)]


def test_rows_that_cannot_be_emitted_are_refused() -> None:
    feed = FakeFeed((1, BATCH))
    made, _ = spout(feed, error=ValueError("other columns"))
    with pytest.raises(ValueError, match="other columns"):
        made.next_tuple()
    assert feed.calls == [("refused", 1)]


def test_without_an_engine_the_error_has_advice() -> None:
    with pytest.raises(NotRunning, match="submit its topology to an engine on Spark"):
        DataFrameSpout().next_tuple()
