"""The outbox keeps the emit order of each stream and merges compatible tuples."""

from __future__ import annotations

from typing import Any, Literal

import pyarrow as pa
import pytest

from millrace.api.tuple import Tuple
from millrace.errors import EmitError
from millrace.model.graph import ComponentDef, StreamDef, TaskId
from millrace.runtime.flow.channel import Channel
from millrace.runtime.tasks.outbox import Outbox


def outbox(kind: Literal["spout", "bolt"] = "bolt") -> Outbox:
    streams = (StreamDef("default", ("n",), False), StreamDef("late", ("n",), False), StreamDef("chosen", ("n",), True))
    return Outbox(TaskId("split", 3), ComponentDef("split", kind, "", 4, {}, streams, (), False, "process"))


def emit(box: Outbox, n: int, stream: str | None = None, anchors: Any = None, to: int | None = None,
         tup_id: Any = None) -> None:
    box.emit((n,), tup_id, stream, anchors, to, False)


def taken(box: Outbox) -> list[tuple[str, list[Any], Any]]:
    return [(group.output.name, group.body, group.anchors) for group in box.take()]


def test_ordinary_tuples_of_a_stream_leave_together() -> None:
    box = outbox()
    for n in range(3):
        emit(box, n)
        emit(box, -n, "late")
    assert box.waiting() == 6
    assert taken(box) == [("default", [(0,), (1,), (2,)], None), ("late", [(0,), (-1,), (-2,)], None)]
    assert (box.waiting(), taken(box)) == (0, [])


def test_a_tuple_with_anchors_does_not_overtake_those_before_it() -> None:
    box = outbox()
    emit(box, 1)
    emit(box, 2, anchors=["a:0"])
    emit(box, 3, anchors=("a:0",))
    emit(box, 4, anchors="b:0")
    emit(box, 5)
    assert taken(box) == [("default", [(1,)], None), ("default", [(2,), (3,)], ("a:0",)), ("default", [(4,)], ("b:0",)),
                          ("default", [(5,)], None)]


def test_anchors_are_those_at_the_time_of_the_emit() -> None:
    box, anchors = outbox(), [Tuple.of("1", "words", "default", 1, ("a",))]
    emit(box, 1, anchors=anchors)
    anchors.clear()
    ((_, _, kept),) = taken(box)
    assert [tup.id for tup in kept] == ["1"]


def test_a_batch_does_not_overtake_the_rows_before_it() -> None:
    box, batch = outbox(), pa.RecordBatch.from_pydict({"n": [2, 3]})
    emit(box, 1)
    box.emit_arrow(batch, None, None, None, None)
    emit(box, 4)
    assert box.waiting() == 4
    assert [group.body for group in box.take()] == [[(1,)], batch, [(4,)]]


@pytest.mark.parametrize(("kind", "ids"), [("spout", ["x", None]), ("bolt", [])])
def test_only_a_spout_has_its_ids_kept(kind: Literal["spout", "bolt"], ids: list[Any]) -> None:
    box = outbox(kind)
    emit(box, 1, tup_id="x")
    emit(box, 2)
    (group,) = box.take()
    assert group.ids == ids


def test_a_direct_stream_goes_by_the_channel_that_was_named() -> None:
    box = outbox()
    channel: Any = Channel(None, 7, 0, TaskId("named", 0), 1)  # type: ignore[arg-type]
    box.by_stream["chosen"].targets = {7: channel}
    emit(box, 1, "chosen", to=7)
    (group,) = box.take()
    assert group.channels == (channel,)
    with pytest.raises(EmitError, match=r"split\[3\] emitted to task 8 on stream 'chosen'; its targets are \[7\]"):
        emit(box, 1, "chosen", to=8)


@pytest.mark.parametrize(("stream", "to", "words"), [
    ("chosen", None, "a direct stream needs direct_task="), (None, 7, "direct_task=7 was given, but the stream is not direct"),
    ("other", None, "which it does not declare; it has 'default', 'late', 'chosen'")])
def test_a_tuple_that_does_not_fit_the_stream_is_refused(stream: str | None, to: int | None, words: str) -> None:
    box = outbox()
    with pytest.raises(EmitError, match=words):
        emit(box, 1, stream, to=to)
    assert box.waiting() == 0


def test_rows_cannot_be_emitted_directly() -> None:
    with pytest.raises(EmitError, match="a direct stream needs emit with direct_task="):
        outbox().emit_rows([(1,)], "chosen")
