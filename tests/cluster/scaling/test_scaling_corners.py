"""Changes of parallelism that are refused, disturbed, given up or resumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.topology import Stream, Topology
from millrace.api.tuple import Tuple
from millrace.control.assignment import SWITCH
from millrace.control.events import Moved, Rebalanced, Regrouped, Rescaled, Ticked, WaveRequested
from millrace.control.waves import IDLE
from millrace.errors import TopologyError, UnknownName
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from millrace.testing.local_cluster import LocalCluster, MemoryStore
from support.cluster import slow_parts
from support.cluster import wave_parts as parts
from support.cluster.moved_runs import assert_once_in_order, flaws, until_processed
from support.cluster.slow_parts import FAN
from support.cluster.wave_parts import Exact, FakeLedger, Numbers, Pass
from support.cluster.wave_runs import assert_exact, finish, finish_at_least, start, until_wave
from support.scaling.scaled_runs import (
    Counting,
    ScaledAtLeast,
    ScaledAtMost,
    ScaledBursts,
    ScaledExact,
    ScaledSlowlyAtLeast,
    name_of,
    par_of,
    scale,
    scaled,
    slow_down,
)

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
NAME = "scaledexact"
LIMIT = 1200


@pytest.fixture(autouse=True)
def quick_again() -> Iterator[None]:
    yield
    slow_parts.SECONDS[:] = [0.0, 0.0]


class Chooser(Bolt):
    """Has a direct stream, on which nothing is sent."""

    outputs: ClassVar[list[Any]] = [Stream(fields=["key", "number"], name="chosen", direct=True)]

    def process(self, tup: Tuple) -> None:
        pass


class Fixed(Topology):
    """Has bolts whose number cannot change."""

    config: ClassVar[dict[str, Any]] = {"topology.key.groups": 8}
    numbers = Numbers.spec(par=2)
    one = Pass.spec(inputs={numbers: Grouping.GLOBAL}, par=2)
    own = parts.Tally.spec(inputs={one: Grouping.fields("key")})
    counting = Counting.spec(inputs={one: Grouping.fields("key")})
    chooser = Chooser.spec(inputs={counting: Grouping.SHUFFLE})
    direct = Pass.spec(inputs={chooser["chosen"]: Grouping.DIRECT}, par=2)


def running(topology: Any = ScaledExact, **config: Any) -> LocalCluster:
    cluster = start(topology, limit=LIMIT, **config)
    until_wave(cluster, 1, name_of(topology))
    return cluster


@pytest.mark.parametrize(("par", "error", "says"), [
    ({"ghost": 2}, UnknownName, "has no component 'ghost'; it has numbers, one, own, counting, chooser, direct"),
    ({"counting": 0}, TopologyError, "cannot have 0 tasks: .* Give a whole number from 1 to 8; the nearest is 1"),
    ({"one": 0}, TopologyError, "'one' of 'fixed' has a global grouping: .* It keeps its 2 tasks"),
    ({"counting": 9}, TopologyError, "has 8 key groups, and each task needs one, so it can have 8 at most"),
    ({"one": 3}, TopologyError, "'one' of 'fixed' has a global grouping: .* It keeps its 2 tasks"),
    ({"direct": 3}, TopologyError, "'direct' of 'fixed' has a direct grouping: .* It keeps its 2 tasks"),
    ({"own": 2}, TopologyError, r"'own' of 'fixed' defines snapshot\(\)"),
    ({"counting": 3, "own": 2}, TopologyError, r"'own' of 'fixed' defines snapshot\(\)"),
])
def test_it_is_refused_and_nothing_changes(par: dict[str, int], error: type[Exception], says: str) -> None:
    cluster = start(Fixed)
    cluster.run_until(lambda: cluster.master.topologies["fixed"].status == "running")
    before = cluster.master.revision, par_of(cluster, "fixed")
    with pytest.raises(error, match=says):
        cluster.tell(Rescaled("fixed", par))
    assert (cluster.master.revision, par_of(cluster, "fixed")) == before and scaled(cluster, "fixed")


def test_the_same_number_changes_nothing() -> None:
    cluster = running()
    revision = cluster.master.revision
    cluster.scale(NAME, tally=3)
    assert scaled(cluster, NAME) and cluster.master.revision == revision
    assert cluster.said[-1] == f"{NAME}: already has 3 tasks of tally"


@pytest.mark.parametrize("event", [
    Rescaled(NAME, {"one": 3}), Moved(NAME, TaskId("one", 0), 1), Moved(NAME, TaskId("one", 0), 2),
    Regrouped(NAME, "tally", {0: 2}), Rebalanced(NAME, {TaskId("one", 0): 1, TaskId("one", 1): 1}, "dcr")])
def test_other_requests_wait_for_its_end(event: Any) -> None:
    cluster = running()
    cluster.scale(NAME, tally=5)
    with pytest.raises(TopologyError, match="'scaledexact' is being scaled to tally=5: try again when that is over"):
        cluster.tell(event)
    cluster.run_until(lambda: scaled(cluster, NAME))
    finish(cluster, NAME)
    assert_exact(LIMIT)


def test_it_is_refused_while_tasks_move_or_migrate() -> None:
    cluster = running()
    where = cluster.where(NAME)[TaskId("tally", 0)]
    cluster.move(NAME, TaskId("tally", 0), (where + 1) % 3)
    with pytest.raises(TopologyError, match="are being moved: scale it when they have arrived"):
        cluster.scale(NAME, tally=5)
    cluster.run_until(lambda: cluster.master.topologies[NAME].handover.at_rest)
    cluster.tell(Rebalanced(NAME, {TaskId("one", 0): (cluster.where(NAME)[TaskId("one", 0)] + 1) % 3}, "dcr"))
    with pytest.raises(TopologyError, match="is being migrated by dcr"):
        cluster.scale(NAME, tally=5)


def test_a_topology_ends_while_it_is_scaled() -> None:
    cluster = running()
    cluster.scale(NAME, tally=7, one=1)
    cluster.step(3)
    cluster.stop(NAME, wait=100)
    cluster.run_until(lambda: NAME not in cluster.master.topologies)
    record = cluster.migrations.past(NAME)[-1]
    assert record["strategy"] == "scale" and record["outcome"] != "done" and "the topology is being killed" in record["reason"]


@pytest.mark.parametrize("par", [{"tally": 5, "ledger": 3}, {"tally": 1, "ledger": 1, "one": 1}])
@pytest.mark.parametrize("kind", [wire.Armed, wire.Taken, wire.Waved, wire.Wave])
def test_messages_are_lost(kind: type, par: dict[str, int]) -> None:
    """The first three of a kind: they are sent again."""
    cluster, lost = running(), list[Any]()

    def lose(message: Any) -> bool:
        chosen = isinstance(message, kind) and len(lost) < 3
        lost.extend([message] if chosen else [])
        return chosen

    cluster.lose = lose
    record = scale(cluster, NAME, par)
    assert len(lost) == 3 and record["outcome"] == "done", (record, cluster.said)
    finish(cluster, NAME)
    assert_exact(LIMIT)


def test_a_worker_that_plans_do_not_reach_delays_it() -> None:
    cluster = running()
    cluster.deaf.add(1)
    cluster.scale(NAME, tally=5)
    cluster.run(1.0)
    state = cluster.master.topologies[NAME]
    assert state.scaling is not None and state.scaling.phase == "grow"
    assert all(task.meters.executed == 0 for task in cluster.tasks("tally") if task.name.index >= 3)
    cluster.hear(1)
    cluster.run_until(lambda: scaled(cluster, NAME))
    finish(cluster, NAME)
    assert_exact(LIMIT)


def test_tasks_that_do_not_start_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, storm_conf: Any, context: Any) -> None:
        if self.task_index >= 3:
            raise OSError("no server")

    cluster = running(**{"topology.handover.prepare.secs": 2.0})
    monkeypatch.setattr(Counting, "initialize", refuse)
    record = scale(cluster, NAME, {"tally": 5})
    assert record["outcome"] == "cancelled" and "tally[3], tally[4] did not start within" in record["reason"]
    assert par_of(cluster, NAME)["tally"] == 3 and len(cluster.tasks("tally")) == 3
    monkeypatch.undo()
    parts.Numbers.clock = parts.Numbers.wall_clock = staticmethod(cluster.clock.now)
    assert scale(cluster, NAME, {"tally": 5})["outcome"] == "done"
    finish(cluster, NAME)
    assert_exact(LIMIT)


@pytest.mark.parametrize("par", [{"tally": 5}, {"tally": 2}, {"burst": 1}, None])
def test_tuples_that_a_wave_has_overtaken_are_not_given_to_the_wrong_task(par: dict[str, int] | None) -> None:
    """A roll-back to that wave would restore them where they were: another wave comes first, also before a regroup."""
    name, limit = name_of(ScaledBursts), 30
    cluster = start(ScaledBursts, limit=limit, rate=None)
    slow_down(cluster, 0.5)
    state = cluster.master.topologies[name]
    cluster.run_until(lambda: sum(task.queue_length for task in cluster.tasks("tally")) > 200)
    cluster.tell(WaveRequested(name))
    cluster.run_until(lambda: state.checkpoint is not None and state.checkpoint.overtook and state.waves.phase == IDLE)
    if par is not None:
        assert scale(cluster, name, par, seconds=5000)["outcome"] == "done", cluster.said
    else:
        cluster.tell(Regrouped(name, "tally", dict.fromkeys(range(64), 1)))
        cluster.run_until(lambda: state.handover.at_rest, seconds=5000)
    assert not state.checkpoint.overtook and not flaws(cluster)
    cluster.kill(0)
    slow_down(cluster, 0.0)
    finish(cluster, name)
    rows = Counter((key, count) for key, _, count in parts.VISIBLE)
    assert set(rows.values()) == {1} and len(rows) == limit * FAN, "each count of each key once"
    assert Counter(number for _, number, _ in parts.VISIBLE) == Counter(range(limit * FAN))


@pytest.mark.parametrize("topology", [ScaledExact, ScaledAtLeast])
def test_it_is_resumed_as_it_was_scaled(topology: Any) -> None:
    name, store = name_of(topology), MemoryStore()
    cluster = start(topology, limit=LIMIT, store=store)
    until_wave(cluster, 1, name)
    scale(cluster, name, {"tally": 6, "one": 1})
    owners = cluster.master.topologies[name].key_groups["tally"]
    until_wave(cluster, 1, name)
    again = start(topology, limit=LIMIT, store=store, resume=True)
    assert (par_of(again, name)["tally"], par_of(again, name)["one"]) == (6, 1)
    assert again.master.topologies[name].key_groups["tally"] == owners
    assert f"{name}: resumes with one x 1, tally x 6, as it was scaled" in again.said
    if topology is ScaledExact:
        finish(again, name)
        assert_exact(LIMIT)
    else:
        finish_at_least(again, LIMIT, name)


def test_it_is_resumed_as_it_was_scaled_last() -> None:
    """A wave is committed for it soon, whatever the interval is."""
    store = MemoryStore()
    cluster = start(ScaledExact, limit=LIMIT, store=store, **{"topology.checkpoint.interval.secs": 1000.0})
    until_wave(cluster, 1, NAME)
    assert scale(cluster, NAME, {"one": 4})["outcome"] == "done"
    until_wave(cluster, 1, NAME)
    assert par_of(start(ScaledExact, limit=LIMIT, store=store, resume=True), NAME)["one"] == 4


def test_saved_tuples_go_to_their_owners_when_a_scaled_run_is_resumed() -> None:
    """Other tasks own the key groups than in a run that began with as many tasks."""
    name, limit, store = name_of(ScaledBursts), 100, MemoryStore()
    cluster = start(ScaledBursts, limit=limit, rate=20, store=store)
    slow_down(cluster, 0.0)
    state = cluster.master.topologies[name]
    cluster.run_until(lambda: state.status == "running")
    assert scale(cluster, name, {"tally": 5}, seconds=5000)["outcome"] == "done"
    slow_down(cluster, 0.5)
    cluster.run_until(lambda: sum(task.queue_length for task in cluster.tasks("tally")) > 100, seconds=5000)
    cluster.tell(WaveRequested(name))
    cluster.run_until(lambda: state.checkpoint is not None and state.checkpoint.overtook and state.waves.phase == IDLE, 5000)
    again = start(ScaledBursts, limit=limit, rate=None, store=store, resume=True)
    slow_down(again, 0.0)
    assert again.master.topologies[name].key_groups == state.key_groups
    finish(again, name)
    assert Counter(number for _, number, _ in parts.VISIBLE) == Counter(range(limit * FAN))


@pytest.mark.parametrize("slot", [0, 1, 2])
@pytest.mark.parametrize("left", [1, 3])
def test_a_worker_dies_while_tasks_retire_whose_output_is_on_its_way(left: int, slot: int) -> None:
    """They have nothing more to do, and take no part in what follows the loss; or they begin again, all of them."""
    name = name_of(ScaledSlowlyAtLeast)
    for steps in (0, 2, 5, 9):
        parts.forget()
        cluster = start(ScaledSlowlyAtLeast, limit=LIMIT)
        slow_down(cluster, 0.0)
        until_wave(cluster, 1, name)
        slow_down(cluster, 0.01)
        cluster.run(0.2)
        state = cluster.master.topologies[name]
        cluster.scale(name, one=left)
        cluster.run_until(lambda state=state: state.handover.phase == SWITCH)  # type: ignore[misc]
        cluster.step(steps)
        cluster.kill(slot)
        slow_down(cluster, 0.0)
        cluster.run_until(lambda state=state: state.status == "running" and state.scaling is None)  # type: ignore[misc]
        assert par_of(cluster, name)["one"] == left
        cluster.start(slot)
        finish_at_least(cluster, LIMIT, name)


def test_a_number_chosen_for_the_next_run_counts() -> None:
    store = MemoryStore()
    cluster = start(ScaledExact, limit=LIMIT, store=store)
    until_wave(cluster, 1, NAME)
    scale(cluster, NAME, {"tally": 6})
    until_wave(cluster, 1, NAME)
    again = start(ScaledExact, limit=LIMIT, store=store, resume=True, par={"tally": 2})
    assert par_of(again, NAME)["tally"] == 2
    finish(again, NAME)
    assert_exact(LIMIT)


@pytest.mark.parametrize("act", [
    lambda cluster: cluster.kill(2), lambda cluster: cluster.restart(2), lambda cluster: cluster.remove(2)])
def test_new_tasks_are_tasks_like_others(act: Callable[[LocalCluster], None]) -> None:
    """They move, and survive the loss, the restart and the removal of their worker."""
    cluster = running()
    scale(cluster, NAME, {"tally": 6, "ledger": 4})
    cluster.move(NAME, TaskId("tally", 5), 2)
    cluster.run_until(lambda: cluster.master.topologies[NAME].handover.at_rest)
    act(cluster)
    cluster.run(0.5)
    cluster.tell(Ticked(cluster.clock.now()))
    cluster.run_until(lambda: cluster.master.topologies[NAME].status == "running"
                      and cluster.master.topologies[NAME].handover.at_rest)
    assert scale(cluster, NAME, {"tally": 2, "ledger": 1})["outcome"] == "done"
    finish(cluster, NAME)
    assert_exact(LIMIT)


def test_exact_is_not_a_topology_that_scales() -> None:
    """Its tally has its own snapshot; nothing of the request is carried out."""
    cluster = start(Exact)
    until_wave(cluster, 1)
    with pytest.raises(TopologyError, match="Keep the state by key instead"):
        cluster.scale("exact", one=3, tally=4)
    assert par_of(cluster, "exact")["one"] == 2
    assert isinstance(cluster.tasks("ledger")[0].component, FakeLedger)


def test_a_change_that_was_given_up_is_completed_by_the_same_request() -> None:
    """Key groups that were not handed over leave tasks that own none: asked again for as many tasks, they get theirs."""
    cluster = start(ScaledAtMost, limit=LIMIT, rate=200.0, **{"topology.handover.prepare.secs": 0.3})
    name, state = "scaledatmost", cluster.master.topologies["scaledatmost"]
    cluster.run(0.5)
    cluster.lose = lambda message: isinstance(message, wire.Armed)
    assert scale(cluster, name, {"tally": 6})["outcome"] == "rolled back"
    assert par_of(cluster, name)["tally"] == 6 and set(state.key_groups["tally"]) == {0, 1, 2}
    cluster.lose = lambda message: False
    record = scale(cluster, name, {"tally": 6})
    assert record["outcome"] == "done", (record, cluster.said)
    assert set(state.key_groups["tally"]) == set(range(6))
    assert f"{name}: scales tally to all of its 6 tasks" in cluster.said
    until_processed(cluster)
    assert_once_in_order(cluster, LIMIT)


def test_a_run_that_ended_while_tasks_retired_is_resumed_with_all_of_them_at_work() -> None:
    store = MemoryStore()
    cluster = start(ScaledExact, limit=LIMIT, store=store, rate=1000.0, par={"ledger": 6})
    until_wave(cluster, 1, NAME)
    state = cluster.master.topologies[NAME]
    cluster.scale(NAME, ledger=2)
    cluster.run_until(lambda: state.checkpoint is not None and state.checkpoint.parallelism["ledger"] == 6
                      and set(state.checkpoint.owners["ledger"]) == {0, 1})
    resumed = start(ScaledExact, limit=LIMIT, store=store, resume=True, rate=1000.0)
    assert set(resumed.master.topologies[NAME].key_groups["ledger"]) == set(range(6))
    finish(resumed, NAME)
    assert_exact(LIMIT)
