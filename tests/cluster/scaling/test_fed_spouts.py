"""Spouts that read a DataFrame are scaled while Spark feeds them: every row comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.control.events import Regrouped, Rescaled
from millrace.errors import TopologyError
from millrace.model.graph import batched, graph_of
from millrace.model.rescaling import rescaled
from millrace.runtime.worker import worker
from millrace.testing.local_cluster import LocalCluster
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import counts, expected_counts
from support.scaling.fed_runs import (
    FRAME,
    SPLITS,
    FedAtLeast,
    FedAtMost,
    FedPlain,
    MemoryFeeds,
    Query,
    splits_of,
)
from support.scaling.scaled_runs import name_of, par_of, scaled

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
EVERY = [FedAtLeast, FedPlain, FedAtMost]

Start = Callable[..., tuple[LocalCluster, Query]]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    def start(topology: Any, loses: Callable[[Any], bool] = lambda answer: False, **options: Any) -> tuple[LocalCluster, Query]:
        feeds = MemoryFeeds()
        monkeypatch.setattr(worker, "NoFeeds", lambda: feeds)
        cluster = LocalCluster(4, nodes=4)
        cluster.submit(topology, **options)
        query = Query(cluster, name_of(topology), feeds, loses)
        query.run_until(lambda: query.read >= 1)
        return cluster, query

    return start


def scale(cluster: LocalCluster, query: Query, name: str, tasks: int) -> None:
    cluster.tell(Rescaled(name, {"numbers": tasks}))
    query.run_until(lambda: scaled(cluster, name))
    assert par_of(cluster, name)["numbers"] == tasks
    assert cluster.migrations.past(name)[-1]["outcome"] == "done"
    owned = splits_of(cluster)
    assert sorted(split for splits in owned.values() for split in splits) == list(range(SPLITS))
    assert {len(splits) for splits in owned.values()} <= {SPLITS // tasks, -(-SPLITS // tasks)}


def received() -> Counter[int]:
    return Counter(number for *_, number in parts.RECEIVED)


@pytest.mark.parametrize("loses", ["nothing", "answers"])
@pytest.mark.parametrize("topology", EVERY)
def test_every_row_comes_once_while_it_is_scaled(start: Start, topology: Any, loses: str) -> None:
    """Answers that get lost are asked for again, perhaps of another task than the one that has processed the batch."""
    answers = count()
    cluster, query = start(topology, loses=lambda answer: loses == "answers" and next(answers) % 3 == 0)
    for tasks in (4, 3, 8, 1, 2):
        scale(cluster, query, name_of(topology), tasks)
    query.finish()
    assert received() == Counter(query.rows)
    assert query.repeated == 0
    if topology is FedAtLeast:
        assert counts(cluster) == expected_counts(len(query.rows), 1)


def test_what_waits_at_a_task_whose_split_leaves_goes_to_the_next_one(start: Start) -> None:
    cluster, query = start(FedPlain)
    for number in range(SPLITS):
        owner = cluster.master.topologies["fedplain"].key_groups["numbers"][number]
        cluster.tell(Regrouped("fedplain", "numbers", {number: 1 - owner}))
        query.run_until(lambda number=number, owner=owner: number in splits_of(cluster)[1 - owner])
    query.finish()
    assert query.returned
    assert received() == Counter(query.rows)


@pytest.mark.parametrize("topology", [FedAtLeast, FedPlain])
@pytest.mark.parametrize("steps", [0, 15, 30])
@pytest.mark.parametrize("slot", range(4))
def test_a_worker_is_lost_while_it_is_scaled(start: Start, topology: Any, slot: int, steps: int) -> None:
    cluster, query = start(topology)
    name = name_of(topology)
    cluster.tell(Rescaled(name, {"numbers": 4}))
    turns = count()
    query.run_until(lambda: next(turns) >= steps)
    cluster.kill(slot)
    cluster.start(slot)
    query.run_until(lambda: scaled(cluster, name))
    query.finish()
    assert received().keys() == set(query.rows)
    if topology is FedAtLeast:
        counted, truth = counts(cluster), expected_counts(len(query.rows), 1)
        assert all(counted[key] >= truth[key] for key in truth)


def test_a_spout_that_moves_takes_its_splits_along(start: Start) -> None:
    cluster, query = start(FedAtLeast)
    task = next(task for task in cluster.master.topologies["fedatleast"].places if str(task) == "numbers[0]")
    slot = cluster.master.topologies["fedatleast"].places[task].slot
    cluster.move("fedatleast", task, (slot + 1) % 4)
    query.run_until(lambda: cluster.master.topologies["fedatleast"].places[task].slot == (slot + 1) % 4)
    query.finish()
    assert received() == Counter(query.rows)


def test_a_dataframe_without_splits_keeps_its_tasks() -> None:
    plain = type("Plain", (Topology,), {"__module__": __name__, "lines": Spout.from_dataframe(FRAME, outputs=["n"], par=2)})
    graph = graph_of(plain)
    with pytest.raises(TopologyError, match=r"reads a DataFrame without splits.* 2 tasks .*: their number is fixed.*splits=16"):
        rescaled(graph, {"lines": 3})
    assert rescaled(batched(graph), {"lines": 3}).parallelism == {"lines": 3}, "nothing is in flight between batches"


def test_splits_need_no_waves_of_their_own() -> None:
    assert not graph_of(FedPlain).waves
    assert graph_of(FedPlain).splits == {"numbers": SPLITS}
    assert batched(graph_of(FedPlain)).splits == {}
