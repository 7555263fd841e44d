"""Graphs built from declarations, and their serialization."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState
from millrace.api.spout import Spout
from millrace.api.topology import Stream, StreamRef, Topology
from millrace.api.tuple import DEAD_LETTER_FIELDS
from millrace.errors import TopologyError
from millrace.model.graph import Input, StreamDef, TaskId, TopologyGraph, batched, graph_of, resolve


class Source(Spout):
    outputs = ["key", Stream(["reason"], name="errors")]
    blocking = True

    def next_tuple(self) -> None: ...


class Step(Bolt):
    outputs = ["key"]

    def process(self, tup: Any) -> None: ...


class Rows(Bolt):
    def process_rows(self, rows: list[Any]) -> None: ...


class Diamond(Topology):
    """Declared out of order: `last` names a component declared after it."""

    config = {"topology.message.timeout.secs": 30, "window": (1, 2)}
    last = Rows.spec(inputs=[StreamRef("left"), StreamRef("right"), StreamRef("source", "errors")])
    source = Source.spec(par=2, config={"path": "x"})
    right = Step.spec(inputs={source: Grouping.fields("key")}, par={"prod": 8, "beta": 2})
    left = Step.spec(inputs=[source], par=3)


BETA = {"topology.environment": "beta"}


def diamond(**arguments: Any) -> TopologyGraph:
    return graph_of(Diamond, **{"config": BETA, **arguments})


def test_components_are_in_topological_order_and_otherwise_as_declared() -> None:
    assert [component.name for component in diamond().components] == ["source", "right", "left", "last"]
    assert [component.name for component in diamond().spouts] == ["source"]
    assert [component.name for component in diamond().bolts] == ["right", "left", "last"]


def test_a_component_holds_all_that_a_worker_needs() -> None:
    source, right = diamond().component("source"), diamond().component("right")
    assert (source.kind, source.mode, source.par, source.blocking) == ("spout", "next_tuple", 2, True)
    assert source.config == {"path": "x"}
    assert source.outputs == (StreamDef("default", ("key",), False), StreamDef("errors", ("reason",), False))
    assert (right.kind, right.mode, right.par, right.blocking) == ("bolt", "process", 2, False)
    assert right.inputs == (Input("source", "default", Grouping.fields("key")),)
    assert right.outputs == (StreamDef("default", ("key",)), StreamDef("dead-letters", DEAD_LETTER_FIELDS))
    assert resolve(right.code) is Step
    assert diamond().component("last").mode == "process_rows"
    assert [component.name for component in diamond().components if component.keyed] == ["right"]
    assert right.stream("dead-letters").fields == DEAD_LETTER_FIELDS
    with pytest.raises(KeyError, match="'right' has no stream 'x'; it has default, dead-letters"):
        right.stream("x")


def test_downstream() -> None:
    graph = diamond()
    assert [(component.name, edge.stream) for component, edge in graph.downstream("source")] == [
        ("right", "default"), ("left", "default"), ("last", "errors")]
    assert graph.downstream("last") == ()
    with pytest.raises(KeyError, match="no component 'nope'; it has source, right, left, last"):
        graph.downstream("nope")


@pytest.mark.parametrize("graph", [diamond(), diamond(par={"left": 40}), dataclasses.replace(diamond(), ackers=3)])
def test_a_graph_survives_the_wire_and_pickle(graph: TopologyGraph) -> None:
    graph.component("left")  # cached values are not sent
    sent = msgspec.msgpack.encode(graph)
    arrived = msgspec.msgpack.decode(sent, type=TopologyGraph)
    assert arrived == graph
    assert arrived.tasks() == graph.tasks() and isinstance(arrived.tasks()[0], TaskId)
    assert msgspec.json.decode(msgspec.json.encode(graph), type=TopologyGraph) == graph
    assert pickle.loads(pickle.dumps(graph)) == graph
    assert b"_positions" not in sent


def test_a_graph_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        diamond().name = "other"  # type: ignore[misc]
    assert not hasattr(diamond(), "__dict__")


def test_name_and_settings() -> None:
    assert diamond().name == "diamond"
    assert diamond(name="Other").name == "Other"
    assert diamond(config={**BETA, "window": 5}).config == {"topology.message.timeout.secs": 30, "window": 5, **BETA}
    assert diamond().config["window"] == [1, 2]  # as the workers will read it
    assert Diamond.config == {"topology.message.timeout.secs": 30, "window": (1, 2)}
    assert diamond().key_groups == 128
    assert diamond(config={**BETA, "topology.key.groups": 64}).key_groups == 64


def test_parallelism_by_environment_and_by_override() -> None:
    assert diamond().component("right").par == 2
    assert diamond(config={"topology.environment": "prod"}).component("right").par == 8
    assert diamond(config={}, par={"right": 5}).component("right").par == 5
    assert diamond(par={"left": 200}).component("left").par == 200  # it has no key groups to run out of


class OwnWindow(Bolt):
    """Has state of its own only."""

    def process(self, tup: Any) -> None: ...

    def snapshot(self) -> Any: ...

    def restore(self, snapshot: Any) -> None: ...


class CountsToo(OwnWindow):
    """Keeps state by key, too."""

    counts = CounterState()


class Windows(Topology):
    source = Source.spec()
    window = OwnWindow.spec(inputs={source: Grouping.fields("key")}, par=2)
    counts = CountsToo.spec(inputs={source: Grouping.fields("key")}, par=2)


def test_key_groups_are_fixed_if_no_state_belongs_to_keys() -> None:
    graph = graph_of(Windows)
    assert graph.why_groups_fixed("window").startswith("all its state is the result of snapshot()")
    assert graph.why_groups_fixed("counts") == graph.why_groups_fixed("source") == ""


class Local(Topology):
    source = Source.spec()


@pytest.mark.parametrize(("arguments", "error", "message"), [
    ({"config": {}}, TopologyError, "par of 'right' is declared for prod, beta, but topology.environment is not set"),
    ({"config": {"topology.environment": "x"}}, TopologyError, "topology.environment is 'x': set it to one of these"),
    ({"par": {"rihgt": 2}}, KeyError, "par names 'rihgt', which Diamond does not have; it has source, right"),
    ({"par": {"left": 0}}, TopologyError, "par of 'left' is 0: it must be at least 1"),
    ({"par": {"left": "2"}}, TypeError, r"par of 'left' must be an int.*'2' \(str\)"),
    ({"par": {"left": 65537}}, TopologyError, "at most 65536 tasks"),
    ({"par": {"right": 129}}, TopologyError, "par 129 but only 128 key groups.*topology.key.groups to at least 129"),
    ({"config": [1]}, TypeError, "config of topology Diamond must be a dict"),
    ({"config": {"x": object()}}, TopologyError, "config 'x' of topology Diamond"),
    ({"config": {**BETA, "topology.key.groups": 0}}, TopologyError, "topology.key.groups = 0"),
    ({"name": ""}, TypeError, "name must be a non-empty str"),
])
def test_graph_of_refuses(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        diamond(**arguments)


def test_graph_of_takes_a_topology() -> None:
    for other in (Diamond.left, Topology, int, "Diamond"):
        with pytest.raises(TypeError, match="takes a subclass of Topology"):
            graph_of(other)  # type: ignore[arg-type]


def test_a_component_that_no_worker_could_import_is_refused() -> None:
    class Inside(Source):
        pass

    class Topo(Topology):
        inside = Inside.spec()

    with pytest.raises(TopologyError, match=r"component 'inside' is of class .*Inside, which is defined inside a func"):
        graph_of(Topo)


# ---- tasks and their numbers ----


def test_tasks_are_listed_component_by_component_with_the_ackers_last() -> None:
    tasks = dataclasses.replace(diamond(), ackers=2).tasks()
    assert [str(task) for task in tasks] == ["source[0]", "source[1]", "right[0]", "right[1]", "left[0]", "left[1]",
                                             "left[2]", "last[0]", "__acker[0]", "__acker[1]"]


def test_numbers_of_tasks() -> None:
    graph = dataclasses.replace(diamond(), ackers=2)
    assert [graph.task(graph.number(task)) for task in graph.tasks()] == list(graph.tasks())
    assert graph.number(TaskId("source", 0)) == 1 << 16
    assert graph.number(TaskId("left", 2)) == 3 << 16 | 2
    assert graph.number(TaskId("__acker", 1)) == 0xFFFF << 16 | 1


def test_numbers_stay_when_the_parallelism_changes() -> None:
    wider = diamond(par={"source": 9, "right": 9})
    assert all(diamond().number(task) == wider.number(task) for task in diamond().tasks())


@pytest.mark.parametrize("task", [TaskId("left", 3), TaskId("left", -1), TaskId("nope", 0), TaskId("__acker", 0)])
def test_an_unknown_task_has_no_number(task: TaskId) -> None:
    with pytest.raises(KeyError, match=task.component):
        diamond().number(task)


@pytest.mark.parametrize("number", [0, -1, 5 << 16, 1 << 16 | 2, 0xFFFF << 16, 1 << 40])
def test_an_unknown_task_number_is_refused(number: int) -> None:
    with pytest.raises(KeyError, match="no task of 'diamond' has the number"):
        diamond().task(number)


def test_task_ids_are_written_and_read() -> None:
    assert str(TaskId("count", 3)) == "count[3]"
    assert TaskId.parse("count[3]") == TaskId("count", 3)
    assert TaskId.parse("__acker[0]") == TaskId("__acker", 0)
    for text in ("count", "count[]", "count[x]", "count[-1]", "[1]", "count[1]x", "a[0][1]", ""):
        with pytest.raises(ValueError, match=r"does not name a task.*count\[3\]"):
            TaskId.parse(text)


# ---- batches ----


def test_a_graph_that_runs_in_batches_is_exactly_once_whatever_it_was_declared() -> None:
    graph = graph_of(Diamond, par={"right": 1}, config={"topology.guarantee": "at-most-once", "limit": 3})
    changed = batched(graph)
    assert changed.batched and changed.exactly_once and changed.config["limit"] == 3
    assert changed.components == graph.components and not graph.batched and not graph.exactly_once


# ---- code ----


def test_resolve() -> None:
    assert resolve("collections:OrderedDict.fromkeys") == __import__("collections").OrderedDict.fromkeys


@pytest.mark.parametrize(("code", "message"), [
    ("nope_nope:X", "cannot import module 'nope_nope' for 'nope_nope:X'.*PYTHONPATH"),
    ("collections:Nope", "module 'collections' has no 'Nope'.*top of that module"),
    ("collections", 'not of the form "module:qualified.name"'),
    (":X", "not of the form"),
    ("collections:", "not of the form"),
    (".relative:X", "cannot import module"),
])
def test_resolve_refuses(code: str, message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        resolve(code)


def test_resolve_reports_what_a_module_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_on_import.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TopologyError, match=r"cannot import module 'raises_on_import'.*ZeroDivisionError"):
        resolve("raises_on_import:X")
    assert "raises_on_import" not in sys.modules


class Merged(Step):
    @staticmethod
    def merge(one: Any, other: Any) -> Any:
        return one


class MergesItself(Step):
    def merge(self, one: Any, other: Any) -> Any:  # type: ignore[override]
        return one


class MergesOne(Step):
    def merge(self, one: Any) -> Any:  # type: ignore[override]
        return one


class MergesByClass(Step):
    @classmethod
    def merge(cls, one: Any, other: Any) -> Any:
        return one


class MergesMany(Step):
    @staticmethod
    def merge(*rows: Any) -> Any:
        return rows[0]


class MergesThree(Step):
    @staticmethod
    def merge(one: Any, other: Any, third: Any = None) -> Any:
        return one


class MergesNothing(Step):
    merge = {"a": "table"}  # type: ignore[assignment]


def merging(bolt: type[Bolt]) -> TopologyGraph:
    class Merging(Topology):
        source = Source.spec()
        step = bolt.spec(inputs={source: Grouping.fields("key")}, par=2)

    return graph_of(Merging)


def test_a_bolt_may_declare_how_its_input_is_merged() -> None:
    assert [component.merges for component in merging(Merged).components] == [False, True]
    assert not merging(Step).component("step").merges


@pytest.mark.parametrize("bolt", [MergesItself, MergesOne, MergesByClass, MergesMany, MergesThree, MergesNothing])
def test_anything_else_named_merge_is_the_bolts_own(bolt: type[Bolt]) -> None:
    """Bolts of streamparse may have such a method."""
    assert not merging(bolt).component("step").merges
