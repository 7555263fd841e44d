"""The ledger of an acker and the flight list of a spout, by examples; the property tests have the orders of events."""

from __future__ import annotations

from typing import Any

import pytest

from millrace.control.in_flight import InFlight
from millrace.control.ledger import Ledger, acker_of, make_root

ROOT, SPOUT = 77, (65536, 1)


@pytest.mark.parametrize("acker", [0, 1, 65535])
@pytest.mark.parametrize("noise", [0, 1, 2**48 - 1, 2**63 - 1])
def test_a_root_names_its_acker(acker: int, noise: int) -> None:
    assert acker_of(make_root(acker, noise)) == acker


# ---- the ledger ----


def test_a_root_is_complete_when_its_chunk_is() -> None:
    ledger = Ledger()
    assert ledger.open(ROOT, 5, SPOUT) is None
    assert ledger.ack(ROOT, 5) == SPOUT
    assert len(ledger) == 0


def test_a_chunk_that_made_others_is_not_the_end() -> None:
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    assert ledger.ack(ROOT, 5 ^ 9) is None
    assert ledger.ack(ROOT, 9) == SPOUT


def test_a_root_without_chunks_is_complete_at_once() -> None:
    assert Ledger().open(ROOT, 0, SPOUT) is True


def test_acks_may_overtake_the_spouts_message() -> None:
    ledger = Ledger()
    assert ledger.ack(ROOT, 5) is None
    assert ledger.open(ROOT, 5, SPOUT) is True


def test_acks_that_cancel_out_complete_nothing_before_the_root_is_known() -> None:
    ledger = Ledger()
    assert ledger.ack(ROOT, 5) is None
    assert ledger.ack(ROOT, 5) is None
    assert ledger.open(ROOT, 9, SPOUT) is None


def test_a_failure_is_reported_once() -> None:
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    assert ledger.fail(ROOT) == SPOUT
    assert ledger.fail(ROOT) is None


def test_acks_after_a_failure_report_nothing() -> None:
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    ledger.fail(ROOT)
    assert ledger.ack(ROOT, 5) is None


def test_a_failure_may_overtake_the_spouts_message() -> None:
    ledger = Ledger()
    assert ledger.fail(ROOT) is None
    assert ledger.open(ROOT, 5, SPOUT) is False
    assert ledger.ack(ROOT, 5) is None


def test_acks_before_an_early_failure_do_not_save_the_root() -> None:
    ledger = Ledger()
    ledger.ack(ROOT, 5)
    ledger.fail(ROOT)
    assert ledger.open(ROOT, 5, SPOUT) is False


def test_an_early_failure_is_remembered_for_a_whole_round() -> None:
    ledger = Ledger()
    ledger.fail(ROOT)
    ledger.age()
    assert ledger.open(ROOT, 5, SPOUT) is False


def test_an_early_failure_is_not_remembered_for_ever() -> None:
    ledger = Ledger()
    ledger.fail(ROOT)
    ledger.age()
    ledger.age()
    assert ledger.open(ROOT, 5, SPOUT) is None


def test_a_root_untouched_for_two_rounds_is_forgotten() -> None:
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    assert [ledger.age(), len(ledger)] == [0, 1]
    assert [ledger.age(), len(ledger)] == [1, 0]
    assert ledger.ack(ROOT, 5) is None


def test_a_root_that_is_touched_lives_on() -> None:
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    for chunk in range(100, 110):
        assert ledger.age() == 0
        assert ledger.ack(ROOT, chunk) is None
    left = 5
    for chunk in range(100, 110):
        left ^= chunk
    assert ledger.ack(ROOT, left) == SPOUT


def test_acks_for_a_root_that_never_comes_do_not_stay() -> None:
    ledger = Ledger()
    for root in range(1000):
        ledger.ack(root, 5)
    ledger.age()
    assert ledger.age() == 1000
    assert len(ledger) == 0


def test_roots_do_not_mix() -> None:
    ledger = Ledger()
    ledger.open(1, 5, (10, 1))
    ledger.open(2, 5, (20, 1))
    assert ledger.ack(2, 5) == (20, 1)
    assert ledger.fail(1) == (10, 1)


# ---- a ledger that is handed over ----


def take(ledger: Ledger, handover: tuple[list[Any], list[int]]) -> list[tuple[int, bool]]:
    """Merge another ledger's handover into this one and return the resulting verdicts."""
    sums, failed = handover
    verdicts = []
    for root, total, owner in sums:
        done = ledger.open(root, total, owner) if owner is not None else (True if ledger.ack(root, total) else None)
        if done is not None:
            verdicts.append((root, done))
    return verdicts + [(root, False) for root in failed if ledger.fail(root) is not None]


def test_an_empty_ledger_hands_over_nothing() -> None:
    assert Ledger().hand_over() == ([], [])


