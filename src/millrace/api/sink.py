"""Sinks that take part in the two-phase commit: their output becomes visible when a wave is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millrace.api.bolt import Bolt


class TwoPhaseSink(Bolt):
    """A bolt whose output in an exactly-once topology is written in two steps.

    Between two waves it *stages* its rows: durable or not, but not visible. The engine calls, in this order, `recover` once
    after `initialize`, and then for each wave `prepare` when the wave arrives and `commit` when all tasks have prepared.
    `exactly_once` is False in other topologies: none of the three is called there, and the sink writes immediately. `epoch`
    belongs to this incarnation; in a topology that runs in batches it changes with each batch of the same instance, so do not
    keep a copy of it.

    `process` and `process_rows` stage all rows of a call, or none of them if they raise: the engine then passes the rows again
    one by one. So encode all of them first, and stage them in one step.

    An earlier incarnation that was cut off may still run, and stage and prepare in its own epoch, or run its `recover` late:
    none of its output may become visible, and it must not affect a later epoch. Two kinds of instances get no `recover`,
    because they continue in the same epoch with the staged rows: one that replaces another after an exception, and one that
    takes over a task that moves (`hand_over`, `take_over`).

    An abandoned wave is never committed by its own number: the next committed wave covers it.
    """

    def hand_over(self) -> Any:
        """Called on the instance of a task that moves, between two waves and as its last call but `close`. Makes everything
        staged since the last wave available to the next instance: in the store, or as the value returned, of plain types."""
        return None

    def take_over(self, staged: Any) -> None:
        """Called after `initialize`, in place of `recover`, on the instance that continues in the same epoch on another worker,
        with the value of `hand_over`. A sink that does not define it cannot be moved while it runs."""
        raise NotImplementedError(f"{type(self).__name__} must define take_over to be moved")

    def prepare(self, wave: int) -> Sequence[str] | None:
        """Makes everything staged since the last call durable under this wave, still invisible. May return tokens: names, with
        sizes or counts, of all that the commit of this wave will publish. The checkpoint keeps them for `missing`."""
        raise NotImplementedError(f"{type(self).__name__} must define prepare")

    def commit(self, wave: int) -> None:
        """Publishes the output prepared in this epoch up to this wave. May be called twice."""
        raise NotImplementedError(f"{type(self).__name__} must define commit")

    def missing(self, task: int, wave: int, epoch: int, tokens: Sequence[str]) -> Sequence[str]:
        """Called before `recover` with the tokens that `prepare` returned to the sink's task of this index. Returns those that
        are neither prepared nor published: then the task does not start."""
        return ()

    def recover(self, wave: int, epoch: int) -> None:
        """Called when the task resumes from `wave`, which was prepared in `epoch` (0, 0: from the beginning). Publishes what
        earlier incarnations prepared in that epoch up to that wave, and discards everything else that they staged. A run that
        starts fresh gets the last wave of the run that it replaces."""
        raise NotImplementedError(f"{type(self).__name__} must define recover")
