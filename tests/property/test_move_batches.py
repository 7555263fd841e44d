"""Moves in batches: within their limits, never a task with its direct upstream, and every move has its turn."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from situations import GROUPS, graphs

from millrace.config import HANDOVER_BATCH, HANDOVER_MB
from millrace.control.moves import MB, PERSON, BatchLimits, Cause, GroupId, Regrouping, batch_of, group_batch
from millrace.model.graph import ACKER, TopologyGraph

SIZES = st.sampled_from([0, 1, MB // 2, MB, 3 * MB])
LIMITS = st.sampled_from([0, 0.5, 1, 2])


def near(graph: TopologyGraph, components: set[str]) -> bool:
    """True if one of the components reads another."""
    return any(read.source in components for name in components for read in graph.component(name).inputs)


@given(st.data(), st.integers(0, 4), LIMITS)
def test_tasks_move_in_batches(data: st.DataObject, most: int, most_mb: float) -> None:
    graph = data.draw(graphs("any", tasks=12))
    tasks = [task for task in graph.tasks() if task.component != ACKER]
    waiting = data.draw(st.sets(st.sampled_from(tasks))) if tasks else set()
    sizes = {task: data.draw(SIZES) for task in waiting if data.draw(st.booleans())}
    config = {HANDOVER_BATCH.key: most, HANDOVER_MB.key: most_mb}
    while waiting:
        batch = batch_of(graph, waiting, BatchLimits.of(config), sizes)
        assert batch and waiting.issuperset(batch) and len(set(batch)) == len(batch)
        assert not most or len(batch) <= most
        assert not most_mb or len(batch) == 1 or sum(sizes.get(task, 0) for task in batch) <= most_mb * MB
        assert not near(graph, {task.component for task in batch})
        waiting -= set(batch)


@given(st.data(), st.integers(0, 4), LIMITS)
def test_key_groups_move_in_batches(data: st.DataObject, most: int, most_mb: float) -> None:
    graph = data.draw(graphs("any", tasks=12))
    keyed = [component for component in graph.components if component.keyed]
    owners = {component.name: tuple(group % component.par for group in range(GROUPS)) for component in keyed}
    waiting: dict[GroupId, Regrouping] = {
        (component.name, group): Regrouping(data.draw(st.integers(0, component.par - 1)), Cause(PERSON))
        for component in keyed for group in range(GROUPS) if data.draw(st.booleans())}
    sizes = {group: data.draw(SIZES) for group in waiting}
    config = {HANDOVER_BATCH.key: most, HANDOVER_MB.key: most_mb}
    while waiting:
        batch = group_batch(graph, owners, waiting, BatchLimits.of(config), sizes)
        moved = [(name, group) for (name, _, _), groups in batch.items() for group in groups]
        assert moved and waiting.keys() >= set(moved) and len(set(moved)) == len(moved)
        for (name, old, new), groups in batch.items():
            assert all(owners[name][group] == old and waiting[name, group].owner == new for group in groups)
        assert not most or len(batch) <= most, "from one task to another counts as one"
        assert not most_mb or len(moved) == 1 or sum(sizes[group] for group in moved) <= most_mb * MB
        assert not near(graph, {name for name, _ in moved})
        waiting = {group: wanted for group, wanted in waiting.items() if group not in moved}


def test_one_that_is_too_large_moves_alone() -> None:
    limits = BatchLimits(3, 10)
    assert [limits.admit(size) for size in (11, 1, 0)] == [True, False, False]
    limits = BatchLimits(3, 10)
    assert [limits.admit(size) for size in (9, 11, 2, 1, 0, 0)] == [True, False, False, True, True, False]
