"""Batches without Spark: user code that raises."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.connectors.sinks import JsonLinesSink
from millrace.testing.local_cluster import LocalCluster
from support.cluster.batch_parts import Digits, N, Source, Tally, check_tally, numbers_in, run_to_the_end, start
from support.cluster.records import RAISE


class Moody(Source):
    def generate(self, position: int) -> tuple[int]:
        if position == 30 and RAISE:
            raise RAISE.pop()
        return super().generate(position)


class FromMoody(Topology):
    numbers = Moody.spec(par=2)
    sink = JsonLinesSink.spec(inputs={numbers: Grouping.SHUFFLE}, par=1)


def test_a_spout_that_raises(tmp_path: Path) -> None:
    """Its batch ends there; the next one continues at the same position."""
    batches = start(FromMoody, tmp_path)
    RAISE.append(ValueError("not now"))
    batches.batch()
    errors = [error for report in batches.batch() for error in report.errors]
    assert len(errors) == 1 and "not now" in str(errors[0])
    run_to_the_end(batches)
    assert numbers_in(tmp_path / "out") == list(range(N))


class Reluctant(Tally):
    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        if RAISE and self.task_index == 1:
            raise RAISE.pop()


class FromReluctant(Topology):
    numbers = Source.spec(par=2)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Reluctant.spec(inputs={digits: Grouping.fields("digit")}, par=3)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.LOCAL_OR_SHUFFLE}, par=3)


@pytest.mark.parametrize("batch", [0, 2])
def test_an_initialize_that_raises_fails_the_attempt(tmp_path: Path, batch: int) -> None:
    batches = start(FromReluctant, tmp_path)
    for _ in range(batch):
        batches.batch()
    batches.kill(0)
    RAISE.append(ValueError("not yet"))
    with pytest.raises(Exception, match="not yet"):
        batches.batch()
    run_to_the_end(batches)
    check_tally(batches, tmp_path / "out")


class Forgetful(Tally):
    """Replaces its declared state by a plain dict, which no batch saves."""

    def initialize(self, storm_conf: dict[str, Any], context: dict[str, Any]) -> None:
        super().initialize(storm_conf, context)
        self.counts: Any = Counter()


class FromForgetful(Topology):
    numbers = Source.spec(par=2)
    digits = Digits.spec(inputs={numbers: Grouping.SHUFFLE}, par=2)
    tally = Forgetful.spec(inputs={digits: Grouping.fields("digit")}, par=1)
    sink = JsonLinesSink.spec(inputs={tally: Grouping.SHUFFLE}, par=1)


def test_state_that_initialize_replaces_is_reported(tmp_path: Path) -> None:
    batches = start(FromForgetful, tmp_path)
    errors = [str(error) for report in batches.batch() for error in report.errors]
    assert len(errors) == 1 and "initialize of tally[0] replaces self.counts, which is keyed state" in errors[0]
    assert not [error for report in batches.batch() for error in report.errors], "the component is not built again"


def test_resident_workers_report_it_in_the_same_words(tmp_path: Path) -> None:
    cluster = LocalCluster(1)
    cluster.submit(FromForgetful, config={"path": str(tmp_path / "out"), "limit": N})
    cluster.step(20)
    (error,) = cluster.workers[0].report().errors
    assert "initialize of tally[0] replaces self.counts, which is keyed state" in error["error"]
