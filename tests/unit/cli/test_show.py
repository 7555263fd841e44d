"""`plan`, `load`, `state`, `scale` and the scheduler commands in 80 columns."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from millrace.cli import scheduler
from millrace.cli.comparing import Situations, compare
from millrace.cli.show import print_load, print_move, print_plan, print_regroup, print_scale, print_state, print_value
from millrace.schedulers.instances import random_situation
from millrace.schedulers.registry import SCHEDULERS

LONG = "deduplicated-and-enriched-purchase-events"
NODE = "ip-10-123-101-217.eu-central-1.compute.internal"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def printed(capsys: Capture) -> str:
    """The printed text without trailing blanks; no line is too long."""
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    return "\n".join(lines) + "\n"


def plan(tasks: int, workers: int, component: str = "count", node: str = "vm") -> dict[str, Any]:
    owners = [group * tasks // 128 for group in range(128)]
    return {"revision": 1, "author": 1, "agents": {node: 0}, "workers": {str(slot): {"node": node} for slot in range(workers)},
            "topologies": {"words": {"status": "running", "version": 2, "splits": [], "key_groups": {component: owners},
                                     "placement": {f"{component}[{index}]": index % workers for index in range(tasks)}}}}


def test_a_plan(capsys: Capture) -> None:
    print_plan(plan(3, 2))
    assert printed(capsys) == """\
words: running, plan version 2
worker  node        tasks
     0  vm (agent)  count[0, 2]
     1  vm          count[1]
  key groups of count: 43 each for [0..1], 42 for [2]
"""


def test_parts_of_the_latency(capsys: Capture) -> None:
    print_load(load(), tasks=True)
    assert """
parts of the latency, ms p50/p99
from   to      outbox  wire   inbox  user code
lines  count  0.012/1     -  0.5/12  0.021/0.3
""" in printed(capsys)


def test_a_large_plan(capsys: Capture) -> None:
    print_plan(plan(100, 4, LONG, NODE))
    text = printed(capsys)
    assert all(str(index) in text for index in range(100))
    assert "key groups of deduplicated" in text and text.count("(agent)") == 1


def test_a_lost_worker_and_one_without_tasks(capsys: Capture) -> None:
    answer = plan(1, 2)
    answer["topologies"]["words"]["placement"]["count[7]"] = 9
    print_plan(answer)
    text = printed(capsys)
    assert "     1  vm          none\n" in text and "     9  gone        count[7]\n" in text
    print_plan({**answer, "topologies": {}})
    assert printed(capsys) == "no topology is running\n"


def load(component: str = "count", node: str = "vm", links: int = 0) -> dict[str, Any]:
    task = {"executed": 123_456_789, "emitted": 20, "busy_seconds": 10.0, "blocked_seconds": 5.0, "cpu_mhz": 1234.5,
            "memory_mb": 60.9, "queue_length": 0}
    return {"window_seconds": 20.0,
            "workers": {"0": {"node": node, "cpu_mhz": 641.2, "memory_mb": 98_000.0, "queue_length": 4, "busy": 0.04,
                              "turn_ms": {"p50": 0.21, "p90": 0.5, "p99": 4.2, "p999": 31.0, "max": 41.6},
                              "collector_ms": {"p50": 3.0, "p90": 8.0, "p99": 9.1, "p999": 12.4, "max": 12.4},
                              "collections": 12}},
            "nodes": {node: {"cpu_mhz": 1284.0, "capacity_mhz": 4891.0, "memory_mb": 24_103, "memory_used_mb": 196.0,
                             "others_mhz": 512.0}},
            "links": [{"nodes": [node, f"{node}-{index}"], "cost": index + 0.5, "given": index == 0, "round_trip_ms": 0.25,
                       "bandwidth_mbps": 940.0 if index else None} for index in range(links)],
            "topologies": {"words": {
                "components": {component: {"arrival_rate": 10_002.4, "true_processing_rate": None, "cpu_mhz": 621.0,
                                           "memory_mb": 0.5, "queue_length": 12_345, "offered_rate": 12_003.0, "lag": 777,
                                           "busy": 0.5, "blocked": 0.25, "idle": 0.25}},
                "hops": [{"from": "lines", "to": component, "outbox_latency_ms": {"p50": 0.012, "p99": 1.04},
                          "wire_latency_ms": None, "inbox_latency_ms": {"p50": 0.5, "p99": 12.5},
                          "chunk_latency_ms": {"p50": 0.021, "p99": 0.3}}],
                "window_seconds": 20.0, "tasks": {f"{component}[{index}]": task for index in range(30)},
                "traffic": [[f"{component}[{index}]", f"{component}-2[1]", index * 20] for index in range(30)],
                "traffic_bytes": [[f"{component}[{index}]", f"{component}-2[1]", index * 20_000] for index in range(30)]}}}


def test_load(capsys: Capture) -> None:
    print_load(load())
    assert printed(capsys) == """\
