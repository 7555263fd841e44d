"""Queries of the keyed state of a running task. They come from users through the master and never disturb the task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.errors import MillraceError
from millrace.runtime.wire import messages as wire

if TYPE_CHECKING:
    from millrace.runtime.tasks.task import Task


def look_up(query: wire.Query, task: Task | None, answer: wire.Answer) -> None:
    """Fill in the answer: the value of a key, or the sizes of all states if none is named. Call it where the task's code runs.
    `task`: None if it is not here."""
    state = task.snapshots.state if task is not None and task.started else None
    if state is None:
        answer.error = "the task has moved or is being moved, or has no keyed state: ask again"
        return
    try:
        value = state.lookup(query.state, query.key) if query.state else {"keys": state.keys(), "dirty": state.dirty()}
        wire.encode(value)
    except MillraceError as error:
        answer.error = str(error)
    except KeyError:
        answer.error = f"no entry for key {query.key!r} in {query.state!r}; states: {', '.join(state.states)}"
    except (TypeError, ValueError, OverflowError) as error:
        answer.error = f"its value, a {type(value).__name__}, cannot be sent: {error}"
    else:
        answer.value, answer.found = value, True
