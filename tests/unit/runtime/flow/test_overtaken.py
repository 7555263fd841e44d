"""Chunks that a wave has overtaken read the same after they were saved, however they had come."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millrace.api.grouping import Grouping
from millrace.errors import CorruptCheckpoint
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph
from millrace.runtime.flow.channel import UNTRACKED, Delivery, Inlet
from millrace.runtime.flow.overtaken import Overtaken, unpacked
from millrace.runtime.tasks.chunk_views import ChunkReader
from millrace.runtime.wire import messages as wire
from millrace.runtime.wire.bodies import encode_batch, encode_extended, encode_rows
from millrace.state.checkpoint import InFlightStream

MARK = wire.WaveMark("prepare", 3, 1, False, True)
STREAMS = (StreamDef("other", ("x",), False), StreamDef("default", ("word", "n"), False))
TARGET = TaskId("count", 1)


def graph() -> TopologyGraph:
    read = ComponentDef("read", "spout", "parts:read", 3, {}, STREAMS, (), False, "next_tuple")
    count = ComponentDef("count", "bolt", "parts:count", 2, {}, (), (Input("read", "default", Grouping.fields("word")),), False,
                         "process")
    return TopologyGraph("words", (read, count), {})


SOURCE = graph().number(TaskId("read", 2))


def chunk(body: Any, form: int, local: bool, count: int = 2, source: int = SOURCE) -> Delivery:
    return Delivery(Inlet(source, 7, "read", ("other", "default"), 0, None), 1, body, count, form, local, 0, UNTRACKED)


def saved(*deliveries: Delivery, missing: tuple[int, ...] = ()) -> bytes:
    overtaken = Overtaken(MARK, set(missing), graph())
    for delivery in deliveries:
        overtaken.save(delivery)
    assert not overtaken.error
    return overtaken.packed()


def rows(delivery: Delivery) -> list[Any]:
    topology: Any = type("Topology", (), {"graph": graph()})()
    return ChunkReader(topology).rows(delivery, named=False)


PLAIN = [("a", 1), ("b", [2, {"c": None}])]
RICH = [("big", 2**70), ("when", datetime(2026, 1, 2, 3, tzinfo=UTC)), ("day", date(2026, 1, 2)), ("sum", Decimal("1.50")),
        ("bytes", b"\xff")]
BATCH = pa.RecordBatch.from_pydict({"word": ["a", "b"], "n": [1, 2]})


@pytest.mark.parametrize(("body", "form", "local", "expected"), [
    (PLAIN, wire.ROWS, True, PLAIN), (encode_rows(PLAIN), wire.ROWS, False, PLAIN),
    (memoryview(encode_rows(PLAIN)), wire.ROWS, False, PLAIN),
    (RICH, wire.EXTENDED_ROWS, True, RICH), (encode_extended(RICH), wire.EXTENDED_ROWS, False, RICH),
    ([("\udc80", 1)], wire.ROWS, True, [("\udc80", 1)]),
    (BATCH, wire.ARROW, True, [("a", 1), ("b", 2)]), (encode_batch(BATCH), wire.ARROW, False, [("a", 1), ("b", 2)]),
    (BATCH.slice(1), wire.ARROW, True, [("b", 2)]),
])
def test_rows_are_the_same(body: Any, form: int, local: bool, expected: list[Any]) -> None:
    [again] = unpacked(saved(chunk(body, form, local, len(expected))), graph(), TARGET)
    assert rows(again) == expected and {type(row) for row in rows(again)} == {tuple}
    assert (again.component, again.task, again.stream) == ("read", SOURCE, "default")
    assert (again.count, again.form) == (len(expected), form)
    assert again.more, "nobody waits for its credit"


def test_chunks_keep_their_order() -> None:
    data = saved(*(chunk([(str(number), number)], wire.ROWS, True, 1) for number in range(5)))
    assert [rows(delivery)[0][1] for delivery in unpacked(data, graph(), TARGET)] == list(range(5))


def test_later_changes_of_values_are_not_saved() -> None:
    """The task goes on to process the chunk."""
    values = [("a", [1])]
    overtaken = Overtaken(MARK, set(), graph())
    overtaken.save(chunk(values, wire.ROWS, True, 1))
    values[0][1].append(2)
    values.clear()
    assert rows(unpacked(overtaken.packed(), graph(), TARGET)[0]) == [("a", [1])]


def test_of_later_chunks_only_those_ahead_of_the_mark_are_saved() -> None:
    other = graph().number(TaskId("read", 0))
    overtaken = Overtaken(MARK, {other}, graph())
    overtaken.arrived(chunk(PLAIN, wire.ROWS, True))
    overtaken.arrived(chunk(PLAIN, wire.ROWS, True, source=other))
    overtaken.missing.discard(other)
    overtaken.arrived(chunk(PLAIN, wire.ROWS, True, source=other))
    assert [(saved.component, saved.index) for saved in overtaken.chunks] == [("read", 0)]


def test_what_cannot_be_saved_is_said() -> None:
    overtaken = Overtaken(MARK, set(), graph())
    overtaken.save(chunk([("a", object())], wire.ROWS, True, 1))
    assert overtaken.error.startswith("a chunk from read[2] cannot be saved with the wave: ")


def test_the_streams_of_the_chunks_are_known() -> None:
    overtaken = Overtaken(MARK, set(), graph())
    assert overtaken.streams("count") == []
    for _ in range(2):
        overtaken.save(chunk(PLAIN, wire.ROWS, True))
    assert overtaken.streams("count") == [InFlightStream("read", "default", ("word", "n"), "fields(word)")]


def test_other_bytes_are_refused() -> None:
    with pytest.raises(CorruptCheckpoint, match=r"tuples in flight to count\[1\] are undamaged but cannot be read"):
        unpacked(b"\x91\x91\x01", graph(), TARGET)
