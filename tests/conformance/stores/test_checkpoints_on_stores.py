"""A topology's checkpoints on every store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from millrace.errors import CheckpointMissing, CorruptCheckpoint, NotTheAuthor
from millrace.runtime.checkpoints import topology_checkpoints
from millrace.runtime.checkpoints.store import CheckpointStore
from millrace.runtime.checkpoints.topology_checkpoints import Checkpoints
from millrace.state.checkpoint import Manifest, blob_name, manifest_name
from support.processes.children import killed_after
from support.suites.saved_waves import Open, commit_waves, save_wave


def change(store: CheckpointStore, name: str, to: Callable[[bytes], bytes]) -> None:
    store.write(name, [to(store.read(name))])


class TestCheckpoints:
    @pytest.fixture
    def checkpoints(self, store: CheckpointStore) -> Checkpoints:
        return Checkpoints(store, "t")

    def test_none_at_first(self, checkpoints: Checkpoints) -> None:
        assert checkpoints.latest() is None
        assert checkpoints.collect() == 0
        save_wave(checkpoints, 1)
        assert checkpoints.latest() is None
        assert checkpoints.collect() == 0  # the wave may be in progress

    def test_the_newest_is_found(self, checkpoints: Checkpoints, open_another: Open) -> None:
        manifests = commit_waves(checkpoints, 2, 9, 10)
        save_wave(checkpoints, 11)
        assert Checkpoints(open_another(), "t").latest() == manifests[-1]
        assert Checkpoints(open_another(), "u").latest() is None

    def test_a_checkpoint_is_read_by_its_numbers(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        older, _ = commit_waves(checkpoints, 1, 2)
        assert checkpoints.manifest(1, 1) == older
        with pytest.raises(CheckpointMissing):
            checkpoints.manifest(2, 1)
        change(store, manifest_name("t", 1, 1), lambda data: data[:-1])
        with pytest.raises(CorruptCheckpoint):
            checkpoints.manifest(1, 1)

    def test_numbers_continue_after_all_existing_ones(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        assert checkpoints.newest() == (0, 0)
        commit_waves(checkpoints, 1, 2)
        assert checkpoints.newest() == (1, 2)
        save_wave(checkpoints, 7)  # abandoned
        store.write(manifest_name("t", 4, 3), [b"damaged"])
        assert checkpoints.newest() == (4, 7)
        assert Checkpoints(store, "u").newest() == (0, 0)

    def test_a_master_that_was_replaced_does_not_outrank_its_successor(self, checkpoints: Checkpoints) -> None:
        (first,) = commit_waves(checkpoints, 1)
        successors = msgspec.structs.replace(first, epoch=2, wave=2)
        checkpoints.commit(successors)
        for wave in (2, 9):  # in the previous epoch
            late = save_wave(checkpoints, wave)
            with pytest.raises(NotTheAuthor, match="has a checkpoint of epoch 2, and this is epoch 1"):
                checkpoints.commit(late)
            # The old master may have checked just before the successor started.
            checkpoints.store.write(manifest_name("t", 1, wave), [late.encode()])
        with pytest.raises(NotTheAuthor):
            checkpoints.collect(epoch=1)
        under_way = blob_name("t", "count", 0, 2, 3)
        checkpoints.save(under_way, [b"x"])
        assert checkpoints.latest() == successors
        checkpoints.collect()
        assert checkpoints.latest() == successors
        assert checkpoints.store.missing([*successors.blobs(), under_way]) == set()

    def test_no_commit_without_the_blobs(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        first = commit_waves(checkpoints, 1)[0]
        second = save_wave(checkpoints, 2, [1], first)
        store.delete(first.blobs())
        with pytest.raises(CheckpointMissing, match=r"wave 2 of 't' cannot be committed: 1 of the blobs.*t/count/0/0*1-0*1\)"):
            checkpoints.commit(second)
        assert manifest_name("t", 1, 2) in store.missing([manifest_name("t", 1, 2)])

    @pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"?"])
    def test_a_damaged_manifest_is_skipped(self, checkpoints: Checkpoints, store: CheckpointStore, damage: Any,
                                           caplog: pytest.LogCaptureFixture) -> None:
        older, _ = commit_waves(checkpoints, 1, 2)
        change(store, manifest_name("t", 1, 2), damage)
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == older
        assert "00002.manifest is skipped: a manifest" in caplog.text
        change(store, manifest_name("t", 1, 1), damage)
        with pytest.raises(CorruptCheckpoint, match="has 2 checkpoints of 't' and none can be used"):
            checkpoints.latest()

    def test_a_manifest_without_its_blobs_is_skipped(self, checkpoints: Checkpoints, store: CheckpointStore,
                                                     caplog: pytest.LogCaptureFixture) -> None:
        older, newer = commit_waves(checkpoints, 1, 2)
        store.delete(newer.blobs())
        with caplog.at_level(logging.WARNING):
            assert checkpoints.latest() == older
        assert "1 of its blobs are not in the store" in caplog.text

    def test_a_manifest_under_a_wrong_name_is_skipped(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        (older,) = commit_waves(checkpoints, 1)
        store.write(manifest_name("t", 1, 5), [store.read(manifest_name("t", 1, 1))])
        assert checkpoints.latest() == older

    def test_chains_are_read_in_order(self, checkpoints: Checkpoints) -> None:
        first = save_wave(checkpoints, 1, range(6))
        second = save_wave(checkpoints, 2, [1, 4], first)
        refs = [*first.chains("count").values(), *second.chains("count").values()]
        flat = [ref for chain in refs for ref in chain]
        expected = [*(f"1:{group}" for group in range(6)), "1:0", "2:1", "1:2", "1:3", "2:4", "1:5"]
        assert checkpoints.read_chain(flat) == [text.encode() for text in expected]
        assert checkpoints.read_chain(flat[::-1]) == [text.encode() for text in expected[::-1]]
        assert checkpoints.read_chain([]) == []

    def test_neighbours_are_read_together(self, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch) -> None:
        reads: list[tuple[int, int | None]] = []
        read = checkpoints.store.read

        def noted(name: str, offset: int = 0, length: int | None = None) -> bytes:
            reads.append((offset, length))
            return read(name, offset, length)

        monkeypatch.setattr(checkpoints.store, "read", noted)
        chains = save_wave(checkpoints, 1, range(8)).chains("count")  # three bytes each
        checkpoints.read_chain([chains[group][0] for group in (7, 0, 1, 2, 5)])
        assert reads == [(0, 9), (15, 3), (21, 3)]
        reads.clear()
        monkeypatch.setattr(topology_checkpoints, "READ_LIMIT", 6)
        checkpoints.read_chain([chains[group][0] for group in range(5)])
        assert reads == [(0, 6), (6, 6), (12, 3)]

    def test_a_changed_blob_is_noticed(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        manifest = save_wave(checkpoints, 1)
        refs = [chain[0] for chain in manifest.chains("count").values()]
        (blob,) = manifest.blobs()
        content = store.read(blob)
        for where in range(len(content)):
            store.write(blob, [content[:where], bytes([content[where] ^ 1]), content[where + 1 :]])
            with pytest.raises(CorruptCheckpoint, match="its bytes have changed"):
                checkpoints.read_chain(refs)
            store.write(blob, [content[:where]])
            with pytest.raises(CorruptCheckpoint, match="is incomplete"):
                checkpoints.read_chain(refs)
        store.delete([blob])
        with pytest.raises(CheckpointMissing):
            checkpoints.read_chain(refs)

    def test_collecting_keeps_needed_blobs(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        store.write(blob_name("u", "c", 0, 1, 1), [b"another topology's"])
        first = commit_waves(checkpoints, 1)[0]
        save_wave(checkpoints, 2)  # abandoned
        third = save_wave(checkpoints, 3, [1], first)
        checkpoints.commit(third)
        fourth = save_wave(checkpoints, 4, [1], third)
        checkpoints.commit(fourth)
        save_wave(checkpoints, 5)  # in progress
        assert checkpoints.collect() == 2  # the blob of wave 2, the manifest of wave 1
        blobs = [blob_name("t", "count", 0, 1, wave) for wave in (1, 3, 4, 5)]
        assert set(store.names("t/")) == {*blobs, manifest_name("t", 1, 3), manifest_name("t", 1, 4)}
        assert checkpoints.collect(keep=1) == 2  # the manifest of wave 3, and its blob: wave 4 rewrote that group
        assert checkpoints.latest() == fourth
        refs = [chain[0] for chain in fourth.chains("count").values()]
        assert checkpoints.read_chain(refs) == [b"1:0", b"4:1", b"1:2"]
        assert store.names("u/") == [blob_name("u", "c", 0, 1, 1)]

    def test_a_damaged_checkpoint_does_not_count_as_kept(self, checkpoints: Checkpoints, store: CheckpointStore) -> None:
        first, second, _ = commit_waves(checkpoints, 1, 2, 3)
        change(store, manifest_name("t", 1, 3), lambda data: data[:-1])
        assert checkpoints.collect() == 0
        assert store.missing(first.blobs() | second.blobs()) == set()
        (fourth,) = commit_waves(checkpoints, 4)
        checkpoints.collect()
        assert set(store.names("t/")) == {*second.blobs(), *fourth.blobs(), manifest_name("t", 1, 2), manifest_name("t", 1, 4)}

    @pytest.mark.parametrize("waves", [1, 4, 9])
    def test_killed_while_it_commits_and_collects(self, open_another: Open, waves: int) -> None:
        """Kill a process that commits and collects: everything that it reported as committed is there."""
        with killed_after(waves, lambda: commit_for_ever(Checkpoints(open_another(), "t"))) as reported:
            checkpoints = Checkpoints(open_another(), "t")
            latest = checkpoints.latest()
            assert latest is not None and latest.wave >= reported >= waves
            refs = [chain[0] for chain in latest.chains("count").values()]
            assert all(content.endswith(b":%d" % group) for group, content in enumerate(checkpoints.read_chain(refs)))
            commit_waves(checkpoints, latest.wave + 1)
            checkpoints.collect(keep=1)
            assert len(checkpoints.store.names("t/")) in (2, 3)  # a wave that had only started may have left a later blob


def commit_for_ever(checkpoints: Checkpoints) -> Iterator[int]:
    before: Manifest | None = None
    wave = 0
    while True:
        wave += 1
        before = save_wave(checkpoints, wave, range(3) if before is None else [wave % 3], before)
        checkpoints.commit(before)
        yield wave
        checkpoints.collect()
