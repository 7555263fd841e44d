"""Executors as separate processes: one of them is killed with all its workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.errors import NotEnoughSlots
from millrace.spark.engine import ResidentEngine
from support.processes.family import executor_of
from support.topologies.audited import AuditedStream, StatefulStream, assert_all_exact, assert_nothing_lost

SLOTS = 3
MASTER = "local-cluster[2,2,700]"


@pytest.fixture(scope="module")
def engine() -> Iterator[ResidentEngine]:
    with ResidentEngine(MASTER, SLOTS, name=f"executors-{os.getpid()}") as engine:
        yield engine


def executors(engine: ResidentEngine) -> dict[int, int | None]:
    """The pid of each slot's executor."""
    return {slot: executor_of(connection.hello.pid) for slot, connection in dict(engine.master.connections).items()}


def test_more_workers_than_cores_are_refused_at_once() -> None:
    with pytest.raises(NotEnoughSlots, match=r"4 workers were requested.* has 4 cores"):
        ResidentEngine(MASTER, 4, name=f"too-many-{os.getpid()}")


def test_every_word_exactly_once(engine: ResidentEngine, tmp_path: Path) -> None:
    pids = executors(engine)
    assert len(set(pids.values())) == 2 and None not in pids.values()
    assert {worker["executor"] for worker in engine.status()["workers"]} == {"0", "1"}
    stream = StatefulStream(engine.master, tmp_path)
    stream.wave(2)
    assert_all_exact(stream.finish_both())


def test_an_executor_is_killed_with_its_workers(engine: ResidentEngine, tmp_path: Path) -> None:
    stream = AuditedStream(engine.master, tmp_path)
    stream.advance(500)
    pids = executors(engine)
    victim = next(pid for pid in pids.values() if list(pids.values()).count(pid) == 2)
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    lost = {slot for slot, pid in pids.items() if pid == victim}
    stream.until(lambda: stream.state.losses >= len(lost))
    stream.advance(500)
    stream.until(lambda: stream.slots() == set(range(SLOTS)) and victim not in executors(engine).values())
    stream.advance(500)
    assert_nothing_lost(stream.finish())
