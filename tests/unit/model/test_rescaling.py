"""Limits on the number of tasks of components, and the reasons of those that keep theirs."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import ReplayableSpout, Spout
from millrace.api.topology import Topology
from millrace.connectors.redis import RedisListSpout, RedisStreamSpout
from millrace.errors import TopologyError
from millrace.model.graph import graph_of
from millrace.model.rescaling import rescaled


class Unread(Spout):
    outputs = ["key"]

    def next_tuple(self) -> None: ...


class Read(ReplayableSpout):
    outputs = ["key"]

    def seek(self, position: int) -> None: ...

    def next_tuple(self) -> None: ...


class Step(Bolt):
    def process(self, tup: Any) -> None: ...


class Sources(Topology):
    unread = Unread.spec(par=2)
    whole = Read.spec(par=2)
    split = Read.spec(par=2, config={"splits": 4})
    table = Spout.from_dataframe("their.module:make", outputs=["key"])
    step = Step.spec(inputs={unread: Grouping.SHUFFLE, whole: Grouping.SHUFFLE, split: Grouping.SHUFFLE,
                             table: Grouping.SHUFFLE})


class Divided(Unread):
    divided_by_source: ClassVar[bool] = True


def test_a_spout_whose_source_divides_its_tuples_can_have_any_number_of_tasks() -> None:
    topology = type("OfDivided", (Topology,), {"__module__": __name__, "spout": Divided.spec(par=2),
                                               "list": RedisListSpout.spec(), "stream": RedisStreamSpout.spec()})
    graph = graph_of(topology)
    assert rescaled(graph, {"spout": 7, "list": 3, "stream": 5}).parallelism == {"spout": 7, "list": 3, "stream": 5}
    with pytest.raises(TopologyError, match="cannot have 0 tasks"):
        rescaled(graph, {"spout": 0})


@pytest.mark.parametrize(("name", "tasks", "says"), [
    ("unread", 3, "cannot be read from a position, .* it keeps its 2 tasks. A ReplayableSpout with splits can be scaled"),
    ("whole", 3, r"Declare it with splits, for example config=\{'splits': 16\}"),
    ("split", 5, "its source has 4 splits, and each task needs one, so it can have 4 at most"),
    ("table", 2, "reads a DataFrame without splits, so each of its 1 task .*: their number is fixed .* Declare it with splits"),
    ("split", 0, "4 splits, .* Give a whole number from 1 to 4; the nearest is 1. The number of splits is fixed while it runs"),
    ("split", -3, "Give a whole number from 1 to 4; the nearest is 1"),
    ("split", 2.5, "cannot have 2.5 tasks: .* Give a whole number from 1 to 4. The number of splits"),
    ("split", True, "cannot have True tasks: .* Give a whole number from 1 to 4"),
    ("unread", 0, "it keeps its 2 tasks"),
    ("step", 0, "a component can have 65536 at most. Give a whole number from 1 to 65536; the nearest is 1"),
])
def test_components_that_cannot_have_so_many_tasks(name: str, tasks: Any, says: str) -> None:
    graph = graph_of(Sources, "sources")
    with pytest.raises(TopologyError, match=f"'{name}' of 'sources' .*{says}"):
        rescaled(graph, {"split": 3, name: tasks})


def test_a_spout_can_have_as_many_tasks_as_splits() -> None:
    graph = graph_of(Sources, "sources")
    assert rescaled(graph, {"split": 4, "step": 2}).parallelism == {**graph.parallelism, "split": 4, "step": 2}
    assert rescaled(graph, {"split": 2, "unread": 2}) is graph


def test_a_spout_that_cannot_be_read_again_has_no_splits() -> None:
    class Divided(Topology):
        unread = Unread.spec(config={"splits": 16})
        step = Step.spec(inputs={unread: Grouping.SHUFFLE})

    with pytest.raises(TopologyError, match="'unread' cannot have splits: Unread cannot be read from a position"):
        graph_of(Divided, "divided")
