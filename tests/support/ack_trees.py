"""Random trees of chunks, and their messages to a ledger of acks."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

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
