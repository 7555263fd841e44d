"""`rebalance`: the placement that a user wants, and the progress towards it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from millrace.api.grouping import Grouping
from millrace.cli.rebalancing import new_owners, one_topology, placement_in, plan_by, wait_for
from millrace.cli.record import print_moves, print_rebalance
from millrace.control.migrations import record_of_request
from millrace.errors import MillraceError, UnknownName, UnknownTopology
from millrace.model.cluster import Cluster, Node, Slot
from millrace.model.graph import ComponentDef, Input, StreamDef, TopologyGraph
from millrace.model.plan import Plan
from millrace.model.situation import Situation
from millrace.schedulers.instances import random_situation

LINES = ComponentDef("lines", "spout", "m:C", 2, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple", movable=True)
COUNT = ComponentDef("count", "bolt", "m:C", 2, {}, (), (Input("lines", "default", Grouping.fields("line")),), False, "process")


def test_the_only_topology_need_not_be_named() -> None:
    assert one_topology(None, {"words": {}}) == "words"
    assert one_topology("more", {"words": {}, "more": {}}) == "more"
    with pytest.raises(UnknownName, match="several topologies are running: name one of more, words"):
        one_topology(None, {"words": {}, "more": {}})
    with pytest.raises(UnknownName, match="no topology is running"):
        one_topology(None, {})
    with pytest.raises(UnknownTopology, match="no topology named 'less' is running; running: words"):
        one_topology("less", {"words": {}})


@pytest.mark.parametrize("content", [{"count[0]": 1}, {"topologies": {"words": {"version": 3, "placement": {"count[0]": 1}}}}])
def test_a_placement_from_a_file(tmp_path: Path, content: dict[str, Any]) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    assert placement_in(str(path), "words", {}) == {"count[0]": 1}


@pytest.mark.parametrize("content, message", [
    ("no json", "cannot be read as JSON"), ("[1]", "expected an object of tasks and workers"),
    ('{"count[0]": "1"}', "expected an object of tasks and workers"), ('{"count[0]": true}', "expected an object of tasks"),
    ('{"topologies": {"more": {}}}', "there is no plan of 'words'; there are more"),
    ('{"topologies": {"words": {"placement": {}, "key_groups": {"count": [0, 1]}}}}', "rebalance moves only tasks")])
def test_a_file_without_a_placement(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(content)
    with pytest.raises(MillraceError, match=message):
        placement_in(str(path), "words", {})


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MillraceError, match="cannot be read as JSON"):
        placement_in(str(tmp_path / "gone.json"), "words", {})


def test_a_plan_by_a_scheduler() -> None:
    situation = random_situation(np.random.default_rng(3))
    name = situation.graphs[0].name
    assert plan_by("tstorm gamma=6", situation, name).placement.keys() == situation.plan[name].placement.keys()
    with pytest.raises(MillraceError, match="magic"):
        plan_by("magic", situation, name)


def keyed_situation(own_state: bool = False) -> Situation:
    """A topology with a keyed component of two tasks, on one worker."""
    count = replace(COUNT, own_state=own_state)
    graph = TopologyGraph("words", (LINES, count), {})
    plan = Plan(1, dict.fromkeys(graph.tasks(), 0), {"count": (0, 0, 1, 1)})
    cluster = Cluster((Node("host", 4, 1000.0, 4096),), (Slot("host", "e", 0),))
    return Situation((graph,), cluster, {}, {"words": plan})


def test_key_groups_that_get_another_owner() -> None:
    situation = keyed_situation()
    plan = situation.plan["words"]
    assert new_owners(situation, "words", plan) == {}
    assert new_owners(situation, "words", replace(plan, key_groups={"count": (1, 0, 1, 0)})) == {"count": {0: 1, 3: 0}}


def test_key_groups_that_must_stay_are_refused_before_tasks_move() -> None:
    situation = keyed_situation(own_state=True)
    plan = replace(situation.plan["words"], key_groups={"count": (1, 0, 1, 0)})
    with pytest.raises(MillraceError, match="gives key groups of 'count' to other tasks: all its state is"):
        new_owners(situation, "words", plan)


def record(number: int, strategy: str = "dcr", cause: str = "person", outcome: str = "done") -> dict[str, Any]:
    return {"id": number, "strategy": strategy, "cause": cause, "outcome": outcome}


def test_waiting_ends_with_the_record() -> None:
    answers = [[{"migration": {"strategy": "dcr", "step": "hold", "seconds": 0.1}}], [{"migration": None}]]
    records = [record(1), record(2)]

    def ask(verb: str, topology: str) -> Any:
        assert topology == "words"
        return answers.pop(0) if verb == "moves" else records

    console = Console(quiet=True)
    assert wait_for(ask, "words", "dcr", {1}, console) == record(2)
    assert not answers
    answers.append([])
    assert wait_for(ask, "words", "dcr", {1, 2}, console) is None


@pytest.mark.parametrize("strategy", ["storm", "rollback"])
def test_the_record_of_a_loss_is_not_taken_for_that_of_the_request(strategy: str) -> None:
    records = [record(1, strategy), record(2, strategy, outcome="rolled back"),
               record(3, "rollback", "loss: worker 1 lost: died"), record(4, strategy, "scheduler: tstorm: gain")]
    found = wait_for(lambda verb, topology: [] if verb == "moves" else records, "words", strategy, {1}, Console(quiet=True))
    assert found == records[1]
    assert record_of_request(records, {1, 2}, strategy) is None


def test_a_later_request_does_not_replace_the_one_that_was_waited_for() -> None:
    records = [record(1, outcome="rolled back"), record(2)]
    assert record_of_request(records, (), "dcr") == records[0]


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    moves = [{"task": "count[0]", "from": 0, "to": 1}]
    print_rebalance({"topology": "words", "strategy": "dcr", "moves": moves})
    assert capsys.readouterr().out == "1 task of words moves by dcr; `moves` shows the progress\n"
    print_rebalance({"topology": "words", "strategy": "dcr", "moves": []})
    assert capsys.readouterr().out == "every task of words is already where the plan wants it\n"
    print_moves([{"topology": "words", "moving": [], "waiting": [], "migration": {
        "strategy": "storm", "cause": "person", "seconds": 2.04, "step": "delay", "progress": 0.25, "tasks": ["count[0]"],
        "trouble": ""}}])
    assert capsys.readouterr().out.rstrip().endswith("1 task by storm: delay, 2.0 s (person)")
