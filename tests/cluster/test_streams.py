"""Streams and groupings on a whole cluster: named streams, several inputs, diamonds, direct tasks."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.testing.local_cluster import LocalCluster
from support.cluster.cluster_runs import errors, run_through
from support.cluster.plain_parts import Numbers, Pass, Sink, SinkByTask
from support.cluster.records import EVENTS, SEEN
from support.cluster.stream_parts import (
    EvenOdd,
    Grabby,
    GrabbyRows,
    Marker,
    NeedsIds,
    Nested,
    Origins,
    TaskIdSink,
    ToChosen,
    by_remainder,
    to_both_ends,
)

pytestmark = pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once"])
N = 600


def run(topology: type[Topology], guarantee: str, workers: int = 2, **config: Any) -> LocalCluster:
    return run_through(topology, workers, seconds=0.6, limit=N, **{"topology.guarantee": guarantee}, **config)


class Named(Topology):
    numbers = Numbers.spec(par=2)
    parity = EvenOdd.spec(inputs=[numbers], par=2)
    evens = Sink.spec(inputs=[parity], par=2)
    odds = Origins.spec(inputs={parity["odd"]: Grouping.fields("text")}, par=2)
    both = Origins.spec(inputs={parity: Grouping.SHUFFLE, parity["odd"]: Grouping.GLOBAL}, par=2)


def test_each_named_stream_goes_to_its_readers(guarantee: str) -> None:
    run(Named, guarantee)
    assert sorted(SEEN["evens"]) == list(range(0, N, 2))
    assert sorted(SEEN["odds"]) == [("parity", "odd", ("n", "text"), (n, str(n))) for n in range(1, N, 2)]
    by_stream = Counter((stream, fields) for _, stream, fields, _ in SEEN["both"])
    assert by_stream == {("default", ("n",)): N // 2, ("odd", ("n", "text")): N // 2}


class SeveralInputs(Topology):
    one = Numbers.spec()
    two = Numbers.spec(par=2)
    through = Pass.spec(inputs=[two])
    sink = Origins.spec(inputs=[one, two, through], par=3)


def test_a_bolt_may_read_several_components(guarantee: str) -> None:
    run(SeveralInputs, guarantee)
    for source in ("one", "two", "through"):
        assert sorted(values[0] for component, _, _, values in SEEN["sink"] if component == source) == list(range(N))


class Diamond(Topology):
    numbers = Numbers.spec(par=2)
    left = Pass.spec(inputs=[numbers], par=2)
    right = Pass.spec(inputs={numbers: Grouping.fields("n")}, par=3)
    join = Sink.spec(inputs={left: Grouping.fields("n"), right: Grouping.fields("n")}, par=2)


def test_a_diamond_delivers_each_tuple_twice(guarantee: str) -> None:
    run(Diamond, guarantee, workers=3)
    assert Counter(SEEN["join"]) == dict.fromkeys(range(N), 2)


class Groupings(Topology):
    numbers = Numbers.spec(par=2)
    every = SinkByTask.spec(inputs={numbers: Grouping.ALL}, par=3)
    first = SinkByTask.spec(inputs={numbers: Grouping.GLOBAL}, par=3)
    ends = SinkByTask.spec(inputs={numbers: Grouping.custom(to_both_ends)}, par=3)
    remainder = SinkByTask.spec(inputs={numbers: Grouping.custom(by_remainder)}, par=3)
    shuffled = SinkByTask.spec(inputs={numbers: Grouping.SHUFFLE}, par=3)
    whatever = SinkByTask.spec(inputs={numbers: Grouping.NONE}, par=3)


def test_groupings_choose_the_tasks(guarantee: str) -> None:
    run(Groupings, guarantee)
    assert Counter(SEEN["every"]) == Counter((task, n) for task in range(3) for n in range(N))
    assert sorted(SEEN["first"]) == [(0, n) for n in range(N)]
    assert Counter(SEEN["ends"]) == Counter((task, n) for task in (0, 2) for n in range(N))
    assert sorted(SEEN["remainder"]) == sorted((n % 3, n) for n in range(N))
    for name in ("shuffled", "whatever"):
        assert sorted(n for _, n in SEEN[name]) == list(range(N))
        counts = Counter(task for task, _ in SEEN[name])
        assert len(counts) == 3
        assert max(counts.values()) - min(counts.values()) <= 2 * 64, "two spouts, and chunks of up to 64 stay whole"


class Local(Topology):
    numbers = Numbers.spec(par=2)
    sink = TaskIdSink.spec(inputs={numbers: Grouping.LOCAL_OR_SHUFFLE}, par=4)
    alone = TaskIdSink.spec(inputs={numbers: Grouping.LOCAL_OR_SHUFFLE}, par=1)


def test_local_or_shuffle_stays_in_the_worker_where_it_can(guarantee: str) -> None:
    cluster = LocalCluster(2)
    graph = cluster.submit(Local, config={"limit": N, "topology.guarantee": guarantee})
    cluster.run(0.6)
    where = cluster.where("local")
    assert sorted(n for n, _ in SEEN["sink"]) == sorted(n for n, _ in SEEN["alone"]) == list(range(N))
    spouts = {task.index: slot for task, slot in where.items() if task.component == "numbers"}
    assert all(where[graph.task(task)] == spouts[n % 2] for n, task in SEEN["sink"])


class Direct(Topology):
    numbers = Numbers.spec(par=2)
    chooser = ToChosen.spec(inputs=[numbers], par=2)
    direct_sink = SinkByTask.spec(inputs=[chooser["chosen"]], par=3)
    other = Sink.spec(inputs=[chooser])


def test_the_producer_chooses_the_task_of_a_direct_stream(guarantee: str) -> None:
    run(Direct, guarantee)
    assert sorted(SEEN["direct_sink"]) == sorted((n % 3, n) for n in range(N))
    assert sorted(SEEN["other"]) == list(range(N))


class Ids(Topology):
    numbers = Numbers.spec()
    asks = NeedsIds.spec(inputs=[numbers], par=2)
    keyed = TaskIdSink.spec(inputs={asks: Grouping.fields("n")}, par=3)
    every = TaskIdSink.spec(inputs={asks: Grouping.ALL}, par=2)


def test_emit_returns_target_tasks_on_request(guarantee: str) -> None:
    run(Ids, guarantee)
    targets = sorted((n, task) for n, tasks in EVENTS for task in tasks)
    assert targets == sorted(SEEN["keyed"] + SEEN["every"])
    assert len(targets) == 3 * N


class OddNames(Topology):
    numbers = Numbers.spec(name="1st.step/ä")
    through = Pass.spec(name="class", inputs=[numbers], par=2)
    sink = Origins.spec(inputs=[through], par=2)


def test_a_component_may_have_any_name(guarantee: str) -> None:
    run(OddNames, guarantee)
    assert sorted(SEEN["sink"]) == [("class", "default", ("n",), (n,)) for n in range(N)]


class Unread(Topology):
    numbers = Numbers.spec()
    parity = EvenOdd.spec(inputs=[numbers])


def test_an_unread_tuple_is_done_when_it_is_emitted(guarantee: str) -> None:
    cluster = run(Unread, guarantee)
    assert errors(cluster) == []


class Marks(Topology):
    numbers = Numbers.spec()
    marker = Marker.spec(inputs=[numbers])
    sink = Origins.spec(inputs=[marker["mark"]], par=2)


def test_tuples_without_fields_travel(guarantee: str) -> None:
    run(Marks, guarantee)
    assert SEEN["sink"] == [("marker", "mark", (), ())] * N


class Values(Topology):
    nested = Nested.spec()
    here = Grabby.spec(inputs={nested: Grouping.ALL}, par=4)
    there = Grabby.spec(inputs={nested: Grouping.ALL}, par=4)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_all_receivers_get_the_same_value_on_any_worker(guarantee: str, workers: int) -> None:
    run(Values, guarantee, workers)
    as_sent = [repr([1, [2, 3]] if isinstance(value, tuple) else value) for value in Nested.VALUES]
    assert Counter(SEEN["here"]) == Counter(SEEN["there"]) == Counter(as_sent * 4)


class Lists(Topology):
    numbers = Numbers.spec()
    one = GrabbyRows.spec(inputs=[numbers])
    two = GrabbyRows.spec(inputs=[numbers])
    three = GrabbyRows.spec(inputs={numbers: Grouping.ALL}, par=2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_list_of_rows_belongs_to_the_bolt_that_gets_it(guarantee: str, workers: int) -> None:
    run(Lists, guarantee, workers)
    assert sorted(SEEN["one"]) == sorted(SEEN["two"]) == list(range(N))
    assert Counter(SEEN["three"]) == dict.fromkeys(range(N), 2)
