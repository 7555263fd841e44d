"""The master's side of batches, with callbacks that record their arguments."""

from __future__ import annotations

from itertools import count

from millrace.control.events import BatchBegan, BatchOver, Event, Submitted, WorkerJoined, WorkerLost
from millrace.control.master_state import MasterState
from millrace.master.batch_log import BatchRecord, UnderWay
from millrace.master.batches import Batching
from millrace.model.cluster import Node
from millrace.model.graph import ComponentDef, StreamDef, TopologyGraph
from millrace.runtime.wire import messages as wire

NODE = Node("host", 4, 1000.0, 4096)
LINES = ComponentDef("lines", "spout", "m:C", 1, {}, (StreamDef("default", ("line",)),), (), False, "next_tuple", movable=True)
GRAPH = TopologyGraph("words", (LINES,), {"topology.guarantee": "exactly-once"}, batched=True)


class FakeMaster:
    def __init__(self) -> None:
        self.state, self.events, self.reports = MasterState(), list[Event](), list[wire.Report]()
        self.batching = Batching(self.state, {}, lambda work: work(), self.tell,
                                 lambda process, report: self.reports.append(report), count(5).__next__)

    def tell(self, event: Event) -> None:
        self.events.append(event)
        self.state.handle(event)


def record(batch: int) -> BatchRecord:
    return BatchRecord(batch=batch, wave=batch + 1, plan_version=1, started=0.0, seconds=1.0)


def test_an_executor_joins_and_leaves_like_a_worker() -> None:
    master = FakeMaster()
    master.batching.enlist(2, NODE, "executor 1", "")
    master.batching.dismiss(2, "Spark lost it")
    master.batching.dismiss(2, "Spark lost it")
    assert master.events == [WorkerJoined(2, 5, NODE, "host", "executor 1", "", ""), WorkerLost(2, 5, "Spark lost it")]


def test_a_report_is_completed_with_generation_and_revision() -> None:
    master = FakeMaster()
    master.batching.enlist(0, NODE, "executor 1", "")
    report = wire.Report(0, 0, 0, 1.5, [], [], [], [], [], {})
    master.batching.take_report(report)
    master.batching.take_report(wire.Report(1, 0, 0, 1.5, [], [], [], [], [], {}))  # an empty slot
    assert [(taken.slot, taken.generation, taken.revision) for taken in master.reports] == [(0, 5, master.state.revision)]


def test_messages_about_an_unknown_topology_are_dropped() -> None:
    master = FakeMaster()
    master.batching.began("ghost")
    master.batching.note("ghost", record(0))
    master.batching.finish("ghost", "over", "")
    assert master.events == [] and master.batching.logs == {}


def test_a_slow_batch_is_recorded_until_it_is_over() -> None:
    master = FakeMaster()
    master.batching.enlist(0, NODE, "executor 1", "")
    master.state.handle(Submitted(GRAPH))
    master.events.clear()
    master.batching.began("words")
    slow = UnderWay(batch=0, attempt=1, doing="run its tasks", since=0.0, tasks=[])
    master.batching.under_way("words", slow)
    assert master.batching.logs["words"].under_way == slow
    master.batching.note("words", record(0))
    assert master.batching.logs["words"].under_way is None
    assert master.events == [BatchBegan("words"), BatchOver("words")]
