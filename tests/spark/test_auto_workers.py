"""Executors come and go with the load of an exactly-once word count, on a real local-cluster."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.spark.engine import ResidentEngine
from support.processes.executors import listed_executors
from support.topologies.audited import assert_all_exact
from support.topologies.weighty import WeightyStream

# Each executor has room for two workers, but one core must stay free for Spark's own jobs: a second worker needs another one.
MASTER = "local-cluster[2,2,700]"


@pytest.fixture(scope="module")
def engine() -> Iterator[ResidentEngine]:
    with ResidentEngine(MASTER, 2, name=f"auto-{os.getpid()}", code=["support"],
                        settings={"history.url": "none", "load.period.secs": 1.0, "worker.auto.min": 2,
                                  "worker.auto.max": 2}) as engine:
        yield engine


@pytest.fixture
def stream(engine: ResidentEngine, tmp_path: Path) -> WeightyStream:
    stream = WeightyStream(engine.master, tmp_path, rate=100)
    stream.wave(1)
    return stream


def workers(engine: ResidentEngine) -> dict[int, str]:
    return {slot: worker.executor for slot, worker in engine.master.state.workers.items()}


def run(engine: ResidentEngine, *arguments: str) -> Any:
    result = CliRunner().invoke(app, ["workers", *arguments, "--cluster", engine.master.name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_executors_come_and_go_with_the_load(engine: ResidentEngine, stream: WeightyStream) -> None:
    epoch, first = stream.state.epoch, workers(engine)
    assert sorted(first) == [0, 1] and listed_executors(engine) == {"0", "1"}
    engine.set_scheduler("support.user_schedulers:SpreadsAlways", period=1.0, cool_down=1.0, overload=0.7)
    answer = run(engine, "auto")
    assert (answer["on"], answer["min"], answer["max"]) == (True, 2, 2)
    assert not any("requested" in event["text"] for event in engine.master.events), "the first two were enough"
    answer = run(engine, "auto", "1..2", "--idle", "1", "--cool-down", "2")
    assert (answer["on"], answer["min"], answer["max"], answer["idle"], answer["cool_down"]) == (True, 1, 2, 1.0, 2.0)

    stream.until(lambda: len(workers(engine)) == 1)  # one is enough while words are quick
    [left] = workers(engine).values()
    stream.until(lambda: listed_executors(engine) == {left})
    stream.wave(1)

    stream.weigh(True)
    stream.until(lambda: len(workers(engine)) == 2)
    [new] = set(workers(engine)) - set(first)
    assert workers(engine)[new] not in set(first.values()), "Spark has started another executor"
    stream.until(lambda: new in stream.slots() and stream.state.handover.at_rest)  # the scheduler uses it
    stream.wave(1)

    stream.weigh(False)
    stream.until(lambda: len(workers(engine)) == 1)
    [left] = workers(engine).values()
    stream.until(lambda: listed_executors(engine) == {left})
    assert engine.set_auto_workers("off")["on"] is False
    stream.wave(1)
    assert (stream.state.losses, stream.state.epoch) == (0, epoch), stream.story()
    assert_all_exact(stream.finish_both())


def test_a_cluster_without_room_is_reported_once(engine: ResidentEngine) -> None:
    engine.set_auto_workers("9..9", cool_down=1)
    master = engine.master
    assert master.wait_until(lambda: master.capacity.trouble != "", 60.0)
    [warning] = engine.status()["warnings"]
    assert warning.startswith("no worker could be added: 8 more workers were requested, but ")
    assert "start the cluster with a larger --master" in warning
    assert [event["text"] for event in engine.master.events].count(warning) == 1
    assert engine.status()["workers_auto"]["trouble"] == warning
    engine.set_auto_workers("off")
