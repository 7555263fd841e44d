"""Fetching a blob when fragments are missing or bad."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, product
from random import Random

import pytest

from millrace.errors import NotEnoughFragments
from millrace.runtime.fragments.messages import PART_BYTES
from millrace.state.fragments import Fragment, cut
from support.suites.held_fragments import fetched

BLOB = "words/count/3/1-17"
DATA = Random(1).randbytes(1_003)
Change = Callable[[Fragment], Fragment]
SHAPES = [(2, 1), (4, 2), (5, 3), (7, 3)]


def held(fragments: list[Fragment], *without: int) -> dict[int, Fragment]:
    return {fragment.index: fragment for fragment in fragments if fragment.index not in without}


def corrupt(fragment: Fragment) -> Fragment:
    payload = bytearray(fragment.payload)
    payload[len(payload) // 2] ^= 0x40
    return replace(fragment, payload=bytes(payload))


def truncated(fragment: Fragment) -> Fragment:
    return replace(fragment, payload=bytes(fragment.payload)[:-1])


def emptied(fragment: Fragment) -> Fragment:
    return replace(fragment, payload=b"")


def longer(fragment: Fragment) -> Fragment:
    return replace(fragment, payload=bytes(fragment.payload) + b"!")


def stale(fragment: Fragment) -> Fragment:
    return cut(BLOB, DATA[::-1], fragment.r, fragment.c)[fragment.index]


def shorter_version(fragment: Fragment) -> Fragment:
    return cut(BLOB, DATA[:-100], fragment.r, fragment.c)[fragment.index]


def duplicated(fragment: Fragment) -> Fragment:
    """Make a holder return the next fragment, which another holder has too."""
    return cut(BLOB, DATA, fragment.r, fragment.c)[(fragment.index + 1) % (fragment.r + fragment.c)]


def renamed(fragment: Fragment) -> Fragment:
    """Return the next fragment under this one's number: the CRC is right and the fragment is wrong."""
    return replace(duplicated(fragment), index=fragment.index)


def of_another_blob(fragment: Fragment) -> Fragment:
    return replace(fragment, blob="words/count/3/1-16")


def of_another_shape(fragment: Fragment) -> Fragment:
    return cut(BLOB, DATA, fragment.r, fragment.c - 1)[min(fragment.index, fragment.r + fragment.c - 2)]


BAD = [corrupt, truncated, emptied, longer, stale, shorter_version, duplicated, of_another_blob, of_another_shape]


@pytest.mark.parametrize("r, c", SHAPES)
def test_every_loss_pattern(r: int, c: int) -> None:
    """Every combination of missing fragments: r or more give the blob, fewer an error."""
    fragments = cut(BLOB, DATA, r, c)
    for present in product([True, False], repeat=r + c):
        lost = [index for index in range(r + c) if not present[index]]
        if len(lost) <= c:
            assert fetched(held(fragments, *lost), r, c, BLOB) == DATA
            continue
        with pytest.raises(NotEnoughFragments) as caught:
            fetched(held(fragments, *lost), r, c, BLOB)
        named = {index for index in range(r + c) if f"{index}: no longer held" in str(caught.value)}
        assert named <= set(lost) and len(named) == c + 1, "it ends as soon as there is no hope"


@pytest.mark.parametrize("length", [0, 1, 5])
def test_every_loss_of_a_tiny_blob(length: int) -> None:
    fragments = cut(BLOB, DATA[:length], 4, 2)
    for lost in combinations(range(6), 2):
        assert fetched(held(fragments, *lost), 4, 2, BLOB) == DATA[:length]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("r, c", SHAPES)
def test_every_pattern_of_bad_fragments(r: int, c: int, bad: Change) -> None:
    """The blob is restored despite any c bad fragments. With c + 1 bad ones, an error is raised, or an older version is
    restored if r of its fragments remain."""
    fragments = cut(BLOB, DATA, r, c)
    older = {stale: DATA[::-1], shorter_version: DATA[:-100]}.get(bad) if c + 1 >= r else None
    for count in range(c + 1):
        for came in with_some(fragments, bad, count):
            assert fetched(came, r, c, BLOB) == DATA
    for came in with_some(fragments, bad, c + 1):
        if older is not None:
            assert fetched(came, r, c, BLOB) == older
            continue
        with pytest.raises(NotEnoughFragments):
            fetched(came, r, c, BLOB)


