"""Erasure-coded blocks: encoding and recovery."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from millrace.errors import BadParameter
from millrace.state.erasure import STRIPE, Code


def noise(length: int) -> bytes:
    return Random(length).randbytes(length)


def test_the_raw_blocks_are_the_data_and_zeros():
    blocks = Code(3, 2).encode(b"abcdefgh")
    assert [bytes(block) for block in blocks[:3]] == [b"abc", b"def", b"gh\0"]
    assert len(blocks) == 5 and all(len(block) == 3 for block in blocks)


@pytest.mark.parametrize("r, c", [(2, 1), (4, 2), (5, 3), (7, 3), (8, 8), (1, 3), (3, 1)])
def test_every_loss_of_up_to_c_blocks_is_made_good(r, c):
    """All patterns there are; 39,203 of them with 8 + 8."""
    data = noise(503)
    code, blocks = Code(r, c), Code(r, c).encode(data)
    for count in range(c + 1):
        for lost in combinations(range(r + c), count):
            assert code.decode({index: block for index, block in enumerate(blocks) if index not in lost}, len(data)) == data


@pytest.mark.parametrize("length", [0, 1, 6, 7, 8, STRIPE - 1, STRIPE + 1, 3 * STRIPE + 5])
@pytest.mark.parametrize("r, c", [(7, 3), (7, 0), (1, 2), (1, 0), (2, 1)])
def test_any_length_comes_back(length, r, c):
    data = noise(length)
    blocks = dict(enumerate(Code(r, c).encode(data)))
    for lost in range(min(c, r)):
        del blocks[lost]
    assert Code(r, c).decode(blocks, length) == data


def test_a_copy_is_what_each_block_of_one_raw_block_is():
    assert [bytes(block) for block in Code(1, 2).encode(b"state")] == [b"state"] * 3


def test_data_may_be_any_kind_of_bytes():
    data = noise(1000)
    for kind in (bytes, bytearray, memoryview):
        blocks = Code(2, 1).encode(kind(data))
        assert Code(2, 1).decode({1: bytes(blocks[1]), 2: bytearray(blocks[2])}, 1000) == data


@pytest.mark.parametrize("r, c", [(0, 3), (-1, 1), (3, -1), (30, 3)])
def test_an_invalid_shape_is_refused(r, c):
    with pytest.raises(BadParameter, match="at least 1 raw"):
        Code(r, c)


def test_too_few_blocks_are_refused():
    blocks = Code(3, 2).encode(b"abcdefgh")
    with pytest.raises(BadParameter, match="needs 3 blocks"):
        Code(3, 2).decode({1: blocks[1], 4: blocks[4]}, 8)


def test_blocks_of_different_sizes_are_refused():
    blocks = Code(3, 2).encode(b"abcdefgh")
    with pytest.raises(BadParameter, match="of one size"):
        Code(3, 2).decode({1: blocks[1], 2: blocks[2][:2], 4: blocks[4]}, 8)
