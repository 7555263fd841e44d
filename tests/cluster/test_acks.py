"""At-least-once: acks and fails of spouts, anchors, explicit acks, batches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.api.grouping import Grouping
from millrace.api.topology import Topology
from millrace.testing.local_cluster import LocalCluster
from support.cluster.ack_parts import AcksTwice, Anchored, ByHand, FailsItself, Pairs, Unanchored
from support.cluster.cluster_runs import drain, meter, run_through
from support.cluster.plain_parts import Counting, Never, Pass, Reliable, Sink, WithoutIds
from support.cluster.records import EVENTS, SEEN
from support.cluster.refusing_parts import Picky
from support.cluster.timed_parts import Sums, TicklessSums

TICKS = "topology.tick.tuple.freq.secs"
TIMEOUT = "topology.message.timeout.secs"
N = 200


def ids(what: str) -> list[Any]:
    return sorted(entry[1] for entry in EVENTS if entry[0] == what)


# ---- acks and fails of spouts ----


class Plain(Topology):
    counting = Counting.spec()
    through = Picky.spec(inputs=[counting], par=2)
    sink = Sink.spec(inputs={through: Grouping.fields("n")}, par=2)


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_spout_gets_one_ack_for_a_finished_tuple(workers: int) -> None:
    run_through(Plain, workers, limit=N)
    assert Counter(EVENTS) == Counter(("ack", f"#{n}") for n in range(N))
    assert sorted(SEEN["sink"]) == list(range(N))


def test_a_spout_gets_one_fail_and_no_ack_for_a_failed_tuple() -> None:
    run_through(Plain, limit=N, poison=[7], **{"topology.chunk.tuples": 1})
    assert Counter(EVENTS) == Counter([*(("ack", f"#{n}") for n in range(N) if n != 7), ("error", "#7")])


def test_neighbours_in_the_chunk_of_a_failed_tuple_fail_with_it() -> None:
    run_through(Plain, limit=N, poison=[7])
    assert ("error", "#7") in EVENTS
    assert {what for what, _ in EVENTS} <= {"ack", "error"}
    assert sorted(Counter(tup_id for _, tup_id in EVENTS).items()) == sorted((f"#{n}", 1) for n in range(N))


def test_at_most_once_acks_a_plain_spout_when_a_tuple_is_sent() -> None:
    """Storm does the same without ackers: a source that waits for acks continues."""
    run_through(Plain, limit=N, poison=[7], **{"topology.guarantee": "at-most-once"})
    assert Counter(EVENTS) == Counter(("ack", f"#{n}") for n in range(N))


def test_no_ackers_means_at_most_once() -> None:
    cluster = run_through(Plain, limit=N, poison=[7], **{"topology.acker.executors": 0})
    assert Counter(EVENTS) == Counter(("ack", f"#{n}") for n in range(N))
    assert "plain: drained" in cluster.said


class SomeIds(Topology):
    counting = WithoutIds.spec()
    sink = Picky.spec(inputs=[counting])


def test_a_tuple_without_an_id_is_not_tracked() -> None:
    run_through(SomeIds, limit=N)
    assert Counter(EVENTS) == Counter(("ack", n) for n in range(0, N, 2))


class Replayed(Topology):
    reliable = Reliable.spec()
    through = Picky.spec(inputs=[reliable], par=2)
    sink = Sink.spec(inputs=[through], par=2)


def test_a_reliable_spout_sends_again_until_it_is_done() -> None:
    cluster = run_through(Replayed, seconds=2.0, limit=N, poison=[7, 99], refusals=2)
    assert set(SEEN["sink"]) == set(range(N))
    assert Counter(ids("ack")) == Counter(range(N)), "each is done once"
    assert ids("error").count(7) == ids("error").count(99) == 2
    assert "replayed: drained" in cluster.said


def test_a_timeout_is_reported_as_such() -> None:
    class Stuck(Topology):
        counting = Counting.spec()
        never = Never.spec(inputs=[counting])

    run_through(Stuck, seconds=3.0, limit=5, **{TIMEOUT: 1.0})
    assert Counter(EVENTS) == Counter(("timeout", f"#{n}") for n in range(5))
    assert sorted(SEEN["never"]) == list(range(5))


def test_timeouts_do_not_use_up_a_tuples_attempts() -> None:
    class Stuck(Topology):
        reliable = Reliable.spec()
        never = Never.spec(inputs=[reliable])

    cluster = LocalCluster(2)
    cluster.submit(Stuck, config={"limit": 3, TIMEOUT: 0.5})
    cluster.run(6.0)
    assert all(ids("timeout").count(n) > 5 for n in range(3)), "still sent again, beyond max_fails"
    assert ids("ack") == ids("error") == []


# ---- anchors ----


class Anchors(Topology):
    reliable = Reliable.spec()
    anchored = Anchored.spec(inputs=[reliable])
    picky = Picky.spec(inputs=[anchored])
    sink = Sink.spec(inputs=[picky])


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("how", ["default", "tuple", "id"])
def test_descendants_of_an_anchored_tuple_are_replayed_with_it(how: str, workers: int) -> None:
    run_through(Anchors, workers, seconds=2.0, limit=N, poison=[5], refusals=1, anchors=how)
    assert set(SEEN["sink"]) == set(range(N))
    assert ids("error").count(5) == 1


@pytest.mark.parametrize("how", ["none", "unanchored"])
def test_unanchored_tuples_are_not_replayed(how: str) -> None:
    class Loose(Topology):
        reliable = Reliable.spec()
        anchored = (Anchored if how == "none" else Unanchored).spec(inputs=[reliable])
        picky = Picky.spec(inputs=[anchored])
        sink = Sink.spec(inputs=[picky])
        letters = Sink.spec(inputs=[picky.dead_letters])

    run_through(Loose, seconds=2.0, limit=N, poison=[5], anchors=how)
    assert ids("error") == []
    assert Counter(ids("ack")) == Counter(range(N))
    assert sorted(SEEN["sink"]) == [n for n in range(N) if n != 5]
    assert [values for _, _, _, values, _ in SEEN["letters"]] == [[5]], "nothing would send it again"


class Joined(Topology):
    one = Reliable.spec()
    two = Reliable.spec()
    pairs = Pairs.spec(inputs=[one, two])
    picky = Picky.spec(inputs=[pairs])


def test_a_tuple_with_two_anchors_fails_both() -> None:
    run_through(Joined, seconds=2.0, limit=1, poison=[0], refusals=1)
    assert Counter(EVENTS) == Counter({("error", 0): 2, ("ack", 0): 2})


# ---- explicit acks ----


class Manual(Topology):
    reliable = Reliable.spec()
    by_hand = ByHand.spec(inputs=[reliable], par=2, config={TICKS: 0.1})
    sink = Sink.spec(inputs=[by_hand])


@pytest.mark.parametrize("by_id", [False, True], ids=["by tuple", "by id"])
def test_explicit_acks_come_when_the_bolt_acks(by_id: bool) -> None:
    cluster = LocalCluster(2)
    cluster.submit(Manual, config={"limit": N, "by_id": by_id, TIMEOUT: 5.0})
    cluster.run_until(lambda: sum(len(task.component.waiting) for task in cluster.tasks("by_hand")) > N // 2)
    assert len(ids("ack")) < N // 2
    cluster.run(1.0)
    drain(cluster, "manual")
    assert Counter(EVENTS) == Counter(("ack", n) for n in range(N))
    assert sorted(SEEN["sink"]) == list(range(N))


@pytest.mark.parametrize("by_id", [False, True], ids=["by tuple", "by id"])
def test_an_explicitly_failed_tuple_is_replayed(by_id: bool) -> None:
    run_through(Manual, seconds=2.0, limit=N, by_id=by_id, poison=[3], refusals=2, **{TIMEOUT: 5.0})
    assert set(SEEN["sink"]) == set(range(N))
    assert Counter(ids("ack")) == Counter(range(N))
    assert ids("error").count(3) == 2


@pytest.mark.parametrize("by_id", [False, True], ids=["by tuple", "by id"])
def test_a_tuple_failed_explicitly_too_often_is_a_dead_letter(by_id: bool) -> None:
    class WithLetters(Topology):
        reliable = Reliable.spec()
        by_hand = ByHand.spec(inputs=[reliable], config={TICKS: 0.1})
        sink = Sink.spec(inputs=[by_hand])
        letters = Sink.spec(inputs=[by_hand.dead_letters])

    run_through(WithLetters, seconds=2.0, limit=N, by_id=by_id, poison=[3], refusals=100, **{TIMEOUT: 5.0})
    assert set(SEEN["sink"]) == set(range(N)) - {3}
    assert SEEN["letters"] == [("by_hand", 0, "default", [3], "failed by the bolt")]
    assert Counter(ids("ack")) == Counter(range(N))


def test_explicit_acks_besides_the_engines_are_allowed() -> None:
    class Twice(Topology):
        reliable = Reliable.spec()
        twice = AcksTwice.spec(inputs=[reliable])

    run_through(Twice, seconds=3.0, limit=N, **{TIMEOUT: 1.0})
    assert Counter(EVENTS) == Counter(("ack", n) for n in range(N))
    assert sorted(SEEN["twice"]) == list(range(N))


def test_fail_counts_in_a_bolt_that_is_acked_by_the_engine() -> None:
    class Fails(Topology):
        reliable = Reliable.spec()
        fails = FailsItself.spec(inputs=[reliable])

    run_through(Fails, seconds=2.0, limit=N, poison=[5], refusals=2)
    assert set(SEEN["fails"]) == set(range(N))
    assert ids("error").count(5) == 2
    assert Counter(ids("ack")) == Counter(range(N))


def test_a_bolt_that_never_acks_does_not_fill_memory() -> None:
    class Stuck(Topology):
        counting = Counting.spec()
        never = Never.spec(inputs=[counting])

    cluster = LocalCluster(1)
    cluster.submit(Stuck, config={"limit": 1000, TIMEOUT: 0.5, "topology.chunk.tuples": 10})
    cluster.run(1.0)
    assert cluster.tasks("never")[0].acks.unacked
    cluster.run(2.0)
    assert not cluster.tasks("never")[0].acks.unacked


# ---- batches ----


class Batched(Topology):
    reliable = Reliable.spec()
    sums = Sums.spec(inputs=[reliable], config={TICKS: 0.1})
    sink = Sink.spec(inputs=[sums])


def test_a_batch_is_acked_when_it_has_run() -> None:
    cluster = LocalCluster(2)
    cluster.submit(Batched, config={"limit": N, TIMEOUT: 5.0})
    cluster.run_until(lambda: meter(cluster, "sums", "executed") == N)
    assert EVENTS == [], "all of them wait for the batch"
    cluster.run(1.0)
    assert sorted(EVENTS[:2]) == [("batch", 0, N // 2), ("batch", 1, N // 2)]
    assert Counter(EVENTS[2:]) == Counter(("ack", n) for n in range(N))
    assert sorted(SEEN["sink"]) == [(0, sum(range(0, N, 2))), (1, sum(range(1, N, 2)))]


def test_output_of_a_batch_is_anchored_to_all_its_tuples() -> None:
    class Refusing(Topology):
        reliable = Reliable.spec()
        sums = Sums.spec(inputs=[reliable], config={TICKS: 0.1})
        picky = Picky.spec(inputs=[sums])

    run_through(Refusing, seconds=2.0, limit=10, **{TIMEOUT: 5.0})
    assert Counter(ids("error")) == Counter({n: 3 for n in range(10)}), "Picky knows no field n: it fails every total"
    assert Counter(ids("ack")) == Counter(range(10)), "at last they are dead letters, and done"


def test_a_batch_that_raises_fails_as_a_whole_and_the_others_run() -> None:
    run_through(Batched, seconds=3.0, limit=10, poison=[4], refusals=1, **{TIMEOUT: 5.0, "topology.chunk.tuples": 1})
    assert Counter(ids("error")) == Counter(range(0, 10, 2))
    assert Counter(ids("ack")) == Counter(range(10))
    assert sorted(SEEN["sink"]) == [(0, 20), (1, 25)]


def test_a_batch_without_ticks_runs_by_time() -> None:
    class Tickless(Topology):
        reliable = Reliable.spec()
        sums = TicklessSums.spec(inputs=[reliable])
        through = Pass.spec(name="unread", inputs=[reliable])
        sink = Sink.spec(inputs=[sums])

    run_through(Tickless, limit=N, **{TIMEOUT: 5.0})
    assert sum(total for _, total in SEEN["sink"]) == sum(range(N))
    assert sum(entry[1] for entry in EVENTS if entry[0] == "batch") == N
    assert Counter(ids("ack")) == Counter(range(N))
