"""Waves that are abandoned, alone or one after the other: fewer and fewer are tried, they leave nothing in the store, they do
not block the next one, and lost state is reported as lost."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from millrace.control.waves import FIRST_PAUSE, IDLE, LAST_PAUSE, PREPARE
from millrace.errors import StoreUnreachable
from millrace.state.checkpoint import Manifest, manifest_names, wave_of
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster.wave_parts import AtLeast, AtMost, Exact
from support.cluster.wave_runs import assert_exact, counts, finish, start, until_wave, waves

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
ENDLESS = 10**9


class ApartStore(MemoryStore):
    """The directory of another host: the master finds none of the blobs that tasks have written."""

    apart = True

    def missing(self, names: Iterable[str]) -> set[str]:
        return set(names) if self.apart else super().missing(names)


class PartlyDown(MemoryStore):
    """Refuses the blobs of one task."""

    refuses = ""

    def write(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        if self.refuses and f"/{self.refuses}/" in name:
            raise StoreUnreachable(f"no room for {name}: make some")
        super().write(name, list(parts))


def blobs(cluster: LocalCluster) -> list[str]:
    """The blobs of tasks: neither manifests nor the name of the driver."""
    names = [name for name in cluster.store.blobs if not name.endswith("/author")]
    return sorted(set(names) - set(manifest_names(names)))


def uncommitted(cluster: LocalCluster) -> list[str]:
    """Blobs that no manifest in the store needs."""
    stored = cluster.store.blobs
    committed = {blob for name in manifest_names(stored) for blob in Manifest.decode(stored[name]).blobs()}
    return sorted(set(blobs(cluster)) - committed)


def most_waves(seconds: float) -> int:
    """The most waves that can begin in this time if each of them is abandoned."""
    count, at, pause = 1, 0.0, FIRST_PAUSE
    while (at := at + pause) <= seconds:
        count, pause = count + 1, min(2 * pause, LAST_PAUSE)
    return count


@pytest.mark.parametrize("topology", [Exact, AtLeast])
def test_waves_that_cannot_be_stored_are_tried_less_and_less_often(topology: type) -> None:
    store = ApartStore()
    cluster = start(topology, limit=ENDLESS, store=store, rate=100.0)
    cluster.run(6.0)
    name = topology.__name__.lower()
    assert 3 <= waves(cluster, name).wave <= most_waves(6.0)
    assert waves(cluster, name).committed <= 1, "a wave without state may be committed"
    store.apart = False
    until_wave(cluster, 2, name)
    assert waves(cluster, name).failed == 0
    before = waves(cluster, name).wave
    cluster.run(1.0)
    assert waves(cluster, name).wave >= before + 3, "after a commit the interval counts again"


def test_the_last_wave_of_a_topology_is_not_repeated_without_a_pause() -> None:
    cluster = start(limit=300, store=ApartStore(), **{"topology.checkpoint.timeout.secs": 5.0})
    cluster.run(1.0)
    before = waves(cluster).wave
    cluster.stop("exact", wait=1.0)
    last = before
    while "exact" in cluster.master.topologies:
        last = waves(cluster).wave
        cluster.step()
    assert last - before <= most_waves(7.0)
    assert blobs(cluster) == []


@pytest.mark.parametrize("topology", [Exact, AtLeast])
def test_a_wave_that_could_not_be_stored_leaves_nothing(topology: type) -> None:
    cluster = start(topology, limit=ENDLESS, store=ApartStore(), rate=100.0)
    name = topology.__name__.lower()
    for _ in range(3):
        abandoned = waves(cluster, name).abandoned
        cluster.run_until(lambda abandoned=abandoned: waves(cluster, name).abandoned > abandoned
                          and waves(cluster, name).phase == IDLE)
        assert blobs(cluster) == []


def test_what_the_next_wave_builds_on_is_kept_and_nothing_else() -> None:
    """One task's blobs are refused. The others are done with each wave, and their next snapshots add to it."""
    store = PartlyDown()
    cluster = start(limit=6000, store=store)
    until_wave(cluster, 1)
    store.refuses = "tally/0"
    cluster.run_until(lambda: waves(cluster).failed >= 3 and waves(cluster).phase == IDLE)
    needed = {piece.blob for task in cluster.tasks("tally") for chain in task.snapshots._chains.values() for piece in chain}
    needed |= {task.snapshots._own.blob for task in cluster.tasks("tally")}
    committed = waves(cluster).committed
    assert set(uncommitted(cluster)) == {blob for blob in needed if wave_of(blob) > committed}
    store.refuses = ""
    until_wave(cluster, 1)
    cluster.kill(1)  # what was kept is enough to restore from
    finish(cluster)
    assert_exact(6000)


