"""A driver's process is killed with -9 after its topology was scaled; a new one resumes it as it was scaled, and exactly."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.config import CHECKPOINTS
from millrace.model.graph import graph_of
from support.processes.driver import DriverProcess
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, UNHURRIED, assert_all_exact
from support.topologies.split_stream import SPLITS, SplitStream, SplitWordCount

pytestmark = pytest.mark.process
NAME, RATE = "stateful", 1500.0
WAVES = {"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": 0.3}


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[DriverProcess]:
    (tmp_path / "out").mkdir()
    graph = graph_of(SplitWordCount, NAME, {"path": str(tmp_path / "out"), "rate": RATE, **WAVES, **UNHURRIED})
    process = DriverProcess(f"scaled-{os.getpid()}", tmp_path / "store", graph, resume=False)
    try:
        process.submitted(SECONDS)
        yield process
    finally:
        process.close()


def run(driver: DriverProcess, *arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--cluster", driver.name, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.output.splitlines()[-1])


def until_waves(driver: DriverProcess, more: int) -> None:
    """Wait until so many more waves are committed."""
    def committed() -> int:
        return int(run(driver, "state")["topologies"][0]["wave"])

    target, deadline = committed() + more, time.monotonic() + SECONDS
    while committed() < target:
        assert time.monotonic() < deadline, run(driver, "events")


@pytest.mark.parametrize("par", [{"lines": 4, "split": 3, "count": 5, "sink": 1}, {"count": 1, "split": 1}],
                         ids=["more", "fewer"])
def test_a_new_driver_resumes_as_the_killed_one_had_scaled(driver: DriverProcess, tmp_path: Path, par: dict[str, int]) -> None:
    until_waves(driver, 1)
    answer = run(driver, "scale", *(f"{component}={tasks}" for component, tasks in par.items()))
    assert answer["migration"]["outcome"] == "done", answer
    plan = run(driver, "plan")["topologies"][NAME]
    until_waves(driver, 2)
    driver.kill()
    with ForkedCluster(2, settings={CHECKPOINTS.key: str(tmp_path / "store")}) as cluster:
        stream = SplitStream(cluster.master, tmp_path / "out", rate=RATE, resume=True, **UNHURRIED)
        resumed = stream.state.graph.parallelism
        assert {component: resumed[component] for component in par} == par, stream.story()
        assert {name: list(owners) for name, owners in stream.state.key_groups.items()} == plan["key_groups"]
        stream.advance(100)
        assert sorted(stream.positions()) == list(range(SPLITS))
        assert_all_exact(stream.finish_both())
