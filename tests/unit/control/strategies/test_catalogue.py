"""Properties of the steps of every strategy, for random graphs, placements and parameters."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.control.strategies.catalogue import STRATEGIES, halves, layers, steps_of, strategy_named
from millrace.control.strategies.steps import (
    Checkpoint,
    Delay,
    HandOver,
    Hold,
    PlacementChange,
    Release,
    Remove,
    Replace,
    Restart,
    Step,
    Until,
)
from millrace.errors import MillraceError, TopologyError, UnknownName
from millrace.model.graph import TaskId, TopologyGraph, graph_of
from support.cluster.wave_parts import FakeLedger, Numbers, Pass, Tally
from support.migrations.runs import PlainNumbers

SLOTS = 6
EXACTLY_ONCE = {"topology.guarantee": "exactly-once"}


@st.composite
def graphs(draw: st.DrawFn) -> TopologyGraph:
    """Exactly once, so that every strategy is allowed; ackers, which such topologies do not have, move like other tasks."""
    specs: dict[str, Any] = {"spout": Numbers.spec(par=draw(st.integers(1, 3)))}
    for number in range(draw(st.integers(1, 5))):
        sources = draw(st.lists(st.sampled_from(sorted(specs)), min_size=1, unique=True))
        specs[f"bolt{number}"] = Pass.spec(inputs={specs[name]: Grouping.fields("key") for name in sources},
                                           par=draw(st.integers(1, 4)))
    topology = type("Drawn", (Topology,), {"config": EXACTLY_ONCE, **specs})
    return replace(graph_of(topology), ackers=draw(st.integers(0, 2)))


@st.composite
def changes(draw: st.DrawFn) -> PlacementChange:
    graph = draw(graphs())
    slots = st.integers(0, SLOTS - 1)
    before = {task: draw(slots) for task in graph.tasks()}
    after = {task: draw(slots) if draw(st.booleans()) else slot for task, slot in before.items()}
    return PlacementChange(graph, before, after, {slot: f"node{draw(st.integers(0, 3))}" for slot in range(SLOTS)})


def parameters_of(draw: st.DrawFn, name: str) -> dict[str, float]:
    return {each: draw(st.floats(0, 100)) for each in STRATEGIES[name].parameters if draw(st.booleans())}


@st.composite
def migrations(draw: st.DrawFn) -> tuple[str, PlacementChange, list[Step]]:
    name, change = draw(st.sampled_from(sorted(STRATEGIES))), draw(changes())
    return name, change, steps_of(name, change, parameters_of(draw, name))


def moves_in(steps: list[Step]) -> list[tuple[TaskId, int]]:
    return [move for step in steps if isinstance(step, (Replace, HandOver)) for move in step.moves.items()]


@given(migrations())
def test_every_task_is_moved_once_and_no_other(migration: tuple[str, PlacementChange, list[Step]]) -> None:
    _, change, steps = migration
    assert Counter(moves_in(steps)) == Counter(change.moves.items())
    assert {**change.before, **dict(moves_in(steps))} == change.after


@given(migrations())
def test_spouts_that_wait_are_released(migration: tuple[str, PlacementChange, list[Step]]) -> None:
    _, _, steps = migration
    held = False
    for step in steps:
        assert not (isinstance(step, Hold) and held) and not (isinstance(step, Release) and not held)
        held = isinstance(step, Hold) or (held and not isinstance(step, Release))
    assert not held


@given(migrations())
def test_removed_tasks_are_placed_again(migration: tuple[str, PlacementChange, list[Step]]) -> None:
    _, _, steps = migration
    gone: set[TaskId] = set()
    for step in steps:
        if isinstance(step, Remove):
            assert step.tasks and gone.isdisjoint(step.tasks)
            gone.update(step.tasks)
        elif isinstance(step, Replace):
            gone -= set(step.moves)
        elif isinstance(step, HandOver):
            assert gone.isdisjoint(step.moves), "only a task that works can be handed over"
    assert not gone


@given(migrations())
def test_exactly_the_workers_restart_that_the_paper_names(migration: tuple[str, PlacementChange, list[Step]]) -> None:
    name, change, steps = migration
    replaced = [step.restart for step in steps if isinstance(step, Replace) and step.restart]
    vacated = [step.slots for step in steps if isinstance(step, Restart)]
    wanted = {"storm": change.used, "storm*": change.touched, "dsm": change.touched, "dcr": change.touched,
              "ccr": change.touched}.get(name, frozenset())
    assert replaced == ([wanted] if wanted else [])
    assert vacated == ([change.vacated] if name == "tstorm" else [])
    assert all(change.before[task] in change.touched and slot in change.touched for task, slot in change.moves.items())
    assert not {slot for slots in vacated for slot in slots} & set(change.after.values())


@given(migrations())
def test_waves_only_where_the_strategy_needs_them(migration: tuple[str, PlacementChange, list[Step]]) -> None:
    name, _, steps = migration
    assert [step.drains for step in steps if isinstance(step, Checkpoint)] == {
        "rollback": [False], "dcr": [True], "ccr": [False]}.get(name, [])
    assert any(isinstance(step, Hold) and step.captures for step in steps) == (name == "ccr")
    for step, following in pairwise(steps):
        assert not isinstance(step, Checkpoint) or isinstance(following, Replace), "nothing may happen behind the wave"


@given(st.data())
def test_delays_are_those_of_the_parameters(data: st.DataObject) -> None:
    change = data.draw(changes())
    assume(change.moves)
    for name in ("storm", "tstorm", "nstorm", "nstorm+"):
        chosen = parameters_of(data.draw, name)
        known = {**STRATEGIES[name].parameters, **chosen}
        steps = steps_of(name, change, chosen)
        delays = [step.seconds for step in steps if isinstance(step, Delay)]
        times = [step.seconds for step in steps if isinstance(step, Until)]
        assert all(seconds >= 0 for seconds in delays)
        if name == "storm":
            assert delays == [known["message_timeout"]]
        elif name == "tstorm":
            assert sum(delays) == pytest.approx(max(known["spout_delay"], known["shutdown_delay"]))
        else:
            assert not delays and times == sorted(set(times))
            assert all(0 < at <= known["supervisor_cycle"] + known["worker_cycle"] for at in times)


def test_whether_nstorm_stops_a_task_depends_on_the_time_of_the_request() -> None:
    """It stops if its old worker reads the plan before its new one, whichever way it moves."""
    graph = graph_of(type("Two", (Topology,), {"spout": PlainNumbers.spec()}))
    task, nodes = TaskId("spout", 0), {0: "node0", 1: "node1"}
    for old, new in ((0, 1), (1, 0)):
        steps = [steps_of("nstorm", PlacementChange(graph, {task: old}, {task: new}, nodes, float(at)), {}) for at in range(30)]
        stops = [any(isinstance(step, Remove) for step in each) for each in steps]
        assert 5 < sum(stops) < 25


@given(changes())
def test_layered_goes_layer_by_layer_in_halves(change: PlacementChange) -> None:
    depth = {name: number for number, layer in enumerate(layers(change.graph)) for name in layer}
    steps = steps_of("layered", change, {})
    parts = [[task for task in step.moves] for step in steps if isinstance(step, HandOver) and step.cold]
    assert len([step for step in steps if not (isinstance(step, HandOver) and step.cold)]) <= 1, "only ackers come apart"
    of_part = [{depth[task.component] for task in part} for part in parts]
    assert all(len(layer) == 1 for layer in of_part), "never two layers at once"
    order = [layer.pop() for layer in of_part]
    assert order == sorted(order) and all(count <= 2 for count in Counter(order).values())


@given(graphs())
def test_layers_are_in_the_order_of_the_stream(graph: TopologyGraph) -> None:
    found = layers(graph)
    depth = {name: number for number, layer in enumerate(found) for name in layer}
    assert sorted(name for layer in found for name in layer) == sorted(component.name for component in graph.components)
    for component in graph.components:
        assert all(depth[read.source] < depth[component.name] for read in component.inputs)
        assert bool(depth[component.name]) == bool(component.inputs)


@given(st.lists(st.builds(TaskId, st.sampled_from(["a", "b"]), st.integers(0, 9)), unique=True))
def test_halves_are_a_partition(tasks: list[TaskId]) -> None:
    parts = halves(sorted(tasks))
    assert Counter(task for part in parts for task in part) == Counter(tasks)
    assert len(parts) == min(2, len(tasks)) and all(parts)
    if len(parts) == 2:
        assert abs(len(parts[0]) - len(parts[1])) <= 1
        for name in ("a", "b"):
            if sum(task.component == name for task in tasks) > 1:
                assert all(any(task.component == name for task in part) for part in parts), "the other half works meanwhile"


@given(st.sampled_from(sorted(STRATEGIES)), changes())
def test_nothing_moves_without_a_change(name: str, change: PlacementChange) -> None:
    assert not moves_in(steps_of(name, change._replace(after=change.before), {}))


# -- refusals -------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=12).filter(lambda name: name not in STRATEGIES))
def test_unknown_strategies(name: str) -> None:
    with pytest.raises(UnknownName, match=r"there is no strategy .*; there are handover, rollback, storm"):
        strategy_named(name)


@pytest.mark.parametrize("name", STRATEGIES)
def test_unknown_and_impossible_parameters(name: str) -> None:
    with pytest.raises(UnknownName, match=r"has no parameter 'speed'; it has (none|[a-z_]+=[0-9.]+)"):
        steps_of(name, change_of(graph_of(Sample)), {"speed": 1.0})
    for parameter in STRATEGIES[name].parameters:
        for value in (-1.0, float("inf"), float("nan"), True, "soon"):
            with pytest.raises(MillraceError, match=f"{parameter}=.*: expected seconds, 0 or more"):
                steps_of(name, change_of(graph_of(Sample)), {parameter: value})


class Plain(Spout):
    outputs = ["key", "number"]

    def next_tuple(self) -> None: ...


class Sample(Topology):
    config = EXACTLY_ONCE
    numbers = Numbers.spec()
    tally = Tally.spec(inputs={numbers: Grouping.fields("key")}, par=2)
    ledger = FakeLedger.spec(inputs=[tally])


class Stateless(Topology):
    numbers = PlainNumbers.spec()
    through = Pass.spec(inputs=[numbers])


class NotReplayable(Topology):
    plain = Plain.spec()
    through = Pass.spec(inputs={plain: Grouping.SHUFFLE}, par=2)


def change_of(graph: TopologyGraph, moves: dict[TaskId, int] | None = None) -> PlacementChange:
    before = dict.fromkeys(graph.tasks(), 0)
    return PlacementChange(graph, before, {**before, **(moves or {})}, {0: "a", 1: "b"})


@pytest.mark.parametrize("name", [name for name, strategy in STRATEGIES.items() if strategy.needs_waves and name != "ccr"])
def test_strategies_that_need_waves(name: str) -> None:
    with pytest.raises(TopologyError, match=r"'stateless' takes no waves, so it cannot be migrated by .*Use handover, storm\*"):
        steps_of(name, change_of(graph_of(Stateless)), {})


def test_ccr_needs_exactly_once() -> None:
    graph = graph_of(Sample, config={"topology.guarantee": "at-least-once"})
    with pytest.raises(TopologyError, match=r"ccr needs the guarantee exactly-once, and 'sample' has at-least-once: .*Use dcr"):
        steps_of("ccr", change_of(graph), {})


@pytest.mark.parametrize("name", ["storm", "storm*"])
def test_a_spout_that_cannot_be_replayed_is_not_restarted(name: str) -> None:
    change = change_of(graph_of(NotReplayable), {TaskId("through", 0): 1})
    with pytest.raises(TopologyError, match=r"restarts worker 0 with plain\[0\], which would lose tuples .*Use handover"):
        steps_of(name, change, {})
    steps_of("handover", change, {})
    at_most = graph_of(NotReplayable, config={"topology.guarantee": "at-most-once"})
    assert steps_of(name, change_of(at_most, {TaskId("through", 0): 1}), {})


def test_a_spout_that_cannot_be_replayed_is_not_moved() -> None:
    for name in STRATEGIES:
        with pytest.raises(TopologyError, match=r"plain\[0\] cannot be moved: its source cannot be replayed|takes no waves"):
            steps_of(name, change_of(graph_of(NotReplayable), {TaskId("plain", 0): 1}), {})
