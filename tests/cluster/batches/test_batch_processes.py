"""Batches without Spark and their processes: tasks that move away and back, processes that are behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Stream, Topology
from millrace.api.tuple import Tuple
from millrace.connectors.sinks import JsonLinesSink
from millrace.testing.local_batches import LocalBatches
from support.cluster.batch_parts import (
    N,
    Remembers,
    Source,
    Tallied,
    all_in,
    check_tally,
    counters,
    fail_after,
    numbers_in,
    run_to_the_end,
    start,
)
from support.cluster.records import CLOSED, MADE
from support.rows import rows_in
from support.suites.kept_state import own_of

# ---- direct streams ----


class Chooser(Remembers, Bolt):
    """Caches the task numbers in `initialize`, and emits each number to one of them."""

    outputs: ClassVar[list[Any]] = [Stream(["n"], "chosen", direct=True)]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.targets = sorted(int(task) for task, name in context["task->component"].items() if name == "named")

    def process(self, tup: Tuple) -> None:
        n = tup.values.n
        self.emit([n], stream="chosen", direct_task=self.targets[n % len(self.targets)])


class Named(JsonLinesSink):
    """Writes its task index into each row."""

    def encode(self, rows: list[Any]) -> bytes:
        return b"".join(b'{"n": %d, "task": %d}\n' % (row.n, self.task_index) for row in rows)


class Chosen(Topology):
    numbers = Source.spec(par=1)
    chooser = Chooser.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    named = Named.spec(inputs=[chooser["chosen"]], par=3)


@pytest.mark.parametrize("processes", [1, 3])
def test_a_direct_emitter_learns_new_targets(tmp_path: Path, processes: int) -> None:
    batches = start(Chosen, tmp_path, processes)
    tasks = []
    for par in (3, 5, 2, 4, 1):
        if par != batches.graph.component("named").par:
            batches.scale("named", par)
        before = len(rows_in(tmp_path / "out"))
        batches.batch()
        assert len(rows_in(tmp_path / "out")) == before + 20
        epoch = max(batches.decider.good)
        tasks.append({json.loads(line)["task"] for path in (tmp_path / "out").glob(f"part-*-{epoch}-*")
                      for line in path.read_text().splitlines()})
    assert tasks == [set(range(par)) for par in (3, 5, 2, 4, 1)]
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


def test_other_components_are_kept_under_a_new_plan(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.batch()
    made = MADE.copy()
    batches.scale("sink", 3)
    run_to_the_end(batches)
    assert made == MADE
    host = batches.processes[0]
    assert host is not None
    for kept in host.kept.values():
        assert list(kept.task.component.context["task->component"].values()).count("sink") == 3
    check_tally(batches, tmp_path / "out")


# ---- tasks that processes keep ----


def kept_in(batches: LocalBatches, process: int) -> set[str]:
    host = batches.processes[process]
    assert host is not None
    assert set(host.run.tasks) == set(host.kept)
    return {str(kept.task.name) for kept in host.kept.values()}


def test_tasks_that_ended_are_closed(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.scale("tally", 5)
    batches.batch()
    assert kept_in(batches, 0) == set(map(str, batches.graph.tasks()))
    batches.scale("tally", 2)
    batches.batch()
    assert kept_in(batches, 0) == set(map(str, batches.graph.tasks()))
    assert sorted(CLOSED) == ["tally[2]", "tally[3]", "tally[4]"]
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_tasks_that_moved_are_closed(tmp_path: Path) -> None:
    """Each process runs its planned tasks; then the plan swaps them."""
    batches = start(Tallied, tmp_path, processes=2)
    batches.choose = lambda task: batches.place(task)
    batches.batch()
    first = [kept_in(batches, 0), kept_in(batches, 1)]
    assert not first[0] & first[1]
    batches.place = lambda task: (task.index + 1) % 2  # type: ignore[method-assign]
    batches.version += 1
    batches.batch()
    assert [kept_in(batches, 1), kept_in(batches, 0)] == first
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_no_task_is_closed_without_a_new_plan(tmp_path: Path) -> None:
    """Spark sometimes runs partitions in another process and returns."""
    batches = start(Tallied, tmp_path, processes=2)
    for process in (0, 1, 0):
        all_in(batches, process)
        batches.batch()
    assert kept_in(batches, 0) == kept_in(batches, 1) == set(map(str, batches.graph.tasks()))
    assert not [each for each in CLOSED if each.startswith(("tally", "numbers"))]


# ---- processes that are behind ----


def test_a_process_that_is_behind_keeps_its_components(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path, processes=2)
    for process in (0, 1, 0, 1, 1, 0):
        all_in(batches, process)
        batches.batch()
    assert set(MADE) == {"numbers[0]", "numbers[1]", "tally[0]", "tally[1]", "tally[2]"}
    assert set(MADE.values()) == {2}, "once in each process"
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_components_are_recreated_after_an_aborted_attempt(tmp_path: Path) -> None:
    batches = start(Tallied, tmp_path)
    batches.batch()
    assert set(MADE.values()) == {1}
    fail_after(batches, stage=2)
    batches.batch()
    assert set(MADE.values()) == {2}
    fail_after(batches, stage=0)
    batches.batch()
    assert {name: count for name, count in MADE.items() if count != 2} == {"numbers[0]": 3, "numbers[1]": 3}
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


def test_an_attempt_aborted_elsewhere_does_not_affect_an_idle_process(tmp_path: Path) -> None:
    """The idle process keeps its components and reads nothing from the store. The staged rows of the other process are
    discarded."""
    batches = start(Tallied, tmp_path, processes=2)
    all_in(batches, 0)
    batches.batch()
    all_in(batches, 1)
    fail_after(batches, stage=3)
    assert list((tmp_path / "out").glob(".staged-*/*.jsonl"))
    all_in(batches, 0)
    total = counters(batches)
    assert total["resident"] == 3 and not total["restored"]
    assert set(MADE.values()) == {2}, "once in each process"
    assert not list((tmp_path / "out").glob(".staged-*/*.jsonl"))
    all_in(batches, 1)
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


class Own(Remembers, Bolt):
    """Keeps state outside the key groups."""

    outputs: ClassVar[list[str]] = ["n"]

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.total = 0

    def process(self, tup: Tuple) -> None:
        self.total += tup.values.n
        self.emit([tup.values.n])

    def snapshot(self) -> int:
        return self.total

    def restore(self, snapshot: int) -> None:
        self.total = snapshot


class Summed(Topology):
    numbers = Source.spec(par=1)
    own = Own.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    sink = JsonLinesSink.spec(inputs={own: Grouping.SHUFFLE}, par=1)


def test_a_task_with_own_state_is_recreated_when_it_is_behind(tmp_path: Path) -> None:
    batches = start(Summed, tmp_path, processes=2)
    for process in (0, 1, 0, 0):
        all_in(batches, process)
        batches.batch()
    assert MADE["own[0]"] == MADE["own[1]"] == 3
    all_in(batches, 1)
    run_to_the_end(batches)
    assert sum(own_of(batches.checkpoints.store, batches.graph)["own"]) == sum(range(N))
    assert numbers_in(tmp_path / "out") == list(range(N))


# ---- sinks ----


def test_files_that_a_consumer_moves_away(tmp_path: Path) -> None:
    """Files move between batches, including files that one process wrote and another made visible."""
    batches, out, taken = start(Tallied, tmp_path, processes=2), tmp_path / "out", tmp_path / "taken"
    taken.mkdir()
    for number in range(8):
        all_in(batches, 0)
        batches.before_publishing = lambda process=number % 2: all_in(batches, process)  # type: ignore[misc]
        batches.batch()
        for path in out.glob("part-*"):
            path.rename(taken / path.name)
    assert numbers_in(taken) == list(range(N))
