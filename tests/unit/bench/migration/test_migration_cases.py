"""The cases of `bench migration`: which strategies run on which workloads, the delays, and where tasks are."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from millrace.bench.migration import run as bench
from millrace.bench.migration.cases import (
    DEFAULT_SCALE,
    KEYED,
    LEAST_SCALE,
    OF_KIND,
    PAPERS_DELAYS,
    REDEPLOYED,
    SAME_CYCLES,
    SCALED,
    STATE_MB,
    TASKS_MOVED,
    WORKLOADS,
    Delays,
    MigrationCase,
    check_scale,
    chosen_cases,
    chosen_workloads,
)
from millrace.bench.migration.driving import topology_config
from millrace.bench.migration.places import (
    AFTER_IN,
    AFTER_OUT,
    BEFORE,
    EDGE,
    OTHERS,
    SLOTS,
    edge_tasks,
    moving_tasks,
    places_after,
    places_before,
)
from millrace.cli.benchmarks import split_names
from millrace.cli.main import app
from millrace.config import (
    AT_LEAST_ONCE,
    EXACTLY_ONCE,
    MIGRATION_STABLE,
    MIGRATION_WATCH,
    check_engine_settings,
    check_topology_config,
)
from millrace.control.strategies.catalogue import STRATEGIES, steps_of
from millrace.control.strategies.steps import PlacementChange, Restart
from millrace.errors import BadParameter, UnknownName
from millrace.model.graph import TopologyGraph, graph_of


def graph_for(case: MigrationCase, path: Path = Path("/nowhere")) -> TopologyGraph:
    return graph_of(case.workload.topology, None, topology_config(case, Delays(DEFAULT_SCALE), path, path), None)


def names(cases: list[MigrationCase]) -> set[tuple[str, str]]:
    return {(case.strategy, case.workload.name) for case in cases}


# -- choice ------------------------------------------------------------------------------------------------------------


def test_a_full_run_has_the_comparisons_of_every_paper() -> None:
    cases = chosen_cases()
    on = {name: {case.strategy for case in cases if case.workload.name == name} for name in WORKLOADS}
    for name in ("linear-in", "diamond-in", "star-in", "traffic-in", "grid-in", "linear-out", "grid-out"):
        assert on[name] >= {"dsm", "dcr", "ccr", "handover"}, name
    assert {"rollback", "layered"} <= on["linear-in"] & on["grid-in"] and on["linear50-in"] == {"dcr", "ccr", "handover"}
    moved = {(case.strategy, case.moved_tasks) for case in cases if case.workload.name == "wordcount" and not case.variant}
    assert moved == {*((strategy, tasks) for strategy in ("nstorm", "nstorm+", "handover") for tasks in TASKS_MOVED),
                     *((strategy, tasks) for strategy in ("storm", "storm*", "tstorm") for tasks in (1, 16))}
    for name in ("topn", "logstream"):
        assert on[name] == {"storm*", "nstorm", "nstorm+", "handover"}
        assert {case.moved_tasks for case in cases if case.workload.name == name} == {4}
    sizes = {(case.strategy, case.state_mb) for case in cases if case.workload.kind == KEYED}
    assert sizes == {(strategy, size) for strategy in ("layered", "handover") for size in STATE_MB}
    assert {case.strategy for case in cases} == set(STRATEGIES)
    assert len(cases) == len(set(map(str, cases)))


def test_a_quick_run_has_few_cases_of_each_kind() -> None:
    cases = chosen_cases(quick=True)
    assert len(cases) < 12 and {case.workload.kind for case in cases} == {SCALED, REDEPLOYED, KEYED}


def test_a_dataflow_without_a_direction_stands_for_both() -> None:
    assert [workload.name for workload in chosen_workloads(["grid"])] == ["grid-in", "grid-out"]
    assert [workload.name for workload in chosen_workloads(["linear-in", "linear"])] == ["linear-in", "linear-out"]
    assert [workload.name for workload in chosen_workloads(["linear50"])] == ["linear50-in", "linear50-out"]


def test_chosen_strategies_run_where_they_do_by_default() -> None:
    assert names(chosen_cases(["storm"])) == {("storm", "wordcount")}
    assert {case.moved_tasks for case in chosen_cases(["storm"])} == {1, 16}
    assert names(chosen_cases(["layered"], quick=True)) == {("layered", "notes")}


def test_chosen_strategies_run_on_all_chosen_workloads() -> None:
    assert names(chosen_cases(["storm", "ccr", "storm"], ["grid-in", "topn"])) == {
        ("storm", "grid-in"), ("ccr", "grid-in"), ("storm", "topn"), ("ccr", "topn")}


def test_workloads_chosen_alone_have_all_strategies_of_their_kind() -> None:
    for name, workload in WORKLOADS.items():
        cases = chosen_cases(workloads=[name])
        assert names(cases) == {(strategy, name) for strategy in OF_KIND[workload.kind]}
        if workload.kind == REDEPLOYED:
            most = [tasks for tasks in TASKS_MOVED if name != "logstream" or tasks < 16]
            assert sorted({case.moved_tasks for case in cases if case.strategy == "storm"}) == most


def test_the_guarantee_is_that_of_the_paper_unless_the_strategy_needs_another() -> None:
    wordcount, grid = WORKLOADS["wordcount"], WORKLOADS["grid-in"]
    assert MigrationCase("nstorm", wordcount, 1).guarantee == AT_LEAST_ONCE
    assert MigrationCase("ccr", wordcount, 1).guarantee == MigrationCase("dsm", grid).guarantee == EXACTLY_ONCE


@pytest.mark.parametrize(("strategies", "workloads", "error"), [
    (["teleport"], [], "there is no strategy 'teleport'"), ([], ["sky"], "--workloads sky: there is no such workload"),
    (["ccr"], ["grid", "sky-in"], "--workloads sky-in")])
def test_unknown_names_are_refused(strategies: list[str], workloads: list[str], error: str) -> None:
    with pytest.raises(UnknownName, match=error):
        chosen_cases(strategies, workloads)


def test_strategies_without_a_workload_are_refused() -> None:
    with pytest.raises(BadParameter, match="name some with --workloads"):
        chosen_cases(["rollback"], quick=True)


# -- delays ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["dsm", "dcr", "rollback"])
def test_strategies_that_need_waves_are_refused_for_a_workload_without_state(strategy: str) -> None:
    with pytest.raises(BadParameter, match=f"{strategy}: it restores the state of a wave, and wordcount keeps no state; name "
                                           "other --workloads: linear-in"):
        chosen_cases([strategy], ["grid", "wordcount"])
    assert chosen_cases(["ccr"], ["wordcount"]), "it runs exactly once, with waves"


def test_an_interrupted_run_keeps_what_it_has_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured: list[str] = []

    def measure(engine: Any, scratch: Path, case: MigrationCase, *rest: Any) -> Any:
        if measured:
            raise KeyboardInterrupt
        measured.append(str(case))
        return {"longest_gap_ms": 1.0, "usual_gap_ms": 1.0, "lost": 0, "replayed": 0, "repeated": 0, "new_pids": [],
                "workload": "linear-in"}, []

    kept: dict[str, Any] = {}
    monkeypatch.setattr(bench, "measure", measure)
    monkeypatch.setattr(bench, "_engine", lambda scratch, delays: nullcontext())
    monkeypatch.setattr(bench, "keep", lambda name, result, quick: kept.update({name: result}) or tmp_path / "kept.json")
    with pytest.raises(KeyboardInterrupt):
        bench.run_migration(["handover", "ccr"], ["linear-in"], live=False)
    assert [run["workload"] for run in kept[bench.INTERRUPTED]["runs"]] == ["linear-in"] and len(measured) == 1


def test_the_time_scale_multiplies_every_delay() -> None:
    papers, tenth = Delays(1.0), Delays(0.1)
    storm, tstorm, nstorm, handover = (MigrationCase(name, WORKLOADS["wordcount"], 1)
                                       for name in ("storm", "tstorm", "nstorm", "handover"))
    assert papers.parameters(storm) == {"message_timeout": 30.0} and papers.window == papers.period == 60.0
    assert tenth.parameters(tstorm) == pytest.approx({"spout_delay": 1.0, "shutdown_delay": 2.0})
    assert tenth.parameters(nstorm) == pytest.approx({"supervisor_cycle": 1.0, "worker_cycle": 0.3})
    assert (tenth.wave_interval, tenth.message_timeout, tenth.window) == pytest.approx((3.0, 3.0, 6.0))
    assert papers.parameters(handover) == {}


def test_nstorm_plus_has_its_own_cycles_and_a_row_with_those_of_nstorm() -> None:
    """The time to process a queue has no scale."""
    plus = MigrationCase("nstorm+", WORKLOADS["wordcount"], 16)
    same = replace(plus, variant=SAME_CYCLES)
    assert Delays(0.1).parameters(plus) == pytest.approx({"supervisor_cycle": 0.3, "worker_cycle": 0.1, "drain": 2.0})
    assert Delays(0.1).parameters(same) == pytest.approx({"supervisor_cycle": 1.0, "worker_cycle": 0.3, "drain": 2.0})
    assert str(same) == "nstorm+ (long cycles) on wordcount, 16 tasks" and same.strategy == "nstorm+"
    assert [case for case in chosen_cases() if case.variant == SAME_CYCLES] == [same]
    assert not [case for case in chosen_cases(["nstorm+"], ["grid-in", "topn"]) if case.variant]


def test_some_comparisons_also_have_the_papers_delays() -> None:
    unscaled = {(case.strategy, case.workload.name): case for case in chosen_cases() if case.variant == PAPERS_DELAYS}
    assert {key: case.moved_tasks for key, case in unscaled.items()} == {
        ("dsm", "grid-out"): 0, ("ccr", "grid-out"): 0, ("nstorm", "wordcount"): 1}
    nstorm = unscaled["nstorm", "wordcount"]
    assert Delays(0.1).of(nstorm) == Delays(1.0) and Delays(0.1).of(replace(nstorm, variant="")) == Delays(0.1)
    assert Delays(0.1).parameters(nstorm) == {"supervisor_cycle": 10.0, "worker_cycle": 3.0}
    assert Delays(0.1).parameters(unscaled["dsm", "grid-out"]) == {"init_resend": 30.0}
    assert not [case for case in chosen_cases(quick=True) if case.variant]


def test_the_record_is_measured_over_the_window_of_the_time_scale(tmp_path: Path) -> None:
    for scale, stable, watched in ((1.0, 60.0, 540.0), (0.1, 6.0, 54.0), (LEAST_SCALE, 3.0, 20.0)):
        settings = bench.engine_settings(tmp_path, Delays(scale))
        check_engine_settings(settings)
        assert (MIGRATION_STABLE.of(settings), MIGRATION_WATCH.of(settings)) == pytest.approx((stable, watched))


@pytest.mark.parametrize("scale", [0.0, 0.001, 0.0199, -1.0, 11.0, float("nan"), float("inf")])
def test_a_bad_time_scale_is_refused(scale: float) -> None:
    with pytest.raises(BadParameter, match=r"--time-scale .*: must be at least 0\.02 and at most 10"):
        check_scale(scale)


def test_bad_arguments_are_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "_engine", lambda *_: pytest.fail("an engine was started"))
    for arguments, error in ((["--strategies", "dcr,teleport"], "teleport"), (["--workloads", "sky"], "sky"),
                             (["--time-scale", "0"], "--time-scale 0"), (["--report", "/dev/null/x"], "--report /dev/null/x")):
        outcome = CliRunner().invoke(app, ["bench", "migration", *arguments])
        assert outcome.exit_code != 0 and error in outcome.output + str(outcome.exception), arguments


def test_names_may_be_repeated_or_between_commas() -> None:
    assert split_names(None) == [] and split_names(["dcr,ccr", "storm*", "a, b"]) == ["dcr", "ccr", "storm*", "a", "b"]


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_task_has_a_place_and_source_and_sinks_keep_theirs(name: str) -> None:
    workload = WORKLOADS[name]
    for strategy in OF_KIND[workload.kind]:
        case = MigrationCase(strategy, workload, 4 if workload.kind == REDEPLOYED else 0)
        graph = graph_for(case)
        check_topology_config(graph.config)
        before = places_before(graph, workload)
        after = places_after(graph, case, before, 0)
        assert before.keys() == after.keys() == set(graph.tasks())
        assert {*before.values(), *after.values()} <= set(range(SLOTS))
        edge = edge_tasks(graph, workload)
        assert {before[task] for task in edge} == {after[task] for task in edge} == {EDGE}
        assert all(before[task] != EDGE and after[task] != EDGE for task in moving_tasks(graph, workload))
        change = PlacementChange(graph, before, after, {slot: f"node {slot % 2}" for slot in range(SLOTS)})
        assert steps_of(strategy, change, Delays(0.1).parameters(case))


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.kind != REDEPLOYED])
def test_every_other_task_moves_to_a_worker_that_was_not_in_use(name: str) -> None:
    workload = WORKLOADS[name]
    case = MigrationCase("handover", workload)
    graph = graph_for(case)
    before = places_before(graph, workload)
    after = places_after(graph, case, before, 0)
    moving = moving_tasks(graph, workload)
    assert {before[task] for task in moving} == set(BEFORE)
    assert {after[task] for task in moving} == set(AFTER_IN if workload.scaling == "in" else AFTER_OUT)


@pytest.mark.parametrize("moved", TASKS_MOVED)
def test_a_re_deployment_moves_so_many_tasks_and_not_always_the_same(moved: int) -> None:
    case = MigrationCase("nstorm", WORKLOADS["wordcount"], moved)
    graph = graph_for(case)
    before = places_before(graph, case.workload)
    assert set(before.values()) == {EDGE, *OTHERS}
    chosen = []
    for number in (0, 1):
        after = places_after(graph, case, before, number)
        assert after == places_after(graph, case, before, number)
        chosen.append({task for task in after if after[task] != before[task]})
        assert len(chosen[-1]) == moved
        before = after
    assert chosen[0] != chosen[1]


@pytest.mark.parametrize("name", [name for name, workload in WORKLOADS.items() if workload.kind == REDEPLOYED])
def test_no_case_moves_more_tasks_than_there_are(name: str) -> None:
    workload = WORKLOADS[name]
    movable = len(moving_tasks(graph_for(MigrationCase("nstorm", workload, 1)), workload))
    assert workload.most_moved == min(movable, max(TASKS_MOVED))


def test_a_worker_that_is_left_without_tasks_is_restarted_by_tstorm() -> None:
    case = MigrationCase("tstorm", WORKLOADS["wordcount"], 16)
    graph = graph_for(case)
    before = places_before(graph, case.workload)
    for number in range(3):
        after = places_after(graph, case, before, number)
        change = PlacementChange(graph, before, after, {slot: f"node {slot % 2}" for slot in range(SLOTS)})
        assert change.vacated == {OTHERS[number]} and sum(after[task] != before[task] for task in after) == 16
        assert Restart(change.vacated) in steps_of("tstorm", change, {})
        before = after
