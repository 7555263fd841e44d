"""The rows of the Word Count table and the search for the best size of a batch, without running an engine."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from millrace.bench import topologies, wordcount_child
from millrace.bench import wordcount_rows as table
from millrace.bench.other_engines.job import WORDS_PER_LINE, write_corpus
from millrace.bench.other_engines.reporting import Rule, RunRequest
from millrace.bench.other_engines.run import OTHER_ENGINES, EngineFailed, run_child
from millrace.bench.topologies import DueLines
from millrace.bench.wordcount import attempt, chosen_rows
from millrace.errors import MillraceError
from millrace.testing import drain, start
from millrace.testing.local_cluster import LocalCluster

RULE = Rule(warm_up=1.0, seconds=2.0, rounds=3)
ROW = table.TableRow("arrow", table.CHECKPOINTED, "engine", "how", (1, 2, 4, 8))


class FakeRuns:
    """Stands for the processes of an engine: a rate for each size of a batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rates: dict[int, float]) -> None:
        self.requests: list[RunRequest] = []
        self._rates = rates
        monkeypatch.setattr(table, "_run", self._run)

    def _run(self, row: table.TableRow, request: RunRequest, console: Console) -> dict[str, Any]:
        self.requests.append(request)
        return {"engine": "millrace", "words_per_s": self._rates[request.batch_lines]}


def test_sizes_rise_until_the_rate_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns(monkeypatch, {1: 10.0, 2: 30.0, 4: 29.0, 8: 28.0, 16: 99.0})
    result = table.measure_row(replace(ROW, sizes=(1, 2, 4, 8, 16)), Path("corpus"), RULE, Console(stderr=True))
    assert [trial["batch_lines"] for trial in result["trials"]] == [1, 2, 4, 8]
    assert (result["batch_lines"], result["words_per_s"], result["engine"]) == (2, 30.0, "engine")
    assert [(request.batch_lines, request.rule.rounds) for request in runs.requests] == [(1, 1), (2, 1), (4, 1), (8, 1), (2, 3)]
    assert result["search_ended"] == "2 sizes in a row were not faster"
    assert {request.checkpoint_seconds for request in runs.requests} == {table.CHECKPOINT_SECONDS}


def test_one_slow_trial_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuns(monkeypatch, {1: 10.0, 2: 30.0, 4: 29.0, 8: 99.0})
    result = table.measure_row(ROW, Path("corpus"), RULE, Console(stderr=True))
    assert (result["batch_lines"], result["search_ended"]) == (8, "there is no larger size")


def test_a_gain_within_the_noise_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRuns(monkeypatch, {1: 1000.0, 2: 1010.0, 4: 1020.0, 8: 2000.0})
    assert table.measure_row(ROW, Path("corpus"), RULE, Console(stderr=True))["batch_lines"] == 1


def test_a_size_is_not_tried_if_its_batch_would_take_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = int(table.LONGEST_BATCH_SECONDS)
    FakeRuns(monkeypatch, {longest: 10.0, longest + 1: 99.0})  # ten words a line: a line a second
    result = table.measure_row(replace(ROW, sizes=(longest, longest + 1)), Path("corpus"), RULE, Console(stderr=True))
    assert (result["batch_lines"], len(result["trials"])) == (longest, 1)
    assert result["search_ended"] == "a larger batch would take more than 15 s"


@pytest.mark.parametrize("program", wordcount_child.TOPOLOGIES)
def test_the_rate_counts_every_word_once(program: str, tmp_path: Path) -> None:
    """Also where many words are one row: combined before the shuffle, or one update for each different word."""
    files, lines = 2, 500
    write_corpus(tmp_path / "corpus", 1, files, lines)
    cluster = LocalCluster(workers=2)
    cluster.submit(wordcount_child.TOPOLOGIES[program],
                   config={"corpus": str(tmp_path / "corpus"), "batch": lines, "limit": files * lines})
    component, words = wordcount_child.COUNTED_AT[program]

    def executed() -> int:
        return sum(task.meters.executed for task in cluster.tasks(component))

    expected = files * lines * WORDS_PER_LINE
    cluster.run_until(lambda: sum(sum(dict(task.component.counts.items()).values()) for task in cluster.tasks("count"))
                      >= expected and executed() * words >= expected, seconds=1e6)
    assert executed() * words == expected


