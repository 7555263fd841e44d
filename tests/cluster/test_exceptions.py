"""User code that fails: the worker survives, the error is reported, and all other tuples arrive."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster
from support.cluster.ack_parts import ListIds
from support.cluster.cluster_runs import counter, drain, meter, run_through
from support.cluster.misbehaving_parts import (
    BadAcks,
    BadEmits,
    BadReports,
    CloseRaises,
    Intruder,
    RaisesAfterEmit,
    RaisesInCallbacks,
    TickRaises,
    divides,
    out_of_range,
)
from support.cluster.plain_parts import Numbers, NumbersArrow, Pass, Reliable, Sink, SinkArrow
from support.cluster.records import EVENTS, SEEN
from support.cluster.refusing_parts import (
    CannotBeMade,
    CannotStart,
    Lenient,
    Picky,
    PickyArrow,
    PickyBlocking,
    PickyRows,
    Reborn,
    RebornBlocking,
    RebornRows,
    StartsLater,
)
from support.cluster.stream_parts import MakesBadText, MixedTypes, RefusesBadText, ReusesItsList, Texts

TIMEOUT = "topology.message.timeout.secs"
AT_MOST_ONCE = {"topology.guarantee": "at-most-once"}
GUARANTEES = pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
N = 100


def line(spout: type[Spout], bolt: type[Bolt], grouping: Grouping = Grouping.SHUFFLE, par: int = 2) -> type[Topology]:
    """A topology spout → bolt → sink, with the bolt's dead letters in `letters`."""

    class Line(Topology):
        source = spout.spec()
        middle = bolt.spec(inputs={source: grouping}, par=par)
        sink = Sink.spec(inputs=[middle]) if middle.outputs else Sink.spec(inputs=[source])
        letters = Sink.spec(inputs=[middle.dead_letters])

    return Line


def one_bolt(spout: type[Spout], bolt: type[Bolt], grouping: Grouping = Grouping.SHUFFLE,
             par: int = 1) -> type[Topology]:
    class OneBolt(Topology):
        source = spout.spec()
        sink = bolt.spec(inputs={source: grouping}, par=par)

    return OneBolt


# ---- poison ----


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("bolt", [Picky, PickyBlocking, PickyRows, PickyArrow], ids=lambda bolt: bolt.__name__)
def test_poison_is_retried_and_then_a_dead_letter_while_others_arrive(bolt: type[Bolt], workers: int) -> None:
    cluster = run_through(line(Reliable, bolt), workers, seconds=2.0, limit=N, poison=[7, 42])
    assert set(SEEN["sink"]) == set(range(N)) - {7, 42}
    assert sorted(values for _, _, _, values, _ in SEEN["letters"]) == [[7], [42]]
    assert {(component, stream, error) for component, _, stream, _, error in SEEN["letters"]} == {
        ("middle", "default", "Refusal: not 7"), ("middle", "default", "Refusal: not 42")}
    assert sorted(Counter(n for what, n in EVENTS if what == "error")[n] for n in (7, 42)) == [3, 3]
    assert Counter(n for what, n in EVENTS if what == "ack") == Counter(range(N)), "a dead letter is done"
    assert counter(cluster, "dead_letters") == 2
    assert "line: drained" in cluster.said


@pytest.mark.parametrize("max_fails", [0, 1, 3])
def test_the_number_of_attempts_is_a_setting(max_fails: int) -> None:
    run_through(line(Reliable, Picky), seconds=2.0, limit=N, poison=[7], **{"topology.max.fails": max_fails})
    assert sum(entry == ("error", 7) for entry in EVENTS) == max_fails
    assert len(SEEN["letters"]) == 1
    assert set(SEEN["sink"]) == set(range(N)) - {7}


def test_neighbours_survive_more_attempts_than_the_spout_would_make_by_itself() -> None:
    run_through(line(Reliable, Picky), seconds=2.0, limit=N, poison=[7], **{"topology.max.fails": 6})
    assert set(SEEN["sink"]) == set(range(N)) - {7}


@pytest.mark.parametrize("bolt", [Picky, PickyBlocking])
def test_at_most_once_poison_is_a_dead_letter_at_once(bolt: type[Bolt]) -> None:
    run_through(line(Numbers, bolt), limit=N, poison=[7, 42], **AT_MOST_ONCE)
    assert sorted(SEEN["sink"]) == [n for n in range(N) if n not in (7, 42)]
    assert sorted(values for _, _, _, values, _ in SEEN["letters"]) == [[7], [42]]


