"""Pieces, manifests and names: each is read back intact or refused, and garbage collection removes nothing still needed."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import CorruptCheckpoint
from millrace.state.checkpoint import (
    OWN,
    Manifest,
    PieceRef,
    TaskRecord,
    blob_name,
    garbage,
    manifest_name,
    manifest_names,
    pack,
    read_piece,
    task_prefix,
    topology_prefix,
)

CONTENTS = st.dictionaries(st.integers(OWN, 15), st.tuples(st.booleans(), st.binary(max_size=40)), max_size=8)
ANY_NAME = st.text(st.characters(codec=None, exclude_categories=()), min_size=1, max_size=60)
REFS = st.builds(PieceRef, st.text(max_size=5), st.integers(0, 2**40), st.integers(0, 2**33), st.integers(0, 2**32 - 1),
                 st.just(True))
RECORDS = st.builds(TaskRecord, st.just("count"), st.just(0), st.dictionaries(st.integers(0, 7), st.lists(REFS, min_size=1)),
                    st.none() | REFS, st.none() | st.integers(0, 2**63 - 1))
SMALL = Manifest("t", 3, 1, 8, {"count": 2}, [TaskRecord("count", 0, {1: [PieceRef("b", 0, 4, 77, True)]}, None, 5)], 2.5)


@given(CONTENTS)
def test_every_piece_comes_back(contents: dict[int, tuple[bool, bytes]]) -> None:
    parts, refs = pack(contents, "blob")
    blob = b"".join(parts)
    assert {group: (ref.whole, read_piece(ref, blob)) for group, ref in refs.items()} == contents
    for ref in refs.values():
        assert read_piece(ref, blob[ref.offset :], ref.offset) == contents_of(blob, ref)


def contents_of(blob: bytes, ref: PieceRef) -> bytes:
    return blob[ref.offset : ref.offset + ref.length]


@given(st.binary(min_size=1, max_size=60), st.data())
def test_a_changed_or_shortened_piece_is_refused(content: bytes, data: st.DataObject) -> None:
    _, refs = pack({0: (True, content)}, "blob")
    where, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    changed = bytearray(content)
    changed[where] ^= 1 << bit
    for wrong in (bytes(changed), content[:where]):
        with pytest.raises(CorruptCheckpoint):
            read_piece(refs[0], wrong)


@given(RECORDS, st.text(min_size=1), st.integers(0, 2**63 - 1), st.floats(0, 1e12))
def test_a_manifest_comes_back(record: TaskRecord, topology: str, wave: int, at: float) -> None:
    manifest = Manifest(topology, wave, 1, 8, {"count": 1}, [record], at)
    assert Manifest.decode(manifest.encode()) == manifest


def test_a_manifest_changed_in_any_bit_is_refused() -> None:
    encoded = SMALL.encode()
    for where in range(len(encoded)):
        for bit in range(8):
            changed = bytearray(encoded)
            changed[where] ^= 1 << bit
            with pytest.raises(CorruptCheckpoint):
                Manifest.decode(bytes(changed))


def test_a_manifest_cut_off_anywhere_is_refused() -> None:
    encoded = SMALL.encode()
    for end in range(len(encoded)):
        for wrong in (encoded[:end], encoded[:end] + bytes(len(encoded) - end), encoded + encoded[:1]):
            if wrong != encoded:
                with pytest.raises(CorruptCheckpoint):
                    Manifest.decode(wrong)


@given(st.binary(max_size=200))
def test_no_other_bytes_are_a_manifest(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        Manifest.decode(data)


@given(ANY_NAME, ANY_NAME, st.lists(ANY_NAME, min_size=2, max_size=2), st.integers(0, 2**63), st.integers(0, 2**63))
def test_names_are_safe_and_all_different(first: str, second: str, components: list[str], epoch: int, wave: int) -> None:
    names = {(topology, component): blob_name(topology, component, 12, epoch, wave)
             for topology in (first, second) for component in components}
    assert len(set(names.values())) == len(names)
    for (topology, component), name in names.items():
        steps = PurePosixPath(name).parts
        assert len(steps) == 4 and name.isascii() and name.isprintable()
        assert all(len(step) <= 255 and step.strip(".") and "\\" not in step for step in steps)
        assert steps[0] == topology_prefix(topology)
        assert "/".join(steps[:3]) == task_prefix(topology, component, 12)
    assert manifest_names(names.values()) == []
    assert manifest_names([manifest_name(first, epoch, wave)]) == [manifest_name(first, epoch, wave)]


@given(st.data())
def test_garbage_is_all_that_is_not_needed_and_nothing_that_is(data: st.DataObject) -> None:
    waves = st.integers(0, 12)
    blobs = [blob_name("t", component, 0, 1, wave) for wave in range(13) for component in ("a", "b")]
    kept = [of(data.draw(st.lists(st.sampled_from(blobs), max_size=6)), wave)
            for wave in data.draw(st.sets(waves, min_size=1, max_size=3))]
    names = [*blobs, *(manifest_name("t", 1, wave) for wave in range(13)), "t/notes", blob_name("u", "a", 0, 1, 0)]
    before = data.draw(waves)
    unused = set(garbage(names, kept, before))
    needed = {manifest_name("t", 1, manifest.wave) for manifest in kept}.union(*(manifest.blobs() for manifest in kept))
    assert not unused & needed
    for wave in range(13):
        mine = {*blobs[2 * wave : 2 * wave + 2], manifest_name("t", 1, wave)}
        assert unused & mine == (mine - needed if wave <= before else set())
    assert not unused & {"t/notes", blob_name("u", "a", 0, 1, 0)}


def of(blobs: list[str], wave: int) -> Manifest:
    chains: dict[int, Any] = {group: [PieceRef(blob, 0, 1, 0, True)] for group, blob in enumerate(blobs)}
    return Manifest("t", wave, 1, 8, {"count": 1}, [TaskRecord("count", 0, chains)], 0.0)
