"""Under any loss or damage a blob is restored intact or reported as an error. Holders are as far apart as possible."""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import NotEnoughFragments
from millrace.state.checksum import appended
from millrace.state.fragments import Fragment, FragmentTree, cut
from millrace.state.holders import holders, shape
from support.suites.held_fragments import fetched

BLOB = "t/c/0/1-1"
shapes = st.tuples(st.integers(1, 8), st.integers(0, 4))


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_sums_are_put_together(first, second):
    assert appended(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@given(st.binary(max_size=300), shapes, st.data())
def test_any_r_fragments_give_the_blob(blob, shape, data):
    r, c = shape
    kept = data.draw(st.permutations(range(r + c)))[:r]
    fragments = cut(BLOB, blob, r, c)
    assert fetched({index: fragments[index] for index in kept}, r, c, BLOB) == blob
    with pytest.raises(NotEnoughFragments):
        fetched({index: fragments[index] for index in kept[1:]}, r, c, BLOB)


def damaged(fragment: Fragment, how: str, at: int) -> Fragment:
    payload = bytearray(fragment.payload)
    if how == "flip":
        payload[at % len(payload)] ^= 1 + at % 255
        return replace(fragment, payload=bytes(payload))
    if how == "shorten":
        return replace(fragment, payload=bytes(payload[:-1]))
    if how == "swap":  # another fragment's place, with a CRC that fits
        return replace(fragment, index=(fragment.index + 1) % (fragment.r + fragment.c))
    return replace(fragment, **{how: getattr(fragment, how) + 1})


@given(st.binary(min_size=1, max_size=100), shapes, st.data())
def test_damage_is_never_passed_on(blob, shape, data):
    r, c = shape
    hows = data.draw(st.lists(st.sampled_from(["", "flip", "shorten", "swap", "length", "whole_crc", "crc", "index"]),
                              min_size=r + c, max_size=r + c))
    at = data.draw(st.integers(0, 10_000))
    fragments = cut(BLOB, blob, r, c)
    came = {index: damaged(fragments[index], how, at) if how else fragments[index] for index, how in enumerate(hows)}
    try:
        assert fetched(came, r, c, BLOB) == blob
    except NotEnoughFragments:
        assert hows.count("") < r


@given(st.binary(min_size=1, max_size=60), st.integers(1, 4), st.integers(1, 3), st.lists(st.integers(0, 6)))
def test_old_and_new_are_never_mixed(blob, r, c, old):
    new = cut(BLOB, blob, r, c)
    before = cut(BLOB, blob[::-1] + b"!", r, c)
    picked = {index: before[index] if index in old else new[index] for index in range(r + c)}
    count = len(set(old) & set(range(r + c)))
    try:
        assert fetched(picked, r, c, BLOB) in (blob, blob[::-1] + b"!")
    except NotEnoughFragments:
        assert count < r and r + c - count < r


operations = st.lists(st.tuples(st.sampled_from(["put", "forget", "keep"]), st.sampled_from(["t", "u"]),
                                st.sampled_from(["a", "b"]), st.integers(0, 1), st.integers(1, 3), st.integers(0, 2)))


@given(operations, st.integers(0, 60))
def test_the_tree_is_a_map_with_a_limit(steps, limit):
    tree = FragmentTree(limit)
    model: dict[tuple[str, int], Fragment] = {}
    for what, topology, component, task, wave, index in steps:
        prefix = f"{topology}/{component}/{task}"
        blob = f"{prefix}/1-{wave}"
        if what == "put":
            fragment = cut(blob, bytes(3 * wave + 5 * index), 1, 2)[index]
            size = sum(len(held.payload) for key, held in model.items() if key != (blob, index)) + len(fragment.payload)
            assert tree.put(fragment) == (size <= limit)
            if size <= limit:
                model[blob, index] = fragment
        elif what == "forget":
            tree.forget(prefix if index else topology)
            below = f"{prefix}/" if index else f"{topology}/"
            model = {key: held for key, held in model.items() if not key[0].startswith(below)}
        else:
            tree.keep_only(prefix, [blob])
            model = {key: held for key, held in model.items() if not key[0].startswith(prefix + "/") or key[0] == blob}
        assert tree.bytes == sum(len(held.payload) for held in model.values())
        assert {(held.blob, index) for held in tree.listing() for index in held.indexes} == set(model)
        assert all(tree.get(*key) is held for key, held in model.items())


clusters = st.dictionaries(st.integers(0, 12), st.sampled_from("abcd"), min_size=1)


@given(clusters, st.lists(st.integers(0, 12)), st.lists(st.integers(0, 12)), st.integers(0, 12), st.integers(0, 12))
def test_blocks_are_as_far_apart_as_can_be(node_of, upstream, layer, task_slot, blocks):
    chosen = holders(task_slot, upstream, layer, node_of, blocks)
    others = [slot for slot in node_of if slot != task_slot] or list(node_of)
    assert len(chosen) == blocks and set(chosen) <= set(others)
    assert len({node_of[slot] for slot in chosen}) == min(blocks, len({node_of[slot] for slot in others}))
    per_worker = [Counter(chosen)[slot] for slot in others]
    assert max(per_worker) - min(per_worker) <= 1
    near = [slot for slot in upstream if slot in others]
    if near and blocks:
        assert chosen[0] == near[0]
    assert chosen == holders(task_slot, upstream, layer, node_of, blocks)


@given(st.integers(0, 200))
def test_the_shape_uses_each_other_worker_once(workers):
    r, c = shape(workers)
    assert r + c == min(10, max(0, workers - 1))
    assert (r, c) <= (7, 3) and c <= 3


@given(st.dictionaries(st.integers(0, 14), st.sampled_from("abcdef"), max_size=12), st.integers(0, 14),
       st.lists(st.integers(0, 14), max_size=6), st.lists(st.integers(0, 14), max_size=6, unique=True), st.integers(0, 10))
def test_each_block_goes_to_the_worker_and_node_with_the_fewest(node_of, task, upstream, layer, blocks):
    ring = layer[layer.index(task) + 1:] + layer[:layer.index(task) + 1] if task in layer else layer
    alive = [slot for slot in dict.fromkeys([*upstream, *ring, *sorted(node_of)]) if slot in node_of]
    candidates = [slot for slot in alive if slot != task] or alive
    chosen: list[int] = []
    for _ in range(blocks if candidates else 0):
        nodes = [node_of[slot] for slot in chosen]
        chosen.append(min(candidates, key=lambda slot: (chosen.count(slot), nodes.count(node_of[slot]))))
    assert holders(task, upstream, layer, node_of, blocks) == chosen
