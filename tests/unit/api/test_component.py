"""Tuples, and the common behaviour of spouts and bolts."""

from __future__ import annotations

import pytest
from diary import TICK, running, word

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.component import Component
from millrace.api.recorder import Emitted
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.tuple import Tuple


def test_a_tuple_reads_like_streamparses() -> None:
    tup = Tuple.of("root", "split", "default", 7, ("a", 1))
    assert (tup.component, tup.stream, tup.task, tup.values) == ("split", "default", 7, ("a", 1))
    assert list(tup) == [tup.id, "split", "default", 7, ("a", 1)]
    assert (tup[1], tup[4], len(tup)) == ("split", ("a", 1), 5)


def test_ticks_and_heartbeats_are_distinguished() -> None:
    heartbeat = Tuple.of("h", "x", "__heartbeat", -1, ())
    assert Bolt.is_tick(TICK) and not Bolt.is_tick(word("a")) and not Bolt.is_tick(heartbeat)
    assert Component.is_heartbeat(heartbeat) and not Component.is_heartbeat(TICK)


def test_outside_a_task_a_bolt_records_its_calls() -> None:
    bolt, values = Bolt(), ["a"]
    assert bolt.emit(values, stream="s", anchors=(TICK,), direct_task=3, need_task_ids=True) == []
    values[0] = "another"
    assert bolt.emit(("b",), anchors=[]) is None
    bolt.emit_rows([["c"], ("d",)])
    bolt.emit_arrow("batch", stream="s")
    assert bolt.emitted == [Emitted(("a",), "s", None, [TICK], 3), Emitted(("b",), "default", anchors=[]), Emitted(("c",)),
                            Emitted(("d",)), Emitted("batch", "s")]
    bolt.ack(TICK)
    bolt.fail("x")
    bolt.report_metric("m", 1)
    error = ValueError("odd")
    bolt.raise_exception(error, TICK)
    assert (bolt.acked, bolt.failed, bolt.metrics, bolt.errors) == ([TICK], ["x"], [("m", 1)], [error])


def test_outside_a_task_a_spout_records_its_calls() -> None:
    spout = Spout()
    spout.emit(["a"], tup_id=5, stream="s", direct_task=3)
    spout.emit_arrow("batch", tup_id=6)
    assert spout.emitted == [Emitted(("a",), "s", 5, None, 3), Emitted("batch", tup_id=6)]


def test_abstract_methods_raise() -> None:
    for call, method in ((Spout().next_tuple, "next_tuple"), (lambda: Bolt().process(TICK), "process"),
                         (lambda: BatchingBolt().process_batch(None, []), "process_batch"),
                         (lambda: ReplayableSpout().seek(1), "seek")):
        with pytest.raises(NotImplementedError, match=f"must define {method}"):
            call()


def test_log_levels(caplog: pytest.LogCaptureFixture) -> None:
    Bolt().log("careful", "warn")
    assert [(record.levelname, record.message) for record in caplog.records] == [("WARNING", "careful")]
    with pytest.raises(ValueError, match="'loud' is not one of trace, debug"):
        Bolt().log("x", "loud")


def test_emit_passes_everything_on() -> None:
    bolt, spout = Bolt(), Spout()
    diary = running(bolt)
    bolt.emit(["a"], stream="s", anchors=[TICK], direct_task=3)
    bolt.emit_arrow("batch", stream="s")
    bolt.report_metric("m", 1)
    bolt.raise_exception(ValueError("odd"), TICK)
    assert diary.take() == [("emit", ["a"], None, "s", [TICK], 3), ("emit_arrow", "batch", None, "s", None, None),
                            ("metric", "m", 1), ("error", "odd", TICK)]
    diary = running(spout)
    spout.emit(("a",), tup_id=5, stream="s", direct_task=3)
    assert diary.take() == [("emit", ("a",), 5, "s", None, 3)]
