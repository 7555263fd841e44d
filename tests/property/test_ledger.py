"""Random trees of chunks with messages in any order: a root completes with its last message and not before."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millrace.control.ledger import Ledger
from support.ack_trees import Tree, deliver, forests, messages, xor


@given(forests(), st.randoms(use_true_random=False))
def test_a_root_is_complete_with_its_last_message_and_not_before(forest: list[Tree], order: Random) -> None:
    ledger = Ledger()
    left = Counter({tree.root: len(tree.acks) + 1 for tree in forest})
    for tree, ack in messages(forest, order):
        left[tree.root] -= 1
        assert deliver(ledger, tree, ack) == (left[tree.root] == 0)
    assert len(ledger) == 0


@given(forests(), st.randoms(use_true_random=False))
def test_acks_may_be_summed_up_on_the_way(forest: list[Tree], order: Random) -> None:
    ledger = Ledger()
    completed = []
    for tree in forest:
        order.shuffle(tree.acks)
        cut = order.randint(0, len(tree.acks))
        for ack in order.sample([None, xor(tree.acks[:cut]), xor(tree.acks[cut:])], 3):
            if deliver(ledger, tree, ack):
                completed.append(tree.root)
    assert completed == [tree.root for tree in forest]


@given(forests(), st.randoms(use_true_random=False))
def test_a_failed_root_is_reported_once_and_never_completes(forest: list[Tree], order: Random) -> None:
    ledger = Ledger()
    doomed = {tree.root for tree in forest if tree.acks and order.random() < 0.5}
    deliveries = [(tree, ack, False) for tree, ack in messages(forest, order)]
    for tree in forest:
        if tree.root in doomed:  # one chunk fails: a failure replaces its ack, at any time
            gone = next(i for i, (of, ack, _) in enumerate(deliveries) if of is tree and ack is not None)
            deliveries[gone] = (tree, None, True)
    order.shuffle(deliveries)
    completed, failed = [], []
    for tree, ack, fails in deliveries:
        if fails:
            if ledger.fail(tree.root) is not None:
                failed.append(tree.root)
        elif ack is None:
            verdict = ledger.open(tree.root, tree.opened, tree.owner)
            if verdict is not None:
                (completed if verdict else failed).append(tree.root)
        elif ledger.ack(tree.root, ack) is not None:
            completed.append(tree.root)
    assert sorted(failed) == sorted(doomed)
    assert sorted(completed) == sorted({tree.root for tree in forest} - doomed)


@given(forests(), st.randoms(use_true_random=False))
def test_ageing_forgets_nothing_that_is_on_the_move(forest: list[Tree], order: Random) -> None:
    ledger = Ledger()
    touched = {tree.root for tree in forest}
    completed = []
    for tree, ack in messages(forest, order):
        if deliver(ledger, tree, ack):
            completed.append(tree.root)
        touched.discard(tree.root)
        if not touched:  # a message of every root since the last time
            ledger.age()
            touched = {other.root for other in forest} - set(completed)
    assert sorted(completed) == sorted(tree.root for tree in forest)


@given(forests(), st.randoms(use_true_random=False))
def test_two_rounds_without_a_message_leave_nothing_behind(forest: list[Tree], order: Random) -> None:
    ledger = Ledger()
    for tree, ack in messages(forest, order)[1:]:
        deliver(ledger, tree, ack)
    ledger.age()
    ledger.age()
    assert len(ledger) == 0
