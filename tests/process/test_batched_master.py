"""A master without worker processes: executors reported by an engine, batches, their status, and requests about them."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping, stable_hash
from millrace.api.keyed.declared import CounterState
from millrace.api.spout import ReplayableSpout
from millrace.api.topology import Topology
from millrace.cli.dashboard import batch_lines
from millrace.cli.main import main
from millrace.control.events import Killed, Submitted
from millrace.control.submission import Resume
from millrace.control.topology_status import RUNNING, STOPPING
from millrace.errors import MillraceError, TopologyError, UnknownName
from millrace.master.batch_log import BatchRecord
from millrace.master.checkpoints.state_queries import only_state
from millrace.master.requests.client import ask
from millrace.master.service import Master
from millrace.model.cluster import Node
from millrace.model.graph import TaskId, TopologyGraph, graph_of
from millrace.runtime.checkpoints.store import open_store
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.runtime.meters import COUNTERS, LATENCIES, SECONDS, Meters
from millrace.runtime.wire import messages as wire
from millrace.state.author import STEP
from millrace.state.checkpoint import Manifest, TaskRecord, blob_name, pack
from millrace.state.task_state import open_states

Cli = Callable[..., tuple[int, str, str]]
GROUPS = 4
NODE = Node("host", 2, 1000.0, 1024)
LINES, COUNT0, COUNT1 = TaskId("lines", 0), TaskId("count", 0), TaskId("count", 1)


class FakeLines(ReplayableSpout):
    outputs = ("word",)

    def next_tuple(self) -> None: ...

    def seek(self, position: int) -> None: ...


class FakeCount(Bolt):
    outputs = ("word", "count")
    hits = CounterState()

    def process(self, tup: Any) -> None: ...


class Several(FakeCount):
    misses = CounterState()


class Both(FakeCount):
    def process(self, tup: Any) -> None:
        self.state[tup.values[0]] = 1


class Neither(Bolt):
    def process(self, tup: Any) -> None: ...


def with_bolt(bolt: type[Bolt]) -> type[Topology]:
    class Other(Topology):
        lines = FakeLines.spec()
        count = bolt.spec(inputs={lines: Grouping.fields("word")})

    return Other


class Words(Topology):
    lines = FakeLines.spec()
    count = FakeCount.spec(inputs={lines: Grouping.fields("word")}, par=2)


def words() -> TopologyGraph:
    config = {"topology.guarantee": "exactly-once", "topology.key.groups": GROUPS}
    return replace(graph_of(Words, "words", config), batched=True)


def taken_over(master: Master, resume: Resume, graph: TopologyGraph | None = None) -> Submitted:
    return master.checkpointing.take_over(master.checkpointing.attempt(graph or words(), resume))


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    """A master with two executors and a topology that runs in batches."""
    made = Master("batched", settings={"checkpoint.store": str(tmp_path / "kept"), "history.url": "none",
                                       "load.period.secs": 1000.0})
    made.start()
    try:
        made.batching.enlist(0, NODE, "e0")
        made.batching.enlist(1, NODE, "e1")
        made.submit_batched(taken_over(made, resume=False))
        yield made
    finally:
        made.stop()


def record(batch: int, **changed: Any) -> BatchRecord:
    return BatchRecord(**{"batch": batch, "wave": batch + 1, "plan_version": 1, "started": 1e9, "seconds": 0.5, **changed})


def report(slot: int, graph: TopologyGraph, task: TaskId, groups: dict[str, list[int]] | None = None,
           **counts: int) -> wire.Report:
    latencies = Meters().report()
    row = {"topology": 1, "task": graph.number(task), "incarnation": 1, "queue_length": 0, "traffic": {},
           "key_groups": groups or {}, **dict.fromkeys(COUNTERS + SECONDS, 0), **counts,
           **{name: latencies[name] for name in LATENCIES}}
    return wire.Report(slot, 0, 0, time.monotonic(), [row], [], [], [], [], {"batches": 3}, 1.5, 64.0)


def committed(master: Master, wave: int, hits: dict[str, int]) -> Manifest:
    """Commit a batch with this state to the store; returns its manifest."""
    name, groups = blob_name("words", "count", 0, 1, wave), list(range(GROUPS))
    bolt = FakeCount()
    state = open_states(bolt, stable_hash, groups, GROUPS, "count[0]", time.time)
    assert state is not None
    for word, times in hits.items():
        bolt.hits[word] += times
    parts, refs = pack(state.snapshot(), name)
    store = Checkpoints(open_store(master.checkpointing.place), "words")
    author = store.current_author()
    epoch = author.epoch if author is not None else 1
    store.save(name, parts)
    manifest = Manifest("words", wave, epoch, GROUPS, {"lines": 1, "count": 2},
                        [TaskRecord("lines", 0, position=wave * 10),
                         TaskRecord("count", 0, {group: [ref] for group, ref in refs.items()})], 0.0, 1)
    store.commit(manifest)
    return manifest


def only(status: dict[str, Any]) -> dict[str, Any]:
    topology: dict[str, Any] = status["topologies"][0]
    return topology


# ---- executors ----


def test_executors_are_workers_without_a_worker_process(master: Master) -> None:
    status = master.status()
    assert [(worker["slot"], worker["executor"], worker["pid"], worker["agent"]) for worker in status["workers"]] == [
        (0, "e0", None, False), (1, "e1", None, False)]
    assert only(status)["status"] == "running" and only(status)["engine"] == "microbatch"


def test_tasks_of_a_lost_executor_move_to_the_others(master: Master) -> None:
    master.batching.dismiss(1, "its executor is gone")
    master.batching.dismiss(1, "told twice")
    assert {place.slot for place in master.state.topologies["words"].places.values()} == {0}
    master.batching.dismiss(0, "its executor is gone")
    assert master.state.topologies["words"].status == "waiting"
    master.batching.enlist(0, NODE, "e2")
    assert master.state.topologies["words"].status == "running"


def test_executors_need_no_heartbeats(master: Master) -> None:
    master.worker_port.patience.timeout = 0.0
    assert not master.wait_until(lambda: len(master.state.workers) < 2, 0.5)


def test_reports_of_executors_are_counted(master: Master) -> None:
    graph = words()
    master.batching.take_report(report(0, graph, LINES, {"count": [4, 3, 2, 1]}, emitted=10))
    master.batching.take_report(report(1, graph, COUNT1, executed=5))
    master.batching.take_report(report(7, graph, COUNT0, executed=99))  # from a slot that has no executor
    status = master.status()
    rows = {row["name"]: row for row in only(status)["components"]}
    assert rows["lines"]["emitted"] == 10 and rows["count"]["executed"] == 5
    assert status["workers"][0]["counters"] == {"batches": 3}
    master.call(lambda: master.scheduling.end_window(time.monotonic()))
    assert master.scheduling.load["words"].key_groups["count"] == pytest.approx((4, 3, 2, 1))
    assert master.scheduling.sample is not None and master.scheduling.sample.workers[0].memory_mb == 64.0
    assert ask("batched", "load", topology=None)["topologies"]["words"]["key_groups"]["count"] == pytest.approx([4, 3, 2, 1])


# ---- batches ----


def test_status_shows_batches(master: Master) -> None:
    assert only(master.status())["batches"]["count"] == 0
    assert [line.text for line in batch_lines(only(master.status())["batches"])] == ["no batch has finished yet"]
    master.batching.note("words", record(0, tuples_in=1000, misplaced=1, restored=2, spark_run_seconds=3.5,
                                         own_busy_seconds=2.5))
    shown = only(ask("batched", "status"))["batches"]
    assert (shown["count"], shown["last"]["tuples_in"], shown["misplaced"], shown["restored"]) == (1, 1000, 1, 2)
    batches, state, time_in_partitions = (line.text for line in batch_lines(shown))
    assert batches == "1, 0 attempts failed; last 0.50 s for 1,000 tuples; mean of 20: 0.50 s"
    assert state == "found in memory 0 times, loaded 2 times; 1 task misplaced"
    assert time_in_partitions.startswith("3.5 s by Spark, 2.5 s in Python; ")


def test_calls_for_an_ended_topology_are_ignored(master: Master) -> None:
    master.batching.note("words", record(0))
    master.batching.finish("words", "its last batch is committed")
    assert master.wait_until(lambda: "words" not in master.state.topologies, 5)
    master.batching.finish("words", "its last batch is committed")
    master.batching.began("words")
    master.batching.note("words", record(1))
    master.batching.committed("words", committed(master, 1, {"a": 1}))
    assert master.batch_logs["words"].count == 1, "its record can still be read"


def test_a_kill_is_delayed_once(master: Master) -> None:
    delayed: list[Killed] = []
    master.call(lambda: master.delay_kill("words", delayed.append))
    master.kill("words", wait=3.0)
    assert [(event.name, event.wait) for event in delayed] == [("words", 3.0)]
    assert master.state.topologies["words"].status == RUNNING
    master.kill_all()
    assert len(delayed) == 1 and master.state.topologies["words"].status == STOPPING


def test_the_delay_of_a_kill_ends_with_its_topology(master: Master) -> None:
    delayed: list[Killed] = []
    master.call(lambda: master.delay_kill("words", delayed.append))
    master.batching.finish("words", "its last batch is committed")
    master.submit_batched(taken_over(master, resume=False))
    master.kill("words")
    assert not delayed and master.state.topologies["words"].status == STOPPING


def test_positions_are_those_of_the_last_batch(master: Master) -> None:
    master.batching.began("words")
    assert master.state.topologies["words"].in_batch
    master.batching.committed("words", committed(master, 3, {"a": 1}))
    topology = master.state.topologies["words"]
    assert topology.positions == {LINES: 30} and topology.in_batch, "its sinks may still have to commit"
    master.batching.note("words", record(2))
    assert not topology.in_batch


def test_it_resumes_from_its_last_batch(master: Master) -> None:
    manifest = committed(master, 3, {"a": 1})
    master.batching.committed("words", manifest)
    master.batching.finish("words", "its last batch is committed")
    event = taken_over(master, resume=True)
    assert event.checkpoint == manifest and event.after == (manifest.epoch + STEP, 3)
    master.submit_batched(event)
    assert master.state.topologies["words"].positions == {LINES: 30}
    assert only(master.status())["batches"]["count"] == 0


def test_a_refused_submission_releases_the_lock(master: Master) -> None:
    wrong = graph_of(Words, "wrong", {"topology.guarantee": "exactly-once", "topology.message.timeout.secs": "soon"})
    with pytest.raises(MillraceError, match="soon"):
        master.submit(wrong)
    taken_over(master, False, replace(wrong, name="another"))  # earlier requests are done by then
    other = open_store(master.checkpointing.place)
    lock = other.lock("wrong")
    assert lock is not None
    lock.close()


# ---- state ----


def test_state_is_shown_as_of_the_last_batch(master: Master) -> None:
    assert ask("batched", "state", topology=None)["topologies"][0]["wave"] == 0
    master.batching.committed("words", committed(master, 2, {"a": 3, "b": 1}))
    master.batching.note("words", record(1, seconds=0.25))
    shown = ask("batched", "state", topology="words")["topologies"][0]
    assert (shown["waves"], shown["wave"], shown["seconds"], shown["phase"]) == (True, 2, 0.25, "idle")
    assert {group["wave"] for group in shown["components"][0]["key_groups"]} == {2}


def test_a_value_is_looked_up_in_the_checkpoint(master: Master) -> None:
    def look_up(key: Any, state: str = "hits") -> dict[str, Any]:
        answer: dict[str, Any] = ask("batched", "query", topology=None, component="count", key=key, state=state)
        return answer

    early = look_up("a")
    assert (early["found"], early["error"], early["as_of_wave"]) == (False, "no batch is committed yet", 0)
    master.batching.committed("words", committed(master, 2, {"a": 3, "b": 1}))
    assert (look_up("a")["found"], look_up("a")["value"], look_up("a")["as_of_wave"]) == (True, 3, 2)
    assert look_up("b")["value"] == 1 and look_up("b")["group"] == stable_hash("b") % GROUPS
    assert not look_up("never")["found"] and "no entry for key 'never'" in look_up("never")["error"]
    assert not look_up("a", "misses")["found"] and "has no state 'misses'" in look_up("a", "misses")["error"]
    for wrong in ({"a": 1}, ["a", ["b"]]):
        with pytest.raises(MillraceError, match=r"'count' has no entry for key .*: a key is a string, a number"):
            look_up(wrong)
    with pytest.raises(UnknownName, match="no running topology has a component 'cont'; words has lines, count"):
        ask("batched", "query", topology=None, component="cont", key="a", state=None)


@pytest.mark.parametrize(("bolt", "state"), [(FakeCount, "hits"), (Both, "state"), (Neither, "state")])
def test_the_default_state_of_a_query(bolt: type[Bolt], state: str) -> None:
    assert only_state(graph_of(with_bolt(bolt)), "count") == state


def test_several_states_are_named() -> None:
    with pytest.raises(UnknownName, match="'count' of 'words' has the states hits, misses: choose one with --name"):
        only_state(graph_of(with_bolt(Several), "words"), "count")


# ---- scale ----


def test_scale_takes_effect_and_reports_of_new_tasks_are_counted(master: Master) -> None:
    answer = ask("batched", "scale", par={"count": 4}, topology=None)
    assert (answer["from"], answer["to"], answer["changed"], answer["version"]) == ({"count": 2}, {"count": 4}, True, 2)
    assert sorted(answer["key_groups"]["count"]) == [0, 1, 2, 3]
    graph = master.state.topologies["words"].graph
    master.batching.take_report(report(0, graph, TaskId("count", 3), executed=8))
    assert {row["name"]: row["executed"] for row in only(master.status())["components"]}["count"] == 8
    again = ask("batched", "scale", par={"count": 4}, topology="words")
    assert (again["changed"], again["version"]) == (False, 2)
    master.rescale("words", {"count": 1})
    assert only(master.status())["tasks"] == 2


def test_scale_reports_errors(master: Master) -> None:
    for par, says in (({"nobody": 2}, "no running topology has 'nobody'; words has count, lines"),
                      ({"lines": 2}, "is a spout"), ({"count": 0}, "cannot have 0 tasks"), ({"count": 5}, "has 4 key groups")):
        with pytest.raises(MillraceError) as refused:
            ask("batched", "scale", par=par, topology=None)
        assert says in str(refused.value) and isinstance(refused.value, TopologyError | UnknownName)
    assert master.state.topologies["words"].version == 1


def test_a_move_reports_that_it_is_batched(master: Master) -> None:
    slot = master.state.topologies["words"].places[COUNT0].slot
    assert ask("batched", "move", task="count[0]", slot=1 - slot, topology=None)["batched"] is True


# ---- the command line ----


@pytest.fixture
def cli(master: Master, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run commands in this process."""
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["millrace", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    yield run
    signal.signal(signal.SIGTERM, before)


def test_scale_at_the_command_line(cli: Cli) -> None:
    assert cli("scale", "count=4") == (0, "count of words: 2 -> 4 tasks from the next batch on, 1 key groups each\n", "")
    assert cli("scale", "count=4", "--topology", "words") == (0, "words has 4 tasks of count already\n", "")
    code, out, _ = cli("scale", "count=3", "--json")
    assert code == 0 and json.loads(out)["from"] == {"count": 4} and out.count("\n") == 1


@pytest.mark.parametrize(("arguments", "says"), [
    (["count"], "scale 'count' is not of the form KEY=VALUE"),
    (["count=many"], "the value must be a whole number"),
    (["count=0"], "cannot have 0 tasks"),
    (["count=9"], "its state has 4 key groups"),
    (["lines=2"], "is a spout"),
    (["other=2"], "no running topology has 'other'; words has count, lines"),
    (["count=3", "--topology", "other"], "no topology named 'other' is running; running: words"),
])
def test_scale_refuses_in_one_line(cli: Cli, arguments: list[str], says: str) -> None:
    code, out, err = cli("scale", *arguments)
    assert (code, out) == (1, "") and says in err and err.startswith("millrace: ") and err.count("\n") == 1


def test_the_other_verbs_work_on_batches(cli: Cli, master: Master) -> None:
    master.batching.committed("words", committed(master, 2, {"a": 3}))
    master.batching.note("words", record(1, tuples_in=7))
    code, out, _ = cli("status")
    assert code == 0 and "words: running (microbatch) for " in out and "last 0.50 s for 7 tuples" in out
    assert cli("status", "words")[1].count("words: running") == 1
    assert cli("status", "other") == (1, "", "millrace: no topology named 'other' is running; running: words\n")
    assert json.loads(cli("status", "--json")[1])["topologies"][0]["batches"]["count"] == 1
    code, out, _ = cli("plan")
    assert code == 0 and "key groups of count: 2 each for [0..1]" in out and "(agent)" not in out
    assert json.loads(cli("plan", "words", "--json")[1]) == json.loads(cli("plan", "--json")[1])
    assert cli("plan", "other") == (1, "", "millrace: no topology named 'other' is running; running: words\n")
    for option in ([], ["--groups"]):
        code, out, _ = cli("state", *option)
        assert code == 0 and "wave 2 is committed" in out and "?" not in out and "unsaved" not in out
    assert cli("state", "--query", "count", "a") == (0, "3\n", "")
    assert cli("state", "--query", "count", "a", "--name", "hits") == (0, "3\n", "")
    code, out, _ = cli("state", "--query", "count", "5")
    assert code == 1 and "no entry for key 5" in out and """to look up the string, write '"5"'""" in out
    assert cli("load")[0] == 0
    code, out, _ = cli("move", "count[0]", str(1 - master.state.topologies["words"].places[COUNT0].slot))
    assert code == 0 and "it moves with the next batch" in out
    code, out, err = cli("moves", "--cancel", "count[0]")
    assert (code, out) == (1, "") and "'words' runs in batches" in err and "move the task back with `millrace move`" in err
    owner = master.state.topologies["words"].key_groups["count"][0]
    code, out, _ = cli("regroup", "count", f"0={1 - owner}")
    assert code == 0 and "1 key group of count of words goes to other tasks with the next batch" in out
    assert master.state.topologies["words"].key_groups["count"][0] == 1 - owner
    assert cli("kill", "words")[0] == 0 and master.state.topologies["words"].status == "stopping"


# ---- balance ----


def test_skewed_key_groups_are_rebalanced_while_it_runs(master: Master) -> None:
    graph = words()
    master.set_scheduler("balance", {}, {"cool_down": 0.0, "period": 0.1})
    before = master.state.topologies["words"].key_groups["count"]
    assert before == (0, 0, 1, 1)

    def is_rebalanced() -> bool:
        return master.state.topologies["words"].key_groups["count"] != before

    for times in range(1, 100):
        counts = [90_000 * times, 60_000 * times, 10_000 * times, 20_000 * times]
        master.batching.take_report(report(0, graph, LINES, {"count": counts}))
        if master.wait_until(is_rebalanced, 0.3):
            break
    owners = master.state.topologies["words"].key_groups["count"]
    assert owners[0] != owners[1] and master.state.topologies["words"].version == 2
    enacted = [each for each in ask("batched", "scheduler history", limit=10) if each["outcome"] == "enacted"]
    assert enacted[0]["expected"]["before"]["skew"] > enacted[0]["expected"]["after"]["skew"]
    assert any("key groups, task 0 -> 1" in moved for moved in enacted[0]["moved"])
