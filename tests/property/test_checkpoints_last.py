"""Waves are committed, abandoned, damaged or collected (sometimes partly): the newest intact one can be restored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millrace.errors import CheckpointMissing, CorruptCheckpoint, StoreUnreachable
from millrace.runtime.checkpoints.topology_checkpoints import KEPT, Checkpoints
from millrace.state.checkpoint import Manifest, PieceRef, TaskRecord, blob_name, manifest_name, pack
from support.examples import examples

GROUPS = 4
State = dict[int, list[int]]


class MemoryStore:
    """An in-memory store that can stop responding after a number of deletions."""

    def __init__(self) -> None:
        self.contents: dict[str, bytes] = {}
        self.deletions_left: int | None = None

    def write(self, name: str, parts: Sequence[bytes | memoryview]) -> None:
        self.contents[name] = b"".join(parts)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name not in self.contents:
            raise CheckpointMissing(name)
        return self.contents[name][offset : None if length is None else offset + length]

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.contents if name.startswith(prefix))

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            if self.deletions_left is not None:
                if self.deletions_left == 0:
                    raise StoreUnreachable("gone")
                self.deletions_left -= 1
            self.contents.pop(name, None)

    def missing(self, names: Iterable[str]) -> set[str]:
        return {name for name in names if name not in self.contents}

    def close(self) -> None: ...


class Waves(RuleBasedStateMachine):
    """One task that keeps lists of numbers by key group; a delta holds the numbers added since the last piece."""

    @initialize()
    def start(self) -> None:
        self.store = MemoryStore()
        self.checkpoints = Checkpoints(self.store, "t")
        self.wave = self.epoch = self.number = 0
        self.state: State = {}
        self.chains: dict[int, list[PieceRef]] = {}
        self.added: State = {}
        self.good: dict[int, State] = {}  # the committed waves that were neither damaged nor collected, with their states
        self.damaged: set[int] = set()
        self.manifests: dict[int, str] = {}  # wave -> the name of its manifest

    @rule(group=st.integers(0, GROUPS - 1))
    def work(self, group: int) -> None:
        self.number += 1
        self.state.setdefault(group, []).append(self.number)
        self.added.setdefault(group, []).append(self.number)

    @rule(anew=st.sets(st.integers(0, GROUPS - 1)), commit=st.booleans())
    def snapshot(self, anew: set[int], commit: bool) -> None:
        """Run a wave: changed groups write a delta or a whole piece, and the wave is committed or abandoned."""
        self.wave += 1
        blob = blob_name("t", "count", 0, self.epoch, self.wave)
        pieces = {}
        for group, numbers in self.added.items():
            whole = group in anew or group not in self.chains
            pieces[group] = whole, msgspec.msgpack.encode(self.state[group] if whole else numbers)
        parts, refs = pack(pieces, blob)
        for group, ref in refs.items():
            self.chains[group] = [ref] if ref.whole else [*self.chains[group], ref]
        self.added = {}
        self.checkpoints.save(blob, parts)
        if commit:
            record = TaskRecord("count", 0, dict(self.chains))
            self.checkpoints.commit(Manifest("t", self.wave, self.epoch, GROUPS, {"count": 1}, [record], 0.0))
            self.manifests[self.wave] = manifest_name("t", self.epoch, self.wave)
            self.good[self.wave] = {group: list(numbers) for group, numbers in self.state.items()}

    @rule(deletions=st.none() | st.integers(0, 6), keep=st.sampled_from([1, KEPT]))
    def collect(self, deletions: int | None, keep: int) -> None:
        self.store.deletions_left = deletions
        kept = sorted(self.good)[-keep:]
        try:
            self.checkpoints.collect(keep)
        except StoreUnreachable:
            assert deletions is not None
        self.store.deletions_left = None
        left = {wave for wave, name in self.manifests.items() if name in self.store.contents}
        assert left >= set(kept)
        self.good = {wave: state for wave, state in self.good.items() if wave in left}
        self.damaged &= left

    @rule()
    def damage_the_newest(self) -> None:
        if self.good:
            wave = max(self.good)
            name = self.manifests[wave]
            self.store.contents[name] = self.store.contents[name][:-1]
            del self.good[wave]
            self.damaged.add(wave)

    @rule()
    def start_anew(self) -> None:
        """A new epoch continues from the newest intact wave. Wave numbers are never reused."""
        if self.damaged and not self.good:
            return
        self.epoch += 1
        self.added = {}
        manifest = self.checkpoints.latest()
        self.chains = manifest.chains("count") if manifest else {}
        self.state = {group: list(numbers) for group, numbers in self.good[manifest.wave].items()} if manifest else {}

    def applied(self, chain: list[PieceRef]) -> list[int]:
        return [number for piece in self.checkpoints.read_chain(chain) for number in msgspec.msgpack.decode(piece)]

    @invariant()
    def the_newest_good_one_can_be_restored(self) -> None:
        if self.damaged and not self.good:
            with pytest.raises(CorruptCheckpoint):
                self.checkpoints.latest()
            return
        manifest = self.checkpoints.latest()
        assert (manifest.wave if manifest else None) == max(self.good, default=None)
        if manifest is not None:
            assert {group: self.applied(chain) for group, chain in manifest.chains("count").items()} == self.good[manifest.wave]


TestWaves = Waves.TestCase
TestWaves.settings = settings(max_examples=examples(60), stateful_step_count=25)
