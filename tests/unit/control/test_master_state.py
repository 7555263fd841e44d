"""The master's decisions: events in, commands out, compared as values."""

from __future__ import annotations

from dataclasses import replace

import pytest
from story import COUNT0, COUNT1, LINES, TOP0, TOP1, Story, address, distribute, graph, joined, last, said

from millrace.control.assignment import Assignment, Place, TopologyAssignment
from millrace.control.events import (
    Command,
    Ended,
    Event,
    Killed,
    Paused,
    Say,
    Submitted,
    Ticked,
    Unpaused,
    WorkerLost,
    WorkerReported,
)
from millrace.control.moves import PERSON
from millrace.control.submission import ackers_for
from millrace.errors import TopologyError, UnknownTopology
from millrace.model.graph import ACKER, TaskId
from millrace.model.plan import initial_key_groups

# ---- start ----


def test_a_joining_worker_receives_the_list_of_workers() -> None:
    story = Story()
    assert story.on(joined(0, 1)) == [Say("worker 0 joined on host"),
                                      distribute(Assignment(1, [address(0, 1)], generations=[(1, 1)]))]
    assert story.on(joined(1, 2)) == [Say("worker 1 joined on host"),
                                      distribute(Assignment(2, [address(0, 1), address(1, 2)], generations=[(1, 2)]))]


def test_a_topology_is_placed_when_it_is_submitted_and_its_spouts_wait() -> None:
    story = Story(workers=2)
    assert story.on(Submitted(graph())) == [
        Say("submitted with 5 tasks", "words", cause=PERSON),
        Say("lines[0], count[0], count[1], top[0], top[1] placed on workers 0, 1", "words",
            tasks=(LINES, COUNT0, COUNT1, TOP0, TOP1)),
        distribute(Assignment(3, [address(0, 1), address(1, 2)], [TopologyAssignment(
            number=1, graph=graph(), version=1, active=False,
            places=[(COUNT0, Place(1, 1)), (COUNT1, Place(0, 1)), (LINES, Place(0, 1)), (TOP0, Place(1, 1)),
                    (TOP1, Place(0, 1))],
            key_groups={"count": initial_key_groups(128, 2)}, positions=[], losses=0)], [(1, 1)],
            generations=[(1, 2)]))]
    assert story.status() == "starting"


def test_spouts_start_when_every_worker_has_carried_out_the_plan() -> None:
    story = Story(workers=2)
    story.on(Submitted(graph()))
    assert story.report(0) == []
    assert story.report(0) == []
    assert story.report(1, revision=2) == [], "that was the plan before"
    assert story.status() == "starting"
    commands = story.report(1)
    assert said(commands) == ["all 5 tasks are up"]
    assert last(commands).topologies[0].active
    assert story.status() == "running"


def test_a_worker_that_joins_during_the_start_is_waited_for_too() -> None:
    story = Story(workers=1)
    story.on(Submitted(graph()))
    story.join(1)
    story.report(0)
    assert story.status() == "starting"
    story.report(1)
    assert story.status() == "running"


def test_a_topology_without_workers_waits_and_says_so() -> None:
    story = Story()
    commands = story.on(Submitted(graph()))
    assert commands[1] == Say("waits: cannot place 5 tasks (5 of 'words'): at least 1 slot is needed, and none of the "
                              "cluster's 0 nodes has a live one. Start workers, or wait for them", "words", "warning")
    assert story.status() == "waiting"
    assert last(commands).topologies[0].places == []
    story.join(0)
    assert story.status() == "starting"
    story.report(0)
    assert story.status() == "running"


def test_the_number_of_ackers_is_that_of_the_workers_unless_the_config_says_otherwise() -> None:
    assert ackers_for(graph(), 4) == 0
    tracked = graph(**{"topology.guarantee": "at-least-once"})
    assert ackers_for(tracked, 4) == 4
    assert ackers_for(tracked, 1000) == 5, "one for each task"
    assert ackers_for(replace(tracked, config={**tracked.config, "topology.workers": 3}), 1000) == 3
    assert ackers_for(replace(tracked, config={"topology.acker.executors": 7}), 4) == 7
    assert ackers_for(replace(tracked, config={"topology.acker.executors": 0}), 4) == 0


def test_a_name_can_be_used_once_at_a_time() -> None:
    story = Story(workers=1).running()
    with pytest.raises(TopologyError, match="'words' is running already: kill it first"):
        story.on(Submitted(graph()))
    story.on(Killed("words", 0, now=0))
    story.on(Ticked(0))
    story.on(Submitted(graph()))
    assert story.state.topologies["words"].number == 2, "a number is never used again"


