"""At least once, tasks outlive the failure that ends a wave: nothing may stay held back for it."""

from __future__ import annotations

from typing import Any

import pytest
import wave_parts as parts
from wave_parts import AtLeast

from millrace.control.waves import IDLE
from millrace.testing.local_cluster import LocalCluster

NAME = "atleast"


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> LocalCluster:
    """A stream without end, three workers, and two waves committed."""
    parts.forget()
    found = LocalCluster(3, nodes=3)
    parts.Numbers.clock = staticmethod(found.clock.now)
    found.submit(AtLeast, config={"rate": 20_000.0, "topology.message.timeout.secs": 30.0, **getattr(request, "param", {})})
    until_wave(found, 2)
    return found


def waves(cluster: LocalCluster) -> Any:
    return cluster.master.topologies[NAME].waves


def until_wave(cluster: LocalCluster, count: int) -> None:
    target = waves(cluster).committed + count
    cluster.run_until(lambda: waves(cluster).committed >= target and waves(cluster).phase == IDLE)


@pytest.mark.parametrize("cluster", [{"topology.channel.window": 1}], indirect=True)
@pytest.mark.parametrize("steps", [3, 6])
def test_a_wave_that_a_failure_ended_does_not_hold_up_the_next(cluster: LocalCluster, steps: int) -> None:
    """Bolts that live on wait for the rest of it, and hold back those that would bring the next one."""
    cluster.run_until(lambda: waves(cluster).phase == "prepare")
    cluster.step(steps)
    cluster.kill(1)
    until_wave(cluster, 2)
    assert waves(cluster).abandoned == 0, cluster.said
