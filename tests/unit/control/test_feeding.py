"""The records that feeders and DataFrame spouts keep of their batches."""

from __future__ import annotations

from collections.abc import Callable

from millrace.control.feeding import DONE, NEW, PENDING, FeedAddress, Intake, Key, Receivers, SendWindow, choose
from millrace.state.packing import pack_value, unpack_value

HERE = FeedAddress("ipc:///here", "tcp://10.0.0.1:1", "boot-1")
ALSO_HERE = FeedAddress("ipc:///here-too", "tcp://10.0.0.1:2", "boot-1")
ELSEWHERE = FeedAddress("ipc:///elsewhere", "tcp://10.0.0.2:1", "boot-2")
HIDDEN = FeedAddress("ipc:///hidden", "", "boot-3")


def key(batch: int = 0, sequence: int = 0, digest: int = 1, query: str = "q", partition: int = 0) -> Key:
    return Key(query, batch, partition, sequence, digest)


# -- the spout's side --


def test_a_batch_is_new_once() -> None:
    intake = Intake()
    assert intake.offer(key(), "a") == NEW
    assert intake.offer(key(), "a") == PENDING
    assert intake.offer(key(sequence=1), "a") == NEW
    assert intake.offer(key(partition=1), "a") == NEW


def test_everyone_who_sent_it_hears_of_its_end() -> None:
    intake = Intake()
    intake.offer(key(), "a")
    intake.offer(key(), "b")
    intake.offer(key(), "a")
    assert intake.done(key()) == ["a", "b"]
    assert intake.offer(key(), "c") == DONE
    assert intake.done(key()) == []


def test_other_rows_under_the_same_number_are_new() -> None:
    """Spark may compute a partition again with its rows in another order."""
    intake = Intake()
    intake.offer(key(digest=1), "a")
    intake.done(key(digest=1))
    assert intake.offer(key(digest=2), "a") == NEW


def test_only_one_micro_batch_is_remembered() -> None:
    intake = Intake()
    intake.offer(key(batch=7), "a")
    intake.done(key(batch=7))
    intake.offer(key(batch=7, sequence=1), "a")
    assert intake.offer(key(batch=8), "a") == NEW
    assert intake.done(key(batch=7, sequence=1)) == [], "nobody waits for it any more"
    assert intake.done(key(batch=8)) == ["a"]
    assert intake.offer(key(batch=7), "a") == NEW, "emitted again rather than taken for done"
    assert intake.offer(key(batch=7, query="another"), "a") == NEW


def test_a_refused_batch_may_be_retried() -> None:
    intake = Intake()
    intake.offer(key(), "a")
    assert intake.refused(key()) == ["a"]
    assert intake.offer(key(), "a") == NEW


def test_the_record_of_a_split_tells_what_is_done() -> None:
    intake, other = Intake(), Intake()
    for sequence in range(4):
        intake.offer(key(sequence=sequence, digest=1 << 63), "a")
    for sequence in (2, 0):
        intake.done(key(sequence=sequence, digest=1 << 63))
    assert other.resume(unpack_value(pack_value(intake.record()))) == []
    offered = [other.offer(key(sequence=sequence, digest=1 << 63), "b") for sequence in range(4)]
    assert offered == [DONE, NEW, DONE, NEW]
    assert other.offer(key(batch=1), "b") == NEW


def test_a_split_that_begins_anew_gives_back_what_is_not_done() -> None:
    intake = Intake()
    before = intake.record()
    intake.offer(key(), "a")
    intake.offer(key(sequence=1), "a")
    intake.offer(key(sequence=1), "b")
    intake.done(key())
    assert intake.resume(before) == [(1, "a"), (1, "b")]
    assert intake.done(key(sequence=1)) == [], "nobody waits for it any more"
    assert [intake.offer(key(sequence=sequence), "a") for sequence in range(2)] == [NEW, NEW]
    assert intake.resume(None) == [(0, "a"), (1, "a")]


# -- the feeder's side --


