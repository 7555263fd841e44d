"""A change of parallelism distributes key groups by their measured load, while the stream runs."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.events import LoadEstimated, Regrouped
from millrace.model.load import SAMPLED, Load
from millrace.model.plan import fewest_group_moves
from millrace.testing.local_cluster import LocalCluster
from support.cluster.moved_runs import assert_once_in_order, at_rest, flaws, until_processed
from support.cluster.wave_runs import assert_exact, finish, start, until_wave
from support.scaling.scaled_runs import ScaledAtLeast, ScaledExact, name_of, scale

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 1200
HOT = 5  # the key group that most tuples belong to


def begun(topology: Any) -> LocalCluster:
    cluster = start(topology, limit=LIMIT)
    until_wave(cluster, 1, name_of(topology))
    return cluster


def measure(cluster: LocalCluster, name: str, others: float = 100.0) -> int:
    """The master learns that one key group of the tally is hot. Returns the number of its key groups."""
    groups = len(cluster.master.topologies[name].key_groups["tally"])
    counts = [others * SAMPLED] * groups
    counts[HOT] = 2 * groups * others * SAMPLED
    cluster.tell(LoadEstimated({name: Load(10.0, key_groups={"tally": counts})}))
    return groups


def moved_groups(record: dict[str, Any]) -> int:
    return sum(len(move["groups"]) for move in record["moved"] if move["task"].startswith("tally["))


@pytest.mark.parametrize("topology", [ScaledExact, ScaledAtLeast])
def test_a_task_with_one_hot_group_stays_alone(topology: Any) -> None:
    name, cluster = name_of(topology), begun(topology)
    owners = cluster.master.topologies[name].key_groups
    groups = measure(cluster, name)
    cluster.tell(Regrouped(name, "tally", {group: 0 if group == HOT else 1 + group % 2 for group in range(groups)}))
    cluster.run_until(lambda: at_rest(cluster, name))
    before = owners["tally"]
    for par in (4, 3):
        record = scale(cluster, name, {"tally": par})
        after = owners["tally"]
        sizes = [after.count(task) for task in range(par)]
        assert record["outcome"] == "done" and (sizes[0], after[HOT]) == (1, 0)
        assert max(sizes[1:]) <= 1.1 * (groups - 1) / (par - 1)
        assert moved_groups(record) == sum(old != new for old, new in zip(before, after, strict=True))
        before = after
    assert not flaws(cluster), (flaws(cluster), cluster.said)
    if topology is ScaledExact:
        finish(cluster, name)
        assert_exact(LIMIT)
    else:
        until_processed(cluster)
        assert_once_in_order(cluster, LIMIT)


def test_a_hot_group_moves_to_the_new_task_and_all_others_stay() -> None:
    cluster = begun(ScaledExact)
    owners = cluster.master.topologies["scaledexact"].key_groups
    before = owners["tally"]
    groups = measure(cluster, "scaledexact")
    record = scale(cluster, "scaledexact", {"tally": 4})
    assert [group for group in range(groups) if owners["tally"][group] != before[group]] == [HOT]
    assert (owners["tally"][HOT], moved_groups(record)) == (3, 1)
    finish(cluster, "scaledexact")
    assert_exact(LIMIT)


def test_a_load_of_other_components_or_of_an_ended_run_does_not_count() -> None:
    cluster = begun(ScaledExact)
    state = cluster.master.topologies["scaledexact"]
    hot = Load(10.0, key_groups={"ledger": [1e6] + [1e3] * (len(state.key_groups["ledger"]) - 1), "tally": (1e6, 1.0)})
    cluster.tell(LoadEstimated({"scaledexact": hot, "another": hot}))
    before = state.key_groups["tally"]
    record = scale(cluster, "scaledexact", {"tally": 5})
    assert moved_groups(record) == fewest_group_moves(before, 5)