@pytest.mark.parametrize("event", [Paused("wrods"), Unpaused("wrods"), Killed("wrods", 1, now=0)])
def test_an_unknown_name_is_an_error_that_lists_those_that_run(event: Event) -> None:
    story = Story(workers=1).running(graph("words"), graph("other"))
    with pytest.raises(UnknownTopology, match="no topology named 'wrods' is running; running: other, words"):
        story.on(event)


@pytest.mark.parametrize("setting", [
    "topology.channel.window", "topology.message.timeout.secs", "topology.chunk.tuples",
    "topology.tick.tuple.freq.secs", "topology.max.spout.pending"])
def test_a_setting_that_no_worker_could_use_is_refused_at_once(setting: str) -> None:
    story = Story(workers=1)
    with pytest.raises(TopologyError, match=setting):
        story.on(Submitted(graph(**{setting: -1})))
    assert story.state.topologies == {}


def test_a_components_own_settings_are_checked_as_well() -> None:
    wrong = graph()
    wrong = replace(wrong, components=(*wrong.components[:2], replace(
        wrong.components[2], config={"topology.tick.tuple.freq.secs": "often"})))
    with pytest.raises(TopologyError, match=r"topology\.tick\.tuple\.freq\.secs"):
        Story(workers=1).on(Submitted(wrong))


# ---- workers come and go ----


def test_only_the_tasks_of_a_lost_worker_are_placed_anew() -> None:
    story = Story(workers=2).running()
    before = story.places()
    commands = story.lose(1)
    assert said(commands) == ["worker 1 lost: died", "count[0], top[0] placed on worker 0"]
    assert story.places() == {**before, COUNT0: Place(0, 2), TOP0: Place(0, 2)}
    assert [last(commands).topologies[0].version, last(commands).topologies[0].losses] == [2, 1]
    assert last(commands).workers == [address(0, 1)]
    assert story.status() == "running", "what is left runs on"


def test_a_topology_that_had_nothing_on_the_lost_worker_stays_as_it_is() -> None:
    story = Story(workers=1).running()
    story.join(1)
    before = story.places()
    commands = story.lose(1)
    assert said(commands) == ["worker 1 lost: died"]
    assert story.places() == before
    assert last(commands).topologies[0].version == 1


def test_two_workers_lost_at_once_leave_everything_on_the_third() -> None:
    story = Story(workers=3).running()
    kept = {task: place for task, place in story.places().items() if place.slot == 2}
    story.lose(0)
    story.lose(1)
    places = story.places()
    assert {place.slot for place in places.values()} == {2}
    assert kept.items() <= places.items(), "those that were there already are the same incarnation"
    assert all(places[task].incarnation > 1 for task in places if task not in kept)


def test_the_last_worker_lost_makes_it_wait_and_the_first_to_come_back_starts_it() -> None:
    story = Story(workers=1).running()
    commands = story.lose(0)
    assert story.status() == "waiting"
    assert "waits: cannot place 5 tasks" in said(commands)[1]
    assert not last(commands).topologies[0].active
    commands = story.join(0)
    assert story.status() == "starting"
    assert not last(commands).topologies[0].active
    assert set(story.places().values()) == {Place(0, 2)}, "every task is a new incarnation"
    story.report(0)
    assert story.status() == "running"


def test_messages_of_an_older_generation_are_ignored() -> None:
    story = Story(workers=2).running()
    story.lose(1)
    story.join(1)
    before = story.state.assignment()
    assert story.on(WorkerLost(1, 2, "late news")) == []
    assert story.on(WorkerReported(1, 2, 99, ((1, 0),), ((1, 1 << 16, 12345),))) == []
    assert story.on(WorkerLost(7, 1, "never heard of")) == []
    assert story.state.assignment() == before


def test_a_report_of_an_older_generation_does_not_start_the_spouts() -> None:
    story = Story(workers=1)
    story.on(Submitted(graph()))
    story.join(0)  # started again
    story.on(WorkerReported(0, 1, story.state.revision, ()))
    assert story.status() == "starting"


def test_a_slot_started_again_before_its_loss_was_noticed_counts_as_lost_and_joined() -> None:
    story = Story(workers=2).running()
    before = story.places()
    commands = story.join(1)
    assert said(commands) == ["worker 1 lost: it was restarted", "count[0], top[0] placed on worker 0",
                              "worker 1 joined on host", "worker 1 is back: count[0], top[0] moved there"]
    assert last(commands).topologies[0].losses == 1
    assert last(commands).workers == [address(0, 1), address(1, 3)]
    assert story.places() == {**before, COUNT0: Place(0, 2), TOP0: Place(0, 2)}
    assert [(move.task, move.new) for move in last(commands).topologies[0].moves] == [(COUNT0, Place(1, 3))], \
        "top follows when its upstream has moved"