words
component  λ tuples/s  μ of one task  CPU MHz  memory   queue
count            10 k              -      621  500 kB  12.3 k

component  offered/s  lag  busy  blocked  idle
count           12 k  777   50%      25%   25%

worker  node  CPU MHz  memory  queue  busy
     0  vm        641   98 GB      4    4%

delays of all tasks of a worker, ms
worker  turn p50/p99/max  collector p99/max  collections
     0       0.21/4.2/42             9.1/12           12

node  CPU MHz     of  others  used  memory       of
vm      1,284  4,891     512   26%  196 MB  24.1 GB
"""


def test_delays_that_were_not_measured(capsys: Capture) -> None:
    answer = load()
    idle = {"turn_ms": None, "collector_ms": None, "collections": 0}
    answer["workers"]["1"] = {**answer["workers"]["0"], **idle}
    print_load(answer)
    assert "     1                 -                  -            0\n" in printed(capsys)
    print_load({**answer, "workers": {"1": answer["workers"]["1"]}})
    assert "delays" not in printed(capsys), "executors of the microbatch engine have no loop"


def test_links_between_nodes(capsys: Capture) -> None:
    print_load(load(links=2))
    assert printed(capsys).endswith("""
most expensive of 2 links between nodes
node  node  cost  round trip   Mbit/s
vm    vm-1   1.5     0.25 ms      940
vm    vm-0   0.5     0.25 ms  unknown
""")


def test_predicted_and_measured_latencies(capsys: Capture) -> None:
    answer = load()
    figures = {"model_ms": 4.0, "predicted_ms": 9.5, "measured_ms": 10.0, "error": -0.05}
    answer["topologies"]["words"]["prediction"] = {
        **figures, "offered_rate": 12_003.0, "model_ms": 1234.5, "factor": 1.1, "components": [
            {**figures, "component": "count", "utilization": 0.8},
            {"component": "sink", "utilization": 1.2, "model_ms": None, "predicted_ms": None, "measured_ms": 700.0,
             "error": None}]}
    print_load(answer)
    text = printed(capsys)
    assert text[text.index("latency in ms"):text.index("worker")] == """\
latency in ms
component  utilization  by the model  predicted  measured  error
count              80%           4.0        9.5      10.0    -5%
sink              120%             -          -     700.0      -
all                          1,234.5        9.5      10.0    -5%

"""


def test_load_of_tasks_and_pairs(capsys: Capture) -> None:
    print_load(load(LONG, NODE), tasks=True)
    text = printed(capsys)
    assert "6.17 M" in text and "50%" in text
    assert "most traffic, 10 of 30 pairs of tasks" in text
    assert "parts of the latency, ms p50/p99" in text
    assert text.index("  29 kB\n") < text.index("  20 kB\n"), "those with most traffic first"
    print_load({**load(), "workers": {}})
    assert printed(capsys) == "nothing measured yet: the first figures come after 20 s\n"


def state(component: str, live: bool) -> dict[str, Any]:
    now = {"keys": 12_345, "dirty": 913} if live else {}
    groups = [{"group": group, "task": group // 2, "bytes": 55_741, "pieces": 3, "blob": f"b{group // 2}", "wave": 1626, **now}
              for group in range(4)]
    return {"store": "/a/very/long/path/" + "x" * 100, "topologies": [
        {"name": "words", "waves": True, "wave": 1626, "epoch": 1794821457856, "abandoned": 1, "trouble": "a sink " * 20,
         "splits": {"lines": [{"split": split, "task": 0, "position": 1000 + split} for split in range(16)]},
         "components": [{"name": component, "bytes": 222_964, "key_groups": groups,
                         "tasks": {"0": now} if live else {},
                         "fragments": [{"blob": "b0", "raw": 4, "check": 2, "workers": [0, 1, 2, 3, 7, 9]}]}]},
        {"name": "plain", "waves": False, "components": []}]}


def without_store(capsys: Capture) -> str:
    """All but the first line, which has a path that must not be broken."""
    store, rest = capsys.readouterr().out.split("\n", 1)
    assert store == f"checkpoints in {state('x', False)['store']}"
    lines = [line.rstrip() for line in rest.splitlines()]
    assert max(map(len, lines)) <= 80
    return "\n".join(lines)


def test_state(capsys: Capture) -> None:
    print_state(state("count", live=True), groups=False)
    text = without_store(capsys)
    assert "words: wave 1626 is committed, epoch 1794821457856, 1 wave abandoned\n  the last wave was abandoned: a sink" in text
    assert "  splits of lines: 16, at positions 1,000 to 1,015\n" in text
    assert text.endswith("""\
