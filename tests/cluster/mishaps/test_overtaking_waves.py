"""Waves that overtake queued tuples, in virtual time. The output is compared with independently computed rows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from millrace.api.topology import Topology
from millrace.control.events import Ticked, WaveRequested
from millrace.control.submission import Resume
from millrace.control.waves import IDLE, PREPARE
from millrace.errors import StoreUnreachable, TopologyError
from millrace.model.graph import TaskId, batched, graph_of
from millrace.runtime.tasks.bolt import BoltTask
from millrace.runtime.wire import messages as wire
from millrace.state.checkpoint import Manifest, check_fit
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import slow_parts, wave_parts
from support.cluster.blocking_parts import AllKinds
from support.cluster.slow_parts import FAN, BlockingBursts, Bursts, RegroupedBursts
from support.cluster.wave_parts import KEYS, Batched, Exact, ExactKeyed, expected_counts, expected_rows
from support.examples import examples

NAME = "bursts"
LIMIT = 60  # numbers, of which each becomes FAN rows
KINDS = pytest.mark.parametrize("topology", [Bursts, BlockingBursts])


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    wave_parts.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wave_parts.Numbers, "clock", wave_parts.Numbers.clock)
        yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


def start(topology: type[Topology] = Bursts, workers: int = 3, per_row: float = 0.5, limit: int = LIMIT,
          store: MemoryStore | None = None, resume: Resume = None, par: dict[str, int] | None = None,
          **config: Any) -> LocalCluster:
    cluster = LocalCluster(workers, nodes=workers, store=store)
    wave_parts.Numbers.clock = wave_parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    slow_parts.SECONDS[:] = [0.0, per_row]
    slow_parts.ADVANCE[:] = [cluster.clock.advance]
    cluster.submit(topology, name=NAME, resume=resume, par=par, config={
        "limit": limit, "topology.checkpoint.interval.secs": 1000.0, "topology.checkpoint.aligned.secs": 4.0, **config})
    return cluster


def waves(cluster: LocalCluster) -> Any:
    return cluster.master.topologies[NAME].waves


def checkpoint(cluster: LocalCluster) -> Manifest:
    manifest = cluster.master.topologies[NAME].checkpoint
    assert manifest is not None
    return manifest


def overtaken(manifest: Manifest) -> set[str]:
    """The components whose input the wave has overtaken."""
    return {record.component for record in manifest.records if record.in_flight is not None}


def bolts(cluster: LocalCluster) -> list[BoltTask]:
    return [task for component in cluster.master.topologies[NAME].graph.components
            for task in cluster.tasks(component.name) if isinstance(task, BoltTask)]


def queued(cluster: LocalCluster) -> int:
    return sum(task.queue_length for task in cluster.tasks("tally"))


def full(cluster: LocalCluster) -> LocalCluster:
    """Run until minutes of work wait in the inboxes of the slow bolt, after a first wave."""
    cluster.run_until(lambda: waves(cluster).committed == 1 and waves(cluster).phase == IDLE)
    cluster.run_until(lambda: queued(cluster) > 200)
    return cluster


def until_overtaking(cluster: LocalCluster) -> None:
    """Begin a wave, and run until it is about to overtake."""
    cluster.tell(WaveRequested(NAME))
    cluster.run_until(lambda: waves(cluster).phase == PREPARE and waves(cluster).overtakes)


def until_overtaken(cluster: LocalCluster) -> None:
    """Commit a wave that overtakes."""
    before = waves(cluster).committed
    until_overtaking(cluster)
    cluster.run_until(lambda: waves(cluster).committed > before and waves(cluster).phase == IDLE)
    assert "tally" in overtaken(checkpoint(cluster))


def finish(cluster: LocalCluster) -> None:
    """Go on without delay until everything is processed and committed."""
    slow_parts.SECONDS[:] = [0.0, 0.0]

    def all_sent() -> bool:
        spouts = [task for task in cluster.tasks("numbers") if task.started and task.worker.slot in cluster.master.workers]
        return len(spouts) == 2 and all(task.component.exhausted for task in spouts)

    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running" and all_sent())
    cluster.tell(WaveRequested(NAME))
    committed = waves(cluster).committed
    cluster.run_until(lambda: waves(cluster).committed > committed and cluster.master.topologies[NAME].status == "running")
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running" and all_sent())
    cluster.stop(NAME, wait=100)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)


def assert_exact(limit: int = LIMIT) -> None:
    """Every row once; the rows of a key counted one by one and, from each spout, in the order of emission."""
    assert Counter(number for _, number, _ in wave_parts.VISIBLE) == Counter(range(limit * FAN))
    counts: defaultdict[str, int] = defaultdict(int)
    latest: defaultdict[tuple[str, int], int] = defaultdict(lambda: -1)
    for rows in wave_parts.VISIBLE_BY_TASK.values():
        for key, number, count in rows:
            assert key == f"k{number // FAN % KEYS}"
            counts[key] += 1
            assert count == counts[key], f"{key} was counted {count} times at its row {counts[key]}"
            spout = number // FAN % 2
            assert number > latest[key, spout], f"{number} came after {latest[key, spout]}"
            latest[key, spout] = number
    assert dict(counts) == {f"k{key}": FAN * len(range(key, limit, KEYS)) for key in range(KEYS)}


@KINDS
def test_saved_tuples_count_as_old_and_not_as_replayed(topology: type[Topology]) -> None:
    cluster = full(start(topology))
    cluster.run_until(lambda: all(task.component.exhausted for task in cluster.tasks("numbers")))
    until_overtaken(cluster)
    slow_parts.SECONDS[:] = [0.0, 0.0]
    cluster.kill(cluster.where(NAME)[TaskId("tally", 0)])
    cluster.run_until(lambda: bool(cluster.migrations.past()))
    cluster.run(3.0)
    (row,) = cluster.migrations.past()
    assert row["catchup_ms"] is not None and row["restore_ms"] is not None and row["recovery_ms"] is None


@KINDS
@pytest.mark.parametrize("workers", [1, 3])
def test_a_wave_overtakes_minutes_of_queued_work(topology: type[Topology], workers: int) -> None:
    cluster = full(start(topology, workers))
    processed, began = len(wave_parts.VISIBLE), cluster.clock.now()
    until_overtaken(cluster)
    assert cluster.clock.now() - began < 15.0 and waves(cluster).abandoned == 0
    assert queued(cluster) > 100, "most of the work is still ahead"
    assert len(wave_parts.VISIBLE) >= processed
    finish(cluster)
    assert_exact()


def test_without_the_limit_the_wave_waits_for_all_of_it() -> None:
    cluster = start(**{"topology.checkpoint.aligned.secs": 0})
    cluster.run_until(lambda: waves(cluster).committed == 1)
    assert waves(cluster).took > 50.0 and not overtaken(checkpoint(cluster))
    finish(cluster)
    assert_exact()


@KINDS
@pytest.mark.parametrize("slot", [0, 1, 2])
def test_the_topology_returns_to_a_wave_that_has_overtaken(topology: type[Topology], slot: int) -> None:
    cluster = full(start(topology))
    until_overtaken(cluster)
    cluster.run(0.01)
    cluster.kill(slot)
    finish(cluster)
    assert_exact()
    assert any("every task has restored the state of wave 2" in text for text in cluster.said)


def test_it_returns_to_the_same_wave_again_and_again() -> None:
    cluster = full(start(workers=4))
    until_overtaken(cluster)
    for slot in (0, 1, 2):
        cluster.kill(slot)
        cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running")
        cluster.step(3)
    finish(cluster)
    assert_exact()


def test_restored_tuples_are_overtaken_by_the_next_wave() -> None:
    cluster = full(start())
    until_overtaken(cluster)
    cluster.kill(0)
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running")
    until_overtaken(cluster)
    cluster.kill(1)
    finish(cluster)
    assert_exact()


def hold_bursts(cluster: LocalCluster, held: bool = True) -> None:
    """Let the bolts before the slow one stay in their code, so that the wave does not come from there."""
    for task in cluster.tasks("burst"):
        task.busy = held
        if not held:
            task.worker.ready(task)


def incomplete(cluster: LocalCluster) -> bool:
    """True while the slow bolt has its snapshot, and the wave has not come on all its channels."""
    return any(task.waves._unsaved is not None for task in cluster.tasks("tally"))


PHASES = {
    "requested": lambda cluster: waves(cluster).overtakes,
    "incomplete": incomplete,
    "saving": lambda cluster: any(task.snapshots.saving is not None for task in bolts(cluster)),
    "store": lambda cluster: waves(cluster).phase == "store",
    "commit": lambda cluster: waves(cluster).phase == "commit",
}


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("phase", PHASES)
def test_a_worker_dies_while_a_wave_overtakes(phase: str, slot: int) -> None:
    cluster = full(start())
    if phase == "incomplete":
        hold_bursts(cluster)
    cluster.tell(WaveRequested(NAME))
    cluster.run_until(lambda: waves(cluster).overtakes and PHASES[phase](cluster))
    hold_bursts(cluster, False)
    committed = waves(cluster).committed
    cluster.kill(slot)
    cluster.run_until(lambda: waves(cluster).phase == IDLE)
    assert f"{NAME}: every task has restored the state of wave {committed}" in cluster.said
    finish(cluster)
    assert_exact()


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_a_worker_dies_while_the_wave_is_being_restored(slot: int) -> None:
    cluster = full(start(workers=4))
    until_overtaken(cluster)
    cluster.kill(3)
    cluster.run_until(lambda: waves(cluster).phase == "init")
    cluster.kill(slot)
    finish(cluster)
    assert_exact()


def test_lost_requests_are_repeated() -> None:
    cluster = full(start())
    seen: Counter[int] = Counter()

    def lose(message: Any) -> bool:
        if isinstance(message, wire.Wave) and message.mark.overtakes:
            seen[message.tasks[0]] += 1
            return seen[message.tasks[0]] < 3
        return False

    cluster.lose = lose
    until_overtaken(cluster)
    cluster.lose = lambda message: False
    cluster.kill(1)
    finish(cluster)
    assert_exact()


def test_a_wave_that_is_abandoned_while_it_overtakes_is_covered_by_the_next() -> None:
    """Changes of state that were in an unsaved snapshot must be in the next one: many keys do not change again before it."""
    cluster = start(per_row=0.01)
    cluster.run_until(lambda: waves(cluster).committed == 1 and waves(cluster).phase == IDLE)
    seen = sum(task.component.seen for task in cluster.tasks("tally"))
    cluster.run_until(lambda: sum(task.component.seen for task in cluster.tasks("tally")) > seen + 10 * FAN)
    slow_parts.SECONDS[:] = [0.0, 0.5]
    hold_bursts(cluster)
    until_overtaking(cluster)
    cluster.run_until(lambda: all(task.waves._unsaved is not None for task in cluster.tasks("tally")))
    assert waves(cluster).abandon("the test wants it", cluster.clock.now())
    cluster.run_until(lambda: waves(cluster).phase == IDLE)
    assert not incomplete(cluster) and not any(task.waves.overtaken for task in bolts(cluster))
    hold_bursts(cluster, False)
    until_overtaken(cluster)
    cluster.kill(2)
    finish(cluster)
    assert_exact()


def test_a_wave_that_has_overtaken_does_not_wait_because_its_tasks_go_on() -> None:
    """A bolt before the slow one hangs. The slow one has its snapshot: that it works on says nothing of the wave."""
    cluster = full(start(**{"topology.checkpoint.timeout.secs": 10.0}))
    hold_bursts(cluster)
    until_overtaking(cluster)
    cluster.run_until(lambda: waves(cluster).abandoned == 1 or queued(cluster) == 0)
    assert waves(cluster).abandoned == 1 and queued(cluster) > 50, "most of the work is still ahead"
    hold_bursts(cluster, False)
    finish(cluster)
    assert_exact()


def test_a_store_that_is_down_does_not_lose_what_was_overtaken() -> None:
    cluster = full(start())
    cluster.store.broken = StoreUnreachable("it is away: bring it back")
    until_overtaking(cluster)
    cluster.run_until(lambda: waves(cluster).abandoned > 0)
    cluster.store.broken = None
    cluster.run_until(lambda: waves(cluster).phase == IDLE)
    until_overtaken(cluster)
    cluster.kill(0)
    finish(cluster)
    assert_exact()


# ---- restarts ----


def test_it_resumes_after_the_driver_died() -> None:
    store = MemoryStore()
    until_overtaken(full(start(store=store)))
    again = start(store=store, resume=True, workers=2)
    finish(again)
    assert_exact()


def test_tuples_in_flight_cannot_be_resumed_with_another_parallelism() -> None:
    store = MemoryStore()
    until_overtaken(full(start(store=store)))
    for par in ({"burst": 3}, {"ledger": 1}):
        with pytest.raises(TopologyError, match=r"has tuples in flight between tasks, and 2 tasks of .* now has \d\. Resume it "
                                                "as it was and stop it with `millrace kill`"):
            start(store=store, resume=True, par=par)
    finish(start(store=store, resume=True))
    assert_exact()


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once"])
def test_tuples_in_flight_cannot_be_resumed_under_a_weaker_guarantee(guarantee: str) -> None:
    """They would be lost with the worker that they return to: no spout replays them."""
    store = MemoryStore()
    until_overtaken(full(start(store=store)))
    before = dict(store.blobs)
    with pytest.raises(TopologyError, match=f"has tuples in flight between tasks; .* now is {guarantee} and could lose them"):
        start(store=store, resume=True, **{"topology.guarantee": guarantee})
    assert store.blobs == before
    finish(start(store=store, resume=True))
    assert_exact()


def test_tuples_in_flight_cannot_be_resumed_with_another_grouping() -> None:
    store = MemoryStore()
    until_overtaken(full(start(store=store)))
    before = dict(store.blobs)
    with pytest.raises(TopologyError, match=r"has tuples in flight to 'tally', from stream 'default' \(key, number\) of "
                                            r"'burst', grouped by fields\(key\); .* now has .* by fields\(key, number\)"):
        start(RegroupedBursts, store=store, resume=True)
    assert store.blobs == before
    finish(start(store=store, resume=True))
    assert_exact()


def test_tuples_in_flight_cannot_be_resumed_in_batches() -> None:
    cluster = full(start())
    until_overtaken(cluster)
    in_batches = batched(graph_of(Bursts, name=NAME, config={"limit": LIMIT}))
    with pytest.raises(TopologyError, match=r"has tuples in flight between tasks; .* runs in batches, which have none"):
        check_fit(checkpoint(cluster), in_batches)


def test_the_last_wave_of_a_stopped_topology_waits_for_all_tuples() -> None:
    """So that it can be resumed with another parallelism."""
    store = MemoryStore()
    cluster = full(start(store=store))
    until_overtaken(cluster)
    cluster.stop(NAME, wait=1000)
    cluster.run_until(lambda: NAME not in cluster.master.topologies, seconds=600)
    again = LocalCluster(2, store=store)
    again.submit(Bursts, name=NAME, resume=True, par={"burst": 5, "ledger": 1}, config={"limit": LIMIT})
    assert not overtaken(checkpoint(again))


# ---- any moment ----

BUSY = {"topology.checkpoint.aligned.secs": 0.001, "topology.checkpoint.interval.secs": 0.02, "topology.chunk.tuples": 10,
        "rate": 30_000.0}  # waves follow each other, and overtake whenever the master looks at the time


class Crossed(NamedTuple):
    """A topology whose waves overtake: bolts at which they do, and paths on which a number comes to its last bolt."""

    topology: type[Topology]
    bolts: tuple[str, ...] = ("one", "tally")
    ways: int = 1
    limit: int = 1500
    par: dict[str, int] | None = None
    least: int = 3  # waves that overtake at all of these bolts

    def start(self) -> LocalCluster:
        return start(self.topology, workers=4, per_row=0.0, limit=self.limit, par=self.par, **BUSY)

    def check(self) -> None:
        """Every path has brought every number once, and the tally, if there is one, has counted them one by one."""
        rows = wave_parts.VISIBLE
        assert Counter((key, number) for key, number, *_ in rows) == expected_rows(self.limit, self.ways)
        if "tally" in self.bolts:
            assert Counter((key, count) for key, _, count in rows) == Counter(
                (key, count) for key, total in expected_counts(self.limit, self.ways).items() for count in range(1, total + 1))


CROSSED = pytest.mark.parametrize("case", [
    Crossed(Exact, ways=2), Crossed(ExactKeyed, ways=2), Crossed(AllKinds, ("picky", "tally"), limit=1000),
    Crossed(Batched, ("batches",), limit=5000, par={"batches": 1}, least=1)], ids=lambda case: case.topology.__name__)


@CROSSED
@pytest.mark.parametrize("seed", range(6))
def test_waves_overtake_all_the_time(case: Crossed, seed: int) -> None:
    chance, crossed = Random(seed), set[int]()
    cluster = case.start()
    for losses in (0, 1, 2, 3):
        for _ in range(15):
            cluster.step(chance.randint(0, 12))
            cluster.tell(Ticked(cluster.clock.now()))
            manifest = cluster.master.topologies[NAME].checkpoint
            if manifest is not None and set(case.bolts) <= overtaken(manifest):
                crossed.add(manifest.wave)
        if losses < 3:
            cluster.kill(chance.choice(sorted(cluster.workers)))
    assert len(crossed) >= case.least
    finish(cluster)
    case.check()


FAULTS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from(["tick", "tick", "tick", "kill", "start", "store", "move"]),
                            st.integers(0, 3)), min_size=10, max_size=60)


@CROSSED
@settings(max_examples=examples(12), deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate],
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=FAULTS)
def test_waves_overtake_at_any_moment(case: Crossed, faults: list[tuple[int, str, int]]) -> None:
    wave_parts.forget()
    cluster = case.start()
    for steps, fault, slot in faults:
        cluster.step(steps)
        if fault == "tick":
            cluster.tell(Ticked(cluster.clock.now()))
        elif fault == "kill" and slot in cluster.workers and len(cluster.workers) > 1:
            cluster.kill(slot)
        elif fault == "start" and slot not in cluster.workers:
            cluster.start(slot)
        elif fault == "store":
            cluster.store.broken = None if cluster.store.broken else StoreUnreachable("it is away: bring it back")
        elif fault == "move" and slot in cluster.master.workers and cluster.master.topologies[NAME].status == "running":
            moved = cluster.master.topologies[NAME].graph.component(case.bolts[-1])
            with suppress(TopologyError):  # it is being moved
                cluster.move(NAME, TaskId(moved.name, slot % moved.par), slot)
    cluster.store.broken = None
    for slot in range(4):
        if slot not in cluster.workers:
            cluster.start(slot)
    finish(cluster)
    case.check()
