"""Every kind of keyed state moves with its task: plain, paged, in arrays and expiring, with deleted entries. Ticks keep their
time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.keyed.declared import CounterState, ListState, State
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.control.events import Regrouped
from millrace.model.graph import TaskId
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import start, tasks, until_wave

LIMIT = 2000
SECONDS = 1000.0  # until entries expire


class Keeper(Bolt):
    """Keeps plain numbers, numbers in arrays, lists, entries that expire, and deletes every fifth key again."""

    outputs: ClassVar[list[str]] = ["key", "number"]
    counts = CounterState()
    by_batch = CounterState()
    recent = ListState()
    expiring = State(ttl=SECONDS)
    ticks: ClassVar[list[tuple[int, float]]] = []

    def process(self, tup: Tuple) -> None:
        key, number = tup.values
        self.counts[key] += 1
        self.by_batch.add_batch(pa.array([key]))
        self.recent[key].append(number)
        self.expiring[key] = number
        self.state[key] = {"last": number}
        if number % 5 == 0:
            del self.state[key]
            self.expiring.pop(key, None)
        self.emit((key, number))

    def process_tick(self, tup: Tuple) -> None:
        type(self).ticks.append((self.task_index, parts.Numbers.clock()))


class Kept(Topology):
    config: ClassVar[dict[str, Any]] = {**parts.Exact.config, "topology.tick.tuple.freq.secs": 0.05}
    numbers = parts.Numbers.spec(par=2)
    keeper = Keeper.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = parts.FakeLedger.spec(inputs={keeper: Grouping.SHUFFLE}, par=2)


@pytest.fixture(autouse=True)
def _fresh_ticks(fresh_wave_parts: None) -> None:
    Keeper.ticks.clear()


def contents(cluster: LocalCluster) -> dict[str, dict[Any, Any]]:
    """Everything that the keepers have, by state."""
    found: dict[str, dict[Any, Any]] = {}
    for task in tasks(cluster, "keeper"):
        for name, state in task.snapshots.state.states.items():
            for key, value in state.copy().items():
                assert key not in found.setdefault(name, {}), f"{key} is in two tasks"
                found[name][key] = value
    return found


def truth() -> dict[str, dict[Any, Any]]:
    """The same by one pass over the numbers. Numbers of a key may reach the keeper from two spouts, in any order."""
    counts: dict[str, int] = {}
    recent: dict[str, list[int]] = {}
    for number in range(LIMIT):
        key = f"k{number % parts.KEYS}"
        counts[key] = counts.get(key, 0) + 1
        recent.setdefault(key, []).append(number)
    return {"counts": counts, "recent": recent}


def check(cluster: LocalCluster) -> None:
    cluster.run_until(lambda: len(tasks(cluster, "numbers")) == 2
                      and all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(0.5)
    found, expected = contents(cluster), truth()
    assert found["counts"] == found["by_batch"] == expected["counts"]
    assert {key: sorted(numbers) for key, numbers in found["recent"].items()} == expected["recent"]
    for key, numbers in found["recent"].items():
        last = numbers[-1]
        assert found["state"].get(key) == (None if last % 5 == 0 else {"last": last})
        assert found["expiring"].get(key) == (None if last % 5 == 0 else last)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once", "at-most-once"])
def test_state_moves_with_its_task(guarantee: str, paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if paged:
        monkeypatch.setattr("millrace.api.keyed.plain.PAGED_ABOVE", 2)
    cluster = start(Kept, limit=LIMIT, **{"topology.guarantee": guarantee})
    until_wave(cluster, 1, "kept")
    state = cluster.master.topologies["kept"]
    for step in range(4):
        task = TaskId("keeper", step % 2)
        cluster.move("kept", task, (cluster.where("kept")[task] + 1) % 3)
        cluster.run_until(lambda: state.handover.at_rest)
        cluster.step(30)
    check(cluster)


@pytest.mark.parametrize("paged", [False, True])
def test_state_moves_with_its_key_groups(paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if paged:
        monkeypatch.setattr("millrace.api.keyed.plain.PAGED_ABOVE", 2)
    cluster = start(Kept, limit=LIMIT)
    until_wave(cluster, 1, "kept")
    state = cluster.master.topologies["kept"]
    for owner in (0, 1, 0, 1):
        cluster.tell(Regrouped("kept", "keeper", dict.fromkeys(range(0, 128, 2), owner)))
        cluster.run_until(lambda: state.handover.at_rest)
        cluster.step(30)
    check(cluster)


def test_entries_expire_when_they_would_have(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = start(Kept, limit=100)
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    until_wave(cluster, 1, "kept")
    dues = {key: due for task in tasks(cluster, "keeper") for key, due in task.component.expiring._dues.items()}
    for index in range(2):
        task = TaskId("keeper", index)
        cluster.move("kept", task, (cluster.where("kept")[task] + 1) % 3)
    cluster.run_until(lambda: cluster.master.topologies["kept"].handover.at_rest)
    assert {key: due for task in tasks(cluster, "keeper") for key, due in task.component.expiring._dues.items()} == dues != {}


def test_ticks_keep_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A move neither skips a tick nor adds one."""
    cluster = start(Kept, limit=100_000, rate=1000.0)
    until_wave(cluster, 1, "kept")
    task = TaskId("keeper", 0)
    for _ in range(3):
        cluster.move("kept", task, (cluster.where("kept")[task] + 1) % 3)
        cluster.run_until(lambda: cluster.master.topologies["kept"].handover.at_rest)
        cluster.step(17)
    times = [at for index, at in Keeper.ticks if index == 0]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps and max(gaps) < 0.07 and min(gaps) > 0.03, "virtual seconds"
