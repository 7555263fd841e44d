"""A task forgets a move of its key groups when its receivers have had the end of them, be there any or not."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.config import WAVE_INTERVAL
from millrace.control.events import Regrouped
from millrace.model.graph import TaskId
from millrace.runtime.wire import messages as wire
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import counts, start, tasks, until_wave

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT, BUSY, TASK = 3000, 14, TaskId("tally", 0)


class CountedLast(Topology):
    """Counts and sends the counts nowhere."""

    config: ClassVar[dict[str, Any]] = parts.AtMost.config
    numbers = parts.Numbers.spec(par=2)
    tally = parts.Tally.spec(inputs={numbers: Grouping.fields("key")}, par=3)


def test_a_sink_has_no_receivers() -> None:
    cluster = start(CountedLast, limit=LIMIT)
    until_wave(cluster, 1, "countedlast")
    state = cluster.master.topologies["countedlast"]
    owners = enumerate(state.key_groups["tally"])
    cluster.tell(Regrouped("countedlast", "tally", {group: 1 for group, owner in owners if owner == 0 and group % 2}))
    cluster.run_until(lambda: state.handover.at_rest)
    cluster.run(2.0)
    assert [record["outcome"] for record in cluster.migrations.past()] == ["done"]
    assert not any(task.group_departures for task in tasks(cluster, "tally"))
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(1.0)
    assert counts(cluster) == parts.expected_counts(LIMIT, 1)


def test_a_receiver_has_not_had_the_end() -> None:
    """Nothing follows the end that would show the gap: the spouts have sent everything, and no wave comes."""
    cluster = start(parts.AtMost, workers=BUSY, **{WAVE_INTERVAL.key: 1000.0})
    cluster.run_until(lambda: len(tasks(cluster, "numbers")) == 2)
    state, old = cluster.master.topologies["atmost"], cluster.where("atmost")[TASK]
    cluster.drop = lambda sender, receiver, frames: sender == old and (
        isinstance(message := wire.decode_data(frames[0]), wire.Probe)
        or (isinstance(message, wire.Chunk) and message.form == wire.HANDOVER))
    cluster.run_until(lambda: all(task.component.exhausted for task in tasks(cluster, "numbers")))
    cluster.run(1.0)
    owners = enumerate(state.key_groups["tally"])
    cluster.tell(Regrouped("atmost", "tally", {group: 1 for group, owner in owners if owner == 0 and group % 2}))
    cluster.run_until(lambda: state.handover.at_rest)
    [task] = [task for task in tasks(cluster, "tally") if task.name == TASK]
    cluster.run(2.0)
    assert task.group_departures
    cluster.drop = lambda sender, receiver, frames: False
    cluster.run(2.0)
    assert not task.group_departures
    assert counts(cluster) == parts.expected_counts(LIMIT, 1)
