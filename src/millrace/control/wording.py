"""How tasks, workers and numbers of tasks are named in what the master says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.model.graph import TaskId

NAMED = 6  # more tasks than that are counted


def counts_named(par: Mapping[str, int]) -> str:
    return ", ".join(f"{tasks} {'task' if tasks == 1 else 'tasks'} of {name}" for name, tasks in sorted(par.items()))


def tasks_named(tasks: Sequence[TaskId]) -> str:
    return ", ".join(map(str, tasks)) if len(tasks) <= NAMED else f"{len(tasks)} tasks"


def workers_named(slots: Iterable[int]) -> str:
    found = sorted(set(slots))
    return f"worker {found[0]}" if len(found) == 1 else f"workers {', '.join(map(str, found))}"