def test_a_row_with_one_size_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = FakeRuns(monkeypatch, {5: 10.0})
    result = table.measure_row(ROW.with_size(5), Path("corpus"), RULE, Console(stderr=True))
    assert result["trials"] == [] and result["search_ended"] == "" and [request.rule for request in runs.requests] == [RULE]


def test_a_row_that_fails_does_not_cost_the_others() -> None:
    def measure(row: table.TableRow) -> dict[str, Any]:
        if row.name == "pathway":
            raise EngineFailed("it counted wrong")
        return {"name": row.name}

    results, errors = attempt([table.BY_NAME["pathway"], table.BY_NAME["bytewax"]], measure, Console(stderr=True))
    assert results == {"bytewax": {"name": "bytewax"}} and errors == {"pathway": "it counted wrong"}


def test_every_row_can_be_run_and_every_group_has_rows() -> None:
    assert len(table.BY_NAME) == len(table.ROWS)
    for row in table.ROWS:
        assert row.group in table.GROUPS and list(row.sizes) == sorted(row.sizes)
        if row.other:
            assert row.other in OTHER_ENGINES
        else:
            assert row.name in wordcount_child.PROGRAMS
            assert not row.latency or row.latency in wordcount_child.PROGRAMS
    assert {row.engine for row in table.ROWS} == {row.engine for row in table.ROWS if row.latency}
    engines = {group: {row.engine.split(",")[0] for row in table.ROWS if row.group == group} for group in table.GROUPS}
    assert {"Millrace", "Bytewax", "Pathway"} == engines[table.AT_MOST_ONCE]
    assert {"Millrace", "Bytewax", "Pathway", "Structured Streaming"} == engines[table.CHECKPOINTED]


@pytest.mark.parametrize(("seconds", "due"), [(-1.0, [0, 0]), (0.0, [1, 0]), (0.1, [1, 1]), (0.25, [2, 1]), (0.35, [2, 2])])
def test_lines_are_due_by_the_wall_clock_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float,
                                                 due: list[int]) -> None:
    """Ten lines a second, shared by two tasks: at 0.0, 0.1, 0.2 s and so on."""
    write_corpus(tmp_path / "corpus", 1, 2, 10)
    config = {"corpus": str(tmp_path / "corpus"), "rate": 10, "start": 1000.0}
    spouts = [start(DueLines, config=config, task_index=index, parallelism=2) for index in range(2)]
    monkeypatch.setattr(topologies.time, "time", lambda: 1000.0 + seconds + 1e-6)
    assert [len(drain(spout)) for spout in spouts] == due


def test_a_child_runs_on_two_cpus_and_its_parent_on_all_again() -> None:
    before = os.sched_getaffinity(0)
    code = "import json, os; print(json.dumps({'cpus': len(os.sched_getaffinity(0))}))"
    assert run_child("cpus", [sys.executable, "-c", code], dict(os.environ)) == {"cpus": min(2, len(before))}
    assert os.sched_getaffinity(0) == before


def test_latency_of_two_spouts_is_by_the_order_of_due_times() -> None:
    request = RunRequest(Path("corpus"), Rule(0.2, 0.1, 2), 1, rate=10.0)  # 4 lines, due 0.1 s apart, two at each spout
    # Due at 10.0, 10.1, 10.2 and 10.3; the last two after the warm-up.
    assert request.paced_lines == 4
    latencies = wordcount_child.due_to_visible([10.0, 10.1], [(10.5, 25), (10.4, 15)], request)
    assert latencies == pytest.approx([0.3, 0.2])


def test_rows_are_chosen_by_name() -> None:
    assert [row.name for row in chosen_rows(others=False, only=["pathway", "process"])] == ["process", "pathway"]
    assert [row for row in chosen_rows(others=False, only=()) if row.other] == []
    assert chosen_rows(others=True, only=()) == list(table.ROWS)
    with pytest.raises(MillraceError, match="there is no row proces; the rows are process, process_rows"):
        chosen_rows(others=True, only=["proces"])