@pytest.mark.parametrize("steps", [0, 2, 5, 9])
def test_a_roll_back_in_the_middle_of_a_wave_leaves_nothing(steps: int) -> None:
    """No later wave is committed, whose collection would find the blobs."""
    store = ApartStore()
    store.apart = False
    cluster = start(limit=ENDLESS, store=store, rate=1000.0)
    until_wave(cluster, 2)
    cluster.run_until(lambda: waves(cluster).phase == PREPARE)
    cluster.step(steps)
    store.apart = True
    cluster.kill(1)
    assert uncommitted(cluster) == []
    cluster.run_until(lambda: waves(cluster).failed >= 2 and waves(cluster).phase == IDLE)
    assert uncommitted(cluster) == []


@pytest.mark.parametrize("steps", [3, 6])
def test_a_wave_that_a_failure_ended_does_not_block_the_next(steps: int) -> None:
    """At least once, bolts survive the failure. They wait for the rest of that wave, and must not keep holding back the
    channels that bring the next one."""
    cluster = start(AtLeast, limit=ENDLESS, rate=20_000.0,
                    **{"topology.message.timeout.secs": 30.0, "topology.channel.window": 1})
    until_wave(cluster, 2, "atleast")
    cluster.run_until(lambda: waves(cluster, "atleast").phase == PREPARE)
    cluster.step(steps)
    cluster.kill(1)
    until_wave(cluster, 2, "atleast")
    assert waves(cluster, "atleast").abandoned == 0, cluster.said


def test_state_that_was_never_stored_is_reported_as_lost_when_its_worker_dies() -> None:
    """At most once, nothing is read again: the counts are lower than before, which must not happen in silence."""
    cluster = start(AtMost, limit=ENDLESS, store=ApartStore())
    cluster.run_until(lambda: waves(cluster, "atmost").failed >= 2)
    before = counts(cluster)
    cluster.kill(1)
    cluster.run_until(lambda: cluster.master.topologies["atmost"].status == "running")
    assert any(counts(cluster)[key] < count for key, count in before.items())
    lost = [text for text in cluster.said if "state is lost" in text]
    assert len(lost) == 1
    assert "numbers will not be read again" in lost[0] and "are not in the store" in lost[0]
    [event] = [event for event in cluster.events if "state is lost" in event.text]
    assert event.tasks and all(str(task) in event.text for task in event.tasks) and "are not in the store" in event.cause


def test_state_that_is_counted_again_is_not_reported_as_lost() -> None:
    cluster = start(AtLeast, limit=ENDLESS, store=ApartStore())
    cluster.run_until(lambda: waves(cluster, "atleast").failed >= 2)
    before = counts(cluster)
    cluster.kill(1)
    cluster.run_until(lambda: all(counts(cluster)[key] >= count for key, count in before.items()))
    assert not any("state is lost" in text for text in cluster.said)
    [event] = [event for event in cluster.events if "Spouts read again from there" in event.text]
    assert event.tasks and "are not in the store" in event.cause


@pytest.mark.parametrize("topology", [Exact, AtLeast, AtMost])
def test_state_that_cannot_be_read_is_no_empty_start(topology: type) -> None:
    """The committed wave is in the store and its blobs are not: the topology waits, and continues with its state."""
    cluster = start(topology, limit=ENDLESS)
    name = topology.__name__.lower()
    until_wave(cluster, 3, name)
    gone = {blob: cluster.store.blobs.pop(blob) for blob in blobs(cluster)}
    before = counts(cluster)
    cluster.kill(1)
    cluster.run(3.0)
    assert cluster.master.topologies[name].status == "starting"
    assert any("cannot restore the state of wave" in text for text in cluster.said)
    cluster.store.blobs.update(gone)
    cluster.run_until(lambda: cluster.master.topologies[name].status == "running")
    cluster.run_until(lambda: counts(cluster).total() >= before.total())
