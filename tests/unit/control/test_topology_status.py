"""The transition table: every legal change of status happens, every other one is refused."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from story import Story, graph

from millrace.control.events import (
    BatchesEnded,
    Event,
    Killed,
    Paused,
    Submitted,
    Ticked,
    Unpaused,
)
from millrace.control.topology_state import TopologyState
from millrace.control.topology_status import (
    ENDED,
    OF_BATCHED,
    OF_RESIDENT,
    PAUSED,
    RUNNING,
    STARTING,
    STOPPING,
    WAITING,
    check_transition,
)
from millrace.errors import IllegalTransition

STATUSES = (WAITING, STARTING, RUNNING, PAUSED, STOPPING, ENDED)

# Written out apart from the table in the code: a change of either must be made twice.
RESIDENT = {
    (WAITING, WAITING), (WAITING, STARTING), (WAITING, ENDED),
    (STARTING, STARTING), (STARTING, RUNNING), (STARTING, PAUSED), (STARTING, WAITING), (STARTING, STOPPING),
    (RUNNING, RUNNING), (RUNNING, PAUSED), (RUNNING, STARTING), (RUNNING, WAITING), (RUNNING, STOPPING),
    (PAUSED, PAUSED), (PAUSED, RUNNING), (PAUSED, STARTING), (PAUSED, WAITING), (PAUSED, STOPPING),
    (STOPPING, STOPPING), (STOPPING, ENDED),
}
BATCHED = {
    (WAITING, WAITING), (WAITING, RUNNING), (WAITING, PAUSED), (WAITING, ENDED),
    (RUNNING, RUNNING), (RUNNING, PAUSED), (RUNNING, WAITING), (RUNNING, STOPPING), (RUNNING, ENDED),
    (PAUSED, PAUSED), (PAUSED, RUNNING), (PAUSED, WAITING), (PAUSED, STOPPING), (PAUSED, ENDED),
    (STOPPING, STOPPING), (STOPPING, ENDED),
}
PAIRS = [(old, new, batched) for batched in (False, True) for old in STATUSES for new in STATUSES]
LEGAL = [(old, new, batched) for old, new, batched in PAIRS if (old, new) in (BATCHED if batched else RESIDENT)]
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


def topology(status: str, batched: bool) -> TopologyState:
    state = TopologyState(1, replace(graph(), batched=batched))
    state._status = status
    return state


@pytest.mark.parametrize(("old", "new", "batched"), LEGAL)
def test_a_legal_transition_is_made(old: str, new: str, batched: bool) -> None:
    state = topology(old, batched)
    state.become(new)
    assert state.status == new


@pytest.mark.parametrize(("old", "new", "batched"), ILLEGAL)
def test_an_illegal_transition_is_refused_and_changes_nothing(old: str, new: str, batched: bool) -> None:
    state = topology(old, batched)
    with pytest.raises(IllegalTransition, match=f"topology 'words', .* cannot go from '{old}' to '{new}'"):
        state.become(new)
    assert state.status == old


def test_the_error_lists_the_legal_transitions() -> None:
    with pytest.raises(IllegalTransition) as refused:
        check_transition("words", STOPPING, RUNNING, batched=False)
    assert str(refused.value) == ("topology 'words', which runs on resident workers, cannot go from 'stopping' to 'running'; "
                                  "from 'stopping' it can go to ended, stopping")
    with pytest.raises(IllegalTransition, match=r"which runs in batches, .* it can go to no other status"):
        check_transition("words", ENDED, WAITING, batched=True)


def test_the_status_cannot_be_assigned() -> None:
    with pytest.raises(AttributeError):
        topology(WAITING, False).status = RUNNING  # type: ignore[misc]


def test_an_ended_topology_keeps_its_last_status() -> None:
    story = Story(workers=1).running()
    state = story.state.topologies["words"]
    story.on(Killed("words", 0, now=0.0))
    story.on(Ticked(0.0))
    assert state.status == ENDED and story.state.topologies == {}


def transitions(seed: int, batched: bool) -> set[tuple[str, str]]:
    """Run worker and user events in random order, and return the transitions made."""
    rng, story, now, made = random.Random(seed), Story(), 0.0, set()
    submitted = replace(graph(), batched=batched)
    for _ in range(200):
        now += 1.0
        topology = story.state.topologies.get("words")
        old = topology.status if topology is not None else ""
        free, busy = {0, 1, 2} - story.state.workers.keys(), sorted(story.state.workers)
        step = rng.choice(["join", "lose", "report", "event", "event"])
        if step == "join" and free:
            story.join(min(free))
        elif step == "lose" and busy:
            story.lose(rng.choice(busy))
        elif step == "report":
            story.report_all()
        elif step == "event" and topology is None:
            story.on(Submitted(submitted))
        elif step == "event":
            events: list[Event] = [Ticked(now), Killed("words", 3.0, now)]
            if old != STOPPING:  # refused with a message of its own
                events += [Paused("words"), Unpaused("words")]
            if batched:
                events.append(BatchesEnded("words", "over"))
            story.on(rng.choice(events))
        if topology is not None:
            made.add((old, topology.status))
    return made


@pytest.mark.parametrize(("batched", "legal"), [(False, RESIDENT), (True, BATCHED)])
def test_events_in_any_order_make_all_legal_transitions_and_no_other(batched: bool, legal: set[tuple[str, str]]) -> None:
    made = set().union(*(transitions(seed, batched) for seed in range(40)))
    of_waves = {(RUNNING, STARTING), (PAUSED, STARTING)} if not batched else set()  # a roll-back, tested in test_waves
    assert made == legal - of_waves


def test_the_tables_name_every_status() -> None:
    assert set(OF_RESIDENT) == set(STATUSES) and set(OF_BATCHED) == set(STATUSES) - {STARTING}
