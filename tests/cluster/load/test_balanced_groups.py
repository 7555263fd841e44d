"""Skewed keys on resident workers: key groups are given to other tasks by their measured load, while the stream runs."""

from __future__ import annotations

from collections import Counter

import pytest

from millrace.api.grouping import stable_hash
from millrace.control.events import Say
from millrace.control.scheduling.hot_groups import HotGroups
from millrace.model.graph import TaskId
from millrace.model.load import Load
from millrace.schedulers.balance import Balance
from millrace.schedulers.base import NewPlan, NoChange
from support.cluster import wave_parts as parts
from support.cluster.cluster_runs import drain
from support.cluster.moved_runs import at_rest, flaws
from support.load.measured_cluster import MeasuredCluster
from support.load.skewed_parts import GROUPS, HOT, TALLIES, OneHotKey, SkewedTally, SlowTally, true_rows

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
NAME, LIMIT = "skewedtally", 120_000


def worst(load: Load) -> float:
    """The tuples of the most loaded task of the tally over the mean."""
    done = [load.tasks[TaskId("tally", index)].executed for index in range(TALLIES)]
    return max(done) * TALLIES / sum(done)


@pytest.mark.parametrize("guarantee", ["at-most-once", "at-least-once", "exactly-once"])
def test_key_groups_of_the_hot_task_are_handed_over_and_nothing_is_lost(guarantee: str) -> None:
    cluster = MeasuredCluster(3)
    cluster.submit(SkewedTally, config={"limit": LIMIT, "topology.guarantee": guarantee, "topology.chunk.tuples": 50,
                                        "topology.checkpoint.interval.secs": 0.1, "topology.state.backup.blocks": [0, 0]})
    cluster.run(0.2)
    skewed = cluster.window(NAME, 1.0)
    state = cluster.master.topologies[NAME]
    epoch, before = state.epoch, state.key_groups["tally"]
    assert worst(skewed) > 3
    counted, real = sum(skewed.key_groups["tally"]), sum(skewed.tasks[TaskId("tally", i)].executed for i in range(TALLIES))
    assert counted == pytest.approx(real, rel=0.05), "one tuple of many is counted, and stands for the others"
    result = cluster.plan(Balance(), NAME, skewed)
    assert isinstance(result, NewPlan), result
    cluster.run_until(lambda: at_rest(cluster, NAME))
    moved = sum(old != new for old, new in zip(before, state.key_groups["tally"], strict=True))
    assert len(HOT) * (TALLIES - 1) / TALLIES - 1 <= moved <= len(HOT), "no more than the hot groups move"
    even = cluster.window(NAME, 0.3)
    assert worst(even) < 1.4
    again = cluster.plan(Balance(tolerance=0.4), NAME, even)
    assert isinstance(again, NoChange), again
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))
    assert state.epoch == epoch and not flaws(cluster)
    drain(cluster, NAME)
    written = parts.VISIBLE if guarantee == "exactly-once" else parts.WRITTEN
    assert Counter((key, number) for key, number, _ in written) == true_rows(LIMIT)
    last: dict[str, int] = {}
    for key, _, count in written:  # the ledger gets each key in one task, so in order
        assert count == last.get(key, 0) + 1, f"count {count} of {key} came after {last[key]}: its state did not move with it"
        last[key] = count


def test_a_key_that_fills_a_task_is_reported_once_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, watch = MeasuredCluster(4), HotGroups()
    monkeypatch.setattr(SlowTally, "pause", staticmethod(cluster.clock.advance), raising=False)
    cluster.submit(OneHotKey, config={"topology.guarantee": "at-most-once", "topology.chunk.tuples": 50})
    state = cluster.master.topologies["onehotkey"]

    def observed(seconds: float) -> list[Say]:
        load = cluster.window("onehotkey", seconds)
        assert load.heavy_keys["tally"][0].key == repr(HOT[0])
        return watch.observe({"onehotkey": state.graph}, {"onehotkey": load}, {"onehotkey": state.plan})

    cluster.run(0.2)
    said = observed(0.5) + observed(0.5)
    assert len(said) == 1 and said[0].level == "warning", said
    group = stable_hash(HOT[0]) % GROUPS
    assert said[0].text.startswith(f"key group {group} of tally, in tally[{state.key_groups['tally'][group]}], needs about ")
    assert f"The key {HOT[0]!r} has about 100% of its tuples." in said[0].text and len(watch.warnings()) == 1