@pytest.mark.parametrize("bolt", [PickyRows, PickyArrow], ids=lambda bolt: bolt.__name__)
def test_at_most_once_a_chunk_that_raises_is_dropped_whole(bolt: type[Bolt]) -> None:
    """No tuple may be processed twice, and the progress of the call is unknown."""
    small = {"burst": 10, "topology.chunk.tuples": 10}
    run_through(line(Numbers, bolt, par=1), limit=N, poison=[7], **small, **AT_MOST_ONCE)
    letters = sorted(values[0] for _, _, _, values, _ in SEEN["letters"])
    assert 7 in letters
    assert sorted(letters + SEEN["sink"]) == list(range(N))


def test_poison_that_arrives_in_a_batch_is_one_row_of_it() -> None:
    run_through(line(NumbersArrow, PickyArrow), seconds=2.0, limit=N, batch=25, poison=[7])
    assert set(SEEN["sink"]) == set(range(N)) - {7}
    assert [values for _, _, _, values, _ in SEEN["letters"]] == [[7]]


def test_an_exception_that_must_not_fail_the_tuple_leaves_it_to_the_timeout() -> None:
    cluster = run_through(line(Reliable, Lenient), seconds=3.0, limit=N, poison=[7], refusals=1, **{TIMEOUT: 1.0})
    assert set(SEEN["sink"]) == set(range(N))
    assert {what for what, _ in EVENTS} == {"ack", "timeout"}
    assert "line: drained" in cluster.said


def test_errors_are_reported_with_task_tuple_and_traceback() -> None:
    cluster = LocalCluster(1)
    cluster.submit(line(Numbers, Picky), config={"limit": N, "poison": [7], **AT_MOST_ONCE})
    cluster.step(120)
    (error,) = cluster.workers[0].report().errors
    assert error["topology"] == "line"
    assert error["task"] in ("middle[0]", "middle[1]")
    assert error["error"] == "Refusal: not 7"
    assert "in refuse" in error["traceback"]
    assert error["tuple"].startswith("source/default ")


# ---- invalid emits and acks ----


@GUARANTEES
def test_an_emit_that_does_not_fit_fails_its_tuple_only(guarantee: str) -> None:
    run_through(line(Reliable, BadEmits), seconds=2.0, limit=N, **{"topology.guarantee": guarantee})
    assert set(SEEN["sink"]) == {0, *range(9, N)}
    assert sorted(values for _, _, _, values, _ in SEEN["letters"]) == [[n] for n in range(1, 9)]


def test_a_direct_emit_to_a_task_that_does_not_read_the_stream_is_refused() -> None:
    run_through(line(Numbers, Intruder), limit=N, **AT_MOST_ONCE)
    assert sorted(SEEN["sink"]) == [n for n in range(N) if n != 5]
    assert [(values, error[:9]) for _, _, _, values, error in SEEN["letters"]] == [([5], "EmitError")]


@GUARANTEES
def test_acks_and_anchors_of_non_tuples_have_no_effect(guarantee: str) -> None:
    class Wrong(Topology):
        source = Reliable.spec()
        acks = BadAcks.spec(inputs=[source])
        sink = Sink.spec(inputs=[acks])

    run_through(Wrong, limit=N, **{"topology.guarantee": guarantee})
    assert sorted(SEEN["sink"]) == list(range(N))


