"""Wording of tasks, workers and task counts in the master's messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millrace.model.graph import TaskId

NAMED = 6  # longer lists of tasks are given as a count


def counts_named(par: Mapping[str, int]) -> str:
    return ", ".join(f"{tasks} {'task' if tasks == 1 else 'tasks'} of {name}" for name, tasks in sorted(par.items()))


def tasks_named(tasks: Sequence[TaskId]) -> str:
    return ", ".join(map(str, tasks)) if len(tasks) <= NAMED else f"{len(tasks)} tasks"


def workers_named(slots: Iterable[int]) -> str:
    numbers = sorted(set(slots))
    return f"worker {numbers[0]}" if len(numbers) == 1 else f"workers {', '.join(map(str, numbers))}"