def test_open_roots_and_early_acks_are_handed_over_whatever_their_age() -> None:
    ledger = Ledger()
    ledger.open(1, 5, SPOUT)
    ledger.age()
    ledger.open(2, 7, SPOUT)
    ledger.ack(3, 9)
    assert sorted(ledger.hand_over()[0]) == [(1, 5, SPOUT), (2, 7, SPOUT), (3, 9, None)]


def test_finished_roots_are_not_handed_over() -> None:
    ledger = Ledger()
    ledger.open(1, 5, SPOUT)
    ledger.ack(1, 5)
    ledger.open(2, 5, SPOUT)
    ledger.fail(2)
    assert ledger.hand_over() == ([], [])


def test_early_failures_of_this_round_and_the_one_before_are_handed_over() -> None:
    ledger = Ledger()
    ledger.fail(1)
    ledger.age()
    ledger.fail(2)
    sums, failed = ledger.hand_over()
    assert (sums, sorted(failed)) == ([], [1, 2])
    new = Ledger()
    assert take(new, (sums, failed)) == []
    assert new.open(1, 5, SPOUT) is False
    assert new.open(2, 5, SPOUT) is False


def test_the_root_at_the_old_one_and_its_ack_at_the_new_one_are_put_together() -> None:
    old, new = Ledger(), Ledger()
    old.open(ROOT, 5, SPOUT)
    assert new.ack(ROOT, 5) is None
    assert take(new, old.hand_over()) == [(ROOT, True)]
    assert len(new) == 0


def test_the_ack_at_the_old_one_and_its_root_at_the_new_one_are_put_together() -> None:
    old, new = Ledger(), Ledger()
    old.ack(ROOT, 5)
    assert new.open(ROOT, 5, SPOUT) is None
    assert take(new, old.hand_over()) == [(ROOT, True)]


def test_a_failure_at_either_fails_what_is_open_at_the_other() -> None:
    old, new = Ledger(), Ledger()
    old.open(1, 5, SPOUT)
    new.fail(1)
    old.fail(2)
    new.open(2, 5, SPOUT)
    assert sorted(take(new, old.hand_over())) == [(1, False), (2, False)]


def test_a_ledger_keeps_what_it_has_handed_over() -> None:
    """The caller decides whether to use it further."""
    ledger = Ledger()
    ledger.open(ROOT, 5, SPOUT)
    assert ledger.hand_over() == ledger.hand_over()
    assert ledger.ack(ROOT, 5) == SPOUT


# ---- what a spout has in flight ----


def flight(timeout: float = 30.0) -> InFlight:
    return InFlight(timeout)


def test_tuples_are_in_flight_until_they_are_finished_or_failed() -> None:
    spout = flight()
    spout.sent(1, ["a", "b"], 2, 0.0, 0)
    spout.sent(2, ["c"], 1, 0.0, 0)
    assert spout.tuples == 3
    assert spout.finished(1, 1.0).ids == ["a", "b"]
    assert spout.failed(2, "error").ids == ["c"]
    assert (spout.tuples, spout.roots) == (0, {})


def test_a_verdict_for_an_abandoned_root_changes_nothing() -> None:
    spout = flight()
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.failed(1, "timeout")
    assert spout.finished(1, 1.0) is None
    assert spout.failed(1, "error") is None
    assert spout.tuples == 0
    assert spout.by_attempt(["a"]) == 0


@pytest.mark.parametrize(("cause", "counted"), [("error", 1), ("timeout", 0), ("lost", 0)])
def test_only_errors_in_user_code_count_as_attempts(cause: str, counted: int) -> None:
    spout = flight()
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.failed(1, cause)
    assert spout.by_attempt(["a"]) == counted


def test_a_loss_in_between_neither_counts_nor_clears_attempts() -> None:
    spout = flight()
    for root, cause in enumerate(["error", "lost", "error", "timeout", "error"]):
        spout.sent(root, ["a"], 1, 0.0, spout.by_attempt(["a"]))
        spout.failed(root, cause)
    assert spout.by_attempt(["a"]) == 3


def test_attempts_are_forgotten_when_the_tuple_is_done() -> None:
    spout = flight()
    spout.sent(1, ["a", "b"], 2, 0.0, 0)
    spout.failed(1, "error")
    spout.sent(2, ["a"], 1, 0.0, 1)
    spout.finished(2, 1.0)
    assert (spout.by_attempt(["a"]), spout.by_attempt(["b"]), spout.by_attempt(["a", "b"])) == (0, 1, 1)


def test_ids_that_cannot_be_hashed_are_counted_as_well() -> None:
    spout = flight()
    spout.sent(1, [["a", 1]], 1, 0.0, 0)
    spout.failed(1, "error")
    assert spout.by_attempt([["a", 1]]) == 1
    spout.sent(2, [["a", 1]], 1, 0.0, 1)
    spout.finished(2, 1.0)
    assert spout.by_attempt([["a", 1]]) == 0