@pytest.mark.parametrize("r, c", SHAPES)
def test_wrong_fragments_with_a_valid_crc(r: int, c: int) -> None:
    """Fetching tries combinations: it detects one wrong fragment if r + 1 good ones exist. With more wrong ones it may fail,
    but never returns other data."""
    fragments = cut(BLOB, DATA, r, c)
    for count in range(1, c + 2):
        for came in with_some(fragments, renamed, count):
            try:
                assert fetched(came, r, c, BLOB) == DATA
            except NotEnoughFragments:
                assert count > 1 or c < 2


def with_some(fragments: list[Fragment], bad: Change, count: int) -> Iterator[dict[int, Fragment]]:
    """Yield every way to replace this many fragments."""
    replaced = {fragment.index: bad(fragment) for fragment in fragments}
    for chosen in combinations(replaced, count):
        yield {**held(fragments), **{index: replaced[index] for index in chosen}}


def test_bad_in_different_ways() -> None:
    fragments = cut(BLOB, DATA, 5, 3)
    for ways in product([corrupt, truncated, stale, duplicated], repeat=3):
        for chosen in ((0, 1, 2), (0, 4, 7), (5, 6, 7), (2, 3, 5)):
            came = held(fragments)
            came |= {index: way(fragments[index]) for index, way in zip(chosen, ways, strict=True)}
            assert fetched(came, 5, 3, BLOB) == DATA
            came.pop(next(index for index in range(8) if index not in chosen))
            with pytest.raises(NotEnoughFragments):
                fetched(came, 5, 3, BLOB)


def test_the_fault_of_each_fragment_is_reported() -> None:
    fragments = cut(BLOB, DATA, 4, 2)
    bad = {0: corrupt(fragments[0]), 1: truncated(fragments[1]), 2: duplicated(fragments[2])}
    for came, silent, message in (
            ({**bad, 3: fragments[3]}, frozenset[int](), ["0: corrupt", "1: a part of it has 250 bytes instead of 251",
             f"2: its holder has fragment 3 of 4 + 2 of {BLOB} instead", "4: has not arrived yet"]),
            ({3: fragments[3]}, frozenset([0]), ["0: its holder does not answer", "1: no longer held"])):
        with pytest.raises(NotEnoughFragments) as caught:
            fetched(came, 4, 2, BLOB, silent)
        for part in (BLOB, "any 4 of 6 are needed, received none", *message, "Read it from the checkpoint store"):
            assert part in str(caught.value)


def test_old_and_new_with_too_few_of_each() -> None:
    old, new = cut(BLOB, DATA[::-1], 3, 2), cut(BLOB, DATA, 3, 2)
    assert fetched({**held(old), 2: new[2], 3: new[3], 4: new[4]}, 3, 2, BLOB) == DATA
    assert fetched({**held(old), 3: new[3], 4: new[4]}, 3, 2, BLOB) == DATA[::-1]
    with pytest.raises(NotEnoughFragments, match=r"received \[0, 1, 3, 4\]"):
        fetched({0: old[0], 1: old[1], 3: new[3], 4: new[4]}, 3, 2, BLOB)


def test_good_fragments_are_used_after_bad_ones_that_agree() -> None:
    """r fragments share an identity but do not form a blob; r fragments of the real blob must still restore it."""
    never = [replace(fragment, whole_crc=fragment.whole_crc ^ 1) for fragment in cut(BLOB, DATA, 2, 2)]
    true = cut(BLOB, DATA, 2, 2)
    for good in combinations(range(4), 2):
        assert fetched({index: true[index] if index in good else never[index] for index in range(4)}, 2, 2, BLOB) == DATA
    with pytest.raises(NotEnoughFragments, match="each intact, but together not the blob"):
        fetched(held(never), 2, 2, BLOB)


def test_several_parts() -> None:
    data = Random(2).randbytes(4 * PART_BYTES + 77)
    fragments = cut(BLOB, data, 2, 1)
    for lost in range(3):
        assert fetched(held(fragments, lost), 2, 1, BLOB) == data
    cut_off = replace(fragments[0], payload=bytes(fragments[0].payload)[:PART_BYTES])  # at the end of a part
    assert fetched({**held(fragments), 0: cut_off}, 2, 1, BLOB) == data
