"""Detects partitions that Spark has rerun by itself: all outputs used must come from the runs that reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.control.batches.stages import Stages
from millrace.microbatch.work import PartitionReport, check_single_run
from millrace.model.graph import TaskId


def stages_with(*counts: int) -> Stages:
    return Stages(tuple(tuple((TaskId(f"c{stage}", index),) for index in range(count))
                        for stage, count in enumerate(counts)), {})


def report(stage: int, partition: int, ran: int, marks: dict[int, int]) -> PartitionReport:
    return PartitionReport(0, 0, 1, [], [], {}, 0.0, 0.0, 0.0, stage, partition, ran, marks)


def number(stage: int, partition: int, run: int = 0) -> int:
    return 100 * stage + 10 * partition + run + 1


def good(*counts: int) -> list[PartitionReport]:
    """Reports of a batch in which every partition ran once."""
    return [report(stage, partition, number(stage, partition),
                   {source: number(stage - 1, source) for source in range(counts[stage - 1] if stage else 0)})
            for stage, count in enumerate(counts) for partition in range(count)]


COUNTS = [(1,), (2,), (2, 3), (3, 1), (2, 3, 2), (1, 1, 1, 1), (3, 2, 4, 1)]


@pytest.mark.parametrize("counts", COUNTS)
def test_a_batch_that_ran_once_passes(counts: tuple[int, ...]) -> None:
    assert check_single_run(good(*counts), stages_with(*counts)) == ""


@pytest.mark.parametrize("counts", [counts for counts in COUNTS if len(counts) > 1])
def test_a_rerun_that_only_one_consumer_has_used(counts: tuple[int, ...]) -> None:
    """For every consumer of every partition."""
    reports, stages = good(*counts), stages_with(*counts)
    for at, each in enumerate(reports):
        for source in each.marks:
            changed = list(reports)
            changed[at] = msgspec.structs.replace(each, marks={**each.marks, source: number(each.stage - 1, source, 1)})
            assert "used output of another run than its sources reported" in check_single_run(changed, stages)


@pytest.mark.parametrize("counts", [counts for counts in COUNTS if len(counts) > 1])
def test_a_missing_report(counts: tuple[int, ...]) -> None:
    reports, stages = good(*counts), stages_with(*counts)
    for missing in reports:
        assert check_single_run([each for each in reports if each is not missing], stages)
    assert check_single_run([], stages) == "not every partition of stage 1 has reported"


def test_a_stage_without_reports() -> None:
    for stage in range(3):
        assert check_single_run([each for each in good(2, 3, 2) if each.stage != stage], stages_with(2, 3, 2))


def test_a_partition_that_has_reported_twice() -> None:
    reports = good(2, 2)
    assert check_single_run([*reports, reports[1]], stages_with(2, 2)) == "a partition has reported twice"


def test_two_runs_in_one_consumer() -> None:
    """The consumer has heard marks of two runs, and notes neither."""
    reports = good(2, 2)
    reports[-1] = msgspec.structs.replace(reports[-1], marks={0: -1, 1: number(0, 1)})
    assert "partition 1 of stage 1" in check_single_run(reports, stages_with(2, 2))


def test_a_dataframe_in_fewer_parts_than_its_spout_has_tasks() -> None:
    """Some partitions of the first stage do not run, and no consumer has heard of them."""
    assert check_single_run(good(1, 3, 2), stages_with(4, 3, 2)) == ""


def test_a_consumer_that_has_not_heard_of_a_source() -> None:
    reports = good(2, 2)
    reports[-1] = msgspec.structs.replace(reports[-1], marks={0: number(0, 0)})
    assert "partition 1 of stage 1" in check_single_run(reports, stages_with(2, 2))


class Run(NamedTuple):
    """A run of a partition, and the run that it has used of each of its sources."""

    stage: int
    partition: int
    which: int
    used: tuple[int, ...]

    def report(self) -> PartitionReport:
        return report(self.stage, self.partition, number(self.stage, self.partition, self.which),
                      {source: number(self.stage - 1, source, which) for source, which in enumerate(self.used)})


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[list[list[Run]]]]:
    """Batches in which Spark has run each partition up to three times, on any output of the runs before."""
    counts = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    often = st.sampled_from([1, 1, 1, 2, 3])
    runs: list[list[list[Run]]] = []
    for stage, count in enumerate(counts):
        sources = runs[-1] if runs else []
        runs.append([[Run(stage, partition, which, tuple(draw(st.integers(0, len(of) - 1)) for of in sources))
                      for which in range(draw(often))] for partition in range(count)])
    return counts, runs


def used_by(finals: list[Run], runs: list[list[list[Run]]]) -> set[Run]:
    """All runs whose output is in the results."""
    used, waiting = set(finals), list(finals)
    while waiting:
        run = waiting.pop()
        before = {runs[run.stage - 1][source][which] for source, which in enumerate(run.used)}
        waiting += before - used
        used |= before
    return used


def reports_of(final: Run, runs: list[list[list[Run]]], counts: list[int]) -> list[PartitionReport]:
    """Reports as they travel: from partition p to p modulo the size of the next stage, then through partition 0."""
    carried = [final.report()]

    def passed_on(run: Run, takes: Callable[[int], bool]) -> None:
        for source, which in enumerate(run.used):
            before = runs[run.stage - 1][source][which]
            if takes(source):
                carried.append(before.report())
            if run.partition == 0:
                passed_on(before, lambda other, source=source: other % counts[run.stage - 1] == source)  # type: ignore[misc]

    passed_on(final, lambda source: source % counts[final.stage] == final.partition)
    return carried


@given(histories())
def test_in_any_history_only_a_single_run_passes(history: tuple[list[int], list[list[list[Run]]]]) -> None:
    counts, runs = history
    finals = [of[-1] for of in runs[-1]]
    used = used_by(finals, runs)
    is_one = len(used) == len({(run.stage, run.partition) for run in used})
    reports = [each for final in finals for each in reports_of(final, runs, counts)]
    assert (check_single_run(reports, stages_with(*counts)) == "") == is_one