def test_attempts_of_tuples_that_never_come_again_do_not_fill_memory() -> None:
    spout = flight()
    for root in range(150):
        spout.sent(root, [(root, n) for n in range(1000)], 1000, 0.0, 0)
        spout.failed(root, "error")
    assert len(spout.attempts) <= 100_000
    assert spout.by_attempt([(149, 999)]) == 1, "the newest are the ones that may come again"


@pytest.mark.parametrize("cause", ["timeout", "lost"])
def test_a_tuple_that_is_sent_again_keeps_its_origin(cause: str) -> None:
    spout = flight(timeout=10.0)
    spout.sent(1, ["a", ["b"]], 2, 3.0, 0)
    spout.sent(2, ["c"], 1, 2.0, 0)
    for root, at in ((1, 13.0), (2, 13.0)):
        spout.failed(root, cause, at)
    assert spout.take_origin(["new"]) == 0.0
    assert spout.take_origin([["b"], "new"]) == 3.0 and spout.take_origin([["b"]]) == 0.0, "now it is sent"
    spout.sent(3, [["b"], "new"], 2, 14.0, 0, 3.0)
    spout.failed(3, cause, 24.0)
    assert spout.take_origin(["c", ["b"]]) == 2.0, "the oldest counts"
    assert spout.take_origin(["new"]) == 3.0, "a chunk has one origin"


def test_origins_of_tuples_that_are_not_sent_again_are_forgotten() -> None:
    spout = flight(timeout=10.0)
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.sent(2, ["b"], 1, 1.0, 0)
    spout.failed(1, "timeout", 10.0)
    spout.failed(2, "timeout", 11.0)
    spout.forget_failing(20.5)
    assert list(spout.failing) == ["b"]
    for root in range(150):
        spout.sent(root, [(root, n) for n in range(1000)], 1000, 12.0, 0)
        spout.failed(root, "lost", 12.0)
    assert len(spout.failing) <= 100_000 and (149, 999) in spout.failing


def test_a_tuple_that_fails_in_user_code_is_not_replayed_because_of_a_migration() -> None:
    spout = flight()
    spout.sent(1, ["a"], 1, 1.0, 0)
    spout.failed(1, "error", 2.0)
    assert spout.take_origin(["a"]) == 0.0
    spout.sent(2, ["a"], 1, 3.0, 1, 0.5)
    spout.failed(2, "error", 4.0)
    assert spout.take_origin(["a"]) == 0.5, "unless it was before"


def test_roots_time_out_in_the_order_they_were_sent() -> None:
    spout = flight(timeout=10.0)
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.sent(2, ["b"], 1, 5.0, 0)
    assert spout.overdue(9.9) == []
    assert spout.overdue(10.0) == [(1, "timeout")]
    assert spout.overdue(15.0) == [(1, "timeout"), (2, "timeout")]


def test_a_lost_worker_dooms_what_was_in_flight_and_nothing_younger() -> None:
    spout = flight()
    spout.sent(1, ["a"], 1, 0.0, 0)
    assert spout.doom(2.0) == 1
    spout.sent(2, ["b"], 1, 1.0, 0)
    assert spout.overdue(1.9) == []
    assert spout.overdue(2.0) == [(1, "lost")]


def test_a_second_loss_does_not_put_the_first_one_off() -> None:
    spout = flight()
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.doom(2.0)
    spout.sent(2, ["b"], 1, 1.0, 0)
    spout.doom(3.0)
    assert spout.overdue(2.5) == [(1, "lost")]
    assert spout.overdue(3.0) == [(1, "lost"), (2, "lost")]


def test_a_doomed_root_that_is_old_enough_times_out_and_hides_nothing_behind_it() -> None:
    spout = flight(timeout=1.0)
    spout.sent(1, ["a"], 1, 0.0, 0)
    spout.doom(50.0)
    spout.sent(2, ["b"], 1, 0.5, 0)
    assert spout.overdue(1.0) == [(1, "timeout")]
    assert spout.overdue(1.5) == [(1, "timeout"), (2, "timeout")]


def test_a_spout_holds_back_when_its_oldest_root_is_late_and_nothing_is_done_in_time() -> None:
    spout = InFlight(timeout=10.0)
    for root in range(8):
        spout.sent(root, [root], 1, now=0.0, attempt=0)
    assert not spout.lagging(4.9)
    assert spout.lagging(5.1)
    spout.finished(7, now=5.2)
    assert spout.lagging(5.3), "it was done, but late: the bolts do not keep up"


def test_one_tuple_that_someone_keeps_does_not_stop_a_spout() -> None:
    spout = InFlight(timeout=10.0)
    spout.sent(0, ["kept"], 1, now=0.0, attempt=0)
    assert not spout.lagging(9.0), "so few cannot be what makes a bolt slow"
    for number in range(1, 100):
        spout.sent(number, [number], 1, now=number / 10, attempt=0)
        if number > 6:
            spout.finished(number - 6, now=number / 10)
    assert not spout.lagging(9.9)
