"""Messages that a step of a migration needs are lost or late: requests and acks of waves, plans, state and marks of hand-overs,
the answers about them, and the request to a worker to end and its answer."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from support.cluster import watched_moves as watched
from support.cluster import wave_parts as parts
from support.migrations.runs import PLAN, ROLES, MigrationRun, Moved, MovedAtLeast, each_step, mainly, messages_of, steps_for

pytestmark = pytest.mark.usefixtures("fresh_wave_parts")
LOST = 2  # messages of a kind
EACH_MESSAGE = [(strategy, step, message) for strategy, step in each_step(Moved)
                for message in messages_of(steps_for(strategy)[step])]


def lose(run: MigrationRun, kind: Any) -> list[Any]:
    """Let the next messages of this kind be lost. Returns the list of them."""
    lost: list[Any] = []

    def chosen(found: bool, message: Any) -> bool:
        if found and len(lost) < LOST:
            lost.append(message)
            return True
        return False

    if isinstance(kind, str):
        run.cluster.drop = lambda sender, receiver, frames: chosen(watched.kind_of(frames) == kind, frames)
    else:
        run.cluster.lose = lambda message: chosen(isinstance(message, kind), message)
    return lost


def check(topology: Any, strategy: str, step: int, message: Any) -> None:
    run = MigrationRun(strategy, topology)
    if step:
        run.until_step(step - 1)
    lost = lose(run, message)
    if not step:
        run.begin()
    run.settle()
    assert lost
    run.end()


def check_late(topology: Any, strategy: str, step: int, slot: int) -> None:
    run = MigrationRun(strategy, topology)
    run.until_step(step)
    run.cluster.deaf.add(slot)
    run.cluster.run(0.5)
    run.cluster.deaf.discard(slot)
    if slot in run.cluster.workers:
        run.cluster.hear(slot)
    run.settle()
    run.end()


@pytest.mark.parametrize(("strategy", "step", "message"), mainly(EACH_MESSAGE))
def test_lost(strategy: str, step: int, message: Any) -> None:
    if message == PLAN:
        check_late(Moved, strategy, step, ROLES["giver"])
    else:
        check(Moved, strategy, step, message)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "step", "message"), mainly([each for each in EACH_MESSAGE if each[0] != "ccr"]))
def test_lost_at_least_once(strategy: str, step: int, message: Any) -> None:
    if message == PLAN:
        check_late(MovedAtLeast, strategy, step, ROLES["taker"])
    else:
        check(MovedAtLeast, strategy, step, message)


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("topology", [Moved, MovedAtLeast])
def test_a_worker_learns_of_the_plans_late(topology: Any, role: str) -> None:
    for strategy, step in each_step(topology):
        parts.forget()
        check_late(topology, strategy, step, ROLES[role])


@pytest.mark.parametrize("strategy", sorted({strategy for strategy, _ in each_step(Moved)}))
def test_every_message_between_workers_is_late(strategy: str) -> None:
    """Messages of each pair of workers stay in order, but pairs do not wait for each other."""
    run = MigrationRun(strategy)
    cluster, post = run.cluster, run.cluster.post
    late: deque[tuple[float, Any, list[bytes]]] = deque()

    def delayed(sender: int, address: Any, frames: list[bytes]) -> None:
        late.append((cluster.clock.now() + 0.003 * (1 + (3 * sender + address.slot) % 7), (sender, address), frames))

    cluster.post = delayed  # type: ignore[method-assign]
    run.begin()
    for _ in range(3000):
        for message in sorted(late, key=lambda message: message[0]):
            if message[0] <= cluster.clock.now():
                late.remove(message)
                post(*message[1], message[2])
        cluster.step()
        if run.migration is None:
            break
    cluster.post = post  # type: ignore[method-assign]
    for _, (sender, address), frames in late:
        post(sender, address, frames)
    assert run.settle()["outcome"] == "done"
    run.end()
