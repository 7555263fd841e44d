"""`--resume older` goes back to the run that a fresh one began to replace, and to no other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millrace.errors import TopologyError
from millrace.testing.local_cluster import MemoryStore
from support.cluster import wave_parts as parts
from support.cluster.wave_runs import assert_exact, finish, start, until_wave


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    parts.forget()
    with pytest.MonkeyPatch.context() as patch:  # the spout's clock is its own again afterwards
        patch.setattr(parts.Numbers, "clock", parts.Numbers.clock)
        yield


@pytest.mark.parametrize("replaced", [False, True], ids=["the only run", "a fresh run that has committed"])
def test_without_a_run_to_go_back_to_it_is_refused(replaced: bool) -> None:
    store = MemoryStore()
    if replaced:
        until_wave(start(store=store), 3)
        parts.forget()
    until_wave(start(store=store, resume=False if replaced else None), 1)
    before = dict(store.blobs)
    with pytest.raises(TopologyError, match=r"'exact' has no older run to go back to: .* up to wave \d.*--resume \("):
        start(store=store, resume="older")
    assert store.blobs == before
    finish(start(store=store, resume=True))
    assert_exact()


def test_a_first_run_that_committed_nothing_is_no_older_run() -> None:
    store = MemoryStore()
    hasty = start(store=store)
    hasty.run(0.02)
    hasty.kill(1)
    hasty.run_until(lambda: any(name.endswith(".manifest") for name in store.names("exact/")))
    with pytest.raises(TopologyError, match="'exact' has no older run to go back to"):
        start(store=store, resume="older")