@pytest.mark.parametrize("movable", [False, True])
def test_a_slot_that_comes_back_gets_its_tasks_that_can_be_moved(movable: bool) -> None:
    plain = graph(**{"topology.guarantee": "at-least-once", "topology.acker.executors": 2})
    tracked = replace(plain, components=(replace(plain.components[0], movable=movable), *plain.components[1:]))
    story = Story(workers=2).running(tracked)
    displaced = story.on_slot(0)
    assert {LINES, TaskId(ACKER, 1)} <= displaced
    story.lose(0)
    moved = story.places()
    commands = story.join(0)
    assert story.places() == {**moved, TaskId(ACKER, 1): Place(0, 3)}, "the others are handed over"
    handover = story.state.topologies["words"].handover
    assert {moving.task for moving in handover.batch} | handover.waiting.keys() == {
        task for task in displaced if task.component in ("count", "top") or (movable and task == LINES)}
    assert last(commands).topologies[0].version == 4


def test_a_slot_that_comes_back_leaves_others_alone() -> None:
    story = Story(workers=3).running()
    story.lose(1)
    before = story.places()
    commands = story.join(7)
    assert story.places() == before, "slot 7 is new: nothing ever had its home there"
    assert last(commands).topologies[0].version == 2


def test_a_topology_that_is_ending_is_not_moved() -> None:
    story = Story(workers=2).running()
    story.lose(1)
    story.on(Killed("words", 10, now=0))
    before = story.places()
    story.join(1)
    assert story.places() == before


def test_versions_and_revisions_only_rise() -> None:
    story = Story(workers=2).running()
    versions, revisions = [], []
    for event in [lambda: story.lose(0), lambda: story.join(0), lambda: story.lose(1), lambda: story.lose(0),
                  lambda: story.join(1), lambda: story.join(0)]:
        assignment = last(event())
        versions.append(assignment.topologies[0].version)
        revisions.append(assignment.revision)
    assert versions == sorted(versions)
    assert revisions == sorted(set(revisions))


def test_an_incarnation_is_never_used_twice_for_a_task() -> None:
    story = Story(workers=2).running()
    seen: dict[TaskId, list[Place]] = {task: [place] for task, place in story.places().items()}
    for event in [lambda: story.lose(0), lambda: story.lose(1), lambda: story.join(0), lambda: story.join(1),
                  lambda: story.lose(0), lambda: story.join(0)]:
        event()
        for task, place in story.places().items():
            if seen[task][-1] != place:
                seen[task].append(place)
    for task, places in seen.items():
        numbers = [place.incarnation for place in places]
        assert numbers == sorted(set(numbers)), f"{task}: {places}"


# ---- pause, unpause, kill ----


def test_pause_stops_the_spouts_and_unpause_starts_them() -> None:
    story = Story(workers=1).running()
    commands = story.on(Paused("words"))
    assert said(commands) == ["paused"]
    assert not last(commands).topologies[0].active
    commands = story.on(Unpaused("words"))
    assert said(commands) == ["unpaused"]
    assert last(commands).topologies[0].active


def test_a_pause_before_the_start_is_kept_until_then() -> None:
    story = Story()
    story.on(Submitted(graph()))
    assert story.on(Paused("words")) == [Say("will be paused", "words", cause=PERSON)]
    story.join(0)
    story.report(0)
    assert story.status() == "paused"
    story.on(Unpaused("words"))
    assert story.status() == "running"


def test_a_paused_topology_stays_paused_through_the_loss_of_every_worker() -> None:
    story = Story(workers=1).running()
    story.on(Paused("words"))
    story.lose(0)
    story.join(0)
    story.report(0)
    assert story.status() == "paused"


def test_a_paused_topology_is_drained_when_all_workers_say_twice_that_nothing_is_in_flight() -> None:
    story = Story(workers=2).running()
    story.on(Paused("words"))
    topology = story.state.topologies["words"]
    for in_flight, drained in [(0, False), (3, False), (0, False), (0, True), (1, False)]:
        story.report_all(in_flight)
        assert story.state.drained(topology) == drained


def test_kill_lets_what_is_in_flight_finish() -> None:
    story = Story(workers=2).running()
    commands = story.on(Killed("words", 10, now=100))
    assert said(commands) == ["spouts stop; up to 10 s for tuples in flight"]
    assert not last(commands).topologies[0].active
    assert story.report(0) == story.report(0) == story.report(1, in_flight=5) == story.report(1) == []
    assert story.report(1) == [Say("drained", "words"), distribute(
        Assignment(5 + 1, [address(0, 1), address(1, 2)], generations=[(1, 2)])), Ended("words")]


def test_reports_from_before_the_kill_do_not_count() -> None:
    story = Story(workers=1).running()
    before = story.state.revision
    story.on(Killed("words", 10, now=100))
    for _ in range(5):
        assert story.report(0, revision=before) == []


