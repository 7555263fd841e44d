"""Topologies as Mermaid flowcharts and as plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from millrace import Bolt, Grouping, ReplayableSpout, Stream, Topology
from millrace.connectors.sinks import JsonLinesSink
from millrace.model.flowchart import graph_as_json, mermaid
from millrace.model.graph import graph_of


class Source(ReplayableSpout):
    outputs = ["word"]

    def next_tuple(self) -> None: ...

    def seek(self, position: int) -> None: ...


class Split(Bolt):
    outputs = [Stream(fields=["word"]), Stream(fields=["word"], name="rare")]

    def process(self, tup: Any) -> None: ...


class Count(Bolt):
    outputs = ["word", "count"]

    def process(self, tup: Any) -> None:
        self.state[tup.values.word] = 1


def first(values: Sequence[Any], tasks: int) -> Sequence[int]:
    return [0]


class Words(Topology):
    source = Source.spec(par=2)
    split = Split.spec(inputs=[source], par=3)
    count = Count.spec(inputs={split: Grouping.fields("word"), split["rare"]: Grouping.ALL}, par=4)
    files = JsonLinesSink.spec(inputs={count: Grouping.custom(first)}, config={"path": "/tmp/files"})


def test_a_flowchart_has_components_tasks_streams_and_groupings() -> None:
    assert mermaid(graph_of(Words)) == f"""\
flowchart LR
    c0(["source<br/>2 tasks"])
    c1["split<br/>3 tasks"]
    c2["count<br/>4 tasks, state"]
    c3[("files<br/>1 task")]
    c0 -->|"shuffle"| c1
    c1 -->|"fields(word)"| c2
    c1 -->|"rare: all"| c2
    c2 -->|"custom({__name__}:first)"| c3"""


def test_the_parallelism_can_be_changed() -> None:
    assert 'c2["count<br/>8 tasks, state"]' in mermaid(graph_of(Words, par={"count": 8}))


def test_names_cannot_break_the_chart() -> None:
    class Odd(Topology):
        source = Source.spec(name='a") --> b')
        split = Split.spec(name="<#end>", inputs=[source])

    lines = mermaid(graph_of(Odd)).splitlines()
    assert lines[1:3] == ['    c0(["a#quot;) --#gt; b<br/>1 task"])', '    c1["#lt;#35;end#gt;<br/>1 task"]']
    assert all(len(re.findall('"', line)) == 2 for line in lines[1:])


def test_the_same_as_data() -> None:
    data = graph_as_json(graph_of(Words))
    assert data["name"] == "words" and data["mermaid"].startswith("flowchart LR\n")
    assert data["components"][1] == {"name": "split", "kind": "bolt", "tasks": 3, "code": f"{__name__}:Split",
                                     "stateful": False, "streams": {"default": ["word"], "rare": ["word"]}}
    assert data["edges"][2] == {"from": "split", "stream": "rare", "to": "count", "grouping": "all"}
