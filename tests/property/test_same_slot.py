"""First placements of batched topologies, of any shape, on any cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from situations import ask, clusters, graphs

from millrace.api.grouping import Grouping
from millrace.control.batches.stages import stages_of
from millrace.model.graph import TaskId, TopologyGraph
from millrace.model.situation import Situation
from millrace.schedulers.base import CannotPlace, NewPlan
from millrace.schedulers.same_slot import SameSlot


def in_place(graph: TopologyGraph) -> TopologyGraph:
    """Return the same graph with local-or-shuffle groupings."""
    return replace(graph, ackers=0, components=tuple(
        replace(component, inputs=tuple(replace(edge, grouping=Grouping.LOCAL_OR_SHUFFLE) for edge in component.inputs))
        for component in graph.components))


@given(graphs("t", tasks=12, workers=False).map(lambda graph: replace(graph, ackers=0)), clusters(), st.booleans())
def test_everything_is_placed_evenly_and_fits_the_stages(graph, cluster, local) -> None:  # type: ignore[no-untyped-def]
    graph = in_place(graph) if local else graph
    result = ask(SameSlot(), Situation((graph,), cluster))
    if not cluster.slots:
        assert isinstance(result, CannotPlace)
        return
    assert isinstance(result, NewPlan)
    placement = result.plans["t"].placement
    assert set(placement) == set(graph.tasks())
    for component in graph.components:
        counts = Counter(placement[TaskId(component.name, index)] for index in range(component.par))
        if not local:
            assert max(counts.values()) - min(counts[slot.number] for slot in cluster.slots) <= 1
    stages = stages_of(graph, placement)
    seen = [task for stage in stages.partitions for tasks in stage for task in tasks]
    assert sorted(seen) == sorted(graph.tasks()) and set(stages.places) == set(seen)
    for component in graph.components:
        for edge in component.inputs:
            _check_edge(graph, stages, edge.source, component.name, placement)


def _check_edge(graph, stages, source, target, placement) -> None:  # type: ignore[no-untyped-def]
    """Check that tuples go to a later stage, or stay in their partition on the same slot."""
    pairs = [(TaskId(source, i), TaskId(target, j)) for i in range(graph.component(source).par)
             for j in range(graph.component(target).par)]
    levels = {(stages.places[a][0], stages.places[b][0]) for a, b in pairs}
    for a, b in pairs:
        if stages.places[a][0] == stages.places[b][0] and a.index == b.index:
            assert stages.places[a] == stages.places[b] and placement[a] == placement[b]
    assert len(levels) == 1 and all(after >= before for before, after in levels)


@given(graphs("t", tasks=12, workers=False).map(lambda graph: in_place(graph)), clusters(least=1))
def test_partners_are_together_and_what_is_placed_stays(graph, cluster) -> None:  # type: ignore[no-untyped-def]
    first = ask(SameSlot(), Situation((graph,), cluster))
    assert isinstance(first, NewPlan)
    again = ask(SameSlot(), Situation((graph,), cluster, plan=first.plans))
    assert not isinstance(again, NewPlan)
    placement = first.plans["t"].placement
    for component in graph.components:
        sources = {edge.source for edge in component.inputs}
        if len(sources) == 1 and graph.component(source := sources.pop()).par == component.par:
            assert all(placement[TaskId(component.name, index)] == placement[TaskId(source, index)]
                       for index in range(component.par))
