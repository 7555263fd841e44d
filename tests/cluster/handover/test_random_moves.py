"""Random moves of tasks and key groups of every kind, while waves run, without faults and with them: the output is exact."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.control.events import Regrouped, WaveRequested
from millrace.errors import TopologyError
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.blocking_parts import AllKinds, Blocking
from support.cluster.moved_runs import flaws
from support.cluster.wave_runs import assert_exact, finish, start, until_wave, visible
from support.examples import examples

LIMIT = 1500
TOPOLOGIES = [parts.Exact, parts.ExactKeyed, parts.Batched, Blocking, AllKinds]
ACTIONS = st.lists(st.tuples(st.sampled_from(["move", "move", "move", "regroup", "wave", "many"]), st.integers(0, 999),
                             st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=8)
FAULTS = st.lists(st.tuples(st.sampled_from(["move", "move", "regroup", "kill", "start", "hold", "deaf"]), st.integers(0, 999),
                            st.integers(0, 2), st.integers(0, 60)), min_size=1, max_size=10)
QUICK = settings(deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
                 suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


def act(cluster: LocalCluster, name: str, action: str, which: int, slot: int) -> None:
    state = cluster.master.topologies[name]
    tasks = sorted(state.graph.tasks())
    with suppress(TopologyError):  # it is being moved, or rolls back
        if action == "move" and slot in cluster.master.workers:
            cluster.move(name, tasks[which % len(tasks)], slot)
        elif action == "many" and slot in cluster.master.workers:
            for task in tasks[which % len(tasks):]:
                cluster.move(name, task, slot)
        elif action == "regroup" and "tally" in state.key_groups:
            first = which % 128
            cluster.tell(Regrouped(name, "tally", dict.fromkeys(range(first, min(128, first + 20)), slot)))
        elif action == "wave":
            cluster.tell(WaveRequested(name))
    if action == "kill" and slot in cluster.workers and len(cluster.workers) > 1:
        cluster.kill(slot)
    elif action == "start" and slot not in cluster.workers:
        cluster.start(slot)
    elif action == "hold":
        cluster.holding ^= {slot} & cluster.workers.keys()
    elif action == "deaf" and slot in cluster.workers:
        cluster.deaf.add(slot)


def check(topology: Any) -> None:
    if topology is parts.Batched:
        assert visible() == parts.expected_rows(LIMIT, 1)
    else:
        assert_exact(LIMIT, 1 if topology is AllKinds else 2)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@settings(QUICK, max_examples=examples(4))
@given(actions=ACTIONS)
def test_without_faults(topology: Any, actions: list[tuple[str, int, int, int]]) -> None:
    parts.forget()
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    state = cluster.master.topologies[name]
    epoch = state.epoch
    for action, which, slot, steps in actions:
        act(cluster, name, action, which, slot)
        cluster.step(steps)
    cluster.run_until(lambda: state.handover.at_rest)
    unwanted = flaws(cluster)
    if topology is AllKinds:
        unwanted.pop("failed", None)  # one of its bolts refuses tuples on purpose
    assert not unwanted and state.epoch == epoch, (unwanted, cluster.said)
    finish(cluster, name)
    check(topology)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@settings(QUICK, max_examples=examples(4))
@given(actions=FAULTS)
def test_with_faults(topology: Any, actions: list[tuple[str, int, int, int]]) -> None:
    parts.forget()
    name = topology.__name__.lower()
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name)
    for action, which, slot, steps in actions:
        act(cluster, name, action, which, slot)
        cluster.step(steps)
    cluster.holding.clear()
    for slot in range(3):
        if slot not in cluster.workers:
            cluster.start(slot)
        if slot in cluster.deaf:
            cluster.hear(slot)
    finish(cluster, name)
    check(topology)
