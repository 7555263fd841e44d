"""Assignment of a batch's tasks to partitions, and the path of tuples that skip a stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.api.bolt import Bolt
from millrace.api.grouping import Grouping
from millrace.api.spout import Spout
from millrace.api.topology import Topology
from millrace.api.tuple import Tuple
from millrace.connectors.dataframe_sink import DataFrameSink
from millrace.connectors.sinks import JsonLinesSink
from millrace.control.batches.stages import Stages, stages_of
from millrace.model.graph import ComponentDef, Input, StreamDef, TaskId, TopologyGraph, graph_of

LOCAL, SHUFFLE = Grouping.LOCAL_OR_SHUFFLE, Grouping.SHUFFLE
Sources = Mapping[str, Grouping]


def component(name: str, sources: Sources | None = None, par: int = 2, **more: Any) -> ComponentDef:
    """Return a component; without inputs it is a spout."""
    inputs = tuple(Input(source, "default", grouping) for source, grouping in (sources or {}).items())
    return ComponentDef(name, "bolt" if inputs else "spout", f"parts:{name}", par, {}, (StreamDef("default", ("word",)),),
                        inputs, False, "process" if inputs else "next_tuple", **more)


def staged(*components: ComponentDef, **slots: int) -> Stages:
    """Every task i in slot i; tasks of components in `slots` are offset by that many slots."""
    graph = TopologyGraph("some", components, {})
    return stages_of(graph, {task: task.index + slots.get(task.component, 0) for task in graph.tasks()})


def shape(stages: Stages) -> list[list[str]]:
    """By stage: the components in its partitions, as `a+b` where they are fused."""
    return [list(dict.fromkeys("+".join(task.component for task in tasks) for tasks in stage)) for stage in stages.partitions]


class TestFused:
    def test_a_chain_that_passes_on_in_place(self) -> None:
        stages = staged(component("a"), component("b", {"a": LOCAL}), component("c", {"b": LOCAL}))
        assert shape(stages) == [["a+b+c"]]
        assert stages.partitions[0][1] == (TaskId("a", 1), TaskId("b", 1), TaskId("c", 1))

    def test_state_and_sinks_too_behind_a_spout_that_the_plan_places(self) -> None:
        stages = staged(component("a"), component("b", {"a": LOCAL}, stateful=True, own_state=True),
                        component("c", {"b": LOCAL}, commits=True))
        assert shape(stages) == [["a+b+c"]]

    def test_any_grouping_between_single_tasks(self) -> None:
        assert shape(staged(component("a", par=1), component("b", {"a": Grouping.fields("word")}, 1))) == [["a+b"]]

    @pytest.mark.parametrize(("grouping", "par", "apart"), [(SHUFFLE, 2, 0), (LOCAL, 3, 0), (LOCAL, 2, 1)])
    def test_a_bolt_that_is_spread_or_elsewhere_is_not_fused(self, grouping: Grouping, par: int, apart: int) -> None:
        stages = staged(component("a"), component("b", {"a": grouping}, par), b=apart)
        assert shape(stages) == [["a"], ["b"]]

    def test_a_bolt_with_two_inputs_is_not_fused(self) -> None:
        stages = staged(component("a"), component("b"), component("c", {"a": LOCAL, "b": LOCAL}))
        assert shape(stages) == [["a", "b"], ["c"]]

    def test_the_rest_of_a_chain_begins_anew(self) -> None:
        """A task fused behind a bolt with its own stage is not in the stage of the spout."""
        stages = staged(component("a"), component("b", {"a": SHUFFLE}), component("c", {"b": LOCAL}))
        assert shape(stages) == [["a"], ["b+c"]]


STATEFUL = {"stateful": {"stateful": True}, "own state": {"stateful": True, "own_state": True}, "sink": {"commits": True}}


@pytest.mark.parametrize("more", STATEFUL.values(), ids=STATEFUL.keys())
class TestBehindADataFrame:
    """Spark chooses where and in how many partitions it reads, so a task of the spout may not run in a batch."""

    def test_nothing_that_must_run_in_each_batch(self, more: dict[str, bool]) -> None:
        assert shape(staged(component("a", dataframe=True), component("b", {"a": LOCAL}, **more))) == [["a"], ["b"]]

    def test_also_not_through_a_bolt_in_between(self, more: dict[str, bool]) -> None:
        stages = staged(component("a", dataframe=True), component("b", {"a": LOCAL}), component("c", {"b": LOCAL}),
                        component("d", {"c": LOCAL}, **more))
        assert shape(stages) == [["a+b+c"], ["d"]]

    def test_a_chain_continues_behind_it(self, more: dict[str, bool]) -> None:
        stages = staged(component("a", dataframe=True), component("b", {"a": LOCAL}, **more),
                        component("c", {"b": LOCAL}, **more))
        assert shape(stages) == [["a"], ["b+c"]]


def test_bolts_without_state_are_fused_with_a_dataframe_wherever_the_plan_has_them() -> None:
    assert shape(staged(component("a", dataframe=True), component("b", {"a": LOCAL}), b=1)) == [["a+b"]]


class Pass(Bolt):
    outputs: ClassVar[list[str]] = ["line"]

    def process(self, tup: Tuple) -> None:
        self.emit(tup.values)


class FromDataFrameToDataFrame(Topology):
    lines = Spout.from_dataframe("nowhere:lines", outputs=["line"], par=2)
    through = Pass.spec(inputs={lines: LOCAL}, par=2)
    table = DataFrameSink.spec(inputs={through: LOCAL}, par=2, config={"schema": "line string", "write": "nowhere:write"})
    files = JsonLinesSink.spec(inputs={through: LOCAL}, par=2)


def test_sinks_of_a_real_topology_have_a_stage_of_their_own() -> None:
    graph = graph_of(FromDataFrameToDataFrame, config={"topology.guarantee": "exactly-once"})
    assert shape(stages_of(graph, {task: task.index for task in graph.tasks()})) == [["lines+through"], ["table", "files"]]


class TestSkippedStages:
    def test_tuples_for_a_later_stage_are_passed_on(self) -> None:
        """a → b → c → d, and from a straight to d."""
        stages = staged(component("a"), component("b", {"a": SHUFFLE}, 3), component("c", {"b": SHUFFLE}, 1),
                        component("d", {"c": SHUFFLE, "a": SHUFFLE}, 4))
        assert shape(stages) == [["a"], ["b"], ["c"], ["d"]]
        assert [stages.next_hop(TaskId("d", 3), stage) for stage in range(3)] == [0, 0, 3]
        assert [stages.next_hop(TaskId("d", 2), stage) for stage in range(3)] == [2, 0, 2]

    def test_a_fused_task_is_where_its_head_is(self) -> None:
        stages = staged(component("a"), component("b", {"a": SHUFFLE}, 3), component("c", {"b": LOCAL}, 3))
        assert stages.next_hop(TaskId("c", 2), 0) == stages.next_hop(TaskId("b", 2), 0) == 2


@st.composite
def graphs(draw: st.DrawFn) -> tuple[ComponentDef, ...]:
    made: list[ComponentDef] = []
    for number in range(draw(st.integers(1, 7))):
        sources = draw(st.lists(st.sampled_from(made), unique_by=lambda source: source.name, max_size=3)) if made else []
        groupings = {source.name: draw(st.sampled_from([LOCAL, LOCAL, SHUFFLE, Grouping.fields("word")])) for source in sources}
        kind = {"dataframe": draw(st.booleans())} if not sources else draw(st.sampled_from([{}, {}, *STATEFUL.values()]))
        made.append(component(f"c{number}", groupings, draw(st.integers(1, 3)), **kind))
    return tuple(made)


@given(graphs(), st.randoms(use_true_random=False))
def test_in_any_graph_every_task_has_one_place_and_all_ways_lead_on(components: tuple[ComponentDef, ...], rng: Any) -> None:
    graph = TopologyGraph("any", components, {})
    stages = stages_of(graph, {task: rng.randrange(2) for task in graph.tasks()})
    placed = [task for stage in stages.partitions for tasks in stage for task in tasks]
    assert sorted(placed) == sorted(graph.tasks())
    for stage, partitions in enumerate(stages.partitions):
        for partition, tasks in enumerate(partitions):
            assert all(stages.places[task] == (stage, partition) for task in tasks)
            if graph.component(tasks[0].component).dataframe:
                behind = [graph.component(task.component) for task in tasks[1:]]
                assert not any(member.stateful or member.commits for member in behind)
    for target in graph.components:
        for given_input in target.inputs:
            for index in range(target.par):
                arrives(stages, TaskId(given_input.source, 0), TaskId(target.name, index))


def arrives(stages: Stages, source: TaskId, target: TaskId) -> None:
    """Either in the source's own partitions, or hop by hop."""
    at, partition = stages.places[source][0], -1
    goal = stages.places[target]
    assert goal[0] >= at
    if goal[0] == at:
        assert stages.partitions[at][goal[1]][0].index == target.index, "fused, then beside its partner"
    while at < goal[0]:
        partition, at = stages.next_hop(target, at), at + 1
        assert 0 <= partition < len(stages.partitions[at])
    assert at != goal[0] or partition in (-1, goal[1])
