"""A requested wave begins before its time: at the next tick or, if one is under way, right after it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import Story, graph

from millrace.control.events import (
    Command,
    ManifestStored,
    SendWave,
    StoreManifest,
    Submitted,
    Ticked,
    WaveAcked,
    WaveRequested,
)
from millrace.control.waves import COMMIT, FIRST_OUTPUT_SECONDS, INIT, PREPARE, ROLLBACK, Send, Waves
from millrace.errors import TopologyError, UnknownTopology
from millrace.model.graph import TaskId, TopologyGraph
from millrace.state.checkpoint import TaskRecord

INTERVAL = 1000.0
TASK = TaskId("count", 0)


def idle() -> Waves:
    """Waves of one task that have just committed wave 1 at time 0."""
    waves = Waves(INTERVAL, 60.0)
    waves.restore([TASK], epoch=1, claim=False, now=0.0)
    waves.acked(INIT, 0, TASK, None, "", 0.0)
    waves.tick(0.0)
    commit(waves, 0.0)
    assert waves.committed == 1 and waves.tick(INTERVAL - 1) == []
    return waves


def commit(waves: Waves, now: float) -> None:
    waves.acked(PREPARE, waves.wave, TASK, None, "", now)
    waves.stored(waves.wave, "", now)
    waves.acked(COMMIT, waves.wave, TASK, None, "", now)


def returned(waves: Waves, now: float) -> None:
    """The task goes back to the last wave, in the next epoch."""
    waves.restore([TASK], epoch=2, claim=False, now=now)
    waves.acked(INIT, waves.committed, TASK, None, "", now)


def test_the_first_wave_after_a_return_waits_for_some_output() -> None:
    """Begun at once it would publish nothing, and the first new rows would be visible an interval later."""
    waves = idle()
    returned(waves, 10.0)
    assert waves.tick(10.0) == []
    assert waves.tick(10.0 + FIRST_OUTPUT_SECONDS) == [Send(PREPARE, 2, (TASK,), 2, sweep=True)]


def test_a_requested_or_last_wave_begins_at_once_after_a_return() -> None:
    for ask in (Waves.request, Waves.close):
        waves = idle()
        waves.restore([TASK], epoch=2, claim=False, now=10.0)
        ask(waves, 10.0)
        waves.acked(INIT, 1, TASK, None, "", 10.0)
        assert waves.tick(10.0) == [Send(PREPARE, 2, (TASK,), 2, sweep=True)]


def test_it_begins_with_the_next_tick() -> None:
    waves = idle()
    waves.request(5.0)
    assert waves.tick(5.0) == [Send(PREPARE, 2, (TASK,), 1, sweep=True)]


def test_the_one_after_it_waits_for_its_time() -> None:
    waves = idle()
    waves.request(5.0)
    waves.tick(5.0)
    commit(waves, 6.0)
    assert waves.tick(5.0 + INTERVAL - 1) == []
    assert waves.tick(5.0 + INTERVAL) == [Send(PREPARE, 3, (TASK,), 1, sweep=True)]


def test_while_one_is_under_way_another_follows_it() -> None:
    """The wave under way may have passed the tuples that the request is about."""
    waves = idle()
    waves.request(5.0)
    waves.tick(5.0)
    waves.request(6.0)
    commit(waves, 7.0)
    assert waves.tick(7.0) == [Send(PREPARE, 3, (TASK,), 1, sweep=True)]
    commit(waves, 8.0)
    assert waves.tick(9.0) == [], "one request, one wave"


def test_an_abandoned_wave_is_not_repeated_without_a_pause() -> None:
    """A failing store must not be retried in a tight loop."""
    waves = idle()
    waves.request(5.0)
    waves.tick(5.0)
    waves.acked(PREPARE, 2, TASK, None, "the disk is full", 6.0)
    waves.acked(ROLLBACK, 2, TASK, None, "", 6.0)
    assert waves.tick(7.0) == []


def test_a_wave_that_is_due_already_is_not_put_off() -> None:
    waves = idle()
    waves.request(5.0)
    waves.request(50.0)
    assert waves.due == 5.0


# ---- the event ----


def exact() -> TopologyGraph:
    """The usual graph, exactly once: its spout can be read again."""
    plain = graph(**{"topology.guarantee": "exactly-once", "topology.checkpoint.interval.secs": INTERVAL})
    return replace(plain, components=tuple(
        replace(component, movable=True) if component.kind == "spout" else component for component in plain.components))


def answer(story: Story, commands: list[Command]) -> None:
    """The tasks ack every wave message, and the store takes every manifest, until nothing is left to answer."""
    queue = list(commands)
    while queue:
        command = queue.pop(0)
        if isinstance(command, StoreManifest):
            manifest = command.manifest
            queue += story.on(ManifestStored(manifest.topology, manifest.epoch, manifest.wave, ""))
        elif isinstance(command, SendWave):
            state = story.state.topologies["words"]
            for task in command.send.tasks:
                record = TaskRecord(task.component, task.index) if command.send.kind == PREPARE else None
                queue += story.on(WaveAcked(command.topology, command.epoch, command.send.kind, command.send.wave,
                                            state.graph.number(task), state.places[task].incarnation, record, ""))


def test_the_event_makes_a_wave_begin_with_the_next_tick() -> None:
    story = Story(workers=1)
    answer(story, story.on(Submitted(exact())))
    story.report_all()
    answer(story, story.on(Ticked(1.0)))
    waves = story.state.topologies["words"].waves
    assert waves is not None and waves.committed == 1 and story.on(Ticked(2.0)) == []
    assert story.on(WaveRequested("words")) == []
    commands = story.on(Ticked(3.0))
    assert [command.send.wave for command in commands if isinstance(command, SendWave)] == [2]
    answer(story, commands)
    assert waves.committed == 2 and story.on(Ticked(4.0)) == []


def test_a_topology_without_waves_cannot_be_asked_for_one() -> None:
    story = Story(workers=1).running()
    with pytest.raises(TopologyError, match="'words' takes no waves"):
        story.on(WaveRequested("words"))
    with pytest.raises(UnknownTopology, match="no topology named 'wrods' is running"):
        story.on(WaveRequested("wrods"))


def abandoned(waves: Waves, at: float) -> float:
    """Begin a wave at its time and abandon it at once. Returns when the next one may begin."""
    waves.tick(at)
    waves.acked(PREPARE, waves.wave, TASK, None, "the disk is full", at)
    waves.acked(ROLLBACK, waves.wave, TASK, None, "", at)
    return waves.due


def test_pauses_between_abandoned_waves_double_up_to_a_limit_until_one_is_committed() -> None:
    waves, at, pauses = idle(), INTERVAL, []
    waves.interval = 0.1
    for _ in range(9):
        pauses.append(abandoned(waves, at) - at)
        at = waves.due
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
    waves.tick(at)
    commit(waves, at)
    assert abandoned(waves, at + 1.0) == at + 1.5


def test_the_last_wave_is_repeated_with_a_pause_too() -> None:
    waves = idle()
    waves.close(100.0)
    assert abandoned(waves, 100.0) == 100.5, "sooner than after the interval"