def test_batches_go_to_the_owner_of_their_split() -> None:
    receivers = Receivers([HERE, ELSEWHERE, HIDDEN], [0, 1, 1, 2, -1])
    assert [receivers.feed(turn, "boot-1") for turn in range(7)] == [HERE, ELSEWHERE, ELSEWHERE, None, None, HERE, ELSEWHERE]
    assert [receivers.receives(HERE.ipc, turn) for turn in range(6)] == [True, False, False, False, False, True]
    assert not receivers.receives("", 0)


def test_without_splits_any_task_receives() -> None:
    receivers = Receivers([HERE, ALSO_HERE])
    assert [receivers.feed(turn, "boot-1") for turn in range(3)] == [HERE, ALSO_HERE, HERE]
    assert receivers.receives(ALSO_HERE.ipc, 0) and not receivers.receives(ELSEWHERE.ipc, 0)


def test_a_batch_that_is_given_back_waits_for_news() -> None:
    outbox = filled("a", "b")
    send_all(outbox, HERE, at=1.0)
    outbox.give_back(0, ELSEWHERE.ipc)
    assert not outbox.homeless, "it was sent here since, and this task has it"
    outbox.give_back(0, HERE.ipc)
    outbox.give_back(7, HERE.ipc)
    assert outbox.homeless
    assert not outbox.unsent()
    outbox.look_again(only(HERE), sent_before=0.0)
    assert [sending.payload for sending in outbox.unsent()] == ["a"]
    assert not outbox.homeless


def test_feeds_of_this_machine_take_turns() -> None:
    feeds = [ELSEWHERE, HERE, ALSO_HERE]
    assert [choose(feeds, "boot-1", turn) for turn in range(3)] == [HERE, ALSO_HERE, HERE]


def test_without_one_here_all_that_can_be_reached_take_turns() -> None:
    feeds = [HERE, HIDDEN, ELSEWHERE]
    assert [choose(feeds, "boot-9", turn) for turn in range(3)] == [HERE, ELSEWHERE, HERE]
    assert choose([HIDDEN], "boot-9", 0) is None
    assert choose([HIDDEN], "", 0) is None, "a machine without a name is no machine in common"
    assert choose([], "boot-1", 0) is None


def filled(*payloads: str, window: int = 4) -> SendWindow:
    outbox = SendWindow(window)
    for payload in payloads:
        outbox.put(payload)
    return outbox


def test_no_more_than_the_window_waits_for_acks() -> None:
    outbox = filled("a", "b", window=2)
    assert outbox.full
    assert outbox.acked(0)
    assert not outbox.full
    assert outbox.next_sequence == 2
    outbox.put("c")
    assert [sending.payload for sending in outbox.unsent()] == ["b", "c"]
    assert not outbox.acked(0), "an ack that came twice is no news"
    assert outbox.acked(2) and outbox.acked(1)
    assert outbox.empty


def send_all(outbox: SendWindow, feed: FeedAddress, at: float) -> None:
    for sending in outbox.unsent():
        sending.target, sending.at = feed.ipc, at


def only(feed: FeedAddress) -> Callable[[str, int], bool]:
    """Only this feed receives batches."""
    return lambda ipc, sequence: ipc == feed.ipc


def test_batches_for_a_lost_task_are_resent() -> None:
    outbox = filled("a")
    send_all(outbox, HERE, at=1.0)
    outbox.put("b")
    send_all(outbox, ELSEWHERE, at=1.0)
    outbox.look_again(only(ELSEWHERE), sent_before=0.0)
    assert [sending.payload for sending in outbox.unsent()] == ["a"]


def test_an_overdue_batch_is_resent() -> None:
    outbox = filled("a")
    send_all(outbox, HERE, at=1.0)
    outbox.put("b")
    send_all(outbox, HERE, at=5.0)
    outbox.look_again(only(HERE), sent_before=3.0)
    assert [sending.payload for sending in outbox.unsent()] == ["a"]


def test_silence_counts_from_when_it_was_sent() -> None:
    outbox = filled("a")
    assert not outbox.silent(before=100.0), "it has not been sent"
    send_all(outbox, HERE, at=5.0)
    assert not outbox.silent(before=5.0)
    assert outbox.silent(before=5.1)