count: 223 kB in 4 key groups
task      groups    keys  unsaved    size  wave  fragments at workers
count[0]       2  12.3 k      913  111 kB  1626  any 4 of 6: 0..3, 7, 9
count[1]       2       ?        ?  111 kB  1626  none

plain has no state and is not exactly-once: no checkpoints""")


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("groups", [True, False])
def test_state_with_long_names(capsys: Capture, live: bool, groups: bool) -> None:
    print_state(state(LONG, live), groups)
    text = without_store(capsys)
    assert ("unsaved" in text) is live and ("pieces" in text) is groups and "[1]" in text


def test_scale(capsys: Capture) -> None:
    answer = {"topology": "wordcount", "from": {"count": 2}, "to": {"count": 3}, "changed": True, "batched": True,
              "migration": None, "splits": [], "key_groups": {"count": [0] * 43 + [1] * 43 + [2] * 42}}
    print_scale(answer)
    assert " ".join(printed(capsys).split()) == (
        "count of wordcount: 2 -> 3 tasks from the next batch on, 42 to 43 key groups each")
    print_scale({**answer, "changed": False})
    assert printed(capsys) == "wordcount has 3 tasks of count already\n"


def test_scale_of_resident_tasks(capsys: Capture) -> None:
    record = {"outcome": "done", "reason": "", "phases_ms": {"done": 412.0}, "longest_gap_ms": 20.0, "usual_gap_ms": None}
    answer = {"topology": "wordcount", "from": {"split": 2}, "to": {"split": 3}, "changed": True, "batched": False,
              "migration": record, "splits": [], "key_groups": {}, "key_groups_moved": 1}
    print_scale(answer)
    assert " ".join(printed(capsys).split()) == ("split of wordcount: 2 -> 3 tasks done in 0.4 s; 1 key group handed over; "
                                                 "longest gap at the sinks 20 ms, usually not measured")
    print_scale({**answer, "migration": {**record, "outcome": "cancelled", "reason": "a wave was not over"}})
    assert printed(capsys) == "split of wordcount: 2 -> 3 tasks wanted\ncancelled: a wave was not over\n"
    print_scale({**answer, "migration": None})
    assert printed(capsys) == "split of wordcount: 2 -> 3 tasks wanted\nmillrace moves shows the progress\n"
    print_scale({**answer, "migration": None, "from": {"split": 3}, "key_groups_moved": None})
    assert printed(capsys) == "split of wordcount: 3 tasks as before\nmillrace moves shows the progress\n"


def test_spouts_have_splits(capsys: Capture) -> None:
    record = {"outcome": "done", "reason": "", "phases_ms": {"done": 412.0}, "longest_gap_ms": 20.0, "usual_gap_ms": None}
    answer = {"topology": "words", "from": {"lines": 2}, "to": {"lines": 4}, "changed": True, "batched": False,
              "migration": record, "splits": ["lines"], "key_groups": {"lines": [0, 1, 2, 3] * 2}, "key_groups_moved": 4}
    print_scale(answer)
    text = " ".join(printed(capsys).split())
    assert "2 -> 4 tasks, 2 splits each" in text and "; 4 splits handed over;" in text and "key group" not in text
    both = {**answer, "key_groups": {**answer["key_groups"], "count": [0, 1]}}
    print_scale({**both, "from": {"lines": 2, "count": 1}, "to": {"lines": 4, "count": 2}})
    text = " ".join(printed(capsys).split())
    assert "1 key groups each" in text and "2 splits each" in text and "; 4 key groups and splits handed over;" in text
    print_regroup({"topology": "words", "component": "lines", "groups": {3: {"from": 0, "to": 1}}, "splits": True,
                   "batched": False, "waits_for": [], "starting": False})
    assert printed(capsys).startswith("1 split of lines of words goes to other tasks")


def test_a_move(capsys: Capture) -> None:
    answer = {"topology": "words", "task": "count[0]", "from": 0, "to": 1, "batched": False, "waits_for": [],
              "starting": False, "strategy": "handover"}
    print_move(answer)
    assert printed(capsys) == ("count[0] of words moves from worker 0 to worker 1\n"
                               "it is handed over while the stream runs; `moves` shows its progress\n")
    print_move({**answer, "waits_for": ["split[1]", "count[1]"]})
    assert printed(capsys).splitlines()[1] == "it is handed over after split[1], count[1]; `moves` shows its progress"
    print_move({**answer, "starting": True})
    assert printed(capsys).splitlines()[1] == "it is handed over when the topology runs; `moves` shows its progress"
    print_move({**answer, "batched": True})
    assert printed(capsys).splitlines()[1] == "it moves with the next batch, and its state moves with it"
    print_move({**answer, "strategy": "dcr"})
    assert printed(capsys).splitlines()[1] == "it moves by dcr; `moves` shows its progress"
    print_move({**answer, "from": 1})
    assert printed(capsys) == "count[0] is on worker 1 already\n"


def test_a_change_of_key_groups(capsys: Capture) -> None:
    answer = {"topology": "words", "component": "count", "groups": {3: {"from": 0, "to": 1}}, "splits": False, "batched": False,
              "waits_for": [], "starting": False}
    print_regroup(answer)
    assert " ".join(printed(capsys).split()) == ("1 key group of count of words goes to other tasks while the stream runs; "
                                                 "`moves` shows the progress")
    both = {**answer["groups"], 4: {"from": 0, "to": 2}}
    print_regroup({**answer, "groups": both, "waits_for": ["count[0]"]})
    assert " ".join(printed(capsys).split()) == ("2 key groups of count of words go to other tasks after a move of count[0]; "
                                                 "`moves` shows the progress")
    print_regroup({**answer, "starting": True})
    assert " ".join(printed(capsys).split()) == ("1 key group of count of words goes to other tasks when the topology runs; "
                                                 "`moves` shows the progress")
    print_regroup({**answer, "batched": True})
    assert " ".join(printed(capsys).split()) == "1 key group of count of words goes to other tasks with the next batch"
    print_regroup({**answer, "groups": {}})
    assert printed(capsys) == "count of words has these key groups where they are wanted already\n"


@pytest.mark.parametrize(("key", "hint"), [("a", None), (["a", 5], None), (5, "'\"5\"'"), (None, "'\"null\"'")])
def test_a_hint_for_a_key_that_was_read_as_json(capsys: Capture, key: Any, hint: str | None) -> None:
    print_value({"found": False, "task": "count[0]", "worker": 0, "group": 3, "error": "no entry", "key": key})
    text = printed(capsys)
    assert "count[0] (worker 0, key group 3): no entry\n" in text
    assert f"to look up the string, write {hint}\n" in text if hint else "look up the string" not in text


def test_a_long_value_is_not_broken(capsys: Capture) -> None:
    print_value({"found": True, "value": "x y " * 100})
    assert capsys.readouterr().out == repr("x y " * 100) + "\n"


def test_schedulers(capsys: Capture) -> None:
    scheduler.list_schedulers()
    text = printed(capsys)
    assert all(f"\n{name}\n" in f"\n{text}" for name in SCHEDULERS) and "k=unset, rho=1.0" in text
    for name in SCHEDULERS:
        scheduler.list_schedulers(name)
        assert printed(capsys).startswith(f"{name}\n  ")
    scheduler.list_schedulers(as_json=True)
    assert list(json.loads(capsys.readouterr().out)) == list(SCHEDULERS)


@pytest.mark.parametrize("random", [True, False])
def test_comparing(random: bool, tmp_path: Any) -> None:
    path = tmp_path / "load.json"
    random_situation(np.random.default_rng(2)).save(path)
    console = Console(file=io.StringIO(), width=80)
    situations = Situations(random=2, seed=1) if random else Situations((str(path),))
    compare(situations, ["even", "slstream xi=1 restarts=0"], console)
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(len(line) for line in lines if str(path) not in line) <= 80
    assert any(line.startswith("slstream xi=1 restarts=0") for line in lines)