@GUARANTEES
@pytest.mark.parametrize("choose", [divides, out_of_range])
def test_a_custom_grouping_that_raises_does_not_take_the_worker_down(choose: Any, guarantee: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(one_bolt(Reliable, Sink, Grouping.custom(choose), par=2),
                   config={"limit": 20, "topology.guarantee": guarantee, "topology.chunk.tuples": 1})
    cluster.run(1.0)
    assert set(SEEN["sink"]) == set(range(20)) - {5}
    assert meter(cluster, "source", "failed") > 0


@GUARANTEES
@pytest.mark.parametrize("grouping", [Grouping.SHUFFLE, Grouping.fields("n"), Grouping.ALL], ids=repr)
def test_a_text_that_has_no_utf8_does_not_take_the_worker_down(grouping: Grouping, guarantee: str) -> None:
    cluster = LocalCluster(2)
    cluster.submit(one_bolt(Texts, Sink, grouping, par=2), config={"limit": 20, "topology.guarantee": guarantee,
                                                                   "topology.chunk.tuples": 1})
    cluster.run(1.0)
    assert {str(n) for n in range(20) if n != 5} <= set(SEEN["sink"])


def test_neighbours_of_a_tuple_that_cannot_be_sent_arrive() -> None:
    run_through(one_bolt(Reliable, Sink, Grouping.custom(divides), par=2), seconds=2.0, limit=N)
    assert set(SEEN["sink"]) == set(range(N)) - {5}


@GUARANTEES
def test_a_bolts_tuple_that_cannot_be_sent_is_its_dead_letter_and_its_neighbours_arrive_once(guarantee: str) -> None:
    class Halves(Topology):
        source = Reliable.spec()
        middle = MakesBadText.spec(inputs=[source])
        sink = Sink.spec(inputs={middle: Grouping.ALL}, par=4)
        letters = Sink.spec(inputs=[middle.dead_letters])

    run_through(Halves, seconds=2.0, limit=N, **{"topology.guarantee": guarantee})
    counts = Counter(SEEN["sink"])
    assert {text: count for text, count in counts.items() if text != "\ud800"} == {str(n): 4 for n in range(N) if n != 5}
    assert counts["\ud800"] == 2, "it arrives where it is passed by reference"
    assert {(stream, *values) for _, _, stream, values, _ in SEEN["letters"]} == {("default", "'\\ud800'")}


def test_a_dead_letter_shows_a_value_that_cannot_be_sent() -> None:
    run_through(line(Texts, RefusesBadText, par=1), workers=1, limit=20, **AT_MOST_ONCE)
    assert sorted(SEEN["sink"]) == sorted(str(n) for n in range(20) if n != 5)
    assert [(values, error) for _, _, _, values, error in SEEN["letters"]] == [
        (["'\\ud800'"], "Refusal: what is this?")]


@pytest.mark.parametrize("spout", [Reliable, ListIds, NumbersArrow], ids=lambda spout: spout.__name__)
def test_a_spout_gets_every_ack_or_fail_though_a_grouping_refuses_some(spout: type[Spout]) -> None:
    cluster = run_through(one_bolt(spout, Sink, Grouping.custom(divides), par=2), seconds=2.0, limit=N, batch=10)
    assert set(SEEN["sink"]) == set(range(N)) - {5}
    assert "onebolt: drained" in cluster.said
    if spout is Reliable:
        assert Counter(n for what, n in EVENTS if what == "ack") == Counter(range(N))


def test_unserializable_reports_do_not_take_the_worker_down() -> None:
    cluster = LocalCluster(1)
    cluster.submit(one_bolt(Numbers, BadReports), config={"limit": N, **AT_MOST_ONCE})
    for _ in range(150):
        cluster.step()
        wire.encode(cluster.workers[0].report())
    assert sorted(SEEN["sink"])[-98:] == list(range(2, N))


@GUARANTEES
def test_rows_that_no_batch_can_hold_do_not_take_the_worker_down(guarantee: str) -> None:
    class Columns(Topology):
        source = Reliable.spec()
        mixed = MixedTypes.spec(inputs=[source])
        sink = SinkArrow.spec(inputs=[mixed])

    cluster = LocalCluster(2)
    cluster.submit(Columns, config={"limit": N, "topology.guarantee": guarantee, "topology.chunk.tuples": 1})
    cluster.run(2.0)
    assert set(SEEN["sink"]) >= set(range(N)) - {3, 4}


# ---- spouts that raise ----


@GUARANTEES
def test_a_spout_that_raises_continues_and_loses_no_emitted_tuple(guarantee: str) -> None:
    cluster = run_through(one_bolt(RaisesAfterEmit, Sink), seconds=5.0, limit=N, **{"topology.guarantee": guarantee})
    assert sorted(SEEN["sink"]) == list(range(N))
    assert counter(cluster, "start_failed") == 0


def test_a_spout_that_always_raises_does_not_block_others() -> None:
    class Both(Topology):
        tired = RaisesAfterEmit.spec()
        numbers = Numbers.spec()
        sink = Sink.spec(inputs=[tired, numbers])

    run_through(Both, workers=1, limit=N)
    assert Counter(SEEN["sink"]) >= Counter(range(N))


@pytest.mark.parametrize("poison", [[], [7]], ids=["acks", "fails"])
def test_a_spout_that_raises_in_ack_or_fail_still_gets_the_rest(poison: list[int]) -> None:
    cluster = run_through(line(RaisesInCallbacks, Picky), seconds=3.0, limit=N, poison=poison, refusals=1)
    assert set(SEEN["sink"]) == set(range(N))
    assert Counter(n for what, n in EVENTS if what == "ack") == Counter(range(N))
    assert "line: drained" in cluster.said


def test_a_replay_sends_the_original_values_though_the_spout_reuses_its_list() -> None:
    run_through(line(ReusesItsList, Picky), seconds=2.0, limit=N, poison=[50], refusals=1)
    assert set(SEEN["sink"]) == set(range(N))


def test_a_spout_may_use_ids_that_cannot_be_hashed() -> None:
    run_through(line(ListIds, Picky), seconds=2.0, limit=N, poison=[7])
    assert set(SEEN["sink"]) == set(range(N)) - {7}
    assert [values for _, _, _, values, _ in SEEN["letters"]] == [[7]]


# ---- components that do not start, and new instances ----


@GUARANTEES
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("bolt", "error"), [
    (CannotStart, "Refusal: no start"), (CannotBeMade, "Refusal: no instance")])