def test_kill_ends_after_its_time_whatever_is_in_flight() -> None:
    story = Story(workers=1).running()
    story.on(Killed("words", 10, now=100))
    story.report(0, in_flight=5)
    assert story.on(Ticked(109.9)) == []
    commands = story.on(Ticked(110))
    assert [said(commands), commands[-1]] == [["killed"], Ended("words")]
    assert last(commands).topologies == []


def test_a_second_kill_may_shorten_the_wait() -> None:
    story = Story(workers=1).running()
    story.on(Killed("words", 1000, now=100))
    story.on(Killed("words", 1, now=100))
    assert story.on(Ticked(101))[-1] == Ended("words")


def test_a_topology_that_waits_is_killed_at_once() -> None:
    story = Story()
    story.on(Submitted(graph()))
    assert story.on(Killed("words", 10, now=100)) == [
        Say("killed before it had a slot", "words"), distribute(Assignment(2), node=None), Ended("words")]


def test_a_topology_that_has_lost_every_worker_is_killed_at_once() -> None:
    story = Story(workers=1).running()
    story.lose(0)
    commands = story.on(Killed("words", 10, now=100))
    assert [said(commands), commands[-1]] == [["killed"], Ended("words")]


def test_a_topology_with_waves_that_has_lost_every_worker_is_killed_as_of_its_last_wave() -> None:
    story = Story(workers=1)
    story.on(Submitted(graph(**{"topology.guarantee": "exactly-once"})))
    story.lose(0)
    assert story.status() == "waiting"
    commands = story.on(Killed("words", 10, now=100))
    text = "killed as of wave 0: input after it is not committed; --resume continues from there"
    assert said(commands) == [text]
    assert commands[-1] == Ended("words", text)


def test_a_topology_that_loses_every_worker_while_it_ends_is_ended_by_its_deadline() -> None:
    story = Story(workers=1).running()
    story.on(Killed("words", 10, now=100))
    story.lose(0)
    assert story.status() == "stopping"
    assert story.on(Ticked(110))[-1] == Ended("words")


def test_a_worker_lost_while_the_topology_ends_is_not_waited_for() -> None:
    story = Story(workers=2).running()
    story.on(Killed("words", 1000, now=100))
    story.lose(1)
    assert story.report(0) == []
    assert story.report(0)[-1] == Ended("words")


@pytest.mark.parametrize("event", [Paused("words"), Unpaused("words")])
def test_a_topology_that_is_being_killed_can_be_neither_paused_nor_unpaused(event: Event) -> None:
    story = Story(workers=1).running()
    story.on(Killed("words", 10, now=0))
    with pytest.raises(TopologyError, match="is being killed"):
        story.on(event)


# ---- several topologies, positions ----


def test_topologies_share_the_slots_evenly_and_die_alone() -> None:
    story = Story(workers=2).running(graph("one"), graph("two"))
    tasks = [place.slot for name in ("one", "two") for place in story.places(name).values()]
    assert sorted([tasks.count(0), tasks.count(1)]) == [5, 5]
    before = story.places("two")
    story.on(Killed("one", 0, now=0))
    commands = story.on(Ticked(0))
    assert [topology.graph.name for topology in last(commands).topologies] == ["two"]
    assert (story.places("two"), story.status("two")) == (before, "running")


def test_a_lost_worker_concerns_every_topology_that_was_on_it() -> None:
    story = Story(workers=2).running(graph("one"), graph("two"))
    commands = story.lose(0)
    assert [topology.version for topology in last(commands).topologies] == [2, 2]
    assert {place.slot for name in ("one", "two") for place in story.places(name).values()} == {1}


def test_one_topology_paused_leaves_the_other_running() -> None:
    story = Story(workers=1).running(graph("one"), graph("two"))
    commands = story.on(Paused("one"))
    active = {topology.graph.name: topology.active for topology in last(commands).topologies}
    assert active == {"one": False, "two": True}


def test_positions_only_rise_and_come_with_the_next_plan() -> None:
    story = Story(workers=2).running()
    number = graph().number(LINES)
    for position in (5, 90, 7):
        story.report(0, positions=((1, number, position), (99, number, 1000)))
    assert last(story.lose(0)).topologies[0].positions == [(LINES, 90)]


def test_the_same_events_give_the_same_commands() -> None:
    def play() -> list[list[Command]]:
        story = Story(workers=3)
        return [story.on(Submitted(graph())), story.report_all(), story.lose(2), story.join(2), story.report_all(),
                story.on(Paused("words")), story.on(Killed("words", 5, now=1)), story.report_all(), story.on(Ticked(9))]

    assert play() == play()
