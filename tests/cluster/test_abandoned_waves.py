"""At least once, tasks survive the failure that ends a wave: they must not keep holding back tuples for it."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.waves import IDLE
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_parts import AtLeast

NAME = "atleast"


@pytest.fixture
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LocalCluster:
    """A cluster of three workers with an endless stream and two committed waves."""
    parts.forget()
    made = LocalCluster(3, nodes=3)
    monkeypatch.setattr(parts.Numbers, "clock", staticmethod(made.clock.now))
    made.submit(AtLeast, config={"rate": 20_000.0, "topology.message.timeout.secs": 30.0, **getattr(request, "param", {})})
    until_wave(made, 2)
    return made


def waves(cluster: LocalCluster) -> Any:
    return cluster.master.topologies[NAME].waves


def until_wave(cluster: LocalCluster, count: int) -> None:
    target = waves(cluster).committed + count
    cluster.run_until(lambda: waves(cluster).committed >= target and waves(cluster).phase == IDLE)


@pytest.mark.parametrize("cluster", [{"topology.channel.window": 1}], indirect=True)
@pytest.mark.parametrize("steps", [3, 6])
def test_a_wave_that_a_failure_ended_does_not_block_the_next(cluster: LocalCluster, steps: int) -> None:
    """Surviving bolts wait for the rest of that wave, and hold back the channels that bring the next one."""
    cluster.run_until(lambda: waves(cluster).phase == "prepare")
    cluster.step(steps)
    cluster.kill(1)
    until_wave(cluster, 2)
    assert waves(cluster).abandoned == 0, cluster.said
