"""Workers are added, removed and restarted while an exactly-once word count runs on executors of their own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.control.assignment import ARM, SWITCH
from millrace.control.moves import REFRESH
from millrace.errors import NotEnoughSlots, UnknownName
from millrace.master.requests.client import ask
from millrace.spark.engine import ResidentEngine
from support.processes.family import alive, executor_of
from support.topologies.audited import StatefulStream, assert_all_exact
from support.topologies.killed_moves import NEW, OLD, at_rest, killed_in

SLOTS, CORES = 3, 6


@pytest.fixture(scope="module")
def engine() -> Iterator[ResidentEngine]:
    with ResidentEngine("local-cluster[3,2,700]", SLOTS, name=f"pool-{os.getpid()}",
                        settings={"history.url": "none"}) as engine:
        yield engine


@pytest.fixture
def stream(engine: ResidentEngine, tmp_path: Path) -> StatefulStream:
    stream = StatefulStream(engine.master, tmp_path, rate=1000)
    stream.wave(1)
    return stream


def by_slot(engine: ResidentEngine) -> dict[int, dict[str, Any]]:
    return {row["slot"]: row for row in engine.workers()}


def executors(engine: ResidentEngine) -> int:
    return engine.spark.sparkContext._jsc.sc().statusStore().executorList(True).size() - 1  # without the driver


def assert_undisturbed(stream: StatefulStream, epoch: int) -> None:
    assert (stream.state.losses, stream.state.epoch) == (0, epoch), stream.story()


def test_a_worker_is_restarted_in_a_new_process(engine: ResidentEngine, stream: StatefulStream) -> None:
    before, places, epoch = by_slot(engine), stream.state.plan.placement, stream.state.epoch
    for slot in sorted(before):
        answer = engine.restart_worker(slot)
        assert answer.keys() == {"slot", "old_pid", "new_pid", "old_node", "new_node", "ms"}
        assert (answer["slot"], answer["old_pid"]) == (slot, before[slot]["pid"]) and answer["ms"] > 0
        row = by_slot(engine)[slot]
        assert row["pid"] == answer["new_pid"] != answer["old_pid"]
        assert row["executor"] == before[slot]["executor"], "it waits for a core of its executor"
        assert not alive(answer["old_pid"])
    assert stream.state.plan.placement == places
    stream.wave(1)
    assert_undisturbed(stream, epoch)
    assert_all_exact(stream.finish_both())


def test_workers_come_and_go(engine: ResidentEngine, stream: StatefulStream) -> None:
    """The executor of the last worker on it is given back, and another one is started when it is needed, even while Spark still
    lists the first."""
    epoch, first = stream.state.epoch, {row["executor"] for row in engine.workers()}
    assert engine.add_workers(1) == [3]
    row = by_slot(engine)[3]
    assert row["tasks"] == [] and row["pid"] and engine.slots == SLOTS + 1
    shared = [slot for slot, other in by_slot(engine).items() if other["executor"] == row["executor"]]
    assert len(shared) == 2
    for slot, given_back in zip(shared, (False, True), strict=True):
        held = by_slot(engine)[slot]
        assert held["tasks"] or slot == 3
        answer = engine.remove_worker(slot)
        assert (answer["slot"], answer["pid"], answer["executor_given_back"]) == (slot, held["pid"], given_back)
        assert slot not in by_slot(engine) and slot not in stream.slots() and not alive(held["pid"])
    assert engine.slots == SLOTS - 1
    assert engine.add_workers(2) == [4, 5], "the numbers of removed workers are not used again"
    now = {row["executor"] for row in engine.workers()}
    assert len(now - first) == 1 and row["executor"] not in now, "the two that are left have room for one worker only"
    stream.until(lambda: executors(engine) == len(first))
    stream.wave(1)
    assert_undisturbed(stream, epoch)
    assert_all_exact(stream.finish_both())


def test_more_workers_than_there_are_cores_for(engine: ResidentEngine) -> None:
    before = by_slot(engine)
    with pytest.raises(NotEnoughSlots, match=r"9 more workers were requested, but \d of the 6 cores .* one must stay free.*"
                                             "Nothing was changed: remove other workers first"):
        engine.add_workers(9)
    assert by_slot(engine) == before


def test_two_requests_do_not_count_the_same_cores(engine: ResidentEngine) -> None:
    """Of two requests for all cores but the one that must stay free, one is refused."""
    before, room = by_slot(engine), CORES - 1 - engine.slots
    with ThreadPoolExecutor(2) as threads:
        requests = [threads.submit(engine.add_workers, room) for _ in range(2)]
    errors = [request.exception() for request in requests]
    [added] = [request.result() for request, error in zip(requests, errors, strict=True) if error is None]
    [refused] = [error for error in errors if error is not None]
    assert isinstance(refused, NotEnoughSlots) and "Nothing was changed" in str(refused)
    assert by_slot(engine).keys() == before.keys() | set(added)
    for slot in added:
        engine.remove_worker(slot)


def test_a_worker_that_was_restarted_is_restarted_by_spark_when_it_dies(engine: ResidentEngine, stream: StatefulStream) -> None:
    slot = min(by_slot(engine))
    engine.restart_worker(slot)
    pid = by_slot(engine)[slot]["pid"]
    os.kill(pid, 9)
    stream.until(lambda: slot in engine.master.connections and engine.master.connections[slot].hello.pid != pid)
    stream.until(lambda: stream.state.losses == 1 and stream.state.status == "running")
    stream.wave(1)
    assert_all_exact(stream.finish_both())


def test_a_worker_is_killed_in_each_phase_of_a_hand_over(engine: ResidentEngine, stream: StatefulStream) -> None:
    """Spark starts its process again."""
    for phase, role in ((ARM, OLD), (REFRESH, NEW), (SWITCH, OLD), (SWITCH, NEW)):
        losses = stream.state.losses
        victim = killed_in(stream, phase, role)
        stream.until(lambda losses=losses: stream.state.losses > losses)
        stream.until(lambda victim=victim: victim in engine.master.state.workers and at_rest(stream))
        stream.wave(1)
    stream.advance(100)  # spouts that were restarted pass what was sent before
    assert_all_exact(stream.finish_both())


def test_the_commands(engine: ResidentEngine) -> None:
    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, ["workers", *arguments, "--cluster", engine.master.name, "--json"],
                                    catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    rows = run()
    assert {row["slot"]: executor_of(row["pid"]) for row in rows}.keys() == by_slot(engine).keys()
    assert all(row.keys() == {"slot", "node", "executor", "pid", "tasks", "leaving"} for row in rows)
    slot = rows[0]["slot"]
    assert run("restart", str(slot))["old_pid"] == rows[0]["pid"]
    [added] = run("add", "1")["slots"]
    assert run("remove", str(added))["slot"] == added
    with pytest.raises(UnknownName, match=f"there is no worker {added}; there are"):
        ask(engine.master.name, "workers remove", slot=added)
    assert {row["slot"] for row in run()} == by_slot(engine).keys()
