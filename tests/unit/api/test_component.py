"""Tuples, and what spouts and bolts have in common."""

from __future__ import annotations

from typing import Any

import pytest
from diary import TICK, running, word

from millrace.api.bolt import BatchingBolt, Bolt
from millrace.api.component import Component
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.tuple import Tuple
from millrace.errors import NotRunning


def test_a_tuple_reads_like_streamparses() -> None:
    tup = Tuple.of("root", "split", "default", 7, ("a", 1))
    assert (tup.component, tup.stream, tup.task, tup.values) == ("split", "default", 7, ("a", 1))
    assert list(tup) == [tup.id, "split", "default", 7, ("a", 1)]
    assert (tup[1], tup[4], len(tup)) == ("split", ("a", 1), 5)


def test_ticks_and_heartbeats_are_told_apart() -> None:
    heartbeat = Tuple.of("h", "x", "__heartbeat", -1, ())
    assert Bolt.is_tick(TICK) and not Bolt.is_tick(word("a")) and not Bolt.is_tick(heartbeat)
    assert Component.is_heartbeat(heartbeat) and not Component.is_heartbeat(TICK)


@pytest.mark.parametrize("call", [lambda: Bolt().emit(["a"]), lambda: Bolt().ack("x"), lambda: Spout().emit(["a"]),
                                  lambda: Bolt().report_metric("m", 1), lambda: Spout().emit_arrow(None)])
def test_outside_a_task_a_component_says_so(call: Any) -> None:
    with pytest.raises(NotRunning, match=r"outside a running task.*in a topology"):
        call()


def test_what_must_be_defined_says_so() -> None:
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
