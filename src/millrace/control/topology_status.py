"""The status of a topology and the transitions between statuses that are legal.

    resident workers                                batches
    waiting   to starting, ended                    waiting   to running, paused, ended
    starting  to running, paused, waiting, stopping
    running   to paused, starting, waiting,         running   to paused, waiting, stopping, ended
              stopping
    paused    to running, starting, waiting,        paused    to running, waiting, stopping, ended
              stopping
    stopping  to ended                              stopping  to ended

Every status but `ended` may also be set again: a topology is paused twice, killed twice, or rolls back while it starts.
Batches have no `starting`: their tasks start with the next batch, and the engine may end the topology at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.errors import IllegalTransition

WAITING, STARTING, RUNNING, PAUSED, STOPPING, ENDED = "waiting", "starting", "running", "paused", "stopping", "ended"

Transitions = Mapping[str, frozenset[str]]  # status -> statuses that may follow it

OF_RESIDENT: Transitions = {
    WAITING: frozenset({WAITING, STARTING, ENDED}),
    STARTING: frozenset({STARTING, RUNNING, PAUSED, WAITING, STOPPING}),
    RUNNING: frozenset({RUNNING, PAUSED, STARTING, WAITING, STOPPING}),
    PAUSED: frozenset({PAUSED, RUNNING, STARTING, WAITING, STOPPING}),
    STOPPING: frozenset({STOPPING, ENDED}),
    ENDED: frozenset(),
}
OF_BATCHED: Transitions = {
    WAITING: frozenset({WAITING, RUNNING, PAUSED, ENDED}),
    RUNNING: frozenset({RUNNING, PAUSED, WAITING, STOPPING, ENDED}),
    PAUSED: frozenset({PAUSED, RUNNING, WAITING, STOPPING, ENDED}),
    STOPPING: frozenset({STOPPING, ENDED}),
    ENDED: frozenset(),
}


def check_transition(topology: str, old: str, new: str, batched: bool) -> None:
    """Raise `IllegalTransition` unless the topology may go from the old status to the new one."""
    transitions = OF_BATCHED if batched else OF_RESIDENT
    if new not in transitions.get(old, frozenset()):
        kind = "runs in batches" if batched else "runs on resident workers"
        raise IllegalTransition(f"topology {topology!r}, which {kind}, cannot go from {old!r} to {new!r}; from {old!r} it can "
                                f"go to {', '.join(sorted(transitions.get(old, ()))) or 'no other status'}")