def test_a_bolt_that_cannot_start_is_reported_and_disturbs_no_other_topology(
        bolt: type[Bolt], error: str, workers: int, guarantee: str) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(line(Numbers, bolt), name="broken", config={"limit": N, "topology.guarantee": guarantee})
    fatal = [entry for worker in cluster.workers.values() for entry in worker.errors if entry.get("fatal")]
    assert {(entry["topology"], entry["error"]) for entry in fatal} == {("broken", error)}
    assert counter(cluster, "start_failed") == 2
    cluster.submit(one_bolt(Numbers, Sink), name="fine", config={"limit": N, "topology.guarantee": guarantee})
    cluster.run(1.0)
    drain(cluster, "fine")
    assert sorted(SEEN["sink"]) == list(range(N))
    assert EVENTS == [], "a bolt without its initialize gets nothing"


@pytest.mark.parametrize("workers", [1, 3])
def test_a_bolt_that_could_not_start_is_tried_again_with_the_next_plan(workers: int) -> None:
    cluster = LocalCluster(workers)
    cluster.submit(line(Numbers, StartsLater, par=1), config={"limit": N, TIMEOUT: 1.0})
    cluster.run(1.0)
    assert SEEN["sink"] == []
    for name in ("second", "third"):
        cluster.submit(one_bolt(Numbers, CloseRaises), name=name, config={"limit": 0})
    cluster.run(5.0)
    drain(cluster, "line")
    assert set(SEEN["sink"]) == set(range(N))


@GUARANTEES
@pytest.mark.parametrize("bolt", [Reborn, RebornBlocking, RebornRows], ids=lambda bolt: bolt.__name__)
def test_a_bolt_may_ask_for_a_new_instance_after_an_exception(bolt: type[Bolt], guarantee: str) -> None:
    run_through(line(Numbers, bolt, par=1), seconds=2.0, limit=N, burst=1, poison=[50],
                **{"topology.guarantee": guarantee, "topology.chunk.tuples": 1, "topology.max.fails": 1})
    instances = {n: instance for instance, n in SEEN["sink"]}
    assert instances[0] == 1
    assert instances[N - 1] == (2 if guarantee == "at-most-once" else 3)
    assert set(instances) == set(range(N)) - {50}


@pytest.mark.parametrize("bolt", [Reborn, RebornBlocking], ids=lambda bolt: bolt.__name__)
def test_a_new_instance_that_cannot_be_made_leaves_the_old_one(bolt: type[Bolt]) -> None:
    run_through(line(Numbers, bolt, par=1), seconds=2.0, limit=N, poison=[50], instances=1, **AT_MOST_ONCE)
    assert sorted(SEEN["sink"]) == [(1, n) for n in range(N) if n != 50]


@GUARANTEES
def test_ticks_and_close_may_raise(guarantee: str) -> None:
    class Rude(Topology):
        source = Numbers.spec()
        ticked = TickRaises.spec(inputs=[source], config={"topology.tick.tuple.freq.secs": 0.1})
        closing = CloseRaises.spec(inputs=[source])

    cluster = LocalCluster(1)
    cluster.submit(Rude, config={"limit": N, "topology.guarantee": guarantee})
    cluster.run(1.0)
    assert meter(cluster, "ticked", "failed") == EVENTS.count(("tick", 0.1, True)) >= 8
    drain(cluster, "rude")
    assert sorted(SEEN["ticked"]) == sorted(SEEN["closing"]) == list(range(N))
    assert EVENTS.count(("closed", "closing")) == 1


def test_a_plain_bolt_is_unaffected() -> None:
    run_through(line(Numbers, Pass), limit=N)
    assert sorted(SEEN["sink"]) == list(range(N))
