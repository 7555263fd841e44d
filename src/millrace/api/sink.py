"""Sinks that take part in the two-phase commit: what they write appears when a wave is committed, and only then."""

from __future__ import annotations

from millrace.api.bolt import Bolt


class TwoPhaseSink(Bolt):
    """A bolt whose output in an exactly-once topology is written in two steps.

    Between two waves it *stages* what it gets: durable or not, but not visible. The engine calls, in this order,
    `recover` once after `initialize`, and then for each wave `prepare` when the wave has come by and `commit` when all
    tasks have prepared. `exactly_once` is False in other topologies: none of the three is called there, and the sink
    writes straight away. `epoch` is that of this incarnation; where a topology runs in batches it is another one in each batch
    of the same instance, so do not keep a copy of it.

    `process` and `process_rows` stage the rows of a call wholly, or none of them if they raise: the engine then gives the
    rows again, each by itself. So encode all of them first, and stage them in one step.

    A forerunner that was cut off may still run, and stage and prepare in its own epoch, or be late with its `recover`:
    nothing of that may become visible, and nothing of a later epoch may be touched. A task that moved gets `recover`, since
    a move starts every task anew in a new epoch. Only an instance that was built anew after an exception, in the same epoch,
    gets none: it goes on with what is staged.

    A wave that was given up is never committed by its own number: the next one that is committed covers it.
    """

    def prepare(self, wave: int) -> None:
        """Make everything staged since the last call durable under this wave. Still invisible."""
        raise NotImplementedError(f"{type(self).__name__} must define prepare")

    def commit(self, wave: int) -> None:
        """Make visible what was prepared in this epoch up to this wave. May come twice."""
        raise NotImplementedError(f"{type(self).__name__} must define commit")

    def recover(self, wave: int, epoch: int) -> None:
        """The task goes on from `wave`, which was prepared in `epoch` (0, 0: from the beginning). What its forerunners
        prepared in that epoch up to that wave is to be made visible, everything else that they staged thrown away."""
        raise NotImplementedError(f"{type(self).__name__} must define recover")
