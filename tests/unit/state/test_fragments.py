"""Fragments put together, and the tree that holds them. Fetching is tested in tests/unit/runtime/fragments/test_fetching.py."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from millrace.errors import BadParameter
from millrace.state.fragments import Assembly, BlobIdentity, FragmentTree, cut

BLOB = "words/count/3/1-17"
DATA = Random(1).randbytes(10_007)


def test_fragments_are_assembled():
    fragments = cut(BLOB, DATA, 4, 2)
    assert [fragment.index for fragment in fragments] == [0, 1, 2, 3, 4, 5]
    for chosen in ([0, 1, 2, 3], [2, 3, 4, 5], [5, 3, 1, 0]):
        assembly = Assembly(fragments[0].identity)
        for index in chosen:
            assembly.block(index)[:] = fragments[index].payload
        assert assembly.build({index: fragments[index].crc for index in chosen}) == DATA


def test_an_assembly_continues_when_its_blocks_do_not_match():
    """One block is intact but belongs to another blob; with one more block the assembly finds the right subset."""
    fragments = cut(BLOB, DATA, 3, 2)
    stray = cut(BLOB, DATA[::-1], 3, 2)[2]
    assembly = Assembly(fragments[0].identity)
    crcs = {}
    for fragment in (fragments[0], stray, fragments[3]):
        assembly.block(fragment.index)[:] = fragment.payload
        crcs[fragment.index] = fragment.crc
    assert assembly.build(crcs) is None
    assembly.block(1)[:] = fragments[1].payload
    assert assembly.build({**crcs, 1: fragments[1].crc}) == DATA
    assert assembly.build({0: crcs[0]}) is None


def test_an_impossible_assembly_is_refused():
    with pytest.raises(BadParameter, match="cannot be reassembled"):
        Assembly(BlobIdentity(BLOB, 0, 0, 10, 0))


def filled() -> FragmentTree:
    tree = FragmentTree(1000)
    for blob in ("t/a/0/1-1", "t/a/0/1-2", "t/a/1/1-2", "t/b/0/1-2", "u/a/0/1-1"):
        for fragment in cut(blob, bytes(20), 2, 1)[:2]:
            assert tree.put(fragment)
    return tree


def blobs(tree: FragmentTree, prefix: str = "") -> list[str]:
    return [held.blob for held in tree.listing(prefix)]


def test_the_tree_gives_what_was_put():
    tree = filled()
    fragment = tree.get("t/a/0/1-2", 1)
    assert fragment is not None and fragment.index == 1
    assert tree.get("t/a/0/1-2", 2) is None and tree.get("t/a/7/1-2", 1) is None and tree.get("t", 0) is None
    assert tree.bytes == 100
    assert tree.listing("t/a/0") == [("t/a/0/1-1", [0, 1], 20), ("t/a/0/1-2", [0, 1], 20)]


def test_the_tree_forgets_by_name_and_by_prefix():
    tree = filled()
    assert tree.forget("t/a/0/1-1", "t/b", "nothing/of/this") == 2
    assert blobs(tree) == ["t/a/0/1-2", "t/a/1/1-2", "u/a/0/1-1"] and tree.bytes == 60
    assert tree.forget("t") == 2 and tree.forget("t") == 0
    assert tree.forget("") == 1 and tree.bytes == 0 and blobs(tree) == []


def test_a_part_of_a_name_is_no_prefix():
    tree = filled()
    assert tree.forget("t/a/0/1") == 0
    assert blobs(tree, "t/a/0/1-") == []


def test_the_tree_keeps_only_what_a_task_needs():
    tree = filled()
    assert tree.keep_only("t/a/0", ["t/a/0/1-2"]) == 1
    assert blobs(tree, "t/a") == ["t/a/0/1-2", "t/a/1/1-2"]
    assert tree.keep_only("t/a/1", []) == 1
    assert blobs(tree, "t") == ["t/a/0/1-2", "t/b/0/1-2"]


def test_the_tree_keeps_a_blob_as_long_as_any_task_needs_it():
    tree = filled()
    tree.keep_only("t/a/0", ["t/a/0/1-1", "t/a/0/1-2"])
    tree.keep_only("t/a/1", ["t/a/1/1-2", "t/a/0/1-1"])
    assert tree.keep_only("t/a/0", ["t/a/0/1-2"]) == 0
    assert "t/a/0/1-1" in blobs(tree, "t/a")
    assert tree.keep_only("t/a/1", ["t/a/1/1-2"]) == 1
    assert blobs(tree, "t/a") == ["t/a/0/1-2", "t/a/1/1-2"]
    tree.keep_only("t/a/1", ["t/a/0/1-2"])
    tree.forget("t")
    tree.put(cut("t/a/0/1-2", b"again", 1, 0)[0])
    assert tree.keep_only("t/a/0", []) == 1


def test_the_tree_takes_no_more_than_its_limit():
    tree = FragmentTree(25)
    small, large = cut(BLOB, bytes(40), 2, 0), cut(BLOB, bytes(52), 2, 0)
    assert tree.put(small[0]) and not tree.put(small[1])
    assert not tree.put(large[0])
    assert tree.put(replace(small[0], crc=0)) and tree.bytes == 20
    tree.forget(BLOB)
    assert tree.put(small[1])


@pytest.mark.parametrize("name", ["", "t", "t/a/0", "t/a/0/1-2/3"])
def test_the_tree_refuses_what_is_no_name_of_a_blob(name):
    with pytest.raises(BadParameter, match="not the name of a blob"):
        FragmentTree(100).put(cut(name, b"abc", 1, 0)[0])
