"""Wording of tasks, workers, task counts and names in messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence

from millrace.model.graph import TaskId

NAMED = 6  # longer lists of tasks are given as a count
SHOWN = 5  # names at the head of a longer list


def counts_named(par: Mapping[str, int]) -> str:
    return ", ".join(f"{tasks} {'task' if tasks == 1 else 'tasks'} of {name}" for name, tasks in sorted(par.items()))


def tasks_named(tasks: Sequence[TaskId]) -> str:
    return ", ".join(map(str, tasks)) if len(tasks) <= NAMED else f"{len(tasks)} tasks"


def tasks_listed(tasks: Iterable[TaskId]) -> str:
    """All tasks from the first to the last of each component: count[0..7], lines[0..1]."""
    last: dict[str, int] = {}
    for task in tasks:
        last[task.component] = max(task.index, last.get(task.component, 0))
    return ", ".join(f"{component}[0..{index}]" for component, index in sorted(last.items())) or "none"


def groups_named(groups: Iterable[tuple[str, int]], splits: Container[str]) -> str:
    """Counts of key groups by component. `groups`: component and key group. `splits`: the spouts, whose key groups are called
    splits."""
    counts = Counter(component for component, _ in groups)
    return ", ".join(f"{count} {parts_word([name], splits, count)} of {name}" for name, count in sorted(counts.items()))


def parts_word(components: Iterable[str], splits: Container[str], count: int = 2) -> str:
    """The word for what tasks of these components own: bolts have key groups, and spouts splits."""
    kinds = {name in splits for name in components}
    words = [*(["key group"] if False in kinds else []), *(["split"] if True in kinds else [])]
    return " and ".join(f"{word}{'' if count == 1 else 's'}" for word in words)


def shown(names: Iterable[str]) -> str:
    """The names in order; of a long list the first ones, and how many more there are."""
    ordered = sorted(names)
    return ", ".join(ordered[:SHOWN]) + (f" and {len(ordered) - SHOWN} more" if len(ordered) > SHOWN else "")


def workers_named(slots: Iterable[int]) -> str:
    numbers = sorted(set(slots))
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(map(str, numbers))}"
