"""Spouts with splits in batches: a new plan gives splits to other tasks with the next batch."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.sinks import JsonLinesSink
from millrace.model.graph import TaskId
from millrace.testing.local_batches import AttemptFailed
from support.cluster.batch_parts import N, numbers_in, run_to_the_end, start
from support.cluster.plain_parts import Numbers

SPLITS = 8


class SplitBatches(Topology):
    config: ClassVar[dict[str, Any]] = {"topology.guarantee": "exactly-once"}
    numbers = Numbers.spec(par=1, config={"splits": SPLITS})
    sink = JsonLinesSink.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)


@pytest.mark.parametrize("processes", [1, 3])
def test_every_number_comes_once_however_the_splits_move(tmp_path: Path, processes: int) -> None:
    batches = start(SplitBatches, tmp_path, processes, most_tuples=7)
    batches.batch()
    for par in (3, 7, 2, 1, 8):
        batches.scale("numbers", par)
        batches.batch()
        assert batches.committed is not None and batches.committed.parallelism["numbers"] == par
        assert sorted(batches.committed.positions()) == [TaskId("numbers", split) for split in range(SPLITS)]
    batches.give("numbers", dict.fromkeys(range(SPLITS), 5))
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


@pytest.mark.parametrize("seed", range(6))
def test_attempts_fail_while_the_splits_move(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    batches = start(SplitBatches, tmp_path, 2, most_tuples=7, seed=seed)
    for _ in range(12):
        if random.random() < 0.5:
            batches.scale("numbers", random.randint(1, SPLITS))
        if random.random() < 0.2:
            batches.kill(random.randrange(2))
        fails = random.random() < 0.4
        at = random.randrange(2)
        batches.fault = lambda stage, partition, fails=fails, at=at: fails and stage == at  # type: ignore[misc]
        if fails:
            with pytest.raises(AttemptFailed):
                batches.batch()
        else:
            batches.batch()
    batches.fault = lambda stage, partition: False
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))
