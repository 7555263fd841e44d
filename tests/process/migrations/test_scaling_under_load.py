"""Components are scaled between real processes under load, without a fault and with kill -9 in each phase: the sink's files and
the last checkpoint match an independent count. The command line waits for it, and a resumed run continues as it was scaled."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.cli.main import app
from millrace.config import LEASE
from millrace.control.scaling import GROW, REGROUP, RETIRE
from millrace.model.graph import TaskId
from support.processes.ending import kill_and_wait
from support.processes.forked import ForkedCluster
from support.topologies.audited import SECONDS, UNHURRIED, StatefulStream, assert_all_exact, assert_never_less

pytestmark = pytest.mark.process
SLOTS = 4


@pytest.fixture(scope="module")
def shared() -> Iterator[ForkedCluster]:
    with ForkedCluster(SLOTS, nodes=2, settings={LEASE.key: SECONDS}) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared: ForkedCluster) -> ForkedCluster:
    shared.make_whole(SLOTS, SECONDS)
    return shared


def par_of(stream: StatefulStream) -> dict[str, int]:
    return stream.state.graph.parallelism


def scale(stream: StatefulStream, par: Mapping[str, int]) -> None:
    """Scale, and wait until that is done."""
    stream.master.rescale(stream.name, par)
    stream.until(lambda: stream.state.scaling is None)
    assert {name: par_of(stream)[name] for name in par} == par, stream.story()


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_scaling_without_a_fault_is_exact(cluster: ForkedCluster, tmp_path: Path, guarantee: str) -> None:
    """Whatever the guarantee: nothing is lost or repeated, and no worker or epoch ends."""
    stream = StatefulStream(cluster.master, tmp_path, guarantee=guarantee,
                            **{**UNHURRIED, "topology.message.timeout.secs": 600.0})
    stream.wave()
    epoch = stream.state.epoch
    for par in ({"count": 7, "split": 4}, {"sink": 1, "count": 2}, {"split": 1, "sink": 4}, {"count": 3, "split": 2}):
        scale(stream, par)
    stream.wave()
    assert stream.state.epoch == epoch and stream.state.losses == 0
    assert_all_exact(stream.finish_both())


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_worker_is_killed_in_each_phase(cluster: ForkedCluster, tmp_path: Path, guarantee: str) -> None:
    stream = StatefulStream(cluster.master, tmp_path, guarantee=guarantee)
    stream.wave()
    for phase, par in ((GROW, {"count": 6}), (REGROUP, {"count": 2}), (REGROUP, {"count": 5, "split": 4}),
                       (RETIRE, {"count": 3, "split": 2})):
        losses = stream.state.losses
        victim = killed_while_scaled(stream, phase, par)
        cluster.kill(victim)  # already dead: reaps the process
        stream.until(lambda losses=losses: stream.state.losses > losses)
        cluster.start(victim)
        stream.until(lambda victim=victim: victim in cluster.master.state.workers)
        stream.until(lambda: stream.state.scaling is None and stream.state.status == "running")
        stream.until(lambda: stream.state.handover.at_rest)
        if not par.items() <= par_of(stream).items():  # given up, with what it had reached
            scale(stream, par)
        stream.wave()
    stream.advance(100)  # spouts that were restarted pass what was sent before
    (assert_all_exact if guarantee == "exactly-once" else assert_never_less)(stream.finish_both())


def killed_while_scaled(stream: StatefulStream, phase: str, par: Mapping[str, int]) -> int:
    """Begin to scale, and kill the worker of a task that is concerned as soon as that phase is reached; returns its slot."""
    master, killed, begun = stream.master, list[int](), list[bool]()

    def act() -> bool:
        if not begun and stream.state.handover.at_rest and stream.state.status == "running":
            begun.append(True)
            master.rescale(stream.name, par)
        scaling = stream.state.scaling
        if begun and not killed and scaling is not None and scaling.phase == phase:
            killed.append(stream.state.places[TaskId("count", par_of(stream)["count"] - 1)].slot)
            kill_and_wait(master.connections[killed[0]].hello.pid)
        return bool(killed)

    stream.until(act)
    return killed[0]


def test_the_command_and_a_resumed_run(cluster: ForkedCluster, tmp_path: Path) -> None:
    stream = StatefulStream(cluster.master, tmp_path, **UNHURRIED)
    stream.wave()

    def run(*arguments: str) -> Any:
        result = CliRunner().invoke(app, [*arguments, "--cluster", cluster.master.name, "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return json.loads(result.output.splitlines()[-1])

    answer = run("scale", "count=6", "split=5")
    assert (answer["topology"], answer["from"], answer["to"]) == (
        "stateful", {"count": 3, "split": 3}, {"count": 6, "split": 5})
    assert answer["key_groups_moved"] == answer["key_groups_minimum"] == 63
    record = answer["migration"]
    assert record["strategy"] == "scale" and record["outcome"] == "done" and record["id"] in [
        row["id"] for row in run("migrations")]
    assert (record["lost"], record["repeated"], record["replayed"]) == (0, 0, 0)
    again = run("scale", "count=6")
    assert (again["changed"], again["migration"], again["key_groups_moved"]) == (False, None, 0)
    run("regroup", "count", "0-127=0")
    stream.until(lambda: stream.state.handover.at_rest)
    completed = run("scale", "count=6")  # the number of tasks stays, and those without key groups get theirs
    assert completed["changed"] and completed["migration"]["outcome"] == "done", completed
    assert completed["key_groups_moved"] == completed["key_groups_minimum"] == 106
    assert run("scale", "split=4", "--no-wait")["key_groups_moved"] is None
    stream.until(lambda: stream.state.scaling is None)
    scale(stream, {"split": 5})
    assert len(run("plan")["topologies"]["stateful"]["placement"]) == len(stream.state.graph.tasks())
    stream.wave(2)
    stream.end()
    again = StatefulStream(cluster.master, tmp_path, resume=True, **UNHURRIED)
    assert (par_of(again)["count"], par_of(again)["split"]) == (6, 5)
    assert_all_exact(again.finish_both())
