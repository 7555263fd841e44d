"""Random trees of chunks with messages in any order: a root completes with its last message and not before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from millrace.control.ledger import Ledger

ROOTS = 4


@dataclass
class Tree:
    """One root: the spout's message, and the ack of each task that finishes one of its chunks."""

    root: int
    owner: tuple[int, int]
    opened: int
    acks: list[int] = field(default_factory=list)


def grow(root: int, fans: list[int], ids: Random) -> Tree:
    """A tree whose n-th chunk makes `fans[n]` more; chunks beyond the list make none."""
    first = [ids.getrandbits(63) for _ in range(fans[0] if fans else 1)]
    tree = Tree(root, (root, 1), xor(first))
    waiting, fans = first, fans[1:]
    while waiting:
        chunk, waiting = waiting[0], waiting[1:]
        children = [ids.getrandbits(63) for _ in range(fans.pop(0) if fans else 0)]
        tree.acks.append(chunk ^ xor(children))
        waiting = waiting + children
    return tree


def xor(numbers: list[int]) -> int:
    total = 0
    for number in numbers:
        total ^= number
    return total


@st.composite
def forests(draw: st.DrawFn) -> list[Tree]:
    ids = draw(st.randoms(use_true_random=False))
    shapes = draw(st.lists(st.lists(st.integers(0, 4), max_size=12), min_size=1, max_size=ROOTS))
    return [grow(root, fans, Random(ids.getrandbits(64))) for root, fans in enumerate(shapes)]


def messages(forest: list[Tree], order: Random) -> list[tuple[Tree, int | None]]:
    """Return every message of every tree in random order; None is the spout's own."""
    pairs = [(tree, ack) for tree in forest for ack in [None, *tree.acks]]
    order.shuffle(pairs)
    return pairs


def deliver(ledger: Ledger, tree: Tree, ack: int | None) -> bool:
    """Return True if the ledger reports the tree as complete."""
    if ack is None:
        return ledger.open(tree.root, tree.opened, tree.owner) is True
    owner = ledger.ack(tree.root, ack)
    assert owner in (None, tree.owner)
    return owner is not None


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
