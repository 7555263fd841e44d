"""Calls that do not return: told once, shown while they last, and the end of their worker if a limit is set."""

from __future__ import annotations

from story import COUNT0, Story, graph, said

from millrace.control.events import EndWorker, LongCallsSeen, Say, Submitted
from millrace.control.workers import LongCall

CALL = "process of count[0] of 'words' (words.py:12)"


def running(call_limit: float = 0.0) -> Story:
    story = Story(workers=2)
    story.state.call_limit = call_limit
    story.on(Submitted(graph()))
    return story


def seen(*calls: LongCall, generation: int = 1) -> LongCallsSeen:
    return LongCallsSeen(0, generation, calls)


def test_a_call_is_told_once_when_it_has_taken_ten_seconds() -> None:
    story = running()
    assert story.on(seen(LongCall(CALL, 9.0))) == []
    assert said(story.on(seen(LongCall(CALL, 12.0)))) == [f"worker 0: {CALL} has not returned for 12 s"]
    assert story.on(seen(LongCall(CALL, 13.0))) == []
    assert story.state.workers[0].warnings() == [LongCall(CALL, 13.0)]
    story.on(seen())
    assert story.state.workers[0].warnings() == []
    [event] = story.on(seen(LongCall(CALL, 10.0, task=COUNT0)))
    assert isinstance(event, Say) and event.tasks == (COUNT0,), "another call, another warning"


def test_without_a_limit_it_may_take_any_time() -> None:
    story = running()
    story.on(seen(LongCall(CALL, 1e6)))
    assert 0 in story.state.workers


def test_beyond_the_limit_the_worker_ends_and_its_tasks_move() -> None:
    story = running(call_limit=30.0)
    story.on(seen(LongCall(CALL, 30.0)))
    assert 0 in story.state.workers
    commands = story.on(seen(LongCall(CALL, 31.0)))
    reason = f"{CALL} has not returned for 31 s, longer than worker.call.limit.secs = 30"
    assert commands[0] == EndWorker(0, reason)
    assert said(commands)[0] == f"worker 0 lost: {reason}"
    assert {place.slot for place in story.state.topologies["words"].places.values()} == {1}


def test_the_limit_is_not_for_calls_of_the_store() -> None:
    story = running(call_limit=30.0)
    story.on(seen(LongCall("store 0", 1000.0, of_user=False)))
    assert 0 in story.state.workers


def test_heartbeats_of_an_earlier_generation_do_not_count() -> None:
    story = running(call_limit=30.0)
    assert story.on(seen(LongCall(CALL, 1000.0), generation=7)) == []
    assert 0 in story.state.workers
