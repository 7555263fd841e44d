"""A fault of a worker at each message of a hand-over of a task or of key groups: the worker with the old incarnation or owner,
with the new one, with a sender or with a receiver dies, stands still, or gets no plans because its agent does not work."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.testing.local_cluster import LocalCluster
from support.cluster import watched_moves as watched
from support.cluster import wave_parts as parts
from support.cluster.watched_moves import DOWNSTREAM, GROUPS, LANE, NEW, OLD, ROLES, TASK, UPSTREAM, Short, ShortAtLeast

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LIMIT = 600
MESSAGES = {TASK: (watched.ARMED, watched.MOVE, watched.STATE, watched.END, watched.START, watched.TAKEN)}
MESSAGES[GROUPS] = (*MESSAGES[TASK], LANE)
STEPS = [(what, message) for what in MESSAGES for message in MESSAGES[what]]
KILLED, STILL, STILL_TOO_LONG = "killed", "still", "still too long"
AGENT_STOPPED, AGENT_KILLED = "agent stopped", "agent killed"
NEIGHBOURS = {OLD: UPSTREAM, NEW: DOWNSTREAM, UPSTREAM: NEW, DOWNSTREAM: OLD}  # the worker that is the agent of both


def suffer(cluster: LocalCluster, fault: str, slot: int, agent: int, release: Any) -> None:
    """Let the fault begin, then the messages that are on their way arrive, then the fault end."""
    killed, still, deaf = {KILLED: ({slot}, set(), set()), AGENT_KILLED: ({agent}, set(), {slot}),
                           AGENT_STOPPED: (set(), {agent}, {slot})}.get(fault, (set(), {slot}, set()))
    cluster.holding |= still
    cluster.deaf |= deaf
    for victim in killed:
        cluster.kill(victim)
    release()
    cluster.run(8.0 if fault == STILL_TOO_LONG else 0.3)
    cluster.holding -= still
    for victim in killed:
        cluster.start(victim)
    for victim in deaf:
        cluster.hear(victim)


def check(topology: Any, what: str, message: str, role: str, fault: str) -> None:
    parts.forget()
    move = watched.WatchedMove(topology, what, LIMIT)
    move.move()
    move.until_message(message)
    suffer(move.cluster, fault, move.slots[role], move.slots[NEIGHBOURS[role]], move.release)
    move.cluster.run_until(lambda: move.at_rest)
    move.end()
    if fault == STILL:
        assert move.state.epoch == move.epoch, move.cluster.said


@pytest.mark.parametrize(("what", "message"), STEPS)
@pytest.mark.parametrize("fault", [KILLED, STILL])
def test_a_worker_fails_at_a_message(what: str, message: str, fault: str) -> None:
    for role in ROLES:
        check(Short, what, message, role, fault)


@pytest.mark.parametrize("what", [TASK, GROUPS])
@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize("fault", [STILL_TOO_LONG, AGENT_STOPPED, AGENT_KILLED])
def test_a_worker_or_an_agent_fails_for_long(what: str, topology: Any, fault: str) -> None:
    for message, role in ((watched.MOVE, OLD), (watched.STATE, UPSTREAM)):
        check(topology, what, message, role, fault)


@pytest.mark.slow
@pytest.mark.parametrize("topology", [Short, ShortAtLeast])
@pytest.mark.parametrize(("what", "message"), STEPS)
@pytest.mark.parametrize("fault", [KILLED, STILL, STILL_TOO_LONG, AGENT_STOPPED, AGENT_KILLED])
def test_every_fault_at_every_message(topology: Any, what: str, message: str, fault: str) -> None:
    for role in ROLES:
        check(topology, what, message, role, fault)
