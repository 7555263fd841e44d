"""The reference engine against results worked out by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from millrace.errors import TopologyError
from millrace.model.graph import TaskId, graph_of
from millrace.testing.reference import run_reference
from millrace.workloads.audit import Audited, audit
from millrace.workloads.throughput import throughput_test
from millrace.workloads.wordcount import TallyArrowCount, WordCount, WordCountArrow, expected_counts
from support.topologies.engine_parts import Batches, Diamond, Groupings, GuestBook, Letters, Streams, Values, Visit


@pytest.mark.parametrize("par", [{}, {"lines": 3, "split": 5, "count": 7}])
@pytest.mark.parametrize("topology", [WordCount, TallyArrowCount])
def test_counts_are_the_true_ones(topology, par):
    result = run_reference(topology, config={"limit": 200, "seed": 3, "words": 90, "batch": 30}, par=par)
    truth = expected_counts(3, 200, 90)
    assert result.states["count"] == {"state": {}, "counts": truth}
    assert len(result.received["count"]["split", "default"]) == 2000
    # Every tuple is its own batch, so each count of a word is emitted once.
    assert result.reached("drop") == Counter({(word, n + 1): 1 for word, times in truth.items() for n in range(times)})


def test_positions_are_those_at_the_end():
    assert run_reference(WordCount, config={"limit": 5}).positions == {TaskId("lines", 0): 3, TaskId("lines", 1): 2}
    result = run_reference(WordCountArrow, config={"limit": 250, "batch": 100})  # three batches
    assert result.positions == {TaskId("lines", 0): 2, TaskId("lines", 1): 1}


def test_state_of_tasks_beside_keyed_state():
    result = run_reference(throughput_test(1, 2, 3), config={"limit": 10, "size": 8})
    assert sum(count for count, _ in result.own["counter"]) == 10
    assert sum(characters for _, characters in result.own["counter"]) == 80
    assert len(result.own["counter"]) == 3
    assert set(result.own) == {"counter"}


def test_sinks_write(tmp_path: Path):
    run_reference(Audited, config={"limit": 100, "path": str(tmp_path), "topology.guarantee": "exactly-once"})
    assert audit(tmp_path, {0: 50, 1: 50}).exact


def test_named_streams(tmp_path: Path):
    result = run_reference(Streams, config={"limit": 30, "path": str(tmp_path)})
    assert result.emitted["parted"] == {"default": [(n,) for n in range(0, 30, 2)], "tenth": [(0,), (10,), (20,)],
                                       "odd": [(n, str(n)) for n in range(1, 30, 2)], "dead-letters": []}
    assert ("parted", "odd", ["n", "text"], [7, "7"]) in result.received["out"]["origins", "default"]
    assert len(result.received["out"]["origins", "default"]) == 30 + 15 + 15 + 3


def test_groupings(tmp_path: Path):
    result = run_reference(Groupings, config={"limit": 30, "path": str(tmp_path)})
    assert result.reached("out") == Counter(
        [("named", n % 3, n) for n in range(30)] + [("everyone", task, n) for n in range(30) for task in range(3)]
        + [("first", 0, n) for n in range(30)] + [("ends", task, n) for n in range(30) if n % 7 for task in (0, 3)])


def test_a_shuffle_is_even():
    result = run_reference(throughput_test(1, 4, 1), config={"limit": 40, "size": 8})
    assert len(result.received["identity"]["strings", "default"]) == 40
    result = run_reference(throughput_test(1, 1, 4), config={"limit": 40, "size": 8})
    assert result.own["counter"] == [(10, 80)] * 4


def test_a_tuple_that_cannot_be_processed_is_a_dead_letter(tmp_path: Path):
    result = run_reference(Letters, config={"limit": 20, "path": str(tmp_path)})
    letters = sorted((component, values, error.partition(":")[0]) for component, _, _, values, error in result.dead_letters)
    assert letters == [
        ("fragile", [6], "RuntimeError"), ("fragile", [7, 1], "ZeroDivisionError"),
        ("picky", [0], "ValueError"), ("picky", [1], "EmitError"), ("picky", [2], "EmitError"),
        ("picky", [3], "EncodingError"), ("picky", [4], "failed by the bolt"), ("picky", [10], "ValueError"),
        ("picky", [11], "EmitError"), ("picky", [12], "EmitError"), ("picky", [13], "EncodingError"),
        ("picky", [14], "failed by the bolt")]
    assert len(result.received["letters"]["picky", "dead-letters"]) == 10
    # What was emitted before the exception stands, and so does what was counted.
    assert result.states["fragile"]["counts"] == dict.fromkeys([0, -10, 4, *range(5, 10), *range(14, 20)], 1)
    assert len(result.received["divided"]["fragile", "default"]) == 12


def test_batches_run_at_the_end(tmp_path: Path):
    result = run_reference(Batches, config={"limit": 10, "path": str(tmp_path)})
    assert result.states["add_up"]["totals"] == {0: 0 + 5, 1: 1 + 6, 2: 2 + 7, 4: 4 + 9}
    assert result.reached("out") == Counter([(0, 5, 2), (1, 7, 2), (2, 9, 2), (4, 13, 2)])
    assert sorted(letter[3:] for letter in result.dead_letters) == [([3], "failed by the bolt"), ([8], "failed by the bolt")]


def test_lists_of_dataclasses(tmp_path: Path):
    result = run_reference(GuestBook, config={"limit": 41, "path": str(tmp_path)})
    assert result.states["visits"]["visits"]["guest 0", 0.0] == [Visit(0, "ü0"), Visit(39, "ü39")]
    assert result.states["visits"]["rests"]["guest 0", 0.0] == {0, 39 % 11}
    assert result.states["visits"]["last"]["guest 0", 0.0] == [39, {"half": 19.5}, (39, None)]
    assert ("guest 1", 1.0) not in result.states["visits"]["last"]  # set at 1, deleted at 40


def test_two_spouts_and_an_edge_that_skips_a_component(tmp_path: Path):
    result = run_reference(Diamond, config={"limit": 4, "path": str(tmp_path)})
    assert result.reached("out") == Counter({("numbers", n): 1 for n in range(4)} | {("others", n): 1 for n in range(4)}
                                           | {("half", 0): 4, ("half", 1): 4})
    assert result.states["by_number"] == {"state": {}, "counts": {0: 6, 1: 6, 2: 2, 3: 2},
                                         "weights": {0: 2004, 1: 2004, 2: 2000, 3: 2000}}


def test_nobody_sees_what_another_does_to_its_values(tmp_path: Path):
    result = run_reference(Values, config={"limit": 3, "path": str(tmp_path)})
    assert result.received["grabbed"]["grabby", "default"] == [
        *[(0, [1, [2, {"k": None}], "grabbed"], True)] * 3, *[(2, [1, [2, 3], "grabbed"], True)] * 3,
        *[(1, {"a": {"b": [1.5, True]}}, False)] * 3]
    assert result.states["tally"]["counts"] == {"list": 4, "dict": 2}


def test_a_graph_does_as_well():
    graph = graph_of(WordCount, config={"limit": 10})
    assert run_reference(graph).states == run_reference(WordCount, config={"limit": 10}).states


def test_a_component_that_cannot_be_initialized_is_reported():
    with pytest.raises(TopologyError, match="limit"):
        run_reference(WordCount, config={"limit": -1})


def test_spouts_fed_by_spark_are_refused():
    graph = graph_of(WordCount)
    lines, *others = graph.components
    with pytest.raises(TopologyError, match="lines of 'wordcount' is fed by Spark"):
        run_reference(replace(graph, components=(replace(lines, dataframe=True), *others)))
