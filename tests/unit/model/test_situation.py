"""Situations in files: valid ones are read back, invalid ones are refused with advice."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from situations import hostile, settled

from millrace.errors import BadSituation, MillraceError
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import TaskId, graph_of
from millrace.model.load import Latency, Load, TaskLoad
from millrace.model.plan import Plan
from millrace.model.situation import FORMAT, Situation
from millrace.schedulers.base import next_plan
from millrace.workloads.wordcount import WordCount
from support.examples import examples

GRAPH = graph_of(WordCount, "words")
SLOTS = (Slot("n0", "e0", 0), Slot("n1", "e1", 5))
CLUSTER = Cluster((Node("n0", 2, 2400.0, 4096), Node("n1", 4, 1000.5, 1)), SLOTS, {("n0", "n1"): 2.5})
TASKS = GRAPH.tasks()
LOAD = Load(10.0, {TASKS[0]: TaskLoad(emitted=2**40, cpu_mhz=0.1, complete_latency_ms=Latency(1.0, 2.5)),
                   TASKS[1]: TaskLoad(executed=7, queue_length=3, queue_floor=2, memory_mb=12.25)},
            {(TASKS[0], TASKS[1]): 0.1}, (TASKS[1],), traffic_bytes={(TASKS[0], TASKS[1]): 12.5})
PLAN = next_plan(GRAPH, None, {task: SLOTS[number % 2].number for number, task in enumerate(TASKS)})
SITUATION = Situation((GRAPH,), CLUSTER, {"words": LOAD, "other": Load()}, {"words": PLAN, "other": Plan(1, {})})


def test_a_saved_situation_is_read_back(tmp_path: Path) -> None:
    SITUATION.save(tmp_path / "s.json")
    assert Situation.read(tmp_path / "s.json") == SITUATION
    assert Situation.read(str(tmp_path / "s.json")) == SITUATION
    assert json.loads((tmp_path / "s.json").read_text())["format"] == FORMAT


def test_nothing_at_all_can_be_saved(tmp_path: Path) -> None:
    empty = Situation((), Cluster((), ()))
    empty.save(tmp_path / "s.json")
    assert Situation.read(tmp_path / "s.json") == empty


@given(settled())
def test_any_situation_survives_json(situation: Situation) -> None:
    text = msgspec.json.encode(situation.to_json())
    assert Situation.from_json(msgspec.json.decode(text)) == situation


@settings(max_examples=examples(50))
@given(hostile())
def test_meters_that_lie_survive_the_way_to_another_process(situation: Situation) -> None:
    """Msgpack can represent NaN."""
    once = Situation.from_json(msgspec.msgpack.decode(msgspec.msgpack.encode(situation.to_json())))
    again = Situation.from_json(msgspec.msgpack.decode(msgspec.msgpack.encode(once.to_json())))
    assert repr(again) == repr(once), "a number is not equal to itself if it is none, but it looks the same"
    assert once.plan == situation.plan and once.cluster == situation.cluster and once.graphs == situation.graphs


def test_a_situation_does_not_change() -> None:
    loads = {"words": LOAD}
    made = Situation([GRAPH], CLUSTER, loads)  # type: ignore[arg-type]
    loads.clear()
    assert made.load == {"words": LOAD} and made.graphs == (GRAPH,)
    with pytest.raises(TypeError):
        made.load["words"] = LOAD  # type: ignore[index]


def data() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(json.dumps(SITUATION.to_json()))
    return made


def broken(*path: Any, value: Any) -> dict[str, Any]:
    """Return a valid situation file with one changed entry."""
    made: Any = data()
    at = made
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("nonsense", [
    None, [], "text", 7, {}, {"format": "millrace-situation-99"}, {"format": None}, {"format": FORMAT},
    *({key: value for key, value in data().items() if key != missing} for missing in data()),
    broken("graphs", value=None), broken("graphs", value=[1]), broken("graphs", value={"a": 1}),
    broken("graphs", 0, "components", value="none"), broken("graphs", 0, "components", 0, "par", value="two"),
    broken("cluster", value=[]), broken("cluster", "slots", 0, value=["nowhere", "e", 0]),
    broken("cluster", "slots", 1, value=["n0", "e", 0]), broken("cluster", "nodes", 0, "mhz", value="fast"),
    broken("load", value=[]), broken("load", "words", value=3), broken("load", "words", "window_seconds", value="long"),
    broken("load", "words", "tasks", value={"nobody": {}}), broken("load", "words", "traffic", value=[["a[0]", "b[0]"]]),
    broken("load", "words", "tasks", value={"a[0]": {"emitted": "many"}}),
    broken("load", "words", "traffic", value=[["a[0]", "b[0]", "many"]]), broken("load", "words", "traffic", value=7),
    broken("plan", value="x"), broken("plan", "words", "placement", value={"a[0]": "here"}),
    broken("plan", "words", "placement", value={"a": 0}), broken("plan", "words", "version", value=None),
    broken("plan", "words", "version", value=float("inf")), broken("plan", "words", "key_groups", value=[1]),
])
def test_invalid_situations_are_refused_with_advice(nonsense: Any) -> None:
    with pytest.raises(BadSituation) as refused:
        Situation.from_json(nonsense)
    assert "millrace load --save FILE" in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe\x00", b"null", b"[]", b"[" * 100_000, b'{"format": "x"}',
                                     b"\x89PNG\r\n", b'{"format": "millrace-situation-1"} trailing'])
def test_a_file_that_is_not_a_situation_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(BadSituation) as refused:
        Situation.read(tmp_path / "s.json")
    assert "millrace load --save FILE" in str(refused.value)


def test_a_file_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.json", tmp_path):
        with pytest.raises(BadSituation, match="cannot read"):
            Situation.read(path)
    for path in (tmp_path / "no" / "such" / "directory.json", tmp_path):
        with pytest.raises(MillraceError, match="cannot write"):
            SITUATION.save(path)
    if os.getuid():
        (tmp_path / "s.json").write_text("{}")
        (tmp_path / "s.json").chmod(0)
        with pytest.raises(BadSituation, match="Permission denied"):
            Situation.read(tmp_path / "s.json")


def test_tasks_are_written_as_people_write_them() -> None:
    written = data()
    assert written["load"]["words"]["settling"] == [str(TASKS[1])]
    assert TaskId.parse(next(iter(written["plan"]["words"]["placement"]))) in TASKS
